"""Integer arguments under torch.compile(dynamic=True) that are no tensor size: one program for a range of values."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from deplodock.frontend import dynamo
from deplodock.frontend.dynamo import RecompileWarning

COMPILED: list[Any] = []


@pytest.fixture(autouse=True)
def counted(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Clears Dynamo, and records each compiled program in `COMPILED`."""
    compile = dynamo.compile
    monkeypatch.setattr(dynamo, "compile", lambda *a, **k: COMPILED.append(a) or compile(*a, **k))
    torch._dynamo.reset()
    COMPILED.clear()
    with warnings.catch_warnings():
        warnings.simplefilter("error", RecompileWarning)
        yield


ONE_PROGRAM: dict[str, Callable[[Tensor, int], Any]] = {
    "value": lambda x, n: x * n + 1,
    "size": lambda x, n: torch.zeros(n) + x.sum(),
    "positions": lambda x, n: torch.arange(n, n + 1) + x[0, 0],
    "bound of a mask": lambda x, n: torch.where(torch.arange(x.shape[1]) < n, x, 0.0),
    "result": lambda x, n: (x + n, n * 2 + 1),
    "remainder": lambda x, n: x / n + n % 3,
    "narrow": lambda x, n: x.narrow(1, 0, n) + 1,
    "slice": lambda x, n: x[:, :n] * 2,
    "slice to the end": lambda x, n: x[:, n:].sum(1),
    "last elements": lambda x, n: x[:, -n:] * 2,
    "all but the last": lambda x, n: x[:, :-n] * 2,
    "pad": lambda x, n: F.pad(x, (0, n), value=3.0),
    "pad before": lambda x, n: F.pad(x, (n, 2), value=3.0),
    "crop": lambda x, n: F.pad(x, (0, -n)) + 1,
    "roll": lambda x, n: torch.roll(x, n) + 1,
    "roll rows": lambda x, n: torch.roll(x, n, 1) + 1,
    "groups": lambda x, n: torch.cat([x] * 3).repeat(n, 1).view(n, -1).mean(1),
    "expand": lambda x, n: x[:1].expand(n, -1) + 1,
    "steps": lambda x, n: torch.arange(0, 400, n) * x[0, 0],
    "written": lambda x, n: _written(x, n),
}


def _written(x: Tensor, n: int) -> Tensor:
    y = x.clone()
    y[:, :n] = 0
    y[:, 2 : n + 2] += 1
    return y


@pytest.mark.parametrize("name", ONE_PROGRAM)
def test_one_program_serves_all_values(name: str) -> None:
    function = ONE_PROGRAM[name]
    compiled = torch.compile(function, backend="deplodock", dynamic=True, fullgraph=True)
    for n in (3, 4, 9, 250):
        x = torch.randn(6, 16 + n)
        torch.testing.assert_close(compiled(x, n), function(x, n))
    assert len(COMPILED) == 1


def test_sizes_that_compare_otherwise_have_another_program() -> None:
    """`x[:, :n]` is all of `x` if `n` exceeds its size, which takes a second program."""
    compiled = torch.compile(lambda x, n: x[:, :n] * 2, backend="deplodock", dynamic=True)
    x = torch.randn(6, 16)
    for n in (3, 15, 4, 17, 40, 9, 23):
        torch.testing.assert_close(compiled(x, n), x[:, :n] * 2)
    assert len(COMPILED) == 2


def test_a_size_that_divides_no_more_is_refused_at_the_call() -> None:
    compiled = torch.compile(lambda x, n: x.view(n, -1).sum(1), backend="deplodock", dynamic=True)
    for n in (4, 8, 16, 32):
        torch.testing.assert_close(compiled(torch.ones(6, 16), n), torch.full((n,), 96.0 / n))
    assert len(COMPILED) == 1
    with pytest.raises(Exception, match="shape"):
        compiled(torch.ones(6, 16), 7)


@pytest.mark.parametrize("shift", [lambda x, n: torch.roll(x, n, 1), lambda x, n: x * (n - 4)])
def test_values_beyond_the_range_have_programs_of_their_own(shift: Callable[[Tensor, int], Tensor]) -> None:
    """A symbol is never negative, so a negative integer takes a separate program."""
    compiled = torch.compile(shift, backend="deplodock", dynamic=True)
    x = torch.randn(6, 16)
    for n in (5, 3, -2, 0, 5):
        torch.testing.assert_close(compiled(x, n), shift(x, n))
    assert len(COMPILED) <= 6


def test_a_growing_cache_has_one_program_for_all_steps() -> None:
    """Prefill and every step of `generate` with a DynamicCache use one program."""
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        num_key_value_heads=1,
        vocab_size=31,
        max_position_embeddings=64,
    )
    torch.manual_seed(0)
    model = transformers.LlamaForCausalLM(config).eval()
    prompt, options = torch.randint(2, 31, (1, 5)), {"max_new_tokens": 6, "do_sample": False, "pad_token_id": 0}
    expected = model.generate(prompt, **options)
    model.forward = torch.compile(model.forward, backend="deplodock", dynamic=True)
    assert torch.equal(model.generate(prompt, **options), expected)
    assert len(COMPILED) <= 3
