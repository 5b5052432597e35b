"""Text from a language model, token by token: the prompt in pieces, then one step for each token, with a cache.

Two programs are compiled, for pieces of the prompt and for single tokens. What one leaves in the cache the other finds
there; nothing is computed twice.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from ...backend.cpu.runtime import collapse_pages
from ...errors import ExecutionError
from ...frontend.api import CompiledFunction
from ...frontend.capture.captured_program import CapturedProgram
from ...frontend.executors import AUTO
from ..artifact.programs import Artifact, ArtifactError
from ..artifact.safetensors import names_in_checkpoints
from .models import DEFAULT_PREFILL, build_model, load_config, load_model, open_checkpoint, stored_as_used
from .steps import ModelPlan, capture_step, plan_model


@dataclass(frozen=True)
class Sampling:
    """How the next token is chosen: the likeliest one for a `temperature` of 0, else drawn, seeded, from the smallest
    set of tokens whose probabilities reach `top_p`."""

    temperature: float = 0.0
    top_p: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        if not self.temperature >= 0 or not 0 < self.top_p <= 1:
            raise ExecutionError("the temperature has to be at least 0, and 0 < top_p <= 1", operator="generate")


Caches = tuple[list[torch.Tensor], list[torch.Tensor]]
"""The keys and the values of all layers."""


class Sampler:
    """Chooses tokens, one after another."""

    def __init__(self, sampling: Sampling) -> None:
        self.sampling = sampling
        self.random = torch.Generator().manual_seed(sampling.seed)

    def __call__(self, logits: torch.Tensor) -> int:
        """A token for logits (V,)."""
        logits = logits.detach().float().cpu()
        if self.sampling.temperature == 0:
            return int(logits.numpy().argmax())  # ten times as fast as that of PyTorch
        probabilities, tokens = (logits / self.sampling.temperature).softmax(-1).sort(descending=True)
        before = probabilities.cumsum(-1) - probabilities
        probabilities = probabilities.where(before < self.sampling.top_p, 0)
        return int(tokens[torch.multinomial(probabilities, 1, generator=self.random)])


@dataclass
class Timing:
    """How long it took: `seconds` for the prompt and then for each token."""

    prompt_tokens: int = 0
    prompt_seconds: float = 0.0
    seconds: list[float] = field(default_factory=list[float])

    @property
    def tokens_per_second(self) -> float:
        """Tokens after the first one in a second; 0 if there was only one."""
        return len(self.seconds) / sum(self.seconds) if self.seconds else 0.0


class Generator:
    """A compiled language model that continues prompts.

    `prefill` is a step of `length` tokens, `decode` one of a single token; both work on `caches` and have real
    parameters, which lie in huge pages where cores read them.
    """

    def __init__(self, prefill: CompiledFunction, decode: CompiledFunction, plan: ModelPlan) -> None:
        self.prefill, self.decode = prefill, decode
        self.caches, self.length, self.vocabulary = plan.caches, plan.length, plan.vocabulary
        self.timing = Timing()
        self.device = "cpu"
        executors = {p.executor.name for p in (prefill, decode)}  # which are made here, not while tokens are timed
        if "cpu" in executors:
            for binding in decode.captured.bindings:
                if binding.tensor is not None:
                    collapse_pages(binding.tensor)
        if "cuda" in executors:
            self.device = "cuda"
            moved: dict[int, torch.Tensor] = {}
            for program in (prefill, decode):
                program.captured = program.captured.on(self.device, moved)

    @staticmethod
    def from_model(
        model: nn.Module,
        *,
        context: int | None = None,
        prefill: int = DEFAULT_PREFILL,
        target: str = AUTO,
        executor: str = "auto",
        prepack_weights: bool = True,
        weights: Callable[[CapturedProgram], CapturedProgram] = lambda captured: captured,
    ) -> Generator:
        """Compile a model that has its parameters, or whose programs `weights` gives them; `prepack_weights` as for
        `deplodock.compile`. Raises CompileError where it cannot be compiled."""
        plan = plan_model(model, context, prefill)
        steps = (weights(capture_step(model, plan.caches, n)) for n in (plan.length, 1))
        first, then = (CompiledFunction(s, target, executor, prepack_weights=prepack_weights) for s in steps)
        return Generator(first, then, plan)

    @staticmethod
    def from_checkpoint(name: str, **options: Any) -> Generator:
        """Compile a model on the hub or in a folder, with the `options` of `from_model`. It is compiled without its
        weights; then those that its programs use are read from safetensors, each once, a tensor with two names too.
        Raises CompileError, WeightError."""
        config = load_config(name)
        if not stored_as_used(config):
            return Generator.from_model(load_model(name), **options)
        model, checkpoint = build_model(config), open_checkpoint(name)
        names = {f"model.{n}": same for n, same in names_in_checkpoints(model).items()}
        return Generator.from_model(model, weights=lambda captured: checkpoint.bind(captured, names), **options)

    @staticmethod
    def from_artifact(artifact: Artifact) -> Generator:
        """The model that was saved. Raises ArtifactError for an artifact of something else."""
        plan = ModelPlan.read(artifact.extra.get("model"))
        if plan is None or not {"prefill", "decode"} <= artifact.programs.keys():
            raise ArtifactError("is no language model with the two steps prefill and decode")
        return Generator(artifact.programs["prefill"], artifact.programs["decode"], plan)

    def refresh(self) -> None:
        """Packs weights again in the next step, as `CompiledFunction.refresh`."""
        self.prefill.refresh()
        self.decode.refresh()

    def _step(
        self, program: CompiledFunction, tokens: Sequence[int], start: int, last: int, caches: Caches
    ) -> tuple[torch.Tensor, Caches]:
        """The logits (V,) of one step, and the caches after it."""
        args = (torch.tensor(values, device=self.device) for values in ([list(tokens)], [start], [last]))
        with torch.no_grad():  # so that calls with parameters are like earlier ones
            logits, keys, values = program(*args, *caches)
        return logits[0], (keys, values)

    def __call__(
        self, prompt: Sequence[int], max_new_tokens: int, sampling: Sampling | None = None, stop: Sequence[int] = ()
    ) -> Iterator[int]:
        """Give the tokens that follow `prompt` as they are found: at most `max_new_tokens`, ending with one in `stop`.

        Raises ExecutionError for a prompt that is empty, does not fit the cache or has unknown tokens.
        """
        self._check(prompt, max_new_tokens)
        choose = Sampler(sampling or Sampling())
        self.timing = Timing(prompt_tokens=len(prompt))
        start = time.perf_counter()
        logits, caches = self._read(prompt)
        token = choose(logits)
        self.timing.prompt_seconds = time.perf_counter() - start
        for position in range(len(prompt), len(prompt) + max_new_tokens):
            yield token
            if token in stop or position + 1 == len(prompt) + max_new_tokens:
                return
            start = time.perf_counter()
            logits, caches = self._step(self.decode, [token], position, 0, caches)
            token = choose(logits)
            self.timing.seconds.append(time.perf_counter() - start)

    def _check(self, prompt: Sequence[int], max_new_tokens: int) -> None:
        def refuse(reason: str) -> None:
            raise ExecutionError(reason, operator="generate")

        if not prompt:
            refuse("the prompt is empty")
        if max_new_tokens < 1:
            refuse("at least one token has to be asked for")
        if len(prompt) + max_new_tokens > self.caches.context + 1:
            refuse(f"{len(prompt)} + {max_new_tokens} tokens do not fit a context of {self.caches.context}")
        if not all(0 <= t < self.vocabulary for t in prompt):
            refuse(f"tokens of the prompt are outside of the {self.vocabulary} that the model knows")

    def _read(self, prompt: Sequence[int]) -> tuple[torch.Tensor, Caches]:
        """Put the prompt into new caches, piece by piece; the logits after its last token, and the caches.

        The last piece is filled up with zeros. What they leave in the cache lies behind the prompt, where later tokens
        overwrite it before they look at it; where there is no room behind it, single tokens are read.
        """
        logits, caches = torch.empty(0), self.caches.make(self.device)
        done = 0
        while done < len(prompt):
            piece = list(prompt[done : done + self.length])
            step, length = (self.prefill, self.length)
            if done + self.length > self.caches.context:
                piece, step, length = piece[:1], self.decode, 1
            filled = piece + [0] * (length - len(piece))
            logits, caches = self._step(step, filled, done, len(piece) - 1, caches)
            done += len(piece)
        return logits, caches
