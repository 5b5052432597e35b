"""Operands of `kernel.panel_fma` as pointers, strides and ends, so that a matrix that lies in memory is not copied."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from xdsl.dialects.builtin import bf16, f32, i8, i32
from xdsl.ir import Attribute, Operation, SSAValue, Use

from ...dialects.kernel import PanelFmaOp, ShuffleRegistersOp
from ...dialects.kernel.memory import LoadOp, StoreOp
from ...dialects.payload import CastOp, element_type
from ...dialects.payload.folding import constant_of
from ...dialects.shapes.extents import least
from ...target.model import NEAR
from ..cpp.expressions import ADD, Expr, infix
from ..cpp.memory import element_at, memory_extents, pitches
from ..cpp.ordering import linear_steps, moved, registers
from ..cpp.writer import Writer

ROWS, COLUMNS, BOTH = 0, 1, None
"""What a check of a load counts: rows of a matrix, its columns, or neither: it holds for all or for nothing."""

PACKED: dict[Attribute, Attribute] = {bf16: f32, i8: i32}
"""Types of which matrices are multiplied as they lie, and what they are widened to."""

SIDE_BY_SIDE = [1, 2, 4, 8]
"""What the bits of the number of a lane count, where vectors are widest."""


@dataclass(frozen=True)
class Strided:
    """A matrix in memory: the value that holds its elements, which of them is the first, and how many elements apart
    neighbours of a column and of a row are. With `load` they lie where that reads them; `sides` are what its checks
    count, and how far each is from one to the next."""

    source: SSAValue
    first: int
    row: int
    column: int
    load: LoadOp | None = None
    sides: tuple[tuple[int | None, int], ...] = ()

    def pointer(self, writer: Writer) -> str:
        """The address of the first element."""
        if self.load is not None:
            return f"&{element_at(writer, self.load, self.first)}"
        return f"{writer.places[self.source].name}{f' + {self.first}' if self.first else ''}"

    def checks(self, writer: Writer, side: int | None, most: int) -> Iterator[tuple[str, str]]:
        """Where its rows, of which there are `most`, or columns, begin and end, and what has to hold for all of it, in
        C++."""
        load = self.load
        for (own, step), check, (low, high) in zip(self.sides, load.checks, load.bounds, strict=True) if load else ():
            if own != side:
                continue
            at, end, (first, last) = writer.read(check), writer.size(high), writer.ranges.of(check)
            if step < 0:  # as of a transposed convolution: the first ones may be beyond the end
                if last >= least(high):
                    yield ("begin", _steps(infix(infix(at, "-", end, ADD), "+", Expr("1"), ADD), -step))
                if first + (most - 1) * step < low:
                    yield ("end", _steps(infix(at, "+", Expr(str(1 - low)), ADD), -step))
                continue
            if first < low:
                yield ("begin", _steps(infix(Expr(str(low)), "-", at, ADD), step))
            if last + (most - 1) * step >= least(high):
                yield ("end", _steps(end if at.text == "0" else infix(end, "-", at, ADD), step))


def _steps(distance: Expr, step: int) -> str:
    """How many steps go at least that far: none where they need not go at all."""
    return distance.text if step == 1 else f"({distance.text} + {step - 1}) / {step}"


def operands(op: PanelFmaOp) -> tuple[Strided, Strided]:
    """The matrices that are multiplied; where both are loaded in a narrow type, as they are there."""
    sides = (op.lhs, op.depth.data), (op.rhs, op.extents[1])
    lhs, rhs = (_strided(*side, widened=True) for side in sides)
    if packed_type(lhs) and packed_type(rhs):
        return lhs, rhs
    return _strided(*sides[0]), _strided(*sides[1])


def packed_type(matrix: Strided) -> Attribute | None:
    """The type in which a matrix lies in memory, if that is one of `PACKED`."""
    found = None if matrix.load is None else element_type(matrix.load.result.type)
    return found if found in PACKED else None


def is_read_by_columns(matrix: Strided) -> bool:
    """Whether neighbours in a column of a left operand lie so near that what is multiplied with a row of the right one
    is in one or two lines of a cache: it is read where it lies."""
    return matrix.column != 1 and 0 < matrix.row <= NEAR and packed_type(matrix) is None


def extents(writer: Writer, op: PanelFmaOp, matrices: tuple[Strided, Strided]) -> str | None:
    """What of a product of `matrices` is not zero, as `Extents` in C++; None if all of it is."""
    (lhs, rhs), (rows, columns), depth = matrices, op.extents, op.depth.data
    sides = ((rows, ((lhs, ROWS),)), (columns, ((rhs, COLUMNS),)), (depth, ((lhs, COLUMNS), (rhs, ROWS))))
    nowhere = {"begin": "> 0", "end": "<= 0"}
    zero = dict.fromkeys(f"{text} {nowhere[kind]}" for m in matrices for kind, text in m.checks(writer, BOTH, 1))
    ranges, whole = list[str](), not zero
    for most, own in sides:
        found = dict.fromkeys(check for matrix, side in own for check in matrix.checks(writer, side, most))
        begin, end = "0", str(most)
        for kind, text in found:
            begin = f"max<long>({begin}, {text})" if kind == "begin" else begin
            end = f"min<long>({end}, {text})" if kind == "end" else end
        ranges.append(f"{{{begin}, {end}}}")
        whole = whole and not found
    if zero:
        ranges[0] = f"{' || '.join(zero)} ? Range{{0, 0}} : Range{ranges[0]}"
    return None if whole else f"{{{', '.join(ranges)}}}"


def _sources(value: SSAValue) -> Iterator[tuple[SSAValue, int, list[int]]]:
    """`value`, what it is a shuffle of or widened from, and so on: which register of each is the first one of `value`,
    and how far each bit of a register's number moves."""
    first, steps = 0, [1 << b for b in range(registers(value).bit_length() - 1)]
    while True:
        yield value, first, steps
        op = value.owner
        if isinstance(op, ShuffleRegistersOp) and (linear := linear_steps(op.registers)) is not None:
            first, steps = linear[0] + moved(first, linear[1]), [moved(step, linear[1]) for step in steps]
        elif not isinstance(op, CastOp) or PACKED.get(element_type(op.operand.type)) != element_type(op.result.type):
            return
        value = op.operands[0]


def _strided(value: SSAValue, columns: int, widened: bool = False) -> Strided:
    """Where the matrix that `value` holds row by row lies with strides: in the memory that it is loaded from, in a
    value that it is a shuffle of, or in itself. With `widened`, also what it is a cast of."""
    found = Strided(value, 0, columns, 1)
    for source, first, steps in _sources(value):
        if not widened and element_type(source.type) != element_type(value.type):
            break
        if (strides := _strides(steps, columns)) is not None:
            found = Strided(source, first, *strides)
        if (load := plain_load(source)) is not None and (sides := _sides(load, first, steps, columns)) is not None:
            strides = _strides(distances(load, steps), columns)
            found = found if strides is None else Strided(source, first, *strides, load, sides)
    return found


def plain_load(value: SSAValue) -> LoadOp | None:
    """The load of a value that may as well be read where it lies: from memory that the kernel does not write, and zero
    where its checks do not hold."""
    load = value.owner
    if not isinstance(load, LoadOp) or load.xor is not None or load.fill is not None and constant_of(load.fill) != 0:
        return None
    if any(registers(c) > 1 for c in (*load.coordinates, *load.checks)):
        return None
    if any(u.operation.name != load.name for u in load.memory.uses):
        return None
    return None if any(symbols for _, symbols in pitches(memory_extents(load.memory.type))) else load


def is_left_to_panels(op: Operation) -> bool:
    """Whether an operation loads something, or casts it, only for products of matrices, which read the memory."""
    return isinstance(op, LoadOp | CastOp) and all(map(_is_for_panels, op.results[0].uses))


def _is_for_panels(use: Use) -> bool:
    """Whether a product of matrices reads the memory of what is used, be it shuffled or cast."""
    op = use.operation
    if isinstance(op, PanelFmaOp):
        return use.index < 2 and operands(op)[use.index].load is not None
    return isinstance(op, ShuffleRegistersOp | CastOp) and all(map(_is_for_panels, op.results[0].uses))


def _sides(load: LoadOp, first: int, steps: Sequence[int], columns: int) -> tuple[tuple[int | None, int], ...] | None:
    """What each check of a load counts, in equal steps from the first on; None if one of them counts something else."""
    found = list[tuple[int | None, int]]()
    for c in range(len(load.checks)):
        bits = [basis[c] for basis in load.check_steps]
        strides = _strides([moved(step, bits) for step in steps], columns)
        if strides is None or all(strides) or moved(first, bits):
            return None
        found.append((ROWS, strides[0]) if strides[0] else (COLUMNS, strides[1]) if strides[1] else (BOTH, 1))
    return tuple(found)


def distances(load: LoadOp | StoreOp, steps: Sequence[int]) -> list[int]:
    """How many elements apart registers lie whose numbers are `steps` apart."""
    pitch = [number for number, _ in pitches(memory_extents(load.memory.type))]
    bits = [sum(b * n for b, n in zip(basis, pitch, strict=True)) for basis in load.reg_bases]
    return [moved(step, bits) for step in steps]


def _strides(steps: Sequence[int], columns: int) -> tuple[int, int] | None:
    """How far apart rows and columns are, if rows are equally far apart, and columns too."""
    split = columns.bit_length() - 1
    row, column = (side[0] if side else 0 for side in (steps[split:], steps[:split]))
    equal = [column << b for b in range(split)] + [row << b for b in range(len(steps) - split)]
    return (row, column) if equal == [*steps] else None
