"""Whether a program that PyTorch traced for sizes that vary holds for all of them.

Where tracing had to decide something by a size, PyTorch notes what it took for true. Inside PyTorch, and in many
models, that is often that a size is not 1: so a reshape is carried out in one way or another, or there is nothing to
expand. Then the program is traced again with that size fixed at 1, and operator by operator, argument by argument and
shape by shape both have to be the same. What else was taken for true has to be true in the whole range, or it is
refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import combinations
from typing import Any

import sympy
import torch
from torch.export import ExportedProgram
from torch.fx import Node
from torch.utils import _pytree as pytree

from ..errors import CaptureError
from .sizes import NamedDim, equal_sizes, is_from_data

_VIEWS = {"view.default", "reshape.default", "_unsafe_view.default", "flatten.using_ints"}
"""Reshapes, of which PyTorch takes one or another by how the tensor lies in memory."""

_SAME = {"clone.default", "contiguous.default", "alias.default", "detach.default"}
"""Operators that change nothing but where a tensor lies."""

_PARTS = {"slice.Tensor", "expand.default", "narrow.default"} | _VIEWS
"""Operators that change nothing if the shape stays the same."""

_CHECKS = {"_assert_tensor_metadata.default", "_assert_scalar.default", "sym_size.int"}

MAX_SIZES = 3
"""Sizes that may be 1 independently of each other; each doubles the number of programs that are compared."""

MAX_RANGE = 1 << 13
"""The values of a size for which an assertion is tried, all of them."""

Export = Callable[[tuple[Any, ...], dict[str, Any], Any], ExportedProgram]


def check_at_one(
    general: ExportedProgram,
    named: Sequence[NamedDim],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    shapes: Any,
    export: Export,
) -> None:
    """Check that `general` is the program for all sizes in the ranges of the dimensions `named`.

    `export` traces the program for other examples. Raises CaptureError that says what differs, or for which size.
    """
    doubted = _doubted(general, named)
    if len(doubted) > MAX_SIZES:
        raise CaptureError(f"the program depends on which of more than {MAX_SIZES} sizes are 1: {', '.join(doubted)}")
    for count in range(1, len(doubted) + 1):
        for chosen in combinations(doubted, count):
            small = {id(t): t for t in (d.tensor for d in named)}
            for d in named:
                if d.name in chosen:
                    small[id(d.tensor)] = small[id(d.tensor)].narrow(d.dim, 0, 1)
            new_args, new_kwargs = pytree.tree_map(lambda v, s=small: s.get(id(v), v), (args, kwargs))
            fixed = pytree.tree_map(lambda s, c=chosen: None if getattr(s, "__name__", None) in c else s, shapes)
            special = export(new_args, new_kwargs, fixed)
            names = " and ".join(chosen)
            if new := [n for n in _doubted(special, named) if n not in doubted]:
                raise CaptureError(f"the program is another one where {names} is 1: it asks for {new[0]}")
            _compare(general, special, {d.symbol: 1 for d in named if d.name in chosen}, names)


def _doubted(program: ExportedProgram, named: Sequence[NamedDim]) -> list[str]:
    """The sizes that the program takes for something else than 1, although they may be. Raises CaptureError where it
    depends on sizes in another way."""
    found: list[str] = []
    for expr, wrong in _wrong_values(program, {d.symbol: d for d in named}):
        for symbol, values in wrong.items():
            name = next((d.name for d in named if d.symbol == symbol), str(symbol))
            if values != [1]:
                some = ", ".join(map(str, values[:4])) + (", ..." if len(values) > 4 else "")
                raise CaptureError(f"the program holds only where {expr}, so not where {name} is {some}")
            found += [] if name in found else [name]
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
    equal = equal_sizes(env)
    for expr in [n.expr.subs(equal) for notes in env.deferred_runtime_asserts.values() for n in notes]:
        if expr == sympy.true or any(is_from_data(s) for s in expr.free_symbols):
            continue  # the importer refuses sizes that depend on data
        symbols = sorted(expr.free_symbols, key=str)
        shown = expr.subs({s: d.name for s, d in named.items()})
        if len(symbols) != 1 or not 0 <= (high := env.var_to_range[symbols[0]].upper) <= MAX_RANGE:
            raise CaptureError(f"the program holds only where {shown}, which cannot be checked for all sizes")
        low = int(env.var_to_range[symbols[0]].lower)
        values = [n for n in range(low, int(high) + 1) if expr.subs(symbols[0], n) != sympy.true]
        yield shown, {symbols[0]: values} if values else {}


def _live(program: ExportedProgram) -> set[str]:
    """The names of the nodes on which a result depends; PyTorch removes the others at some times."""
    found: set[str] = set()
    for node in reversed(program.graph.nodes):
        if node.op == "output" or node.name in found:
            found |= {n.name for n in node.all_input_nodes}
    return found


def _varying(value: Any) -> list[torch.SymInt]:
    return [n for n in value.shape if isinstance(n, torch.SymInt)] if isinstance(value, torch.Tensor) else []


def _compare(general: ExportedProgram, special: ExportedProgram, ones: Mapping[Any, int], names: str) -> None:
    ours, theirs = list(_normal(general, ones)), list(_normal(special, {}))
    for a, b in zip(ours, theirs, strict=False):
        if a != b:
            raise CaptureError(f"the program is another one where {names} is 1: {_text(a)} becomes {_text(b)}")
    if len(ours) != len(theirs):
        steps = f"{len(theirs)} steps, not {len(ours)}"
        raise CaptureError(f"the program is another one where {names} is 1: it has {steps}")


def _text(step: tuple[Any, ...]) -> str:
    return f"{step[0]} of {', '.join(map(str, step[-1]))}"


def _normal(program: ExportedProgram, ones: Mapping[Any, int]) -> Iterator[tuple[Any, ...]]:
    """Every step of a program as (operator, arguments, shapes), with values numbered, and sizes `ones` put in."""
    numbers: dict[str, Any] = {}
    live = _live(program)
    count = 0

    def value(v: Any) -> Any:
        if isinstance(v, Node):
            size = v.meta.get("val")
            return value(size) if isinstance(size, torch.SymInt) else numbers[v.name]
        if isinstance(v, torch.SymInt):
            return str(v.node.expr.subs(equal_sizes(v.node.shape_env)).subs(ones))
        if isinstance(v, tuple | list):
            return tuple(value(x) for x in v)
        return str(v) if isinstance(v, int) and not isinstance(v, bool) else repr(v)

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
        if name in _SAME:
            numbers[node.name] = numbers[node.args[0].name]
            continue
        if name in _PARTS and value(tuple(found.shape)) == value(tuple(node.args[0].meta["val"].shape)):
            numbers[node.name] = numbers[node.args[0].name]
            continue
        numbers[node.name] = f"%{count}"
        count += 1
        tensors = found if isinstance(found, tuple | list) else (found,)
        shapes = tuple(value(tuple(t.shape)) for t in tensors if isinstance(t, torch.Tensor))
        if name in _VIEWS:
            yield "reshape", (value(node.args[0]),), shapes
        else:
            yield name, value(node.args), value(tuple(sorted(node.kwargs.items()))), shapes
