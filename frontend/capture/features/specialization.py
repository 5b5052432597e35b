"""Whether a program that PyTorch traced for sizes that vary holds for all of them.

Where tracing had to decide something by a size, PyTorch notes what it took for true. Inside PyTorch, and in many
models, that is often that a size is not 1: so a reshape is carried out in one way or another, or there is nothing to
expand. Then the program is traced again with that size fixed at 1 (or at another single value), and operator by
operator, argument by argument and shape by shape both have to be the same. What else was taken for true has to be true
in the whole range, or it is refused.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import product
from math import prod
from typing import Any

import sympy
import torch
from torch.export import Dim, ExportedProgram
from torch.export.graph_signature import InputKind
from torch.fx import Node
from torch.utils import _pytree as pytree

from ....errors import CaptureError
from ..export import export
from ..symbolic_shapes import NamedDim, conditions, substituted
from ..tracing import Request
from . import Features

_RESHAPES = {
    *("view.default", "reshape.default", "_unsafe_view.default"),
    *("unsqueeze.default", "squeeze.default", "squeeze.dim", "squeeze.dims", "contiguous.default", "clone.default"),
    *("alias.default", "detach.default"),
}
"""Operators that change nothing but the shape, of which PyTorch takes one or another by the sizes and by how the tensor
lies in memory."""

_PARTS = {"slice.Tensor", "expand.default"}
"""Operators that change nothing if the shape stays the same."""

_CHECKS = {"_assert_tensor_metadata.default", "_assert_scalar.default", "sym_size.int"}

MAX_PROGRAMS = 7
"""Programs that are compared; every size that may be an excepted one on its own doubles them."""

MAX_VALUES = 2
"""Values of one size for which the program is traced again."""

MAX_RANGE = 1 << 13
"""The values of a size for which an assertion is tried, all of them."""


def checked(program: ExportedProgram, features: Features) -> list[NamedDim]:
    """Checks that a program is the same for all sizes in the ranges of the dimensions with names. Returns these.

    Raises CaptureError that says what differs, or for which size.
    """
    request, named = features.request, _named_dims(features.request, program)
    doubted = _doubted(program, named)
    cases = [[None, *values] for values in doubted.values()]
    if prod(map(len, cases)) > MAX_PROGRAMS + 1:
        raise CaptureError(f"the program depends on which of too many sizes are 1: {', '.join(doubted)}")
    for values in list(product(*cases))[1:]:
        chosen = {name: n for name, n in zip(doubted, values, strict=True) if n is not None}
        small = {id(t): t for t in (d.tensor for d in named)}
        for d in named:
            if d.name in chosen:
                small[id(d.tensor)] = _resized(small[id(d.tensor)], d.dim, d.size(chosen[d.name]))
        args, kwargs = pytree.tree_map(lambda v, s=small: s.get(id(v), v), (request.args, request.kwargs))
        fixed = pytree.tree_map(lambda s, c=chosen: None if _name_of(s) in c else s, request.shapes)
        special, _ = export(replace(request, args=args, kwargs=kwargs, shapes=fixed))
        where = " and ".join(f"{name} is {n}" for name, n in chosen.items())
        for name, more in _doubted(special, named).items():
            if set(more) - set(doubted.get(name, ())):
                raise CaptureError(f"the program is another one where {where}: it asks for {name}")
        _compare(program, special, {d.symbol: chosen[d.name] for d in named if d.name in chosen}, where)
    return named


def _named_dims(request: Request, exported: ExportedProgram) -> list[NamedDim]:
    """Returns the dimensions that have a `torch.export.Dim` in the request and are symbols in the exported program."""
    args, kwargs = request.args, request.kwargs or {}
    placeholders = {n.name: n.meta.get("val") for n in exported.graph.nodes if n.op == "placeholder"}
    user = [s for s in exported.graph_signature.input_specs if s.kind == InputKind.USER_INPUT]
    leaves = pytree.tree_flatten((args, kwargs))[0]
    traced: dict[int, Any] = {
        id(leaf): placeholders.get(getattr(s.arg, "name", "")) for leaf, s in zip(leaves, user, strict=True)
    }
    values = inspect.signature(request.module.forward).bind(*args, **kwargs).arguments
    found: list[NamedDim] = []
    for tensor, dim, wanted in _wanted(values, request.shapes):
        size = traced[id(tensor)].shape[dim]
        if isinstance(size, torch.SymInt):
            expr, root = substituted(size.node.expr, size.node.shape_env), getattr(wanted, "root", wanted)
            if root is wanted and isinstance(expr, sympy.Symbol):
                found.append(NamedDim(tensor, dim, wanted.__name__, wanted.min, expr))
            elif root is not wanted and len(expr.free_symbols) == 1:
                (symbol,) = expr.free_symbols
                if all(expr.subs(symbol, n) == wanted.fn(n) for n in (root.min, root.min + 1, root.min + 7)):
                    found.append(NamedDim(tensor, dim, root.__name__, root.min, symbol, wanted.fn))
    return found


def _name_of(spec: Any) -> str | None:
    return getattr(getattr(spec, "root", spec), "__name__", None)


def _wanted(values: Any, shapes: Any) -> Iterator[tuple[torch.Tensor, int, Any]]:
    """(tensor, dimension, Dim) for each `Dim` with a name, in a structure of arguments and one of shapes."""
    if isinstance(values, torch.Tensor):
        items = shapes.items() if isinstance(shapes, Mapping) else enumerate(shapes or ())
        yield from ((values, int(d), s) for d, s in items if isinstance(s, Dim) and hasattr(s, "min"))
    elif isinstance(values, Mapping):
        by_name = shapes if isinstance(shapes, Mapping) else dict(zip(values, shapes or (), strict=False))
        for key in values:
            yield from _wanted(values[key], by_name.get(key))
    elif isinstance(values, tuple | list):
        for value, spec in zip(values, shapes or (), strict=False):
            yield from _wanted(value, spec)


def _resized(tensor: torch.Tensor, dim: int, size: int) -> torch.Tensor:
    """An example with another size; what is in it doesn't matter."""
    if size <= tensor.shape[dim]:
        return tensor.narrow(dim, 0, size)
    return tensor.new_zeros([size if d == dim else n for d, n in enumerate(tensor.shape)])


def _doubted(program: ExportedProgram, named: Sequence[NamedDim]) -> dict[str, list[int]]:
    """The values in its range that the program takes a size not to have, such as 1, for each such size. Raises
    CaptureError where it depends on sizes in another way."""
    found: dict[str, list[int]] = {}
    for expr, wrong in _wrong_values(program, {d.symbol: d for d in named}):
        for symbol, values in wrong.items():
            name = next((d.name for d in named if d.symbol == symbol), str(symbol))
            found[name] = sorted({*found.get(name, ()), *values})
            if len(found[name]) > MAX_VALUES:
                some = ", ".join(map(str, values[:4])) + (", ..." if len(values) > 4 else "")
                raise CaptureError(f"the program holds only where {expr}, so not where {name} is {some}")
    return found


def _wrong_values(
    program: ExportedProgram, named: Mapping[Any, NamedDim]
) -> Iterator[tuple[Any, dict[Any, list[int]]]]:
    """(assertion, {symbol: values in its range for which it does not hold}) of everything that was taken for true."""
    sizes = [n for node in program.graph.nodes if node.op == "placeholder" for n in _varying(node.meta.get("val"))]
    if not sizes:
        return
    env = sizes[0].node.shape_env
    for symbol, bounds in env.var_to_range.items():
        if symbol in named and 0 < named[symbol].wanted < bounds.lower:
            yield symbol >= bounds.lower, {symbol: list(range(named[symbol].wanted, int(bounds.lower)))}
    for expr in conditions(env):  # of sizes without names, every call checks them
        symbols = sorted(expr.free_symbols, key=str)
        if any(s not in named for s in symbols):
            continue
        shown = _relation(expr.subs({s: d.name for s, d in named.items()}))
        if len(symbols) != 1 or not 0 <= (high := env.var_to_range[symbols[0]].upper) <= MAX_RANGE:
            raise CaptureError(f"the program holds only where {shown}, which cannot be checked for all sizes")
        low = int(env.var_to_range[symbols[0]].lower)
        values = [n for n in range(low, int(high) + 1) if expr.subs(symbols[0], n) != sympy.true]
        yield shown, {symbols[0]: values} if values else {}


def _relation(expr: Any) -> str:
    """A condition as Python writes it: `batch % 2 == 0`."""
    text = f"{expr.lhs} {expr.rel_op} {expr.rhs}" if isinstance(expr, sympy.core.relational.Relational) else str(expr)
    return re.sub(r"\bMod\(([^(),]+), (\d+)\)", r"\1 % \2", text)


def _live(program: ExportedProgram) -> set[str]:
    """The names of the nodes on which a result depends; PyTorch removes the others at some times."""
    found: set[str] = set()
    for node in reversed(program.graph.nodes):
        if node.op == "output" or node.name in found:
            found |= {n.name for n in node.all_input_nodes}
    return found


def _varying(value: Any) -> list[torch.SymInt]:
    return [n for n in value.shape if isinstance(n, torch.SymInt)] if isinstance(value, torch.Tensor) else []


def _compare(general: ExportedProgram, special: ExportedProgram, values: Mapping[Any, int], where: str) -> None:
    ours, theirs = list(_normal(general, values)), list(_normal(special, {}))
    for a, b in zip(ours, theirs, strict=False):
        if a != b:
            raise CaptureError(f"the program is another one where {where}: {_text(a)} becomes {_text(b)}")
    if len(ours) != len(theirs):
        steps = f"{len(theirs)} steps, not {len(ours)}"
        raise CaptureError(f"the program is another one where {where}: it has {steps}")


def _text(step: tuple[Any, ...]) -> str:
    return f"{step[0]} of {', '.join(map(str, step[-1]))}"


def _normal(program: ExportedProgram, sizes: Mapping[Any, int]) -> Iterator[tuple[Any, ...]]:
    """Every step of a program as (operator, arguments, shapes), with values numbered, and `sizes` put in.

    Reshapes and transposes are no steps but part of the arguments that use them, in one form for all ways to write
    them."""
    numbers: dict[str, Any] = {}
    live = _live(program)
    count = 0

    def value(v: Any) -> Any:
        if isinstance(v, Node):
            size = v.meta.get("val")
            return value(size) if isinstance(size, torch.SymInt) else numbers[v.name]
        if isinstance(v, torch.SymInt):
            return str(substituted(v.node.expr, v.node.shape_env).subs(sizes))
        if isinstance(v, tuple | list):
            return tuple(value(x) for x in v)
        return str(v) if isinstance(v, int) and not isinstance(v, bool) else repr(v)

    def shape(node: Node) -> tuple[Any, ...]:
        return value(tuple(node.meta["val"].shape))

    for node in program.graph.nodes:
        if node.op == "placeholder":
            numbers[node.name] = f"%{count}"
            count += 1
            continue
        if node.op == "output":
            yield "output", value(node.args[0]), ()
            return
        name = str(node.target).removeprefix("aten.")
        found = node.meta.get("val")
        if name in _CHECKS or isinstance(found, torch.SymInt | torch.SymBool) or node.name not in live:
            continue
        if name == "dropout.default" and not node.args[2]:
            numbers[node.name] = numbers[node.args[0].name]
            continue
        if name in _RESHAPES or name in _PARTS and shape(node) == shape(node.args[0]):
            numbers[node.name] = _reshaped(value(node.args[0]), shape(node.args[0]), shape(node))
            continue
        if name == "permute.default":
            numbers[node.name] = _transposed(value(node.args[0]), shape(node.args[0]), node.args[1])
            continue
        numbers[node.name] = f"%{count}"
        count += 1
        tensors = found if isinstance(found, tuple | list) else (found,)
        shapes = tuple(value(tuple(t.shape)) for t in tensors if isinstance(t, torch.Tensor))
        yield name, value(node.args), value(tuple(sorted(node.kwargs.items()))), shapes


def _reshaped(source: Any, old: tuple[Any, ...], new: tuple[Any, ...]) -> Any:
    """`source`, of shape `old`, as a tensor of shape `new`."""
    if isinstance(source, tuple) and source[0] == "reshape":
        _, source, old, _ = source
    return source if old == new else ("reshape", source, old, new)


def _transposed(source: Any, old: tuple[Any, ...], order: Sequence[int]) -> Any:
    """`source`, of shape `old`, with its dimensions in another order; a reshape if only sizes of 1 move."""
    order = [d % len(old) for d in order]
    wide = [d for d in order if old[d] != "1"]
    if wide == sorted(wide):
        return _reshaped(source, old, tuple(old[d] for d in order))
    return "permute", source, old, tuple(order)
