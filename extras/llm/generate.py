"""Generation of text with a compiled language model.

Two programs are compiled: `prefill` reads several tokens of the prompt in one step, `decode` reads one token. Both use
the same key-value caches. A generator reads the prompt, then runs one decode step for each new token.
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
    """Parameters of sampling.

    Attributes:
        temperature: divisor of the logits; 0 selects the most likely token.
        top_p: tokens are drawn from the smallest set of likely tokens with at least this total probability.
        seed: seed of the random numbers.
    """

    temperature: float = 0.0
    top_p: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        if not self.temperature >= 0 or not 0 < self.top_p <= 1:
            raise ExecutionError("the temperature has to be at least 0, and 0 < top_p <= 1", operator="generate")


Caches = tuple[list[torch.Tensor], list[torch.Tensor]]
"""Key caches and value caches, one of each for every layer."""


class Sampler:
    """Selects tokens by their logits, with its own sequence of random numbers."""

    def __init__(self, sampling: Sampling) -> None:
        self.sampling = sampling
        self.random = torch.Generator().manual_seed(sampling.seed)

    def __call__(self, logits: torch.Tensor) -> int:
        """Returns a token for logits of shape (vocabulary,)."""
        logits = logits.detach().float().cpu()
        if self.sampling.temperature == 0:
            return int(logits.numpy().argmax())  # ten times faster than argmax of PyTorch
        probabilities, tokens = (logits / self.sampling.temperature).softmax(-1).sort(descending=True)
        before = probabilities.cumsum(-1) - probabilities
        probabilities = probabilities.where(before < self.sampling.top_p, 0)
        return int(tokens[torch.multinomial(probabilities, 1, generator=self.random)])


@dataclass
class Timing:
    """Times of one generation.

    Attributes:
        prompt_tokens: number of tokens of the prompt.
        prompt_seconds: time until the first new token.
        seconds: time of each later token.
    """

    prompt_tokens: int = 0
    prompt_seconds: float = 0.0
    seconds: list[float] = field(default_factory=list[float])

    @property
    def tokens_per_second(self) -> float:
        """Rate of the tokens after the first one; 0 if there is only one."""
        return len(self.seconds) / sum(self.seconds) if self.seconds else 0.0


class Generator:
    """Compiled language model that continues prompts.

    On a CPU, the constructor moves the parameters to huge pages. On a GPU it copies them to the device.

    Attributes:
        prefill: compiled step of `length` tokens.
        decode: compiled step of one token.
        caches: shapes of the caches.
        length: number of tokens of a prefill step.
        vocabulary: number of tokens that the model knows.
        timing: times of the last generation.
        device: `cpu` or `cuda`.
    """

    def __init__(self, prefill: CompiledFunction, decode: CompiledFunction, plan: ModelPlan) -> None:
        self.prefill, self.decode = prefill, decode
        self.caches, self.length, self.vocabulary = plan.caches, plan.length, plan.vocabulary
        self.timing = Timing()
        self.device = "cpu"
        # Makes the executors now, so that their construction is not part of the timing.
        executors = {p.executor.name for p in (prefill, decode)}
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
        """Compiles a model.

        Args:
            model: causal language model.
            context: number of tokens that the caches hold, limited by the model's maximum; default: `DEFAULT_CONTEXT`.
            prefill: number of tokens of a prefill step.
            target: target, as in `deplodock.compile`.
            executor: executor, as in `deplodock.compile`.
            prepack_weights: as in `deplodock.compile`.
            weights: function that returns a captured program with values for its parameters, if the model has none.

        Raises:
            CompileError: if the model cannot be compiled.
        """
        plan = plan_model(model, context, prefill)
        steps = (weights(capture_step(model, plan.caches, n)) for n in (plan.length, 1))
        first, then = (CompiledFunction(s, target, executor, prepack_weights=prepack_weights) for s in steps)
        return Generator(first, then, plan)

    @staticmethod
    def from_checkpoint(name: str, **options: Any) -> Generator:
        """Compiles a model on the hub or in a folder.

        The model is captured without its weights. Then the weights that its programs use are read from safetensors.

        Args:
            name: name on the hub, or folder.
            options: options of `from_model`.

        Raises:
            CompileError: if the model cannot be compiled.
            WeightError: if weights are missing or have other shapes.
        """
        config = load_config(name)
        if not stored_as_used(config):
            return Generator.from_model(load_model(name), **options)
        model, checkpoint = build_model(config), open_checkpoint(name)
        names = {f"model.{n}": same for n, same in names_in_checkpoints(model).items()}
        return Generator.from_model(model, weights=lambda captured: checkpoint.bind(captured, names), **options)

    @staticmethod
    def from_artifact(artifact: Artifact) -> Generator:
        """Returns a generator for a loaded artifact. Raises ArtifactError if it contains no language model."""
        plan = ModelPlan.read(artifact.extra.get("model"))
        if plan is None or not {"prefill", "decode"} <= artifact.programs.keys():
            raise ArtifactError("is no language model with the two steps prefill and decode")
        return Generator(artifact.programs["prefill"], artifact.programs["decode"], plan)

    def refresh(self) -> None:
        """Makes the next steps pack the weights again, as `CompiledFunction.refresh`."""
        self.prefill.refresh()
        self.decode.refresh()

    def _step(
        self, program: CompiledFunction, tokens: Sequence[int], start: int, last: int, caches: Caches
    ) -> tuple[torch.Tensor, Caches]:
        """Runs one step. Returns the logits (vocabulary,) and the caches after it.

        Args:
            program: `prefill` or `decode`.
            tokens: tokens to read.
            start: position of the first token.
            last: index in `tokens` of the token whose logits are returned.
            caches: caches before the step.
        """
        args = (torch.tensor(values, device=self.device) for values in ([list(tokens)], [start], [last]))
        # Calls are then similar to earlier ones, and take the fast path without Python.
        with torch.no_grad():
            logits, keys, values = program(*args, *caches)
        return logits[0], (keys, values)

    def __call__(
        self, prompt: Sequence[int], max_new_tokens: int, sampling: Sampling | None = None, stop: Sequence[int] = ()
    ) -> Iterator[int]:
        """Yields the tokens that continue a prompt.

        Args:
            prompt: tokens of the prompt.
            max_new_tokens: largest number of new tokens.
            sampling: parameters of sampling; default: the most likely token.
            stop: tokens after which the generation ends.

        Raises:
            ExecutionError: if the prompt is empty, does not fit the caches, or has unknown tokens.
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
        """Reads the prompt in steps of `length` tokens. Returns the logits after its last token, and the caches.

        The last step is padded with zeros. Their entries in the caches are after the prompt, and later tokens overwrite
        them before attention reads them. If the caches have no room for the padding, single tokens are read instead.
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
