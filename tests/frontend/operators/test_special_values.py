"""Special values at every operand: NaN, infinities, the ends of the range, zeros of both signs, subnormal numbers.

A table of operators by the form of their operands. All operators of a form are one program, and the special values are
along a dimension: a call compares each of them, and each pair, with eager PyTorch. `--specials all` runs all forms in
f32, f16 and bf16 on the CPU and on the reference, otherwise each form runs once.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product
from math import inf, nan
from typing import Any

import pytest
import torch
from torch.nn import functional as F
from torch.utils import _pytree as pytree

import deplodock

Tensor = torch.Tensor
Operator = Callable[..., Any]

DTYPES = (torch.float32, torch.bfloat16, torch.float16)
EXECUTORS = ("cpu", "reference")


def specials(dtype: torch.dtype) -> list[float]:
    """Special values, and a few ordinary ones."""
    limits = torch.finfo(dtype)
    subnormal = limits.tiny * 2**-4
    return [nan, inf, -inf, limits.max, limits.min, limits.tiny, subnormal, -subnormal, 0.0, -0.0, 1.0, -2.5]


def grid(dtype: torch.dtype, operands: int) -> tuple[Tensor, ...]:
    """Returns operands with each combination of special values."""
    values = specials(dtype)
    if operands > 2:
        values = [v for v in values if v not in (torch.finfo(dtype).min, torch.finfo(dtype).tiny, 1.0)]
    return tuple(torch.tensor(column, dtype=dtype) for column in zip(*product(values, repeat=operands), strict=True))


def rows(dtype: torch.dtype, length: int = 7) -> Tensor:
    """Returns random rows with each pair of special values, and rows of one special value."""
    values = specials(dtype)
    generator = torch.Generator().manual_seed(length)
    found: list[Tensor] = []
    for a, b in product(values, repeat=2):
        row = torch.randn(length, generator=generator)
        row[1], row[length - 2] = a, b
        found.append(row)
    return torch.stack([*found, *(torch.full((length,), v) for v in values)]).to(dtype)


def _share(x: Tensor) -> Tensor:
    """A number from 0 to 1, the type's least ones among them."""
    return torch.nan_to_num(x, 0.5).clamp(0, 1)


UNARY: dict[str, Operator] = {
    **{name: getattr(torch, name) for name in "abs neg sign sgn signbit floor ceil trunc frac relu sigmoid".split()},
    **{name: getattr(torch, name) for name in "exp exp2 expm1 log log2 log10 log1p sqrt rsqrt reciprocal".split()},
    **{name: getattr(torch, name) for name in "sin cos tan asin acos atan sinh cosh tanh asinh acosh atanh".split()},
    **{name: getattr(torch, name) for name in "erf erfc square isnan isinf isfinite isposinf isneginf".split()},
    **{name: getattr(torch, name) for name in "nan_to_num logit round positive deg2rad".split()},
    **{name: getattr(F, name) for name in "softplus logsigmoid silu mish elu selu celu hardtanh hardswish".split()},
    **{name: getattr(F, name) for name in "hardsigmoid relu6 softsign tanhshrink hardshrink leaky_relu".split()},
    "clamp": lambda x: x.clamp(-1, 2),
    "clamp to infinities": lambda x: x.clamp(-inf, inf),
    "clamp to nan": lambda x: x.clamp(max=nan),
    "threshold": lambda x: F.threshold(x, 0.5, 7),
    "power of two": lambda x: x**2,
    "power of three": lambda x: x**3,
    "power of a half": lambda x: x**0.5,
    "power of -1": lambda x: x**-1,
    "power of 0": lambda x: x**0,
    "two to the power": lambda x: 2**x,
    "one to the power": lambda x: torch.pow(1, x),
    "bucketize": lambda x: torch.bucketize(x, torch.tensor([-inf, -1, 0, 2, inf, nan], dtype=x.dtype)),
}

BINARY: dict[str, Operator] = {
    **{name: getattr(torch, name) for name in "maximum minimum fmax fmin atan2 hypot pow fmod remainder".split()},
    **{name: getattr(torch, name) for name in "floor_divide nextafter logaddexp logaddexp2 xlogy copysign".split()},
    **{name: getattr(torch, name) for name in "add sub mul div eq ne lt le gt ge heaviside".split()},
    **{f"{kind} division": (lambda x, y, k=kind: torch.div(x, y, rounding_mode=k)) for kind in ("floor", "trunc")},
    "isclose": lambda x, y: torch.isclose(x, y, equal_nan=True),
    "clamp": lambda x, y: x.clamp(min=y),
    "lerp": lambda x, y: torch.lerp(x, y, 0.25),
    "smooth_l1_loss": lambda x, y: F.smooth_l1_loss(x, y, reduction="none"),
    "huber_loss": lambda x, y: F.huber_loss(x, y, reduction="none"),
    "mse_loss": lambda x, y: F.mse_loss(x, y, reduction="none"),
    "l1_loss": lambda x, y: F.l1_loss(x, y, reduction="none"),
    "kl_div": lambda x, y: F.kl_div(x, y, reduction="none"),
    "kl_div of logarithms": lambda x, y: F.kl_div(x, y, reduction="none", log_target=True),
    "bce with logits": lambda x, y: F.binary_cross_entropy_with_logits(x, _share(y), reduction="none"),
    "bce": lambda x, y: F.binary_cross_entropy(_share(x), _share(y), reduction="none"),
    "soft margin": lambda x, y: F.soft_margin_loss(x, y, reduction="none"),
    "hinge": lambda x, y: F.hinge_embedding_loss(x, y, reduction="none"),
    "poisson": lambda x, y: F.poisson_nll_loss(x, y, reduction="none"),
}

TERNARY: dict[str, Operator] = {
    "where": lambda x, y, z: torch.where(x > 0, y, z),
    "clamp": torch.clamp,
    "lerp": torch.lerp,
    "addcmul": torch.addcmul,
    "addcdiv": torch.addcdiv,
    "margin": lambda x, y, z: F.margin_ranking_loss(x, y, z, reduction="none"),
}


def along(names: str) -> dict[str, Operator]:
    """Functions of torch with these names, along the last dimension."""
    return {name: lambda x, f=getattr(torch, name): f(x, -1) for name in names.split()}


ROWS: dict[str, Operator] = {
    **along("amax amin argmax argmin max min cummax cummin median nanmedian mode any all count_nonzero"),
    **along("sum nansum prod mean nanmean cumsum cumprod logsumexp logcumsumexp softmax log_softmax var std"),
    "sort": lambda x: x.sort(dim=-1, stable=True),
    "argsort": lambda x: x.argsort(dim=-1, stable=True),
    "aminmax": lambda x: torch.aminmax(x, dim=-1),
    "norm": lambda x: torch.linalg.vector_norm(x, dim=-1),
    "norm of 1": lambda x: torch.linalg.vector_norm(x, 1, dim=-1),
    "norm of infinity": lambda x: torch.linalg.vector_norm(x, inf, dim=-1),
    "norm of -infinity": lambda x: torch.linalg.vector_norm(x, -inf, dim=-1),
    "topk": lambda x: x.topk(3),
    "smallest": lambda x: x.topk(3, largest=False),
    "kthvalue": lambda x: x.kthvalue(4),
    "descending": lambda x: x.sort(dim=-1, descending=True, stable=True),
    "softmin": lambda x: F.softmin(x, -1),
    "gumbel": lambda x: F.softmax(x / 0.5, -1),
    "searchsorted": lambda x: torch.searchsorted(x.sort(-1).values, x),
    "searchsorted, right": lambda x: torch.searchsorted(x.sort(-1).values, x, right=True),
    "max_pool": lambda x: F.max_pool1d(x[:, None], 3, 2),
    "adaptive_max_pool": lambda x: F.adaptive_max_pool1d(x[:, None], 3),
    "avg_pool": lambda x: F.avg_pool1d(x[:, None], 3, 2),
    "cross_entropy": lambda x: F.cross_entropy(x, torch.arange(len(x)) % x.shape[-1], reduction="none"),
    "nll_loss": lambda x: F.nll_loss(x, torch.arange(len(x)) % x.shape[-1], reduction="none"),
    "cross_entropy, smoothed": lambda x: F.cross_entropy(
        x, torch.arange(len(x)) % x.shape[-1], reduction="none", label_smoothing=0.1
    ),
    "multi_margin": lambda x: F.multi_margin_loss(x, torch.arange(len(x)) % x.shape[-1], reduction="none"),
    "normalize": lambda x: F.normalize(x, dim=-1),
    "layer_norm": lambda x: F.layer_norm(x, x.shape[-1:]),
    "rms_norm": lambda x: F.rms_norm(x, x.shape[-1:]),
    "glu": lambda x: F.glu(x[:, :6], -1),
}


def _ordinary(x: Tensor) -> Tensor:
    """Ordinary rows of the shape of `x`."""
    return torch.randn(x.shape, generator=torch.Generator().manual_seed(5)).to(x.dtype)


def attention(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)


PAIRS: dict[str, Operator] = {
    "matmul": lambda x, y: x[:, None] @ y[:, :, None],
    "linear": lambda x, y: F.linear(x[:, None], y[:1]),
    "cosine_similarity": lambda x, y: F.cosine_similarity(x, y, -1),
    "pairwise_distance": lambda x, y: F.pairwise_distance(x, y),
    "cross_entropy of shares": lambda x, y: F.cross_entropy(x, y.softmax(-1), reduction="none"),
    "cross_entropy, special shares": lambda x, y: F.cross_entropy(y, x, reduction="none"),
    "layer_norm, weight": lambda x, y: F.layer_norm(y[:, None], y.shape[-1:], x[3], x[5]),
    "rms_norm, weight": lambda x, y: F.rms_norm(y, y.shape[-1:], x[3]),
    "batch_norm": lambda x, y: F.batch_norm(y, x[0].abs(), x[1].abs(), x[2], x[4]),
    "group_norm": lambda x, y: F.group_norm(torch.stack([x, y], 1), 1),
    "attention, query": lambda x, y: attention(x[:, None], y[None, :5], y[None, :5], None),
    "attention, key": lambda x, y: attention(y[:, None], torch.stack([x, y], 1), torch.stack([y, y], 1), None),
    "attention, value": lambda x, y: attention(y[:, None], torch.stack([y, y], 1), torch.stack([x, y], 1), None),
    "attention, hidden keys": lambda x, y: attention(
        y[:, None], torch.stack([x, y, x], 1), torch.stack([y, x, y], 1), (y[:, :3] > 0)[:, None]
    ),
    "attention, mask": lambda x, y: attention(y[:, None], y[None, :7], y[None, :7], x[:, None]),
    "eager attention": lambda x, y: (y[:, None] @ y[:7].t() * 0.3 + x[:, None]).softmax(-1) @ y[:7],
    "where and softmax": lambda x, y: torch.where(y > 0, y, x).softmax(-1),
}

FORMS: dict[str, dict[str, Operator]] = {
    "unary": UNARY,
    "binary": BINARY,
    "ternary": TERNARY,
    "rows": ROWS,
    "pairs": PAIRS,
}


def arguments(form: str, dtype: torch.dtype) -> tuple[Tensor, ...]:
    if form == "rows":
        return (rows(dtype),)
    if form == "pairs":
        x = rows(dtype)
        return x, _ordinary(x)
    return grid(dtype, {"unary": 1, "binary": 2, "ternary": 3}[form])


def _near_the_end(*operands: Tensor) -> Tensor:
    """Returns true for each row with a finite element near the end of the range."""
    limit = torch.finfo(operands[0].dtype).max / 64
    return torch.stack([((x.abs() > limit) & x.isfinite()).reshape(len(x), -1).any(-1) for x in operands]).any(0)


SUMS = "sum nansum mean nanmean cumsum cumprod var std norm normalize layer_norm rms_norm group_norm".split()
PRODUCTS = [
    "matmul",
    "linear",
    "cosine_similarity",
    "pairwise_distance",
    *(f"attention, {x}" for x in ("query", "key", "value", "hidden keys")),
]
LEFT_OUT: dict[str, Callable[..., Tensor]] = {
    # Another order of the terms is beyond the range elsewhere. Of variances and their like see docs/coverage.md.
    **{
        name: _near_the_end
        for name in (*SUMS, *PRODUCTS, "cross_entropy of shares", "cross_entropy, special shares", "layer_norm, weight")
    },
    # The vectors of PyTorch's kernels for the CPU: NaN for quotients beyond the range, its scalars and CUDA: 0.
    **{name: lambda x, y: (x / y).isinf() & x.isfinite() for name in ("fmod", "remainder")},
    # Multiplied and added at once in vectors of the CPU and on CUDA, one after the other in its scalars.
    "addcmul": lambda x, y, z: (y * z).isinf() & y.isfinite() & z.isfinite(),
    # PyTorch's exporter takes it apart by itself, by a decomposition that keeps the NaN which its kernels leave out.
    "multi_margin": lambda x: ~x.isfinite().all(-1) | _near_the_end(x),
    # A product of another order may be 0 before it meets the infinity.
    "prod": lambda x: _near_the_end(x) | (x.isinf().any(-1) & (x.abs() < 1e-3).any(-1)),
    # A square root, which is NaN, in f32 and on CUDA.
    "power of a half": lambda x: (x == -inf) & (x.dtype == torch.float16),
}
"""Operands for which PyTorch's kernels contradict each other."""

VALUES_ONLY = "topk smallest kthvalue median nanmedian mode".split()
"""Operators that may take any of several equal elements."""

NOT_LOW = ("multi_margin",)
"""Operators of which PyTorch's CPU has no kernel for f16 and bf16."""


def differences(found: Tensor, expected: Tensor) -> Tensor:
    """Returns true for each element that differs by more than rounding."""
    if not expected.is_floating_point():
        return found != expected
    bits = {torch.float32: 2e-5, torch.bfloat16: 2e-2, torch.float16: 4e-3}[expected.dtype]
    return ~torch.isclose(found.double(), expected.double(), rtol=bits, atol=bits, equal_nan=True)


def check(form: str, dtype: torch.dtype, executor: str, names: Sequence[str] | None = None) -> list[str]:
    """Compares all operators of a form with eager PyTorch; returns a line for each that differs."""
    low = dtype != torch.float32
    table = {n: f for n, f in FORMS[form].items() if (names is None or n in names) and not (low and n in NOT_LOW)}

    def program(*args: Tensor) -> Any:
        return [f(*args) for f in table.values()]

    args = arguments(form, dtype)
    target = "cpu" if executor == "cpu" else "sm_90a"
    compiled = deplodock.compile(program, args, target=target, executor=executor)
    lines: list[str] = []
    for name, got, want in zip(table, compiled(*args), program(*args), strict=True):
        left_out = LEFT_OUT[name](*args) if name in LEFT_OUT else torch.zeros(len(args[0]), dtype=torch.bool)
        pairs = list(zip(pytree.tree_leaves(got), pytree.tree_leaves(want), strict=True))
        for number, (a, b) in enumerate(pairs[:1] if name in VALUES_ONLY else pairs):
            wrong = differences(a, b)
            wrong[left_out] = False
            if wrong.any():
                at = tuple(int(i) for i in wrong.nonzero()[0])
                where = [x[at[: x.dim() and 1]].tolist() for x in args]
                lines.append(
                    f"{name}[{number}] at {at} of {where}: {a[at].item()}, eager {b[at].item()} ({int(wrong.sum())})"
                )
    return lines


SLICE = [
    *((form, torch.float32, "cpu") for form in ("unary", "binary", "rows", "pairs")),
    ("ternary", torch.bfloat16, "reference"),
    ("rows", torch.float16, "reference"),
]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    everything = metafunc.config.getoption("--specials") == "all"
    cases = list(product(FORMS, DTYPES, EXECUTORS)) if everything else SLICE
    if "form" in metafunc.fixturenames:
        metafunc.parametrize(("form", "dtype", "executor"), cases)


def test_a_difference_is_found() -> None:
    expected = torch.tensor([nan, inf, -inf, 1.0, 0.0])
    for found in ([0, inf, -inf, 1, 0], [nan, -inf, -inf, 1, 0], [nan, inf, -inf, nan, 0], [nan, inf, -inf, 1.1, 0]):
        assert differences(torch.tensor(found), expected).sum() == 1
    assert not differences(expected, expected).any()


def test_special_values(form: str, dtype: torch.dtype, executor: str) -> None:
    assert not check(form, dtype, executor)
