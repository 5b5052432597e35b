"""Fully masked rows in softmax and attention, masked by -infinity, the least number, or another large negative one."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from support import tiny_models
from torch.nn import functional as F

import deplodock

Tensor = torch.Tensor

TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 2e-2, torch.float16: 2e-3}


def fills(dtype: torch.dtype) -> Tensor:
    """Returns the numbers by which programs mask scores."""
    least = torch.finfo(dtype).min
    return torch.tensor(
        [least, -torch.inf, least / 4, -1e4, least / 1.5, -3e30 if least < -1e30 else -3e4], dtype=dtype
    )


def scores_of(q: Tensor, k: Tensor) -> Tensor:
    return q @ k.transpose(-1, -2) * 0.35


def with_bias(q: Tensor, k: Tensor, v: Tensor, keep: Tensor, fill: Tensor) -> tuple[Tensor, ...]:
    """Adds the mask to the scores, as eager attention of transformers does."""
    bias = torch.where(keep, torch.zeros_like(fill), fill)
    scores = scores_of(q, k) + bias
    return scores.softmax(-1) @ v, F.scaled_dot_product_attention(q, k, v, attn_mask=bias)


def selected(q: Tensor, k: Tensor, v: Tensor, keep: Tensor, fill: Tensor) -> tuple[Tensor, ...]:
    """Replaces masked scores by the fill value."""
    scores = torch.where(keep, scores_of(q, k), fill)
    return scores.softmax(-1) @ v, scores.softmax(-1), scores.log_softmax(-1), scores.logsumexp(-1)


def constant(q: Tensor, k: Tensor, v: Tensor, keep: Tensor, fill: Tensor) -> tuple[Tensor, ...]:
    """Masks scores by constants of the program."""
    scores = scores_of(q, k)
    least = scores.masked_fill(~keep, torch.finfo(q.dtype).min).softmax(-1)
    return least @ v, F.scaled_dot_product_attention(q, k, v, attn_mask=keep)


def arguments(dtype: torch.dtype, keys: int = 12) -> tuple[Tensor, ...]:
    """Returns queries, keys, values, a mask that hides all keys of a row, and one fill value per batch element."""
    generator = torch.Generator().manual_seed(0)
    fill = fills(dtype)[:, None, None]
    sizes = (4, 8), (keys, 8), (keys, 8)
    q, k, v = (torch.randn(len(fill), *size, generator=generator).to(dtype) for size in sizes)
    keep = torch.ones(4, keys, dtype=torch.bool)
    keep[1] = False
    keep[2, : keys - 2] = False
    keep[3, keys // 2 :] = False
    return q, k, v, keep, fill


def compare(got: tuple[Tensor, ...], expected: tuple[Tensor, ...], dtype: torch.dtype) -> None:
    for a, b in zip(got, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype], equal_nan=True)


CASES = [
    *((function, torch.float32, "cpu") for function in (with_bias, selected, constant)),
    *((with_bias, dtype, "cpu") for dtype in (torch.bfloat16, torch.float16)),
    *((function, torch.float32, "reference") for function in (with_bias, selected, constant)),
    *((selected, dtype, "reference") for dtype in (torch.bfloat16, torch.float16)),
    (constant, torch.float16, "reference"),
]


@pytest.mark.parametrize(("function", "dtype", "executor"), CASES)
def test_masked_rows(function: Callable[..., tuple[Tensor, ...]], dtype: torch.dtype, executor: str) -> None:
    args = arguments(dtype)
    target = "cpu" if executor == "cpu" else "sm_90a"
    compiled = deplodock.compile(function, args, target=target, executor=executor)
    compare(compiled(*args), function(*args), dtype)


def attention(q: Tensor, k: Tensor, v: Tensor, keep: Tensor, fill: Tensor) -> tuple[Tensor, ...]:
    return (F.scaled_dot_product_attention(q, k, v, attn_mask=torch.where(keep, torch.zeros_like(fill), fill)),)


def rows(q: Tensor, k: Tensor, v: Tensor, keep: Tensor, fill: Tensor) -> tuple[Tensor, ...]:
    return (torch.where(keep, k[..., :4].transpose(-1, -2) * 3, fill).softmax(-1),)


@pytest.mark.parametrize("executor", ["cpu", "emulator"])
@pytest.mark.parametrize(("function", "chunk"), [(attention, "16,8,16,8,16,8"), (rows, "16,16")])
def test_masked_rows_in_chunks(function: Callable[..., tuple[Tensor, ...]], chunk: str, executor: str) -> None:
    """Fully masked chunks come before and after others."""
    args = arguments(torch.float32, 48)
    target = "cpu" if executor == "cpu" else "sm_90a"
    compiled = deplodock.compile(function, args, target=target, executor=executor, schedule=f"chunk={chunk}")
    assert f"chunk = [{chunk.replace(',', ', ')}]" in compiled.ir("tile")
    compare(compiled(*args), function(*args), torch.float32)


@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
def test_prompts_padded_on_the_left(implementation: str) -> None:
    """The first queries of a left-padded prompt attend to padding only."""
    model = tiny_models.tiny_model("llama", num_hidden_layers=1, attn_implementation=implementation).eval()
    tokens = torch.tensor([[5, 17, 42, 3, 66, 28], [0, 0, 0, 11, 9, 2]])
    mask = (tokens != 0).long()

    def logits(tokens: Tensor, mask: Tensor) -> Tensor:
        return model(input_ids=tokens, attention_mask=mask, use_cache=False).logits

    with torch.no_grad():
        expected = logits(tokens, mask)
        found = deplodock.compile(logits, (tokens, mask), target="cpu")(tokens, mask)
    assert expected.isfinite().all()
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("size", [1e4, 3e6, 2.0**27, 2.0**31, 1e37, 3.3e38])
@pytest.mark.parametrize("sign", [1, -1])
def test_large_scores_in_chunks(size: float, sign: int) -> None:
    """Large scores differ in their last bits, and the row maximum grows from chunk to chunk.

    All exponentials must be rounded by the same factor.
    """
    generator = torch.Generator().manual_seed(1)
    q, k, v = (torch.randn(1, n, 8, generator=generator) for n in (4, 48, 48))
    steps = torch.arange(48) % 5 + torch.arange(48) // 16
    bias = (torch.full((4, 48), sign * size) * (1 + sign * steps * 2.0**-23)).unsqueeze(0)

    def attended(k: Tensor, v: Tensor, bias: Tensor) -> tuple[Tensor, ...]:
        return (F.scaled_dot_product_attention(q * 0, k, v, attn_mask=bias),)

    compiled = deplodock.compile(
        attended, (k, v, bias), target="sm_90a", executor="emulator", schedule="chunk=16,8,16,8,16,8"
    )
    expected = F.scaled_dot_product_attention(*(t.double() for t in (q * 0, k, v)), attn_mask=bias.double())
    torch.testing.assert_close(compiled(k, v, bias)[0], expected.float(), rtol=3e-5, atol=3e-5)
