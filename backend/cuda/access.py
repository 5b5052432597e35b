"""Loads and stores as C++: addresses, wide accesses, conditions."""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.dialects.builtin import IndexType, MemRefType, NoneAttr
from xdsl.ir import Attribute, Operation, SSAValue

from ...dialects.kernel import PickOp, SharedOp
from ...dialects.kernel_access import LoadOp, StoreOp
from ...dialects.kernel_async import CopyAsyncOp
from ...dialects.kernel_matrix import LdMatrixOp, MmaOp
from ...dialects.kernel_ranges import span
from ...dialects.kernel_wgmma import WgmmaOp
from ...dialects.locations import location_text
from ...errors import CompileError
from .expressions import add, infix, multiply
from .ordering import registers
from .types import ADD, AND, BIT_XOR, EQUALITY, RELATION, TERNARY, UNARY, Expr, c_size
from .writer import Register, Writer, terms

Mover = LoadOp | StoreOp | LdMatrixOp | CopyAsyncOp
"""What has an address in a buffer for each register."""


def memory_shape(t: Attribute) -> tuple[int, ...]:
    """The static shape of a dense memref. Raises CompileError for any other."""
    assert isinstance(t, MemRefType)
    shape = tuple(t.get_shape())
    if not isinstance(t.layout, NoneAttr) or any(extent < 0 for extent in shape):
        raise CompileError(f"{t} is no dense memory of static shape")
    if isinstance(t.element_type, IndexType):
        raise CompileError(f"{t}: an index has no size in memory, store i32 or i64")
    return shape


def pitches(shape: Sequence[int]) -> list[int]:
    """How many elements lie between neighbours along each dimension of row-major memory."""
    result, pitch = [0] * len(shape), 1
    for d in reversed(range(len(shape))):
        result[d], pitch = pitch, pitch * shape[d]
    return result


def print_load(writer: Writer, op: LoadOp) -> None:
    """A load into a new place."""
    size, width, fill = op.registers, op.vec.data, op.fill
    scalar_type = writer.type_of(op.result)
    prepare(writer, op)
    if size == 1:
        text = Expr(element_at(writer, op, 0))
        met = condition(writer, op, 0)
        if fill is not None and met is not None:
            text = Expr(f"{met.at(AND)} ? {text.text} : {writer.read(fill).at(TERNARY)}", TERNARY)
        place = writer.declare(op.result)
        writer.line(f"const {scalar_type} {place.name} = {text.text};")
        return
    place = writer.declare(op.result, alignment=alignment_of(op.result))
    with writer.registers_loop(size, width) as r:
        met = condition(writer, op, r)
        target = str(place[r].text) if width == 1 else place.name if r == 0 and size == width else f"&{place[r].text}"
        if width == 1:
            text = Expr(element_at(writer, op, r))
            if fill is not None and met is not None:
                text = Expr(f"{met.at(AND)} ? {text.text} : {writer.read(fill).at(TERNARY)}")
            writer.line(f"{target} = {text.text};")
            return
        call = f"{wide(writer, op, 'ld')}({target}, {pointer_to(writer, op, r)});"
        writer.line(call if met is None else f"if ({met.text}) {call}")
        if met is not None and fill is not None:
            writer.line(f"else {wide(writer, op, 'fill')}({target}, {writer.read(fill).text});")


def print_store(writer: Writer, op: StoreOp) -> None:
    """A store of a value that has a place."""
    size, width = op.registers, op.vec.data
    prepare(writer, op)
    with writer.registers_loop(size, width) as r:
        met = condition(writer, op, r)
        if op.predicate is not None:
            predicate = writer.read(op.predicate)
            met = predicate if met is None else infix(predicate, "&&", met, AND)
        head = "" if met is None else f"if ({met.text}) "
        if width == 1:
            writer.line(f"{head}{element_at(writer, op, r)} = {writer.read(op.value, r).text};")
            return
        source = writer.read(op.value, r).text
        source = writer.places[op.value].name if r == 0 and size == width else f"&{source}"
        writer.line(f"{head}{wide(writer, op, 'st')}({pointer_to(writer, op, r)}, {source});")


def prepare(writer: Writer, op: Mover) -> None:
    """Name the part of the address that does not depend on the register, if it is long and there is a loop."""
    if any(not isinstance(c.type, IndexType) for c in op.coordinates):
        return
    base = _base(writer, op)
    if len(base.text) > 24 and base.level < UNARY and op.registers > op.vec.data:
        writer.named(base, "at")


def wide(writer: Writer, op: LoadOp | StoreOp, kind: str) -> str:
    """The name of the helper for an access as wide as `op`."""
    value = op.result if isinstance(op, LoadOp) else op.value
    size = c_size(value.type)
    if op.vec.data * size not in (2, 4, 8, 16):
        raise CompileError(
            f"no access is {op.vec.data * size} bytes wide", operator=op.name, location=location_text(op)
        )
    name = f"{kind}{op.vec.data}"
    writer.use(f"{name}.{writer.type_of(value)}.{size}")
    return name


PAIR = 2
"""Elements that tensor cores take as one register."""


def _is_multiplied(op: Operation) -> bool:
    """Whether `op` is a product on tensor cores, or picks registers for one."""
    if isinstance(op, PickOp):
        return any(_is_multiplied(u.operation) for u in op.result.uses)
    return isinstance(op, MmaOp | WgmmaOp)


def alignment_of(value: SSAValue) -> int:
    """Bytes to which the array of `value` is aligned for the wide accesses that touch it."""
    size, widest = c_size(value.type), 1
    if isinstance(value.owner, LoadOp):
        widest = value.owner.vec.data
    for use in value.uses:
        if isinstance(use.operation, StoreOp) and use.operation.value is value:
            widest = max(widest, use.operation.vec.data)
        if _is_multiplied(use.operation):
            widest = max(widest, PAIR)
    return size * widest if widest > 1 else 0


def element_at(writer: Writer, op: Mover, r: Register) -> str:
    """`x[offset]`"""
    return f"{memory_name(writer, op.memory)}[{offset(writer, op, r).text}]"


def pointer_to(writer: Writer, op: Mover, r: Register) -> str:
    """`&x[offset]`"""
    return f"&{element_at(writer, op, r)}"


def memory_name(writer: Writer, memory: SSAValue) -> str:
    """The pointer to a buffer."""
    if memory not in writer.places:
        name = memory.owner.name if isinstance(memory.owner, SharedOp) else None
        raise CompileError("a buffer without a place: run allocate-shared", operator=name)
    return writer.places[memory].name


def offset(writer: Writer, op: Mover, r: Register) -> Expr:
    """The number of the element that register `r` moves."""
    shape = memory_shape(op.memory.type)
    pitch = pitches(shape)
    steps = [sum(b * p for b, p in zip(basis, pitch, strict=True)) for basis in op.reg_bases]
    base = _base(writer, op, r)
    base = writer.find(base.text) or base
    low = op.vec.data.bit_length() - 1
    if op.xor is None:
        return add(base, terms(r, steps, low))
    return exclusive(base, r, steps, low)


def _base(writer: Writer, op: Mover, r: Register = 0) -> Expr:
    result = Expr("0")
    for coordinate, pitch in zip(op.coordinates, pitches(memory_shape(op.memory.type)), strict=True):
        result = add(result, multiply(writer.read(coordinate, r), pitch))
    return result


def exclusive(base: Expr, r: Register, steps: Sequence[int], low: int) -> Expr:
    """base ^ the exclusive or of the steps of the set bits of r."""
    if isinstance(r, int):
        number = 0
        for b, step in enumerate(steps):
            number ^= step if r >> b & 1 else 0
        return base if number == 0 else infix(base, "^", Expr(str(number)), BIT_XOR)
    seen = 0
    for step in steps:
        if seen & step:
            break
        seen |= step
    else:
        moved = terms(r, steps, low)
        return base if moved.text == "0" else Expr(f"{base.at(UNARY)} ^ {moved.at(UNARY)}", BIT_XOR)
    text = base.at(UNARY)
    for b, step in enumerate(steps):
        if step and b >= low:
            text += f" ^ ({f'{r} >> {b}' if b else r} & 1) * {step}"
    return Expr(text, BIT_XOR)


def condition(writer: Writer, op: LoadOp | StoreOp | CopyAsyncOp, r: Register) -> Expr | None:
    """When the access of register `r` happens; None if always. Comparisons that the ranges decide are left out."""
    result: Expr | None = None
    low = op.vec.data.bit_length() - 1
    for c, (value, (lo, hi)) in enumerate(zip(op.checks, op.bounds, strict=True)):
        steps = [basis[c] for basis in op.check_steps]
        first, last = writer.ranges.of(value)
        below, above = span(steps)
        at = add(writer.read(value, r), terms(r, steps, low))
        parts: list[Expr] = []
        if first + below < lo:
            parts.append(Expr(f"{at.at(ADD)} >= {lo}", RELATION))
        if last + above >= hi:
            parts.append(Expr(f"{at.at(ADD)} < {hi}", RELATION))
        for part in parts:
            result = part if result is None else Expr(f"{result.at(AND)} && {part.at(EQUALITY)}", AND)
    return result


def is_stored_whole(value: SSAValue) -> bool:
    """Whether a wide store needs `value` in an array of its own."""
    return registers(value) > 1 and any(
        isinstance(u.operation, StoreOp) and u.operation.value is value and u.operation.vec.data > 1 for u in value.uses
    )
