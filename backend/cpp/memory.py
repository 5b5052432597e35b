"""Loads and stores as C++: addresses, wide accesses, conditions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import reduce
from typing import NamedTuple

from xdsl.dialects.builtin import IndexType
from xdsl.ir import SSAValue

from ...dialects.kernel import AtomicRmwOp, CopyAsyncOp, LoadOp, SharedOp, StoreOp
from ...dialects.kernel.mma import MatrixRows
from ...dialects.shapes.extents import Extent, SymbolAttr, extents_of, least
from ...dialects.shapes.ranges import span
from ...dialects.support.locations import refused
from ...errors import CompileError
from .expressions import (
    ADD,
    AND,
    BIT_XOR,
    MUL,
    RELATION,
    TERNARY,
    UNARY,
    Expr,
    Register,
    add,
    c_size,
    flips,
    infix,
    multiply,
    terms,
)
from .writer import Writer

Mover = LoadOp | StoreOp | AtomicRmwOp | MatrixRows | CopyAsyncOp
"""What has an address in a buffer for each register."""


def pitches(extents: Sequence[Extent]) -> list[tuple[int, tuple[SymbolAttr, ...]]]:
    """Returns the distance of neighbours along each dimension of row-major memory: a number times sizes."""
    result, number, symbols = list[tuple[int, tuple[SymbolAttr, ...]]](), 1, ()
    for extent in reversed(extents):
        result.append((number, symbols))
        if isinstance(extent, int):
            number = number * extent
        else:
            symbols = (extent, *symbols)
    return result[::-1]


def print_load(writer: Writer, op: LoadOp) -> None:
    """Prints a load into a new place."""
    writer.type_of(op.result)
    prepare(writer, op)
    if op.vec.data == 1:
        writer.define(op.result, lambda r: loaded(writer, op, r).text)
        return
    place = writer.declare(op.result)
    with writer.registers_loop(op.registers, op.vec.data) as r:
        target = writer.pointer(place.name, str(r), op.vec.data * c_size(op.result.type))
        call = f"{wide(writer, op, 'ld')}({target}, &{element_at(writer, op, r)});"
        if op.checks and (met := condition(writer, op, r)) is not None:
            _load_if(writer, op, met, call, target)
        else:
            writer.line(call)


def _load_if(writer: Writer, op: LoadOp, met: Expr, call: str, target: str) -> None:
    """Prints the `call` of a wide load where a condition is `met`; elsewhere `target` gets the fill value."""
    writer.line(f"if ({met.text}) {call}")
    if op.fill is not None:
        writer.line(f"else {wide(writer, op, 'fill')}({target}, {writer.read(op.fill).text});")


def loaded(writer: Writer, op: LoadOp, r: Register) -> Expr:
    """Returns register `r` of a load."""
    text = element_at(writer, op, r)
    if op.fill is None or (met := condition(writer, op, r)) is None:
        return Expr(text)
    return Expr(f"{met.at(AND)} ? {text} : {writer.read(op.fill).text}", TERNARY)


def print_store(writer: Writer, op: StoreOp) -> None:
    """Prints a store of a value that has a place."""
    prepare(writer, op)
    with writer.registers_loop(op.registers, op.vec.data) as r:
        writer.line(stored(writer, op, r) if op.vec.data == 1 else _stored_wide(writer, op, r))


def _stored_wide(writer: Writer, op: StoreOp, r: Register) -> str:
    source = writer.pointer(writer.places[op.value].name, str(r), op.vec.data * c_size(op.value.type))
    return f"{guard(writer, op, r)}{wide(writer, op, 'st')}(&{element_at(writer, op, r)}, {source});"


def stored(writer: Writer, op: StoreOp, r: Register) -> str:
    """Returns the statement that stores register `r`."""
    return f"{guard(writer, op, r)}{element_at(writer, op, r)} = {writer.read(op.value, r).text};"


def print_atomic(writer: Writer, op: AtomicRmwOp) -> None:
    prepare(writer, op)
    with writer.registers_loop(op.registers, 1) as r:
        writer.line(combined_atomically(writer, op, r))


def combined_atomically(writer: Writer, op: AtomicRmwOp, r: Register) -> str:
    """Returns the statement that combines register `r` into memory."""
    name = f"atomic_{op.kind.data.value}"
    writer.use(f"{name}.{writer.type_of(op.value)}")
    return f"{guard(writer, op, r)}{name}(&{element_at(writer, op, r)}, {writer.read(op.value, r).text});"


def guard(writer: Writer, op: StoreOp | AtomicRmwOp, r: Register) -> str:
    """Returns the head of the write of register `r`: `if (...) `, or nothing if it always happens."""
    met = condition(writer, op, r) if op.checks else None
    if op.predicate is not None:
        predicate = writer.read(op.predicate)
        met = predicate if met is None else infix(predicate, "&&", met, AND)
    return "" if met is None else f"if ({met.text}) "


def prepare(writer: Writer, op: Mover) -> None:
    """Names the part of the address that does not depend on the register, if it is long and there is a loop."""
    if op.registers > op.vec.data and all(isinstance(c.type, IndexType) for c in op.coordinates):
        base = _base(writer, op)
        if len(base.text) > 24 and base.level < UNARY:
            writer.named(base, "at")


def wide(writer: Writer, op: LoadOp | StoreOp, kind: str) -> str:
    """Returns the name of the helper for an access as wide as `op`."""
    value = op.result if isinstance(op, LoadOp) else op.value
    size = c_size(value.type)
    if op.vec.data * size not in (2, 4, 8, 16):
        raise refused(op, f"no access is {op.vec.data * size} bytes wide", CompileError)
    name = f"{kind}{op.vec.data}"
    writer.use(f"{name}.{writer.type_of(value)}.{size}")
    return name


def element_at(writer: Writer, op: Mover, r: Register) -> str:
    """`x[offset]`"""
    return f"{memory_name(writer, op.memory)}[{offset(writer, op, r).text}]"


def memory_name(writer: Writer, memory: SSAValue) -> str:
    """Returns the pointer to a buffer."""
    if memory not in writer.places:
        name = memory.owner.name if isinstance(memory.owner, SharedOp) else None
        raise CompileError("a buffer without a place: run kernel-allocate-shared", operator=name)
    return writer.places[memory].name


def offset(writer: Writer, op: Mover, r: Register) -> Expr:
    """Returns the number of the element that register `r` moves."""
    base = _base(writer, op, r)
    base = writer.find(base.text) or base
    low = op.vec.data.bit_length() - 1
    if op.xor is not None:  # a buffer of one dimension
        return exclusive(base, r, [b[0] for b in op.reg_bases], low)
    for sizes, pitch in _pitches_by_sizes(op).items():
        distance = terms(r, _steps(op, pitch), low)
        base = add(base, _times(writer, distance, sizes) if sizes else distance)
    return base


def _base(writer: Writer, op: Mover, r: Register = 0) -> Expr:
    """Returns the element of register 0."""
    result = Expr("0")
    for sizes, pitch in _pitches_by_sizes(op).items():
        coordinates = zip(op.coordinates, pitch, strict=True)
        part = reduce(add, (multiply(writer.read(c, r), number) for c, number in coordinates if number), Expr("0"))
        result = add(result, _times(writer, part, sizes) if sizes else part)
    return result


def _pitches_by_sizes(op: Mover) -> dict[tuple[SymbolAttr, ...], list[int]]:
    """Returns for each product of sizes among the pitches of a buffer the numbers that multiply it along the
    dimensions: what belongs to one product is added up first."""
    pitch = pitches(extents_of(op.memory.type))
    return {sizes: [number if symbols == sizes else 0 for number, symbols in pitch] for _, sizes in pitch}


def bit_steps(op: Mover) -> list[int]:
    """Returns how far each bit of a register's number moves in memory, as a number times sizes."""
    return _steps(op, [number for number, _ in pitches(extents_of(op.memory.type))])


def _steps(op: Mover, pitch: Sequence[int]) -> list[int]:
    return [sum(b * n for b, n in zip(basis, pitch, strict=True)) for basis in op.reg_bases]


def _times(writer: Writer, a: Expr, sizes: Sequence[SymbolAttr]) -> Expr:
    for size in sizes if a.text != "0" else ():
        a = infix(a, "*", writer.size(size), MUL)
    return a


def exclusive(base: Expr, r: Register, steps: Sequence[int], low: int) -> Expr:
    """Returns base ^ the exclusive or of the steps of the set bits of r, whose bits below `low` are 0."""
    moved = flips(r, steps, low)
    start = base if isinstance(r, int) else Expr(base.at(UNARY))
    return base if moved.text == "0" else infix(start, "^", moved, BIT_XOR)


def condition(writer: Writer, op: LoadOp | StoreOp | AtomicRmwOp | CopyAsyncOp, r: Register) -> Expr | None:
    """Returns the condition of the access of register `r`, without comparisons that the ranges decide; None if it
    always happens."""
    result: Expr | None = None
    for check in open_checks(writer, op):
        at = add(writer.read(check.value, r), terms(r, check.steps, op.vec.data.bit_length() - 1)).at(ADD)
        parts = [f"{at} >= {check.low}"] if check.is_below else []
        parts += [f"{at} < {writer.size(check.high).text}"] if check.is_above else []
        for part in parts:
            result = Expr(part, RELATION) if result is None else Expr(f"{result.at(AND)} && {part}", AND)
    return result


class Check(NamedTuple):
    """A check of an access: `low` <= `value` plus the `steps` of a register's bits < `high`. `is_below` and `is_above`
    are false for a side that always holds."""

    value: SSAValue
    steps: list[int]
    low: int
    high: Extent
    is_below: bool
    is_above: bool


def open_checks(writer: Writer, op: LoadOp | StoreOp | AtomicRmwOp | CopyAsyncOp) -> Iterator[Check]:
    """Yields the checks of an access that the ranges do not decide."""
    for c, (value, (low, high)) in enumerate(zip(op.checks, op.bounds, strict=True)):
        steps = [basis[c] for basis in op.check_steps]
        (below, above), (first, last) = span(steps), writer.ranges.of(value)
        check = Check(value, steps, low, high, first + below < low, last + above >= least(high))
        if check.is_below or check.is_above:
            yield check
