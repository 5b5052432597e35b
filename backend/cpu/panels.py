"""Operands of `kernel.panel_fma` as pointers, strides and ends, so that a matrix in memory is not copied; and registers
in another order in which lanes are rows, which are transposed in squares of as many rows as there are lanes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from xdsl.dialects.builtin import bf16, f32, i8, i32
from xdsl.ir import Attribute, Block, Operation, SSAValue, Use

from ...dialects.kernel import LoadOp, PanelFmaOp, ShuffleRegistersOp, StoreOp
from ...dialects.payload import CastOp, constant_of, element_type, is_payload
from ...dialects.shapes.extents import least
from ...target.model import NEAR
from ..cpp.expressions import ADD, Expr, infix, moved, terms
from ..cpp.memory import bit_steps, element_at, pitches
from ..cpp.ordering import linear_steps, registers
from ..cpp.writer import Writer, memory_extents

ROWS, COLUMNS, BOTH = 0, 1, None
"""What a check of a load counts: rows of a matrix, its columns, or neither: it holds for all or for nothing."""

PACKED: dict[Attribute, Attribute] = {bf16: f32, i8: i32}
"""Types of which matrices are multiplied as they lie, and what they are widened to."""

SIDE_BY_SIDE = [1, 2, 4, 8]
"""What the bits of the number of a lane count, where vectors are widest."""


@dataclass(frozen=True)
class Strided:
    """A matrix in memory: the value that holds its elements, the first of them, and the distances of neighbours in a
    column and in a row. With `load` it is read from the memory of that load; `sides` are the sides that the checks of
    the load count, with their steps."""

    source: SSAValue
    first: int
    row: int
    column: int
    load: LoadOp | None = None
    sides: tuple[tuple[int | None, int], ...] = ()

    def pointer(self, writer: Writer) -> str:
        if self.load is not None:
            return f"&{element_at(writer, self.load, self.first)}"
        return f"{writer.places[self.source].name}{f' + {self.first}' if self.first else ''}"

    def checks(self, writer: Writer, side: int | None, most: int) -> Iterator[tuple[str, str]]:
        """Yields the bounds ("begin" or "end", C++) along a side of `most` rows or columns."""
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
    """Returns how many steps cover a distance."""
    return distance.text if step == 1 else f"({distance.text} + {step - 1}) / {step}"


def operands(op: PanelFmaOp) -> tuple[Strided, Strided]:
    """Returns the matrices of a product; both are read in their narrow type if both are loaded."""
    sides = (op.lhs, op.depth.data), (op.rhs, op.extents[1])
    lhs, rhs = (_strided(*side, widened=True) for side in sides)
    if packed_type(lhs) and packed_type(rhs):
        return lhs, rhs
    return _strided(*sides[0]), _strided(*sides[1])


def packed_type(matrix: Strided) -> Attribute | None:
    """Returns the type in memory of a matrix, if it is one of `PACKED`."""
    found = None if matrix.load is None else element_type(matrix.load.result.type)
    return found if found in PACKED else None


def is_read_by_columns(matrix: Strided) -> bool:
    """Returns true for a left operand whose neighbours in a column are so near that it is read in place."""
    return matrix.column != 1 and 0 < matrix.row <= NEAR and packed_type(matrix) is None


def extents(writer: Writer, op: PanelFmaOp, matrices: tuple[Strided, Strided]) -> str | None:
    """Returns the non-zero part of a product of `matrices`, as `Extents` in C++; None if all of it is."""
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
    """Yields `value` and the sources of its shuffles and casts, each with its first register and the steps of bits."""
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
    """Returns the strides of the matrix that `value` holds row by row: in the memory that it is loaded from, in the
    source of a shuffle, or in itself. With `widened` casts are read through."""
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
    """Returns the load of a value that may be read in place: from memory that the kernel does not write, and zero where
    its checks do not hold."""
    load = value.owner
    if not isinstance(load, LoadOp) or load.xor is not None or load.fill is not None and constant_of(load.fill) != 0:
        return None
    if any(registers(c) > 1 for c in (*load.coordinates, *load.checks)):
        return None
    if any(u.operation.name != load.name for u in load.memory.uses):
        return None
    return None if any(symbols for _, symbols in pitches(memory_extents(load.memory.type))) else load


def is_left_to_panels(op: Operation) -> bool:
    """Returns true if an operation loads or casts for `kernel.panel_fma` only, which reads the memory itself."""
    return isinstance(op, LoadOp | CastOp) and all(map(_is_for_panels, op.results[0].uses))


def _is_for_panels(use: Use) -> bool:
    op = use.operation
    if isinstance(op, PanelFmaOp):
        return use.index < 2 and operands(op)[use.index].load is not None
    return isinstance(op, ShuffleRegistersOp | CastOp) and all(map(_is_for_panels, op.results[0].uses))


def _sides(load: LoadOp, first: int, steps: Sequence[int], columns: int) -> tuple[tuple[int | None, int], ...] | None:
    """Returns the side that each check of a load counts, with its step; None if a check counts something else."""
    found = list[tuple[int | None, int]]()
    for c in range(len(load.checks)):
        bits = [basis[c] for basis in load.check_steps]
        strides = _strides([moved(step, bits) for step in steps], columns)
        if strides is None or all(strides) or moved(first, bits):
            return None
        found.append((ROWS, strides[0]) if strides[0] else (COLUMNS, strides[1]) if strides[1] else (BOTH, 1))
    return tuple(found)


def distances(load: LoadOp | StoreOp, steps: Sequence[int]) -> list[int]:
    """Returns the distances in memory of registers whose numbers are `steps` apart."""
    bits = bit_steps(load)
    return [moved(step, bits) for step in steps]


def _strides(steps: Sequence[int], columns: int) -> tuple[int, int] | None:
    """Returns the distances of rows and of columns, or None if they are not equal."""
    split = columns.bit_length() - 1
    row, column = (side[0] if side else 0 for side in (steps[split:], steps[:split]))
    equal = [column << b for b in range(split)] + [row << b for b in range(len(steps) - split)]
    return (row, column) if equal == [*steps] else None


@dataclass(frozen=True)
class Squares:
    """A shuffle of `source` into transposed squares: rows of a square are `pitch` registers apart in the source, and
    rows of the result `across` registers."""

    shuffle: ShuffleRegistersOp
    across: int
    pitch: int

    def source(self, writer: Writer, register: str) -> str | None:
        """Returns two C++ arguments in one text: the address of the first element of the 16x16 block that `register` is
        in, and the distance of its rows in elements. Returns None if the values are not in memory."""
        shuffle, linear = self.shuffle, linear_steps(self.shuffle.registers)
        load = _load_of_rows(self)
        if load is not None and linear is not None:
            at = terms(register, distances(load, linear[1]))
            return f"&{element_at(writer, load, linear[0])} + {at.text}, {distances(load, [self.pitch])[0]}"
        found = shuffle.source in writer.places
        return f"&{writer.read(shuffle.result, register).text}, {self.pitch}" if found else None


def squares_of(op: Operation | Block) -> Squares | None:
    """Returns the transposed squares of an operation's result, or None."""
    if not isinstance(op, ShuffleRegistersOp) or (linear := linear_steps(op.registers)) is None:
        return None
    steps = [*linear[1]]
    if 1 not in steps or len({*steps}) < len(steps):
        return None
    first, pitch = steps.index(1), steps[0]
    rows = [pitch * lane for lane in SIDE_BY_SIDE]
    found = first >= 4 and steps[:4] == rows and steps[first : first + 4] == SIDE_BY_SIDE
    return Squares(op, 1 << first, pitch) if found else None


def _load_of_rows(square: Squares) -> LoadOp | None:
    """Returns the load of a source, if its squares are contiguous rows in memory and nothing else reads it."""
    load = plain_load(square.shuffle.source)
    if load is None or load.checks or distances(load, SIDE_BY_SIDE) != SIDE_BY_SIDE:
        return None
    rows = distances(load, [square.pitch * lane for lane in SIDE_BY_SIDE])
    squares = all(squares_of(use.operation) for use in load.result.uses)
    if rows != [rows[0] * lane for lane in SIDE_BY_SIDE] or not squares:
        return None
    users = [use.operation for shuffle in load.result.uses for use in shuffle.operation.results[0].uses]
    alike = all(isinstance(u, StoreOp) or is_payload(u) and registers(u.results[0]) == load.registers for u in users)
    return load if alike and all(u.parent is load.parent for u in users) else None


def is_left_to_squares(op: Operation) -> bool:
    """Returns true for a load that is only read square by square, in place."""
    found = [squares_of(use.operation) for use in op.result.uses] if isinstance(op, LoadOp) else []
    return bool(found) and all(square is not None and _load_of_rows(square) is op for square in found)
