"""Complex numbers as pairs of real ones: a graph of ATen operators on complex tensors, written on real tensors alone.

A complex tensor that goes in or out is a real one with a last dimension of two (`torch.view_as_real`); between, it is
two tensors, its real and its imaginary part. Operators are written out where their values are still known by name, in
front of the torch dialect, so nothing below knows complex numbers. What has no rule here is refused.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.fx import Graph, Node

from ....errors import CompileError, UnsupportedError
from ....passes.convert.torch_to_tensor.unsupported import COMPLEX
from ..eager_fallback import touches_complex
from ..source_locations import innermost
from .fft import c2c, c2r, r2c
from .pairs import Emitter, Pair, Scalar, Value, is_complex, real_dtype

aten = torch.ops.aten

PARTWISE = set(
    """
    view reshape _unsafe_view view_as permute transpose swapaxes t numpy_T movedim expand expand_as slice select narrow
    unsqueeze squeeze flatten ravel unflatten clone contiguous alias detach lift_fresh_copy flip roll repeat
    repeat_interleave cat stack split split_with_sizes chunk unbind unfold index index_select gather take_along_dim
    diagonal diag_embed tril triu constant_pad_nd pad sum mean cumsum neg add sub where masked_fill slice_scatter
    select_scatter index_put index_add index_copy scatter scatter_add copy zeros_like empty_like _to_copy zeros empty
    new_zeros new_empty full full_like new_full scalar_tensor dropout fill
""".split()
)
"""Operators that do the same to both parts: linear ones, and those that move elements."""

_PLACES = {"index", "indices", "mask", "condition"}
"""Tensors among the arguments of those that say where, not what."""

_VALUES = {"other", "value", "fill_value", "s"}
"""Numbers among the arguments of those that are elements."""


def without_rule(graph: Graph) -> set[Any]:
    """The operators on complex numbers for which there is no rule."""
    nodes = (n for n in graph.nodes if n.op == "call_function" and touches_complex(n))
    return {n.target for n in nodes if _rule(n) is None}


@dataclass
class Rewritten:
    """What rewriting a graph has changed: `names` are the names under which results are found now, where they have
    others, `results` the data types of those that were complex, by their new names, and `constants` the arguments that
    were added: (name, placeholder, value)."""

    names: dict[str, str] = field(default_factory=dict[str, str])
    results: dict[str, torch.dtype] = field(default_factory=dict[str, torch.dtype])
    constants: list[tuple[str, Node, torch.Tensor]] = field(default_factory=list[tuple[str, Node, torch.Tensor]])


def without_complex(graph: Graph) -> Rewritten:
    """Rewrite `graph` in place. Raises UnsupportedError for an operator without a rule."""
    found: dict[Node, Any] = {}
    done = Rewritten()
    emitter: Emitter | None = None
    for node in [n for n in graph.nodes if touches_complex(n)]:
        emitter = emitter or Emitter(graph)
        if node.op == "output":
            _give_results(emitter, node, found, done)
            continue
        emitter.at(node)
        if node.op == "placeholder":
            node.meta["val"] = emitter.fake(torch.view_as_real, node.meta["val"])
            emitter.after_placeholders()
            found[node] = Pair(*(emitter.call(aten.select.int, node, -1, i) for i in range(2)))
            continue
        try:
            found[node] = _rewritten(emitter, node, found)
        except CompileError as error:
            error.operator = error.operator or str(node.target)
            place = innermost(node.meta.get("stack_trace"))
            error.location = error.location or (f"{place[0]}:{place[1]}" if place else None)
            raise
        if isinstance(found[node], Node) and not is_complex(node):
            done.names[node.name] = found[node].name
            node.replace_all_uses_with(found[node])
    for node in reversed(list(graph.nodes)):
        if node in found and node.op != "placeholder" and not node.users:
            graph.erase_node(node)
    done.constants = emitter.constants if emitter else []
    return done


def _give_results(e: Emitter, output: Node, found: dict[Node, Any], done: Rewritten) -> None:
    """Let complex results leave as real tensors with a last dimension of two."""
    e.at(output)
    for node in output.all_input_nodes:
        if node.op != "placeholder" and isinstance(pair := found.get(node), Pair):
            whole = e.call(aten.stack.default, [pair.re, pair.im], -1)
            done.names[node.name] = whole.name
            done.results[whole.name] = node.meta["val"].dtype
            output.replace_input_with(node, whole)


def _rewritten(e: Emitter, node: Node, found: dict[Node, Any]) -> Any:
    rule = _rule(node)
    if rule is None:
        raise UnsupportedError(COMPLEX)
    if rule is _item:
        source, index = node.args
        assert isinstance(source, Node)
        return found[source][index]
    target = node.target
    assert isinstance(target, torch._ops.OpOverload)
    names = [a.name for a in target._schema.arguments]
    given = {**dict(zip(names, node.args, strict=False)), **node.kwargs}

    def put(v: Any) -> Any:
        if isinstance(v, Node):
            return found.get(v, v)
        return [put(x) for x in v] if isinstance(v, tuple | list) else v

    return rule(e, node, {name: put(v) for name, v in given.items()})


Rule = Callable[[Emitter, Node, dict[str, Any]], Any]


def _item(e: Emitter, node: Node, given: dict[str, Any]) -> Any:
    """An element of several results."""
    raise AssertionError("found where it was put")


def _rule(node: Node) -> Rule | None:
    if node.target is operator.getitem:
        return _item
    if not isinstance(node.target, torch._ops.OpOverload):
        return None
    name = node.target._schema.name.partition("::")[2]
    return _RULES.get(name, _partwise if name in PARTWISE else None)


def _partwise(e: Emitter, node: Node, given: dict[str, Any]) -> Any:
    """The operator on the real parts, and on the imaginary ones; a real tensor has zeros there."""
    dtype = real_dtype(node)
    schema = {a.name: str(a.type) for a in node.target._schema.arguments}  # pyright: ignore
    if isinstance(given.get("alpha"), complex):
        raise UnsupportedError("a complex factor is not supported", argument="alpha")

    def part(value: Any, i: int) -> Any:
        if isinstance(value, Pair):
            return e.cast(value[i], dtype) if dtype else value[i]
        if isinstance(value, Node) and isinstance(value.meta["val"], torch.Tensor):
            same = e.cast(value, dtype) if dtype else value
            return same if i == 0 else e.call(aten.zeros_like.default, same)
        if isinstance(value, list):
            return [part(v, i) for v in value]
        return (value.real, value.imag)[i] if isinstance(value, Scalar) else value

    def arguments(i: int) -> dict[str, Any]:
        data = {k: ("Tensor" in t or k in _VALUES) and k not in _PLACES for k, t in schema.items()}
        found = {k: part(v, i) if data[k] else v for k, v in given.items()}
        return {k: dtype if k == "dtype" and v is not None else v for k, v in found.items()}

    if dtype is None:  # a complex tensor as a real one
        return e.call(node.target, **{**arguments(0), "dtype": given.get("dtype")})
    parts = [e.call(node.target, **arguments(i)) for i in range(2)]
    if not isinstance(node.meta["val"], tuple | list):
        return Pair(*parts)
    return [Pair(*(e.call(operator.getitem, p, i) for p in parts)) for i in range(len(node.meta["val"]))]


def times(e: Emitter, a: Value | Pair | Scalar, b: Value | Pair | Scalar, op: Any = aten.mul.Tensor) -> Pair:
    """A product, of elements or of matrices."""
    a, b = (Pair(v.real, v.imag) if isinstance(v, complex) else v for v in (a, b))
    if isinstance(a, Pair) and isinstance(b, Pair):
        re = e.call(aten.sub.Tensor, e.call(op, a.re, b.re), e.call(op, a.im, b.im))
        return Pair(re, e.call(aten.add.Tensor, e.call(op, a.re, b.im), e.call(op, a.im, b.re)))
    if isinstance(a, Pair):
        return Pair(e.call(op, a.re, b), e.call(op, a.im, b))
    assert isinstance(b, Pair)
    return Pair(e.call(op, a, b.re), e.call(op, a, b.im))


def _in_type(e: Emitter, node: Node, value: Any) -> Any:
    """An argument in the type that the result has."""
    dtype = real_dtype(node)
    if isinstance(value, Pair):
        return Pair(*(e.cast(v, dtype) for v in value))
    return e.cast(value, dtype) if isinstance(value, Node) else value


def _product(first: str, second: str) -> Rule:
    def rule(e: Emitter, node: Node, given: dict[str, Any]) -> Pair:
        op = aten.mul.Tensor if "mul" in str(node.target) and "mat" not in str(node.target) else node.target
        return times(e, _in_type(e, node, given[first]), _in_type(e, node, given[second]), op)

    return rule


def _linear(e: Emitter, node: Node, given: dict[str, Any]) -> Pair:
    weight = [e.call(aten.t.default, w) for w in _parts(e, given["weight"])]
    y = times(e, _parts(e, given["input"]), Pair(*weight), aten.matmul.default)
    bias = given.get("bias")
    return y if bias is None else _sum(e, y, _parts(e, bias))


def _addmm(e: Emitter, node: Node, given: dict[str, Any]) -> Pair:
    y = times(e, _parts(e, given["mat1"]), _parts(e, given["mat2"]), aten.matmul.default)
    return _sum(e, times(e, y, given.get("alpha", 1)), times(e, _parts(e, given["self"]), given.get("beta", 1)))


def _sum(e: Emitter, a: Pair, b: Pair) -> Pair:
    return Pair(*(e.call(aten.add.Tensor, x, y) for x, y in zip(a, b, strict=True)))


def _parts(e: Emitter, value: Any) -> Pair:
    """A tensor or number as a pair."""
    if isinstance(value, Pair):
        return value
    if isinstance(value, Node):
        return Pair(value, e.call(aten.zeros_like.default, value))
    return Pair(value.real, value.imag)


def quotient(e: Emitter, a: Pair, b: Pair) -> Pair:
    """`a / b` without overflow of squares (Smith: Algorithm 116, CACM 1962): by the larger part of `b`."""
    swap = e.call(aten.gt.Tensor, e.call(aten.abs.default, b.im), e.call(aten.abs.default, b.re))

    def choose(x: Value, y: Value) -> Value:
        return e.call(aten.where.self, swap, x, y)

    large, small = choose(b.im, b.re), choose(b.re, b.im)
    ratio = e.call(aten.div.Tensor, small, large)
    scale = e.call(aten.add.Tensor, large, e.call(aten.mul.Tensor, small, ratio))
    first, second = choose(a.im, a.re), choose(a.re, a.im)
    re = e.call(aten.add.Tensor, first, e.call(aten.mul.Tensor, second, ratio))
    one = e.call(aten.sub.Tensor, e.call(aten.mul.Tensor, a.im, ratio), a.re)
    other = e.call(aten.sub.Tensor, a.im, e.call(aten.mul.Tensor, a.re, ratio))
    found = Pair(e.call(aten.div.Tensor, re, scale), e.call(aten.div.Tensor, choose(one, other), scale))
    none = e.call(aten.eq.Scalar, large, 0)
    by_zero = Pair(*(e.call(aten.div.Tensor, v, e.call(aten.abs.default, b.re)) for v in a))
    return Pair(*(e.call(aten.where.self, none, x, y) for x, y in zip(by_zero, found, strict=True)))


def _div(e: Emitter, node: Node, given: dict[str, Any]) -> Pair:
    if given.get("rounding_mode") is not None:
        raise UnsupportedError("complex numbers are not rounded", argument="rounding_mode")
    a, b = _in_type(e, node, given["self"]), _in_type(e, node, given["other"])
    if isinstance(b, complex):
        return times(e, a, 1 / b)
    if not isinstance(b, Pair):
        return Pair(*(e.call(aten.div.Tensor, v, b) for v in a))
    shape = e.call(aten.mul.Tensor, a.re if isinstance(a, Pair) else a, b.re)
    both = (Pair(*(e.call(aten.expand_as.default, v, shape) for v in _tensors(e, p, b))) for p in (a, b))
    return quotient(e, *both)


def _tensors(e: Emitter, value: Any, like: Pair) -> Pair:
    """A pair of tensors; numbers as tensors of no dimensions."""
    made = (
        v if isinstance(v, Node) else e.call(aten.full.default, [], float(v), dtype=like.re.meta["val"].dtype)
        for v in _parts(e, value)
    )
    return Pair(*made)


def _reciprocal(e: Emitter, node: Node, given: dict[str, Any]) -> Pair:
    z: Pair = given["self"]
    return quotient(e, Pair(e.call(aten.ones_like.default, z.re), e.call(aten.zeros_like.default, z.im)), z)


def _size(e: Emitter, z: Pair) -> Node:
    return e.call(aten.hypot.default, z.re, z.im)


def _angle(e: Emitter, z: Pair) -> Node:
    return e.call(aten.atan2.default, z.im, z.re)


def _of_angle(e: Emitter, size: Value, angle: Value) -> Pair:
    return Pair(*(e.call(aten.mul.Tensor, size, e.call(f, angle)) for f in (aten.cos.default, aten.sin.default)))


def _log(e: Emitter, z: Pair) -> Pair:
    return Pair(e.call(aten.log.default, _size(e, z)), _angle(e, z))


def _exp(e: Emitter, z: Pair) -> Pair:
    return _of_angle(e, e.call(aten.exp.default, z.re), z.im)


def _sqrt(e: Emitter, z: Pair) -> Pair:
    """The root with a real part that is not negative, of which the larger part is computed without cancellation."""
    half = e.call(aten.mul.Tensor, e.call(aten.add.Tensor, e.call(aten.abs.default, z.re), _size(e, z)), 0.5)
    large = e.call(aten.sqrt.default, half)
    none, left = e.call(aten.eq.Scalar, large, 0), e.call(aten.lt.Scalar, z.re, 0)
    small = e.call(aten.div.Tensor, e.call(aten.mul.Tensor, e.call(aten.abs.default, z.im), 0.5), large)
    small = e.call(aten.where.self, none, large, small)
    im = e.call(aten.where.self, left, large, small)
    return Pair(e.call(aten.where.self, left, small, large), e.call(aten.copysign.Tensor, im, z.im))


def _sgn(e: Emitter, z: Pair) -> Pair:
    size = _size(e, z)
    none = e.call(aten.eq.Scalar, size, 0)
    return Pair(*(e.call(aten.where.self, none, size, e.call(aten.div.Tensor, v, size)) for v in z))


def _waves(first: Any, second: Any, third: Any, fourth: Any, sign: int) -> Callable[[Emitter, Pair], Pair]:
    """(first(re) * second(im), sign * third(re) * fourth(im)): sines and cosines of sums."""

    def function(e: Emitter, z: Pair) -> Pair:
        re = e.call(aten.mul.Tensor, e.call(first, z.re), e.call(second, z.im))
        im = e.call(aten.mul.Tensor, e.call(third, z.re), e.call(fourth, z.im))
        return Pair(re, e.call(aten.neg.default, im) if sign < 0 else im)

    return function


def _pow(e: Emitter, node: Node, given: dict[str, Any]) -> Pair:
    z, exponent = _in_type(e, node, given["self"]), _in_type(e, node, given["exponent"])
    if isinstance(exponent, int) and 1 <= exponent <= 8:
        result = z
        for _ in range(exponent - 1):
            result = times(e, result, z)
        return result
    if not isinstance(z, Pair) or isinstance(exponent, Node):
        raise UnsupportedError("only a power with a number as exponent is supported", argument="exponent")
    return _exp(e, times(e, _log(e, z), exponent))


def _compared(e: Emitter, node: Node, given: dict[str, Any]) -> Node:
    a, b = _parts(e, given["self"]), _parts(e, given["other"])
    found = [e.call(node.target, x, y) for x, y in zip(a, b, strict=True)]
    return e.call(aten.logical_and.default if "eq" in str(node.target) else aten.logical_or.default, *found)


def _either(e: Emitter, node: Node, given: dict[str, Any]) -> Node:
    join = aten.logical_and.default if "finite" in str(node.target) else aten.logical_or.default
    return e.call(join, *(e.call(node.target, v) for v in given["self"]))


def _ones(e: Emitter, node: Node, given: dict[str, Any]) -> Pair:
    options = {k: real_dtype(node) if k == "dtype" else v for k, v in given.items()}
    if isinstance(given.get("self"), Pair):
        options["self"] = given["self"].re
    one = e.call(node.target, **options)
    return Pair(one, e.call(aten.zeros_like.default, one))


def _one(function: Callable[[Emitter, Pair], Any]) -> Rule:
    return lambda e, node, given: function(e, given["self"])


def _conjugate(e: Emitter, z: Pair) -> Pair:
    return Pair(z.re, e.call(aten.neg.default, z.im))


_SIN, _COS, _SINH, _COSH = aten.sin.default, aten.cos.default, aten.sinh.default, aten.cosh.default

_RULES: dict[str, Rule] = {
    "view_as_complex": lambda e, n, a: Pair(*(e.call(aten.select.int, a["self"], -1, i) for i in range(2))),
    "view_as_real": _one(lambda e, z: e.call(aten.stack.default, [z.re, z.im], -1)),
    "complex": lambda e, n, a: Pair(*e.broadcast(a["real"], a["imag"])),
    "polar": lambda e, n, a: _of_angle(e, a["abs"], a["angle"]),
    "real": _one(lambda e, z: z.re),
    "imag": _one(lambda e, z: z.im),
    "mul": _product("self", "other"),
    "mm": _product("self", "mat2"),
    "bmm": _product("self", "mat2"),
    "matmul": _product("self", "other"),
    "mv": _product("self", "vec"),
    "dot": _product("self", "tensor"),
    "linear": _linear,
    "addmm": _addmm,
    "div": _div,
    "reciprocal": _reciprocal,
    "pow": _pow,
    "rsub": lambda e, n, a: _sum(e, Pair(*(e.call(aten.neg.default, v) for v in a["self"])), _parts(e, a["other"])),
    "square": _one(lambda e, z: times(e, z, z)),
    "abs": _one(_size),
    "angle": _one(_angle),
    "sgn": _one(_sgn),
    "exp": _one(_exp),
    "log": _one(_log),
    "sqrt": _one(_sqrt),
    "sin": _one(_waves(_SIN, _COSH, _COS, _SINH, 1)),
    "cos": _one(_waves(_COS, _COSH, _SIN, _SINH, -1)),
    "sinh": _one(_waves(_SINH, _COS, _COSH, _SIN, 1)),
    "cosh": _one(_waves(_COSH, _COS, _SINH, _SIN, 1)),
    "eq": _compared,
    "ne": _compared,
    "isnan": _either,
    "isinf": _either,
    "isfinite": _either,
    "ones_like": _ones,
    "ones": _ones,
    "_fft_r2c": r2c,
    "_fft_c2c": c2c,
    "_fft_c2r": c2r,
    **dict.fromkeys(("_conj", "_conj_physical", "conj_physical"), _one(_conjugate)),
    **dict.fromkeys(("resolve_conj", "resolve_neg"), _one(lambda e, z: z)),
}
"""Operators by their names, and how they are written on the parts."""
