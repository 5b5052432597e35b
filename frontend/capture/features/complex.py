"""Complex numbers: rewrites a graph of ATen operators on complex tensors to operators on real tensors.

Inside the graph a complex tensor becomes two real tensors, its real and imaginary parts (`Pair`). A complex argument or
result becomes one real tensor with a last dimension of two, as of `torch.view_as_real`. The rewrite happens before the
import, so the levels of the IR have no complex numbers. An operator without a rule here is refused.

A discrete Fourier transform of up to `DIRECT` points is a matmul with the matrix of the transform, whose elements are
computed in float64. A longer one of n = a * b points is transforms of a points, an elementwise multiplication, and
transforms of b points (the four-step method: Bailey, FFTs in external or hierarchical memory, 1990).
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch.fx import Graph, Node
from torch.utils import _pytree as pytree

from ....errors import CompileError, UnsupportedError
from ....passes.convert.torch_to_tensor.registry import COMPLEX
from ..arrays import named_arguments
from ..captured_program import Binding
from ..emitter import Emitter
from ..importer import TracedGraph
from ..source_locations import blame
from . import Features

Tensor = torch.Tensor

PARTWISE = set(
    """
    view reshape _unsafe_view permute expand slice select unsqueeze squeeze clone contiguous alias detach
    lift_fresh_copy flip roll cat stack unfold index index_select gather diagonal tril triu constant_pad_nd pad sum mean
    cumsum neg add sub where masked_fill slice_scatter select_scatter index_put index_add index_copy scatter
    scatter_add copy zeros_like empty_like _to_copy zeros empty new_zeros new_empty full full_like new_full
    scalar_tensor dropout fill as_strided as_strided_copy as_strided_scatter diagonal_scatter
""".split()
)
"""Operators that are applied to the real part and to the imaginary part alike: linear operators, and moves of elements.
"""

_INDEX_ARGUMENTS = {"index", "indices", "mask", "condition"}
"""Tensor arguments that select elements. They have no parts."""

_NUMBER_ARGUMENTS = {"self", "other", "value", "fill_value", "s"}
"""Number arguments that are elements, and so have parts."""


_REAL = {torch.complex32: torch.float16, torch.complex64: torch.float32, torch.complex128: torch.float64}
"""Data type of the parts, by complex data type."""


class Pair(NamedTuple):
    """Real and imaginary part of a complex tensor or number."""

    re: Any
    im: Any


def times(a: Any, b: Any, op: Callable[..., torch.Tensor] = torch.mul) -> Pair:
    """Returns the product of two numbers, tensors or matrices.

    Args:
        a, b: operands. At least one is a `Pair` or a complex number, the other one may be real.
        op: the product on real operands, `torch.mul` or `torch.matmul`.
    """
    a, b = (Pair(v.real, v.imag) if isinstance(v, complex) else v for v in (a, b))
    if isinstance(a, Pair) and isinstance(b, Pair):
        return Pair(op(a.re, b.re) - op(a.im, b.im), op(a.re, b.im) + op(a.im, b.re))
    return Pair(op(a.re, b), op(a.im, b)) if isinstance(a, Pair) else Pair(op(a, b.re), op(a, b.im))


def is_complex(node: Node) -> bool:
    """Returns true if a value of `node` is a complex tensor."""
    values = pytree.tree_leaves(node.meta.get("val"))
    return any(isinstance(v, torch.Tensor) and v.is_complex() for v in values)


def touches_complex(node: Node) -> bool:
    """Returns true if an operand or a result of `node` is complex."""
    return any(map(is_complex, (node, *node.all_input_nodes)))


def without_rule(graph: Graph) -> set[Any]:
    """Returns the operators with complex operands or results in a graph for which this module has no rule."""
    nodes = (n for n in graph.nodes if n.op == "call_function" and touches_complex(n))
    return {n.target for n in nodes if n.target is not operator.getitem and _rule(n) is None}


def split(graph: Graph, features: Features) -> None:
    """Requests that PyTorch decomposes the operators on complex numbers that have no rule here."""
    features.split |= without_rule(graph)


def rewritten(traced: TracedGraph, features: Features) -> None:
    """Rewrites all operators on complex numbers of a graph.

    With eager fallback, a graph that has an operator without a rule is left as it is, for PyTorch to compute the
    operators. Raises UnsupportedError for an operator without a rule.
    """
    graph = traced.graph
    if features.request.fallback is not None and without_rule(graph):
        return
    emitter, values = Emitter(graph), dict[Node, Any]()
    for node in [n for n in graph.nodes if touches_complex(n)]:
        if node.op == "output":
            _return_results(emitter, node, values)
            continue
        if node.op == "placeholder":
            values[node] = _parts_of_argument(emitter, node)
            continue
        try:
            values[node] = _rewritten(emitter, node, values)
        except CompileError as error:
            error.operator = error.operator or str(node.target)
            raise blame(error, node) from None
        if isinstance(values[node], Node) and not is_complex(node):
            node.replace_all_uses_with(values[node])
    for node in reversed(list(graph.nodes)):
        if node in values and node.op != "placeholder" and not node.users:
            graph.erase_node(node)
    traced.arguments += [(Binding(name, "constant", tensor=t), node) for name, node, t in emitter.constants]


def _parts_of_argument(e: Emitter, placeholder: Node) -> Pair:
    """Returns the parts of a complex argument, which becomes a real tensor with a last dimension of two."""
    placeholder.meta["viewed"] = placeholder.meta["val"].dtype
    with e.mode:
        placeholder.meta["val"] = torch.view_as_real(placeholder.meta["val"].resolve_conj())
    return e.inline(e.body, lambda x: Pair(x.select(-1, 0), x.select(-1, 1)), placeholder, placeholder)


def _return_results(e: Emitter, output: Node, values: dict[Node, Any]) -> None:
    """Replaces complex results of the graph by real tensors with a last dimension of two."""
    for node in output.all_input_nodes:
        if node.op != "placeholder" and isinstance(pair := values.get(node), Pair):
            whole = e.inline(output, _as_real, pair)
            whole.meta["viewed"] = node.meta["val"].dtype
            output.replace_input_with(node, whole)


def _as_real(z: Pair) -> Tensor:
    return torch.stack([z.re, z.im], -1)


def _rewritten(e: Emitter, node: Node, values: dict[Node, Any]) -> Any:
    if node.target is operator.getitem:
        source, index = node.args
        assert isinstance(source, Node)
        return values[source][index]
    rule, target = _rule(node), node.target
    if rule is None:
        raise UnsupportedError(COMPLEX)
    assert isinstance(target, torch._ops.OpOverload)
    arguments = named_arguments(node)

    def parts_of(v: Any) -> Any:
        if isinstance(v, Node):
            return values.get(v, v)
        return [parts_of(x) for x in v] if isinstance(v, tuple | list) else v

    call = Call(target, _REAL.get(pytree.tree_leaves(node.meta["val"])[0].dtype), e)
    return e.inline(node, lambda operands: rule(call, operands), {name: parts_of(v) for name, v in arguments.items()})


@dataclass(frozen=True)
class Call:
    """Call of an operator that is rewritten.

    Attributes:
        target: the operator.
        dtype: data type of the parts of the result; None if the result is not complex.
        emitter: emitter of the new nodes, which also adds constants.
    """

    target: torch._ops.OpOverload
    dtype: torch.dtype | None
    emitter: Emitter

    def cast(self, value: Any) -> Any:
        """Casts an argument to the data type of the result's parts."""
        if isinstance(value, Pair):
            return Pair(*(self.cast(v) for v in value))
        return value.to(self.dtype) if isinstance(value, Tensor) and self.dtype else value


Rule = Callable[[Call, dict[str, Any]], Any]
"""Function from a call and its arguments by name to the result, in which complex tensors are pairs."""


def _rule(node: Node) -> Rule | None:
    if not isinstance(node.target, torch._ops.OpOverload) or node.target is torch.ops.aten.view.dtype:
        return None
    name = node.target._schema.name.partition("::")[2]
    if name in _OF_ONE:
        return lambda call, arguments: _OF_ONE[name](arguments["self"])
    return _RULES.get(name, _partwise if name in PARTWISE else None)


def _partwise(call: Call, operands: dict[str, Any]) -> Any:
    """Applies an operator to the real parts and to the imaginary parts. The imaginary part of a real tensor is zero."""
    schema = {a.name: str(a.type) for a in call.target._schema.arguments}
    if isinstance(operands.get("alpha"), complex):
        raise UnsupportedError("a complex factor is not supported", argument="alpha")

    def part(value: Any, i: int) -> Any:
        if isinstance(value, Pair):
            return call.cast(value[i])
        if isinstance(value, Tensor):
            return torch.zeros_like(call.cast(value)) if i else call.cast(value)
        if isinstance(value, list):
            return [part(v, i) for v in value]
        return (value.real, value.imag)[i] if isinstance(value, bool | int | float | complex) else value

    def of_part(i: int) -> Any:
        has_elements = {
            k: ("Tensor" in t or k in _NUMBER_ARGUMENTS) and k not in _INDEX_ARGUMENTS for k, t in schema.items()
        }
        part_arguments = {k: part(v, i) if has_elements[k] else v for k, v in operands.items()}
        if call.dtype is not None and part_arguments.get("dtype") is not None:
            part_arguments["dtype"] = call.dtype
        return call.target(**part_arguments)

    # The result is real, such as of `_to_copy` to a real type: only the real part counts.
    if call.dtype is None:
        return of_part(0)
    re, im = of_part(0), of_part(1)
    return Pair(re, im) if isinstance(re, Tensor) else [Pair(*both) for both in zip(re, im, strict=True)]


def _product(first: str, second: str, op: Callable[..., Tensor] = torch.matmul) -> Rule:
    return lambda call, arguments: times(call.cast(arguments[first]), call.cast(arguments[second]), op)


def _parts(value: Any) -> Pair:
    if isinstance(value, Tensor):
        return Pair(value, torch.zeros_like(value))
    return value if isinstance(value, Pair) else Pair(value.real, value.imag)


def _sum(a: Pair, b: Pair) -> Pair:
    return Pair(a.re + b.re, a.im + b.im)


def _addmm(call: Call, arguments: dict[str, Any]) -> Pair:
    y = times(_parts(arguments["mat1"]), _parts(arguments["mat2"]), torch.matmul)
    return _sum(times(y, arguments.get("alpha", 1)), times(_parts(arguments["self"]), arguments.get("beta", 1)))


def _quotient(a: Pair, b: Pair) -> Pair:
    """Returns `a / b` without overflow of squares.

    It divides by the larger part of `b` (Smith: Algorithm 116, CACM 1962).
    """
    swap = b.im.abs() > b.re.abs()
    large, small = torch.where(swap, b.im, b.re), torch.where(swap, b.re, b.im)
    ratio = small / large
    scale = large + small * ratio
    first, second = torch.where(swap, a.im, a.re), torch.where(swap, a.re, a.im)
    im = torch.where(swap, a.im * ratio - a.re, a.im - a.re * ratio)
    zero, size = large == 0, b.re.abs()
    return Pair(
        torch.where(zero, a.re / size, (first + second * ratio) / scale), torch.where(zero, a.im / size, im / scale)
    )


def _div(call: Call, arguments: dict[str, Any]) -> Pair:
    if arguments.get("rounding_mode") is not None:
        raise UnsupportedError("complex numbers are not rounded", argument="rounding_mode")
    a, b = call.cast(arguments["self"]), call.cast(arguments["other"])
    if isinstance(b, complex):
        return times(a, 1 / b)
    if not isinstance(b, Pair):
        return Pair(a.re / b, a.im / b)
    a = _parts(a)
    if not isinstance(a.re, Tensor):
        a = Pair(*(torch.full_like(b.re, v) for v in a))
    return _quotient(*_together(a, b))


def _together(*pairs: Pair) -> list[Pair]:
    shape = torch.broadcast_shapes(*(v.shape for z in pairs for v in z))
    return [Pair(*(v if v.shape == shape else v.expand(shape) for v in z)) for z in pairs]


def _of_angle(size: Tensor, angle: Tensor) -> Pair:
    return Pair(size * angle.cos(), size * angle.sin())


def _modulus(z: Pair) -> Tensor:
    return torch.hypot(z.re, z.im)


def _log(z: Pair) -> Pair:
    return Pair(_modulus(z).log(), torch.atan2(z.im, z.re))


def _exp(z: Pair) -> Pair:
    return _of_angle(z.re.exp(), z.im)


def _sqrt(z: Pair) -> Pair:
    """Returns the square root with a nonnegative real part. Its larger part is computed without cancellation."""
    large = ((z.re.abs() + _modulus(z)) * 0.5).sqrt()
    small = torch.where(large == 0, large, z.im.abs() * 0.5 / large)
    negative = z.re < 0
    return Pair(torch.where(negative, small, large), torch.copysign(torch.where(negative, large, small), z.im))


def _sgn(z: Pair) -> Pair:
    size = _modulus(z)
    return Pair(*(torch.where(size == 0, size, v / size) for v in z))


def _pow(call: Call, arguments: dict[str, Any]) -> Pair:
    z, exponent = call.cast(arguments["self"]), call.cast(arguments["exponent"])
    if isinstance(exponent, int) and 1 <= exponent <= 8:
        result = z
        for _ in range(exponent - 1):
            result = times(result, z)
        return result
    if not isinstance(z, Pair) or isinstance(exponent, Tensor | Pair):
        raise UnsupportedError("only a power with a number as exponent is supported", argument="exponent")
    return _exp(times(_log(z), exponent))


def _compared(call: Call, arguments: dict[str, Any]) -> Tensor:
    a, b = _parts(arguments["self"]), _parts(arguments["other"])
    re, im = call.target(a.re, b.re), call.target(a.im, b.im)
    return torch.logical_and(re, im) if "eq" in str(call.target) else torch.logical_or(re, im)


def _ones(call: Call, arguments: dict[str, Any]) -> Pair:
    arguments = {k: v.re if isinstance(v, Pair) else call.dtype if k == "dtype" else v for k, v in arguments.items()}
    return _parts(call.target(**arguments))


DIRECT = 256
"""Largest number of points of a transform that is always one matmul."""

LARGEST = 4096
"""Largest number of points of one matmul if the number is a prime."""

Keep = Callable[[tuple[Any, ...], Tensor], Tensor]
"""Function that adds a constant to the program. Equal keys denote the same constant."""


def _r2c(keep: Keep, self: Tensor, dim: Sequence[int], normalization: int, onesided: bool) -> Pair:
    """Lowers `_fft_r2c`, the transform of a real tensor.

    Args:
        keep: adds a constant.
        self: the tensor.
        dim: dimensions of the transform.
        normalization: see `_normalized`.
        onesided: whether only the first half of the last dimension of `dim` is returned; the other half mirrors it.
    """
    *others, last = dim
    pair = _transformed(keep, Pair(self, None), last, False)
    if onesided:
        pair = Pair(*(_part(v, last, 0, _points(self, last) // 2 + 1) for v in pair))
    for d in others:
        pair = _transformed(keep, pair, d, False)
    return _normalized(pair, normalization, [_points(self, d) for d in dim])


def _c2c(keep: Keep, self: Pair, dim: Sequence[int], normalization: int, forward: bool) -> Pair:
    pair = self
    for d in dim:
        pair = _transformed(keep, pair, d, not forward)
    return _normalized(pair, normalization, [_points(self.re, d) for d in dim])


def _c2r(keep: Keep, self: Pair, dim: Sequence[int], normalization: int, last_dim_size: int) -> Tensor:
    """Lowers `_fft_c2r`, the inverse of `_fft_r2c` with `onesided`.

    Args:
        keep: adds a constant.
        self: the first half of the spectrum along the last dimension of `dim`.
        dim: dimensions of the transform.
        normalization: see `_normalized`.
        last_dim_size: points of the result along the last dimension of `dim`.
    """
    pair, (*others, last), n = self, dim, last_dim_size
    if not isinstance(n, int):
        raise UnsupportedError("a Fourier transform along a size that varies is not supported", argument="dim")
    sizes = [*(_points(pair.re, d) for d in others), n]
    for d in others:
        pair = _transformed(keep, pair, d, True)
    half = n // 2 + 1
    re, im = (_part(v, last, 0, half) for v in pair)
    # The imaginary parts at 0, and at the middle of an even number of points, cancel: they are treated as zero.
    re_mirrored, im_mirrored = (_part(v, last, 1, n - half).flip([last]) for v in (re, im))
    whole = Pair(torch.cat([re, re_mirrored], last), torch.cat([im, -im_mirrored], last))
    transformed = _transformed(keep, whole, last, True)
    return _normalized(Pair(transformed.re, transformed.re), normalization, sizes).re


def _points(x: Tensor, dim: int) -> int:
    n = x.shape[dim]
    if not isinstance(n, int):
        raise UnsupportedError("a Fourier transform along a size that varies is not supported", argument="dim")
    return n


def _normalized(pair: Pair, kind: int, sizes: Sequence[int]) -> Pair:
    """Divides by 1 (`kind` 0), by the square root of the number of points (1), or by the number of points (2)."""
    if kind == 0:
        return pair
    n = math.prod(sizes)
    return times(pair, 1 / math.sqrt(n) if kind == 1 else 1 / n)


def _transformed(keep: Keep, pair: Pair, dim: int, inverse: bool) -> Pair:
    """Returns the transform along one dimension. An imaginary part of None is zero."""
    n = _points(pair.re, dim)
    return _swapped(_along_last(keep, _swapped(pair, dim, -1), n, inverse), dim, -1)


def _part(x: Tensor, dim: int, start: int, size: int) -> Tensor:
    return torch.ops.aten.slice.Tensor(x, dim, start, start + size)


def _swapped(pair: Pair, first: int, second: int) -> Pair:
    order = list(range(pair.re.dim()))
    order[first], order[second] = order[second], order[first]
    return Pair(*(None if v is None else v.permute(order) for v in pair))


def _along_last(keep: Keep, x: Pair, n: int, inverse: bool) -> Pair:
    # The largest divisor that is at most the square root of n.
    a = next(d for d in range(math.isqrt(n), 0, -1) if n % d == 0)
    if n <= DIRECT or a == 1:
        if n > LARGEST:
            raise UnsupportedError(
                f"a Fourier transform of {n} points is not supported: only up to {LARGEST}, or products of such numbers"
            )
        return times(x.re if x.im is None else x, _matrix(keep, x.re.dtype, n, n, n, inverse), torch.matmul)
    # Input element b * t + s is at (t, s): transform over t, multiply by w^(k s), transform over s. Then output
    # element k + a * l is at (l, k).
    b = n // a
    split = Pair(*(None if v is None else v.reshape(*v.shape[:-1], a, b) for v in x))
    first = _along_last(keep, _swapped(split, -1, -2), a, inverse)
    second = _swapped(times(first, _matrix(keep, x.re.dtype, b, a, n, inverse)), -1, -2)
    lines = _swapped(_along_last(keep, second, b, inverse), -1, -2)
    return Pair(*(v.reshape(*v.shape[:-2], n) for v in lines))


def _matrix(keep: Keep, dtype: torch.dtype, rows: int, columns: int, n: int, inverse: bool) -> Pair:
    """Returns the constants cos and sin of 2 pi r c / n. The sines are negated unless `inverse`."""
    key = rows, columns, n, str(dtype).removeprefix("torch.")
    with torch.utils._python_dispatch._disable_current_modes():
        index = torch.arange(rows, device="cpu")[:, None] * torch.arange(columns, device="cpu") % n
        angle = index.double() * (2 * math.pi / n)
        cosine, sine = angle.cos().to(dtype), (angle.sin() if inverse else -angle.sin()).to(dtype)
    direction = "inverse" if inverse else "forward"
    return Pair(keep(("dft_cos", *key), cosine), keep(("dft_sin", direction, *key), sine))


_OF_ONE: dict[str, Callable[[Pair], Any]] = {
    "view_as_complex": lambda x: Pair(x.select(-1, 0), x.select(-1, 1)),
    "view_as_real": _as_real,
    "real": lambda z: z.re,
    "imag": lambda z: z.im,
    "reciprocal": lambda z: _quotient(Pair(torch.ones_like(z.re), torch.zeros_like(z.im)), z),
    "abs": _modulus,
    "angle": lambda z: torch.atan2(z.im, z.re),
    "sgn": _sgn,
    "exp": _exp,
    "log": _log,
    "sqrt": _sqrt,
    "sin": lambda z: Pair(z.re.sin() * z.im.cosh(), z.re.cos() * z.im.sinh()),
    "cos": lambda z: Pair(z.re.cos() * z.im.cosh(), -(z.re.sin() * z.im.sinh())),
    "sinh": lambda z: Pair(z.re.sinh() * z.im.cos(), z.re.cosh() * z.im.sin()),
    "cosh": lambda z: Pair(z.re.cosh() * z.im.cos(), z.re.sinh() * z.im.sin()),
    "isnan": lambda z: torch.logical_or(z.re.isnan(), z.im.isnan()),
    "isinf": lambda z: torch.logical_or(z.re.isinf(), z.im.isinf()),
    **dict.fromkeys(("_conj", "_conj_physical", "conj_physical"), lambda z: Pair(z.re, -z.im)),
    **dict.fromkeys(("resolve_conj", "resolve_neg"), lambda z: z),
}
"""Functions of one complex tensor, by operator name."""

_RULES: dict[str, Rule] = {
    "complex": lambda call, a: _together(Pair(a["real"], a["imag"]))[0],
    "polar": lambda call, a: _of_angle(a["abs"], a["angle"]),
    "mul": _product("self", "other", torch.mul),
    "mm": _product("self", "mat2"),
    "bmm": _product("self", "mat2"),
    "mv": _product("self", "vec"),
    "dot": _product("self", "tensor"),
    "addmm": _addmm,
    "div": _div,
    "pow": _pow,
    "rsub": lambda call, a: _sum(Pair(-a["self"].re, -a["self"].im), _parts(a["other"])),
    "eq": _compared,
    "ne": _compared,
    "ones_like": _ones,
    "ones": _ones,
    "_fft_r2c": lambda call, a: _r2c(call.emitter.constant, **a),
    "_fft_c2c": lambda call, a: _c2c(call.emitter.constant, **a),
    "_fft_c2r": lambda call, a: _c2r(call.emitter.constant, **a),
}
"""Rules of the other operators, by operator name."""
