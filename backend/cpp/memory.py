"""Printing of loads and stores: addresses, wide accesses and bounds checks.

An operation moves one element for each register that a thread holds. The address of register r is a base address plus
an offset that depends on the bits of r. A wide access moves several contiguous registers at once. An access with checks
happens only if they hold; a load gives its fill value otherwise.
"""

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

AddressedOp = LoadOp | StoreOp | AtomicRmwOp | MatrixRows | CopyAsyncOp
"""Operation with an address in a buffer for each register."""


def pitches(extents: Sequence[Extent]) -> list[tuple[int, tuple[SymbolAttr, ...]]]:
    """Returns the stride of each dimension of row-major memory: a number, and symbolic extents that multiply it."""
    result, number, symbols = list[tuple[int, tuple[SymbolAttr, ...]]](), 1, ()
    for extent in reversed(extents):
        result.append((number, symbols))
        if isinstance(extent, int):
            number = number * extent
        else:
            symbols = (extent, *symbols)
    return result[::-1]


def print_load(writer: Writer, op: LoadOp) -> None:
    """Prints a load into a new variable or array."""
    writer.type_of(op.result)
    prepare(writer, op)
    if op.vec.data == 1:
        writer.define(op.result, lambda r: load_expression(writer, op, r).text)
        return
    variable = writer.declare(op.result)
    with writer.registers_loop(op.registers, op.vec.data) as r:
        target = writer.pointer(variable.name, str(r), op.vec.data * c_size(op.result.type))
        call = f"{wide_access_helper(writer, op, 'ld')}({target}, &{element_at(writer, op, r)});"
        if op.checks and (met := condition(writer, op, r)) is not None:
            _load_if(writer, op, met, call, target)
        else:
            writer.line(call)


def _load_if(writer: Writer, op: LoadOp, met: Expr, call: str, target: str) -> None:
    """Prints the `call` of a wide load under the condition `met`; if it fails, `target` gets the fill value."""
    writer.line(f"if ({met.text}) {call}")
    if op.fill is not None:
        writer.line(f"else {wide_access_helper(writer, op, 'fill')}({target}, {writer.read(op.fill).text});")


def load_expression(writer: Writer, op: LoadOp, r: Register) -> Expr:
    """Returns the expression that loads register `r`, or the fill value if it is out of bounds.

    Args:
        writer: the writer of the kernel.
        op: the load.
        r: number of the register.
    """
    text = element_at(writer, op, r)
    if op.fill is None or (met := condition(writer, op, r)) is None:
        return Expr(text)
    return Expr(f"{met.at(AND)} ? {text} : {writer.read(op.fill).text}", TERNARY)


def print_store(writer: Writer, op: StoreOp) -> None:
    """Prints a store, one access for each register or each wide access."""
    prepare(writer, op)
    with writer.registers_loop(op.registers, op.vec.data) as r:
        writer.line(store_statement(writer, op, r) if op.vec.data == 1 else _wide_store_statement(writer, op, r))


def _wide_store_statement(writer: Writer, op: StoreOp, r: Register) -> str:
    source = writer.pointer(writer.variables[op.value].name, str(r), op.vec.data * c_size(op.value.type))
    return f"{guard(writer, op, r)}{wide_access_helper(writer, op, 'st')}(&{element_at(writer, op, r)}, {source});"


def store_statement(writer: Writer, op: StoreOp, r: Register) -> str:
    """Returns the C++ statement that stores register `r`.

    Args:
        writer: the writer of the kernel.
        op: the store.
        r: number of the register.
    """
    return f"{guard(writer, op, r)}{element_at(writer, op, r)} = {writer.read(op.value, r).text};"


def print_atomic(writer: Writer, op: AtomicRmwOp) -> None:
    prepare(writer, op)
    with writer.registers_loop(op.registers, 1) as r:
        writer.line(atomic_statement(writer, op, r))


def atomic_statement(writer: Writer, op: AtomicRmwOp, r: Register) -> str:
    """Returns the C++ statement that atomically combines register `r` with its element in memory.

    Args:
        writer: the writer of the kernel.
        op: the atomic operation.
        r: number of the register.
    """
    name = f"atomic_{op.kind.data.value}"
    writer.use(f"{name}.{writer.type_of(op.value)}")
    return f"{guard(writer, op, r)}{name}(&{element_at(writer, op, r)}, {writer.read(op.value, r).text});"


def guard(writer: Writer, op: StoreOp | AtomicRmwOp, r: Register) -> str:
    """Returns `if (condition) ` for the write of register `r`, or an empty text if the write is unconditional.

    Args:
        writer: the writer of the kernel.
        op: the store or atomic operation.
        r: number of the register.
    """
    met = condition(writer, op, r) if op.checks else None
    if op.predicate is not None:
        predicate = writer.read(op.predicate)
        met = predicate if met is None else infix(predicate, "&&", met, AND)
    return "" if met is None else f"if ({met.text}) "


def prepare(writer: Writer, op: AddressedOp) -> None:
    """Declares a constant for the base address, if the address is a long expression inside a loop over registers."""
    if op.registers > op.vec.data and all(isinstance(c.type, IndexType) for c in op.coordinates):
        base = _base(writer, op)
        if len(base.text) > 24 and base.level < UNARY:
            writer.named(base, "at")


def wide_access_helper(writer: Writer, op: LoadOp | StoreOp, kind: str) -> str:
    """Returns the name of the helper for the wide access of `op`, and marks it as used.

    Args:
        writer: the writer of the kernel.
        op: the load or store.
        kind: "ld", "st" or "fill".

    Raises:
        CompileError: if the access is not 2, 4, 8 or 16 bytes wide.
    """
    value = op.result if isinstance(op, LoadOp) else op.value
    size = c_size(value.type)
    if op.vec.data * size not in (2, 4, 8, 16):
        raise refused(op, f"expected an access of 2, 4, 8 or 16 bytes, but got {op.vec.data * size}", CompileError)
    name = f"{kind}{op.vec.data}"
    writer.use(f"{name}.{writer.type_of(value)}.{size}")
    return name


def element_at(writer: Writer, op: AddressedOp, r: Register) -> str:
    """Returns the C++ of the element that register `r` moves, as in `x[offset]`.

    Args:
        writer: the writer of the kernel.
        op: the operation.
        r: number of the register.
    """
    return f"{memory_name(writer, op.memory)}[{offset(writer, op, r).text}]"


def memory_name(writer: Writer, memory: SSAValue) -> str:
    """Returns the name of the pointer to a buffer. Raises CompileError if the buffer is not allocated yet."""
    if memory not in writer.variables:
        name = memory.owner.name if isinstance(memory.owner, SharedOp) else None
        raise CompileError("expected shared memory with an offset; run kernel-allocate-shared first", operator=name)
    return writer.variables[memory].name


def offset(writer: Writer, op: AddressedOp, r: Register) -> Expr:
    """Returns the offset in the buffer, in elements, of the element that register `r` moves.

    Args:
        writer: the writer of the kernel.
        op: the operation.
        r: number of the register.
    """
    base = _base(writer, op, r)
    base = writer.find(base.text) or base
    low = op.vec.data.bit_length() - 1
    if op.xor is not None:  # swizzled memory, whose buffer has one dimension
        return xor_address(base, r, [b[0] for b in op.reg_bases], low)
    for sizes, pitch in _pitches_by_sizes(op).items():
        distance = terms(r, _steps(op, pitch), low)
        base = add(base, _times(writer, distance, sizes) if sizes else distance)
    return base


def _base(writer: Writer, op: AddressedOp, r: Register = 0) -> Expr:
    """Returns the offset, in elements, of the element that register 0 moves."""
    result = Expr("0")
    for sizes, pitch in _pitches_by_sizes(op).items():
        coordinates = zip(op.coordinates, pitch, strict=True)
        part = reduce(add, (multiply(writer.read(c, r), number) for c, number in coordinates if number), Expr("0"))
        result = add(result, _times(writer, part, sizes) if sizes else part)
    return result


def _pitches_by_sizes(op: AddressedOp) -> dict[tuple[SymbolAttr, ...], list[int]]:
    """Returns the strides of a buffer, grouped by the symbolic extents that they contain.

    For `8 x n x 4` elements the strides are `4n`, 4 and 1, and the result is `{(n,): [4, 0, 0], (): [0, 4, 1]}`. The
    address of `[i, j, k]` is then `i * 4 * n + (j * 4 + k)`.
    """
    pitch = pitches(extents_of(op.memory.type))
    return {sizes: [number if symbols == sizes else 0 for number, symbols in pitch] for _, sizes in pitch}


def bit_steps(op: AddressedOp) -> list[int]:
    """Returns the offset in elements of each bit of a register's number, without symbolic factors of the strides."""
    return _steps(op, [number for number, _ in pitches(extents_of(op.memory.type))])


def _steps(op: AddressedOp, pitch: Sequence[int]) -> list[int]:
    return [sum(b * n for b, n in zip(basis, pitch, strict=True)) for basis in op.reg_bases]


def _times(writer: Writer, a: Expr, sizes: Sequence[SymbolAttr]) -> Expr:
    for size in sizes if a.text != "0" else ():
        a = infix(a, "*", writer.size(size), MUL)
    return a


def xor_address(base: Expr, r: Register, steps: Sequence[int], low: int) -> Expr:
    """Returns the address of a register in swizzled memory: `base ^ steps`, with `steps` as in `flips`.

    Args:
        base: offset of register 0, in elements.
        r: number of the register.
        steps: number for each bit of `r`.
        low: number of lowest bits of `r` that are known to be 0.
    """
    moved = flips(r, steps, low)
    start = base if isinstance(r, int) else Expr(base.at(UNARY))
    return base if moved.text == "0" else infix(start, "^", moved, BIT_XOR)


def condition(writer: Writer, op: LoadOp | StoreOp | AtomicRmwOp | CopyAsyncOp, r: Register) -> Expr | None:
    """Returns the bounds check of register `r`, or None if the access is always in bounds.

    Comparisons that the value ranges prove are left out.

    Args:
        writer: the writer of the kernel.
        op: the access.
        r: number of the register.
    """
    result: Expr | None = None
    for check in open_checks(writer, op):
        at = add(writer.read(check.value, r), terms(r, check.steps, op.vec.data.bit_length() - 1)).at(ADD)
        parts = [f"{at} >= {check.low}"] if check.is_below else []
        parts += [f"{at} < {writer.size(check.high).text}"] if check.is_above else []
        for part in parts:
            result = Expr(part, RELATION) if result is None else Expr(f"{result.at(AND)} && {part}", AND)
    return result


class Check(NamedTuple):
    """Bounds check `low <= value + steps of the register < high` of an access.

    Attributes:
        value: index that is checked, for register 0.
        steps: offset of each bit of a register's number.
        low: lower bound.
        high: upper bound.
        is_below: whether the lower bound may be violated.
        is_above: whether the upper bound may be violated.
    """

    value: SSAValue
    steps: list[int]
    low: int
    high: Extent
    is_below: bool
    is_above: bool


def open_checks(writer: Writer, op: LoadOp | StoreOp | AtomicRmwOp | CopyAsyncOp) -> Iterator[Check]:
    """Yields the checks of an access that the value ranges cannot prove."""
    for c, (value, (low, high)) in enumerate(zip(op.checks, op.bounds, strict=True)):
        steps = [basis[c] for basis in op.check_steps]
        (below, above), (first, last) = span(steps), writer.ranges.of(value)
        check = Check(value, steps, low, high, first + below < low, last + above >= least(high))
        if check.is_below or check.is_above:
            yield check
