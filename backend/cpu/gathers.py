"""Loads of vectors whose lanes lie anywhere in a buffer, as gathers: an offset for each lane, and a mask of the lanes
that are inside. Processors with AVX2 or AVX-512 have an instruction for elements of four bytes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod

from xdsl.ir import SSAValue

from ...dialects.kernel.memory import LoadOp
from ...dialects.shapes.extents import Extent, least
from ...dialects.shapes.ranges import span
from ..cpp.expressions import AND, RELATION, Expr, add, call, infix, multiply
from ..cpp.memory import memory_extents, memory_name, pitches
from ..cpp.writer import terms
from .writer import VECTOR, Lanes, VectorWriter

ELEMENTS = ("float", "double", "int", "long long")
"""C++ types that are gathered."""

LARGEST = 2**31 - 1
"""Elements of a buffer that offsets of 32 bits reach."""

Holds = Callable[[SSAValue, Sequence[int], Extent], bool]


def gathered(writer: VectorWriter, op: LoadOp, holds: Holds) -> Expr | None:
    """Returns the vector of a load as a gather, or None if the load has no such form.

    Args:
        writer: The text of the kernel.
        op: A load whose lanes have different coordinates or checks.
        holds: Returns true if a value with its steps is below a bound in all vectors of the loops that are printed.
    """
    extents, element = memory_extents(op.memory.type), writer.type_of(op.result)
    static = [e for e in extents if isinstance(e, int)]
    fits = len(static) == len(extents) and prod(static) <= LARGEST
    if not fits or element not in ELEMENTS or op.vec.data > 1 or op.xor is not None:
        return None
    numbers = [number for number, _ in pitches(extents)]
    steps = [sum(b * n for b, n in zip(basis, numbers, strict=True)) for basis in op.reg_bases]
    base, offsets = terms(VECTOR, steps), list[Expr]()
    for coordinate, number in zip(op.coordinates, numbers, strict=True):
        read = writer.read_vector(coordinate)
        if not read.is_vector:
            base = add(base, multiply(read.text, number))
        else:
            offsets.append(multiply(_narrow(read), number))
    across, mask = _across(steps, "int"), _mask(writer, op, holds)
    if across is None or mask is None:
        return None
    fill = f"({element}){'0' if op.fill is None else writer.read(op.fill).text}"
    name = memory_name(writer, op.memory)
    memory = f"&{name}[{base.text}], &{name}[{prod(static)}]"
    if across and not offsets:
        return Expr(f"load_every<{steps[0]}>({memory}, {mask}, {fill})")
    offset = Expr("0")
    for part in [*offsets, *across]:
        offset = add(offset, part)
    if offset.text == "0":
        offset = Expr("vec<int>{}")
    return Expr(f"gather({memory}, {offset.text}, {mask}, {fill})")


def _across(steps: Sequence[int], element: str) -> list[Expr] | None:
    """Returns what the lanes of a vector add to a number that grows by `steps`, as vectors of `element`; None if that
    is no multiple of the number of the lane."""
    low = [*steps[:4]]
    if not any(low):
        return []
    if low != [low[0] << bit for bit in range(4)]:
        return None
    return [multiply(Expr(f"numbers<{element}>()"), low[0])]


def _mask(writer: VectorWriter, op: LoadOp, holds: Holds) -> str | None:
    """Returns the mask of the lanes whose checks hold; None for a check that has no such form."""
    masks, conditions = list[str](), list[str]()
    for c, (value, (lo, hi)) in enumerate(zip(op.checks, op.bounds, strict=True)):
        steps = [basis[c] for basis in op.check_steps]
        (below, above), (first, last) = span(steps), writer.ranges.of(value)
        under, over = first + below < lo, last + above >= least(hi)
        if not under and (not over or holds(value, steps, hi)):
            continue
        read = writer.read_vector(value)
        element = "int" if read.is_vector else writer.index
        across = _across(steps, element)
        if across is None or not isinstance(hi, int) or not 0 <= lo <= hi <= LARGEST:
            return None
        at = add(_narrow(read) if read.is_vector else read.text, terms(VECTOR, steps))
        for part in across:
            at = add(at, part)
        sides = [infix(at, ">=", Expr(str(lo)), RELATION)] if under else []
        sides += [infix(at, "<", Expr(str(hi)), RELATION)] if over else []
        if not read.is_vector and not across:
            conditions += [side.at(AND) for side in sides]
        else:
            masks += [f"({side.text})" if element == "int" else f"as_mask({side.text})" for side in sides]
    if conditions:
        masks.append(f"all((bool)({' && '.join(conditions)}))")
    return " & ".join(masks) or "all(true)"


def _narrow(read: Lanes) -> Expr:
    """Returns a vector of indices in 32 bits."""
    return read.text if read.element == "int" else call("narrow", [read.text])
