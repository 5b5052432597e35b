"""Primitive operators (`torch.ops.prims`) and operators on lists of tensors (`_foreach_*`), against eager PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
import torch._inductor.inductor_prims
from conformance.levels import down_to
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils import _pytree as pytree

import deplodock
from deplodock.errors import CompileError
from deplodock.frontend.api import CompiledFunction
from deplodock.frontend.capture.decompositions.table import decomposition_table
from deplodock.frontend.capture.export import capture
from deplodock.frontend.capture.graph_capture import capture_graph
from deplodock.frontend.compilation import Compilation
from deplodock.frontend.executors import make_executor

Tensor = torch.Tensor
aten: Any = torch.ops.aten
prims: Any = torch.ops.prims

FMA = ([1 + 2**-12, 0.1, 3e38, float("inf"), 1e-30], [1 - 2**-12, 10.0, 2.0, 0.0, 1e-30], [-1.0, -1.0, -3e38, 1.0, 0.0])
"""Operands for which a product that is rounded before the sum gives another number."""


def check(function: Callable[..., Any], *args: Any) -> None:
    """The captured function returns on copies of the arguments what PyTorch returns, and changes them as it does."""
    expected, arguments = pytree.tree_map(_copied, (args, args))
    want = function(*expected)
    captured = capture(function, pytree.tree_map(_copied, args), in_memory=True)
    result = CompiledFunction(captured, "sm_90a", "reference")(*arguments)
    torch.testing.assert_close((result, arguments), (want, expected), equal_nan=True, rtol=2e-6, atol=1e-6)


def _copied(value: Any) -> Any:
    return value.clone() if isinstance(value, Tensor) else value


def rounded_once(a: Tensor, b: Tensor, c: Tensor) -> list[float]:
    """Returns `a * b + c`, computed exactly and rounded once; NaN and infinities follow IEEE arithmetic."""
    results: list[float] = []
    for x, y, z in zip(a.tolist(), b.tolist(), c.tolist(), strict=True):
        finite = all(abs(v) < float("inf") for v in (x, y, z))
        exact = Fraction(x) * Fraction(y) + Fraction(z) if finite else x * y + z
        results.append(float(_nearest(exact, a.dtype)) if finite else exact)
    return results


def _nearest(exact: Fraction, dtype: torch.dtype) -> float:
    """Returns the float nearest to a fraction."""
    kind = {torch.float32: np.float32, torch.float64: np.float64}[dtype]
    near = kind(float(exact))
    found = [near, np.nextafter(near, kind(np.inf)), np.nextafter(near, kind(-np.inf))]
    return float(min((f for f in found if np.isfinite(f)), key=lambda f: abs(Fraction(float(f)) - exact)))


@pytest.mark.parametrize("level", ["tensor", "loop", "kernel", "cuda", "cpu"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_fused_multiply_add_rounds_once(level: str, dtype: torch.dtype) -> None:
    draw = torch.Generator().manual_seed(0)
    a, b = (torch.randn(37, generator=draw, dtype=dtype) for _ in range(2))
    c = -a * b + torch.randn(37, generator=draw, dtype=dtype) * torch.finfo(dtype).eps
    a, b, c = (torch.cat([x, torch.tensor(y, dtype=dtype)]) for x, y in zip((a, b, c), FMA, strict=True))
    module = capture(lambda a, b, c: prims.fma(a, b, c), (a, b, c)).module
    (found,) = down_to(level)(module, [v.numpy() for v in (a, b, c)])
    want = torch.tensor(rounded_once(a, b, c), dtype=dtype)
    torch.testing.assert_close(torch.from_numpy(found), want, rtol=0, atol=0, equal_nan=True)


def test_fused_multiply_add_of_other_types_and_numbers() -> None:
    for dtype in (torch.bfloat16, torch.float16):  # computed in f32, where their product is exact
        half = torch.randn(5, 40).to(dtype)
        found = deplodock.compile(lambda x: prims.fma(x, x, x), (half,), executor="reference")(half)
        torch.testing.assert_close(found, (half.float() * half.float() + half.float()).to(dtype), rtol=0, atol=0)
    check(lambda y: prims.fma(y, y, y), torch.arange(4, dtype=torch.int32))
    check(lambda x: (prims.fma(x, 0.3, x[0]), prims.fma(x[:, :1], x[1], 1.0)), torch.randn(3, 4))
    check(lambda a, b, c: a.addcmul_(b, c, value=0.3), *torch.randn(3, 2, 4))


x, y = torch.randn(3, 4, generator=torch.Generator().manual_seed(1)), torch.rand(3, 4) + 0.5
n = torch.tensor([[7, -7, 5], [4, 3, -1]])
WITHOUT_DEVICE = {"device": torch.device("cpu"), "requires_grad": False}

PRIMITIVES: dict[str, Callable[..., Any]] = {
    **{
        name: lambda x, y, n, name=name: getattr(prims, name)(y)
        for name in """abs acos asin asinh atan atanh cos cosh bessel_i0 bessel_i0e bessel_i1 bessel_i1e cbrt ceil
        digamma erf erf_inv erfc erfcx exp expm1 exp2 floor isfinite lgamma log log1p log2 log10 ndtri neg
        reciprocal round sign signbit sin sinh spherical_bessel_j0 sqrt tan tanh trunc rsqrt frexp""".split()
    },
    **{
        name: lambda x, y, n, name=name: getattr(prims, name)(x, y)
        for name in """add atan2 div eq fmax fmin fmod ge gt hypot le lt maximum minimum mul ne nextafter pow remainder
        sub zeta""".split()
    },
    **{
        f"{name} of integers": lambda x, y, n, name=name: getattr(prims, name)(n, n.flip(0) % 5)
        for name in "add bitwise_and bitwise_or bitwise_xor gcd maximum mul shift_left shift_right_arithmetic".split()
    },
    "acosh": lambda x, y, n: prims.acosh(y + 1),
    "bitwise_not": lambda x, y, n: prims.bitwise_not(n),
    "div of integers": lambda x, y, n: prims.div(n, n.flip(0)),
    "convert_element_type": lambda x, y, n: prims.convert_element_type(x, torch.int32),
    "as_strided": lambda x, y, n: prims.as_strided_scatter(x, y[:2, :2].clone(), [2, 2], [5, 1], 1),
    "collapse": lambda x, y, n: prims.collapse(x, 0, 1),
    "rev": lambda x, y, n: prims.rev(x, [1]),
    "reshape": lambda x, y, n: prims.reshape(x, [2, 6]),
    "cat": lambda x, y, n: prims.cat([x, y], 0),
    "where": lambda x, y, n: prims.where(x > 0, x, y),
    "clone": lambda x, y, n: prims.clone(x),
    "fill": lambda x, y, n: prims.fill(x, 3),
    "full": lambda x, y, n: prims.full([2, 3], 1.5, dtype=torch.float32, **WITHOUT_DEVICE),
    "full_like": lambda x, y, n: prims.full_like(x, 2, dtype=torch.int64, **WITHOUT_DEVICE),
    "scalar_tensor": lambda x, y, n: prims.scalar_tensor(2.5, dtype=torch.float64, device="cpu") + x,
    "iota": lambda x, y, n: prims.iota(4, start=1, step=2, dtype=torch.int64, **WITHOUT_DEVICE),
    "iota backwards": lambda x, y, n: prims.iota(4, start=1, step=-2, dtype=torch.int32, **WITHOUT_DEVICE),
    "device_put": lambda x, y, n: prims.device_put(x, torch.device("cpu")) + 1,
    "amax": lambda x, y, n: (prims.amax(x, [0]), prims.amin(x, [0, 1])),
    "sum": lambda x, y, n: (prims.sum(x, [1]), prims.sum(n, [0])),
    "prod": lambda x, y, n: prims.prod(x, [0, 1]),
    "var": lambda x, y, n: (prims.var(x, [1], 1.0), prims.var(x, [0], 0.0)),
}


def test_primitives() -> None:
    """All primitive operators in one program."""

    def every(x: Tensor, y: Tensor, n: Tensor) -> dict[str, Any]:
        return {name: function(x, y, n) for name, function in PRIMITIVES.items()}

    check(every, x, y, n)


VIEWS: list[Callable[[Tensor], Tensor]] = [
    lambda x: prims.broadcast_in_dim(x, [2, 3, 5, 4], [1, 3]),
    lambda x: prims.collapse_view(x, 0, 1),
    lambda x: prims.split_dim(x, 1, 2),
    lambda x: prims.squeeze(x[:1, :, None], [0, 2]),
    lambda x: prims.transpose(x, [1, 0]),
    lambda x: prims.view_of(x),
]


@pytest.mark.parametrize("view", VIEWS)
def test_views_are_taken_apart(view: Callable[[Tensor], Tensor]) -> None:
    """PyTorch's decompositions make them; a call by a program PyTorch does not export."""
    graph = make_fx(lambda x: [view(x) * 2], decomposition_table=dict(decomposition_table()), tracing_mode="fake")(x)
    assert not [n for n in graph.graph.nodes if str(n.target).startswith("prims")]
    captured = capture_graph(graph)
    found = captured.restore(make_executor("reference", Compilation(captured.module)).run([x]))
    torch.testing.assert_close(found, [view(x) * 2])


def test_copies_have_the_strides_that_were_asked_for() -> None:
    def function(a: Tensor, b: Tensor) -> Tensor:
        return torch.lerp(b, a.transpose(0, 1), 0.25)

    a, b = torch.rand(4, 3, 5), torch.rand(3, 4, 5)
    for stride in ((5, 15, 1), (1, 3, 12), (20, 5, 1)):
        found = deplodock.compile(lambda b, s=stride: prims.copy_strided(b, s), (b,), executor="reference")(b)
        assert found.stride() == stride
        torch.testing.assert_close(found, b)
    found = torch.compile(function, backend="deplodock", options={"executor": "reference"})(a, b)
    torch.testing.assert_close(found, function(a, b))
    assert found.stride() == function(a, b).stride()


def test_fractions_and_powers_of_two() -> None:
    special = [0.0, -0.0, 1.0, -0.75, 8.0, float("inf"), -float("inf"), float("nan")]
    for dtype, least in (
        (torch.float32, 1e-44),
        (torch.float64, 5e-324),
        (torch.float16, 6e-8),
        (torch.bfloat16, 1e-40),
    ):
        values = torch.tensor([*special, least, 3 * least, torch.finfo(dtype).max, torch.finfo(dtype).smallest_normal])
        check(lambda x: tuple(torch.frexp(x)), torch.cat([values.to(dtype), torch.randn(20).to(dtype)]))


def test_primitives_that_draw_are_refused_by_name() -> None:
    with pytest.raises(CompileError, match=r"prims\.(normal|uniform)"):
        deplodock.compile(
            lambda x: x + prims.normal([4], mean=0.0, std=1.0, dtype=torch.float32, **WITHOUT_DEVICE), (torch.ones(4),)
        )


NUMBERS = [0.5, -2.0]


def _call(operator: Any) -> Callable[..., Any]:
    """A call of a `_foreach_` overload on lists of two tensors; of one in place, what it leaves."""
    arguments = operator._schema.arguments

    def call(a: list[Tensor], b: list[Tensor], c: list[Tensor]) -> Any:
        lists, values = iter((a, b, c)), dict[str, Any]()
        for argument in arguments:
            kind = str(argument.type)
            if kind == "List[Tensor]":
                values[argument.name] = next(lists)
            elif kind == "List[number]":
                values[argument.name] = NUMBERS
            elif kind == "Tensor":
                values[argument.name] = torch.tensor(0.7)
            elif kind == "number":
                values[argument.name] = 2.5
        changed = operator(**values)
        return a if changed is None else changed

    return call


def _foreach() -> dict[str, Any]:
    names = {n.split(".")[0] for n in map(_short, torch._C._dispatch_get_all_op_names()) if n.startswith("_foreach_")}
    operators = [getattr(getattr(aten, n), o) for n in sorted(names) for o in getattr(aten, n).overloads()]
    return {_short(str(o)): o for o in operators if not any(a.is_out for a in o._schema.arguments)}


def _short(name: str) -> str:
    return name.replace("aten::", "").replace("aten.", "")


FOREACH = _foreach()
LEFT_OUT = ("_foreach_mm", "_foreach_addcmul.Tensor", "_foreach_addcdiv.Tensor", "_foreach_addcmul_.Tensor")
LEFT_OUT = (*LEFT_OUT, "_foreach_addcdiv_.Tensor")
"""Overloads of matrices alone, and those that PyTorch does not trace: they read a tensor of numbers while tracing."""


@pytest.mark.parametrize("in_place", [False, True])
def test_lists(in_place: bool) -> None:
    """Every overload, on tensors of several shapes, in one program; in place, those with several arguments."""
    wanted = {n: o for n, o in FOREACH.items() if o._schema.is_mutable == in_place and not n.startswith(LEFT_OUT)}
    wanted = {n: o for n, o in wanted.items() if not in_place or len(o._schema.arguments) > 1}
    assert len(wanted) > 30

    def every(a: list[Tensor], b: list[Tensor], c: list[Tensor]) -> dict[str, Any]:
        parts = ([[v * 1 for v in part] for part in (a, b, c)] for _ in wanted)
        return {name: _call(o)(*p) for (name, o), p in zip(wanted.items(), parts, strict=True)}

    draw = torch.Generator().manual_seed(0)
    lists = [[torch.rand(s, generator=draw) + 0.2 for s in ((2, 3), ())] for _ in range(3)]
    check(every, *lists)


def test_lists_of_other_types() -> None:
    def function(a: list[Tensor], b: list[Tensor]) -> Any:
        torch._foreach_add_(a, b, alpha=2)
        torch._foreach_copy_(b, a)
        return torch._foreach_mul(a, 3), torch._foreach_maximum(a, b), torch._foreach_norm(a, 1, torch.float64)

    check(function, [torch.randn(3).half(), torch.randn(2, 2)], [torch.randn(3).half(), torch.randn(2, 2)])
    whole = [torch.arange(4), torch.arange(3, dtype=torch.int32)]
    check(lambda a: (torch._foreach_add(a, 1), torch._foreach_neg(a), torch._foreach_div(a, 2)), whole)
    check(lambda a: torch._foreach_mm(a, a), [torch.randn(3, 3), torch.randn(2, 2)])
