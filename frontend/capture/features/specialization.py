"""Checks that a program that was traced for varying sizes is the same for all of the sizes.

While PyTorch traces, it decides some branches by a size, and records the condition that it assumed. Often the condition
is `size != 1`, which decides between two forms of a reshape or of a broadcast. For such a condition the program is
traced again with the size fixed at the excluded value. Both programs must then have the same operators, arguments and
shapes. All other conditions must hold in the whole declared range, or the program is refused.

An *excluded size* below is a value in the declared range for which a recorded condition is false.
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
"""Operators that change at most the shape. PyTorch selects among them by the sizes and the strides of the tensor."""

_MAYBE_IDENTITY = {"slice.Tensor", "expand.default"}
"""Operators that are the identity if the shape stays the same."""

_CHECKS = {"_assert_tensor_metadata.default", "_assert_scalar.default", "sym_size.int"}
"""Operators that compute nothing for a result."""

MAX_PROGRAMS = 7
"""Most programs to compare in addition to the first one. Each dimension with one excluded size doubles the number of
programs."""

MAX_VALUES = 2
"""Most excluded sizes of one dimension. The program is traced again for each of them."""

MAX_RANGE = 1 << 13
"""Largest upper bound of a size for which a condition is evaluated for every size in the range."""


def checked(program: ExportedProgram, features: Features) -> list[NamedDim]:
    """Checks that the program is the same for all sizes of the named dimensions, and returns these dimensions.

    Raises CaptureError with the difference, or with the sizes for which the program would differ.
    """
    request, named = features.request, _named_dims(features.request, program)
    excluded = _excluded_sizes(program, named)
    cases = [[None, *values] for values in excluded.values()]
    if prod(map(len, cases)) > MAX_PROGRAMS + 1:
        raise CaptureError(f"the program depends on which of too many sizes are 1: {', '.join(excluded)}")
    for values in list(product(*cases))[1:]:
        chosen = {name: n for name, n in zip(excluded, values, strict=True) if n is not None}
        small = {id(t): t for t in (d.tensor for d in named)}
        for d in named:
            if d.name in chosen:
                small[id(d.tensor)] = _resized(small[id(d.tensor)], d.dim, d.size(chosen[d.name]))
        args, kwargs = pytree.tree_map(lambda v, s=small: s.get(id(v), v), (request.args, request.kwargs))
        fixed = pytree.tree_map(lambda s, c=chosen: None if _name_of(s) in c else s, request.shapes)
        special, _ = export(replace(request, args=args, kwargs=kwargs, shapes=fixed))
        where = " and ".join(f"{name} is {n}" for name, n in chosen.items())
        for name, more in _excluded_sizes(special, named).items():
            if set(more) - set(excluded.get(name, ())):
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
    named: list[NamedDim] = []
    for tensor, dim, spec in _declared_dims(values, request.shapes):
        size = traced[id(tensor)].shape[dim]
        if isinstance(size, torch.SymInt):
            expr, root = substituted(size.node.expr, size.node.shape_env), getattr(spec, "root", spec)
            if root is spec and isinstance(expr, sympy.Symbol):
                named.append(NamedDim(tensor, dim, spec.__name__, spec.min, expr))
            elif root is not spec and len(expr.free_symbols) == 1:
                (symbol,) = expr.free_symbols
                if all(expr.subs(symbol, n) == spec.fn(n) for n in (root.min, root.min + 1, root.min + 7)):
                    named.append(NamedDim(tensor, dim, root.__name__, root.min, symbol, spec.fn))
    return named


def _name_of(spec: Any) -> str | None:
    return getattr(getattr(spec, "root", spec), "__name__", None)


def _declared_dims(values: Any, shapes: Any) -> Iterator[tuple[torch.Tensor, int, Any]]:
    """Yields (tensor, dimension, `Dim`) for each named `Dim` of the request. `shapes` has the structure of `values`."""
    if isinstance(values, torch.Tensor):
        items = shapes.items() if isinstance(shapes, Mapping) else enumerate(shapes or ())
        yield from ((values, int(d), s) for d, s in items if isinstance(s, Dim) and hasattr(s, "min"))
    elif isinstance(values, Mapping):
        by_name = shapes if isinstance(shapes, Mapping) else dict(zip(values, shapes or (), strict=False))
        for key in values:
            yield from _declared_dims(values[key], by_name.get(key))
    elif isinstance(values, tuple | list):
        for value, spec in zip(values, shapes or (), strict=False):
            yield from _declared_dims(value, spec)


def _resized(tensor: torch.Tensor, dim: int, size: int) -> torch.Tensor:
    """Returns an example with another size of one dimension. Its elements do not matter."""
    if size <= tensor.shape[dim]:
        return tensor.narrow(dim, 0, size)
    return tensor.new_zeros([size if d == dim else n for d, n in enumerate(tensor.shape)])


def _excluded_sizes(program: ExportedProgram, named: Sequence[NamedDim]) -> dict[str, list[int]]:
    """Returns the excluded sizes by the name of the dimension.

    Raises CaptureError if more than `MAX_VALUES` sizes of a dimension are excluded.
    """
    excluded: dict[str, list[int]] = {}
    for expr, wrong in _excluded_by_assertions(program, {d.symbol: d for d in named}):
        for symbol, values in wrong.items():
            name = next((d.name for d in named if d.symbol == symbol), str(symbol))
            excluded[name] = sorted({*excluded.get(name, ()), *values})
            if len(excluded[name]) > MAX_VALUES:
                some = ", ".join(map(str, values[:4])) + (", ..." if len(values) > 4 else "")
                raise CaptureError(f"the program holds only where {expr}, so not where {name} is {some}")
    return excluded


def _excluded_by_assertions(
    program: ExportedProgram, named: Mapping[Any, NamedDim]
) -> Iterator[tuple[Any, dict[Any, list[int]]]]:
    """Yields each recorded condition with its excluded sizes by symbol.

    Raises CaptureError for a condition that cannot be evaluated for all sizes.
    """
    sizes = [n for node in program.graph.nodes if node.op == "placeholder" for n in _varying(node.meta.get("val"))]
    if not sizes:
        return
    env = sizes[0].node.shape_env
    for symbol, bounds in env.var_to_range.items():
        if symbol in named and 0 < named[symbol].declared_min < bounds.lower:
            yield symbol >= bounds.lower, {symbol: list(range(named[symbol].declared_min, int(bounds.lower)))}
    # Conditions on sizes without names are checked in every call.
    for expr in conditions(env):
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
    """Returns a condition in Python's syntax: `batch % 2 == 0`."""
    text = f"{expr.lhs} {expr.rel_op} {expr.rhs}" if isinstance(expr, sympy.core.relational.Relational) else str(expr)
    return re.sub(r"\bMod\(([^(),]+), (\d+)\)", r"\1 % \2", text)


def _live(program: ExportedProgram) -> set[str]:
    """Returns the names of the nodes that a result depends on. PyTorch removes other nodes in some programs only."""
    names: set[str] = set()
    for node in reversed(program.graph.nodes):
        if node.op == "output" or node.name in names:
            names |= {n.name for n in node.all_input_nodes}
    return names


def _varying(value: Any) -> list[torch.SymInt]:
    return [n for n in value.shape if isinstance(n, torch.SymInt)] if isinstance(value, torch.Tensor) else []


def _compare(general: ExportedProgram, special: ExportedProgram, values: Mapping[Any, int], where: str) -> None:
    ours, theirs = list(_normalized_steps(general, values)), list(_normalized_steps(special, {}))
    for a, b in zip(ours, theirs, strict=False):
        if a != b:
            raise CaptureError(f"the program is another one where {where}: {_step_text(a)} becomes {_step_text(b)}")
    if len(ours) != len(theirs):
        steps = f"{len(theirs)} steps, not {len(ours)}"
        raise CaptureError(f"the program is another one where {where}: it has {steps}")


def _step_text(step: tuple[Any, ...]) -> str:
    return f"{step[0]} of {', '.join(map(str, step[-1]))}"


def _normalized_steps(program: ExportedProgram, sizes: Mapping[Any, int]) -> Iterator[tuple[Any, ...]]:
    """Yields the operators of a program in a form that can be compared: (operator, arguments, shapes).

    Values are numbered in their order, and `sizes` replaces symbols. Reshapes and permutations are no steps of their
    own. They appear in the arguments that use them, in one form for all equal ones.
    """
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
        result = node.meta.get("val")
        if name in _CHECKS or isinstance(result, torch.SymInt | torch.SymBool) or node.name not in live:
            continue
        if name == "dropout.default" and not node.args[2]:
            numbers[node.name] = numbers[node.args[0].name]
            continue
        if name in _RESHAPES or name in _MAYBE_IDENTITY and shape(node) == shape(node.args[0]):
            numbers[node.name] = _reshaped(value(node.args[0]), shape(node.args[0]), shape(node))
            continue
        if name == "permute.default":
            numbers[node.name] = _transposed(value(node.args[0]), shape(node.args[0]), node.args[1])
            continue
        numbers[node.name] = f"%{count}"
        count += 1
        tensors = result if isinstance(result, tuple | list) else (result,)
        shapes = tuple(value(tuple(t.shape)) for t in tensors if isinstance(t, torch.Tensor))
        yield name, value(node.args), value(tuple(sorted(node.kwargs.items()))), shapes


def _reshaped(source: Any, old: tuple[Any, ...], new: tuple[Any, ...]) -> Any:
    """Returns the normal form of a reshape of `source` from shape `old` to `new`."""
    if isinstance(source, tuple) and source[0] == "reshape":
        _, source, old, _ = source
    return source if old == new else ("reshape", source, old, new)


def _transposed(source: Any, old: tuple[Any, ...], order: Sequence[int]) -> Any:
    """Returns the normal form of a permutation of `source`; a reshape if only dimensions of size 1 move."""
    order = [d % len(old) for d in order]
    wide = [d for d in order if old[d] != "1"]
    if wide == sorted(wide):
        return _reshaped(source, old, tuple(old[d] for d in order))
    return "permute", source, old, tuple(order)
