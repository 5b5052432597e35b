"""Text from a language model, token by token: the prompt in pieces, then one step for each token, with a cache.

Two programs are compiled, for pieces of the prompt and for single tokens. What one leaves in the cache the other finds
there; nothing is computed twice.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from ..errors import ExecutionError
from .capture import CapturedProgram
from .compilation import Compilation
from .executors import Executor, make_executor
from .models import CacheShape, cache_shape, capture_step, config_dtype


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
            return int(logits.argmax())
        probabilities, tokens = (logits / self.sampling.temperature).softmax(-1).sort(descending=True)
        before = probabilities.cumsum(-1) - probabilities
        probabilities = probabilities.where(before < self.sampling.top_p, 0)
        return int(tokens[torch.multinomial(probabilities, 1, generator=self.random)])


class StepProgram:
    """One captured step with everything that is needed to run it again and again."""

    def __init__(self, captured: CapturedProgram, target: str, executor: str) -> None:
        self.captured = captured
        self.compilation = Compilation(captured.module, target)
        self._wanted = executor
        self._executor: Executor | None = None

    @property
    def executor(self) -> Executor:
        """Who runs it; made at the first step."""
        if self._executor is None:
            self._executor = make_executor(self._wanted, self.compilation)
        return self._executor

    def __call__(self, tokens: Sequence[int], start: int, last: int, caches: Caches) -> tuple[torch.Tensor, Caches]:
        """The logits (V,) of one step, and the caches after it."""
        args = torch.tensor([list(tokens)]), torch.tensor([start]), torch.tensor([last]), *caches
        arguments = self.captured.bind(args)
        logits, keys, values = self.captured.restore(self.executor.run(arguments), arguments)
        return logits[0], (keys, values)


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

    `model` has real parameters. `prefill` is how many tokens of a prompt are read in one step, `context` how many
    tokens a prompt with its continuation may have. Raises CompileError where the model cannot be compiled.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        context: int | None = None,
        prefill: int = 64,
        target: str = "sm_90a",
        executor: str = "auto",
    ) -> None:
        config: Any = model.config
        self.caches: CacheShape = cache_shape(config, config_dtype_of(model), context)
        self.vocabulary = int(config.get_text_config().vocab_size)
        self.length = min(prefill, self.caches.context)
        self.prefill = StepProgram(capture_step(model, self.caches, self.length), target, executor)
        self.decode = StepProgram(capture_step(model, self.caches, 1), target, executor)
        self.timing = Timing()

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
            logits, caches = self.decode([token], position, 0, caches)
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
        logits, caches = torch.empty(0), self.caches.make()
        done = 0
        while done < len(prompt):
            piece = list(prompt[done : done + self.length])
            step, length = (self.prefill, self.length)
            if done + self.length > self.caches.context:
                piece, step, length = piece[:1], self.decode, 1
            filled = piece + [0] * (length - len(piece))
            logits, caches = step(filled, done, len(piece) - 1, caches)
            done += len(piece)
        return logits, caches


def config_dtype_of(model: nn.Module) -> torch.dtype:
    """The data type of the caches: that of the model's parameters."""
    for parameter in model.parameters():
        if parameter.is_floating_point():
            return parameter.dtype
    return config_dtype(model.config)
