"""Operands of `kernel.panel_fma`, and transposes of blocks of registers.

The operands are pointers, strides and bounds, so that a matrix in memory is not copied. A shuffle of registers that
exchanges lanes and rows is printed as transposes of blocks of lanes × lanes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from xdsl.dialects.builtin import bf16, f32, i8, i32
from xdsl.ir import Attribute, Block, Operation, SSAValue, Use

from ...dialects.kernel import LoadOp, PanelFmaOp, ShuffleRegistersOp, StoreOp
from ...dialects.payload import CastOp, constant_of, element_type, is_payload
from ...dialects.shapes.extents import least
from ...target.model import NEAR
from ..cpp.expressions import ADD, Expr, infix, offset_of, terms
from ..cpp.memory import bit_steps, element_at, pitches
from ..cpp.ordering import linear_steps, registers
from ..cpp.writer import Writer, memory_extents

ROWS, COLUMNS, BOTH = 0, 1, None
"""Dimension of a matrix that the check of a load bounds: rows, columns, or neither, for a check of the whole matrix."""

PACKED: dict[Attribute, Attribute] = {bf16: f32, i8: i32}
"""Element type of matrices that are multiplied without a conversion -> type of the accumulator."""

SIDE_BY_SIDE = [1, 2, 4, 8]
"""Offsets of lanes 1, 2, 4 and 8 in a contiguous vector."""


@dataclass(frozen=True)
class Strided:
    """Matrix with strides.

    Attributes:
        source: value that holds the elements.
        first: register of the first element.
        row: stride from one row to the next, in elements.
        column: stride from one column to the next, in elements.
        load: load whose memory is read in place, or None.
        sides: for each bounds check of the load the dimension of the matrix that it bounds, and the step of the checked
            index along that dimension.
    """

    source: SSAValue
    first: int
    row: int
    column: int
    load: LoadOp | None = None
    sides: tuple[tuple[int | None, int], ...] = ()

    def pointer(self, writer: Writer) -> str:
        if self.load is not None:
            return f"&{element_at(writer, self.load, self.first)}"
        return f"{writer.variables[self.source].name}{f' + {self.first}' if self.first else ''}"

    def checks(self, writer: Writer, side: int | None, most: int) -> Iterator[tuple[str, str]]:
        """Yields bounds of a dimension: "begin" or "end" with its C++.

        Args:
            writer: the writer.
            side: `ROWS`, `COLUMNS` or `BOTH`.
            most: number of rows or columns.
        """
        load = self.load
        for (dimension, step), check, (low, high) in (
            zip(self.sides, load.checks, load.bounds, strict=True) if load else ()
        ):
            if dimension != side:
                continue
            at, end, (first, last) = writer.read(check), writer.size(high), writer.ranges.of(check)
            if step < 0:  # the first elements may be out of bounds, as in a transposed convolution
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
    """Prints a division that rounds up."""
    return distance.text if step == 1 else f"({distance.text} + {step - 1}) / {step}"


def operands(op: PanelFmaOp) -> tuple[Strided, Strided]:
    """Returns the operands of a matmul. They have their narrow type if both are loaded."""
    sides = (op.lhs, op.depth.data), (op.rhs, op.extents[1])
    lhs, rhs = (_strided(*side, widened=True) for side in sides)
    if packed_type(lhs) and packed_type(rhs):
        return lhs, rhs
    return _strided(*sides[0]), _strided(*sides[1])


def packed_type(matrix: Strided) -> Attribute | None:
    """Returns the element type in memory of a matrix if it is in `PACKED`, or None."""
    element = None if matrix.load is None else element_type(matrix.load.result.type)
    return element if element in PACKED else None


def is_read_by_columns(matrix: Strided) -> bool:
    """Returns true for a left operand that is read in place by columns, because neighbours in a column are near."""
    return matrix.column != 1 and 0 < matrix.row <= NEAR and packed_type(matrix) is None


def extents(writer: Writer, op: PanelFmaOp, matrices: tuple[Strided, Strided]) -> str | None:
    """Returns the bounds of the non-zero part of a matmul, as `Extents` in C++; None if there are no bounds.

    Args:
        writer: the writer.
        op: the matmul.
        matrices: its operands.
    """
    (lhs, rhs), (rows, columns), depth = matrices, op.extents, op.depth.data
    sides = ((rows, ((lhs, ROWS),)), (columns, ((rhs, COLUMNS),)), (depth, ((lhs, COLUMNS), (rhs, ROWS))))
    failure = {"begin": "> 0", "end": "<= 0"}
    zero_conditions = dict.fromkeys(
        f"{text} {failure[kind]}" for m in matrices for kind, text in m.checks(writer, BOTH, 1)
    )
    ranges, is_unbounded = list[str](), not zero_conditions
    for most, sources in sides:
        bounds = dict.fromkeys(check for matrix, side in sources for check in matrix.checks(writer, side, most))
        begin, end = "0", str(most)
        for kind, text in bounds:
            begin = f"max<long>({begin}, {text})" if kind == "begin" else begin
            end = f"min<long>({end}, {text})" if kind == "end" else end
        ranges.append(f"{{{begin}, {end}}}")
        is_unbounded = is_unbounded and not bounds
    if zero_conditions:
        ranges[0] = f"{' || '.join(zero_conditions)} ? Range{{0, 0}} : Range{ranges[0]}"
    return None if is_unbounded else f"{{{', '.join(ranges)}}}"


def _sources(value: SSAValue) -> Iterator[tuple[SSAValue, int, list[int]]]:
    """Yields the values that contain the elements of `value`: `value` itself, then sources of its shuffles and casts.

    Register r of `value` is the register of the source whose number is the yielded first number plus the yielded steps
    of the set bits of r.
    """
    first, steps = 0, [1 << b for b in range(registers(value).bit_length() - 1)]
    while True:
        yield value, first, steps
        op = value.owner
        if isinstance(op, ShuffleRegistersOp) and (linear := linear_steps(op.registers)) is not None:
            first, steps = linear[0] + offset_of(first, linear[1]), [offset_of(step, linear[1]) for step in steps]
        elif not isinstance(op, CastOp) or PACKED.get(element_type(op.operand.type)) != element_type(op.result.type):
            return
        value = op.operands[0]


def _strided(value: SSAValue, columns: int, widened: bool = False) -> Strided:
    """Returns where the elements of a row-major matrix can be read with strides.

    The first possible place is taken: the memory that `value` is loaded from, the source of the shuffle that makes it,
    or its own registers.

    Args:
        value: registers of the matrix.
        columns: number of columns.
        widened: whether to look through casts.
    """
    strided = Strided(value, 0, columns, 1)
    for source, first, steps in _sources(value):
        if not widened and element_type(source.type) != element_type(value.type):
            break
        if (strides := _strides(steps, columns)) is not None:
            strided = Strided(source, first, *strides)
        if (load := plain_load(source)) is not None and (sides := _sides(load, first, steps, columns)) is not None:
            strides = _strides(distances(load, steps), columns)
            strided = strided if strides is None else Strided(source, first, *strides, load, sides)
    return strided


def plain_load(value: SSAValue) -> LoadOp | None:
    """Returns the load of a value that may be read in place, or None.

    Its memory is not written by the kernel, and elements out of bounds are zero.
    """
    load = value.owner
    if not isinstance(load, LoadOp) or load.xor is not None or load.fill is not None and constant_of(load.fill) != 0:
        return None
    if any(registers(c) > 1 for c in (*load.coordinates, *load.checks)):
        return None
    if any(u.operation.name != load.name for u in load.memory.uses):
        return None
    return None if any(symbols for _, symbols in pitches(memory_extents(load.memory.type))) else load


def is_read_by_panels(op: Operation) -> bool:
    """Returns true for a load or cast whose users are all `kernel.panel_fma`, which reads the memory in place."""
    return isinstance(op, LoadOp | CastOp) and all(map(_is_for_panels, op.results[0].uses))


def _is_for_panels(use: Use) -> bool:
    op = use.operation
    if isinstance(op, PanelFmaOp):
        return use.index < 2 and operands(op)[use.index].load is not None
    return isinstance(op, ShuffleRegistersOp | CastOp) and all(map(_is_for_panels, op.results[0].uses))


def _sides(load: LoadOp, first: int, steps: Sequence[int], columns: int) -> tuple[tuple[int | None, int], ...] | None:
    """Returns the dimension that each check of a load bounds, with its step; None if a check bounds both."""
    sides = list[tuple[int | None, int]]()
    for c in range(len(load.checks)):
        bits = [basis[c] for basis in load.check_steps]
        strides = _strides([offset_of(step, bits) for step in steps], columns)
        if strides is None or all(strides) or offset_of(first, bits):
            return None
        sides.append((ROWS, strides[0]) if strides[0] else (COLUMNS, strides[1]) if strides[1] else (BOTH, 1))
    return tuple(sides)


def distances(load: LoadOp | StoreOp, steps: Sequence[int]) -> list[int]:
    """Returns the offsets in memory, in elements, of registers at `steps`."""
    bits = bit_steps(load)
    return [offset_of(step, bits) for step in steps]


def _strides(steps: Sequence[int], columns: int) -> tuple[int, int] | None:
    """Returns the strides of rows and columns, or None if they are not constant."""
    split = columns.bit_length() - 1
    row, column = (side[0] if side else 0 for side in (steps[split:], steps[:split]))
    equal = [column << b for b in range(split)] + [row << b for b in range(len(steps) - split)]
    return (row, column) if equal == [*steps] else None


@dataclass(frozen=True)
class BlockTranspose:
    """Shuffle that transposes blocks of lanes × lanes registers.

    Attributes:
        shuffle: the shuffle.
        across: distance of rows of a block in the result, in registers.
        pitch: distance of rows of a block in the source.
    """

    shuffle: ShuffleRegistersOp
    across: int
    pitch: int

    def source(self, writer: Writer, register: str) -> str | None:
        """Returns two C++ arguments: the address of the block that contains `register`, and the row stride in elements.

        Returns None if the source is not in memory.
        """
        shuffle, linear = self.shuffle, linear_steps(self.shuffle.registers)
        load = _load_of_rows(self)
        if load is not None and linear is not None:
            at = terms(register, distances(load, linear[1]))
            return f"&{element_at(writer, load, linear[0])} + {at.text}, {distances(load, [self.pitch])[0]}"
        is_stored = shuffle.source in writer.variables
        return f"&{writer.read(shuffle.result, register).text}, {self.pitch}" if is_stored else None


def block_transpose(op: Operation | Block) -> BlockTranspose | None:
    """Returns the block transpose of a shuffle, or None for other operations."""
    if not isinstance(op, ShuffleRegistersOp) or (linear := linear_steps(op.registers)) is None:
        return None
    steps = [*linear[1]]
    if 1 not in steps or len({*steps}) < len(steps):
        return None
    first, pitch = steps.index(1), steps[0]
    rows = [pitch * lane for lane in SIDE_BY_SIDE]
    is_transposed = first >= 4 and steps[:4] == rows and steps[first : first + 4] == SIDE_BY_SIDE
    return BlockTranspose(op, 1 << first, pitch) if is_transposed else None


def _load_of_rows(transpose: BlockTranspose) -> LoadOp | None:
    """Returns the load of the source, if its blocks are contiguous rows in memory and only transposes read it."""
    load = plain_load(transpose.shuffle.source)
    if load is None or load.checks or distances(load, SIDE_BY_SIDE) != SIDE_BY_SIDE:
        return None
    rows = distances(load, [transpose.pitch * lane for lane in SIDE_BY_SIDE])
    are_transposes = all(block_transpose(use.operation) for use in load.result.uses)
    if rows != [rows[0] * lane for lane in SIDE_BY_SIDE] or not are_transposes:
        return None
    users = [use.operation for shuffle in load.result.uses for use in shuffle.operation.results[0].uses]
    are_rows = all(isinstance(u, StoreOp) or is_payload(u) and registers(u.results[0]) == load.registers for u in users)
    return load if are_rows and all(u.parent is load.parent for u in users) else None


def is_read_by_transposes(op: Operation) -> bool:
    """Returns true for a load that only block transposes read, in place."""
    transposes = [block_transpose(use.operation) for use in op.result.uses] if isinstance(op, LoadOp) else []
    return bool(transposes) and all(
        transpose is not None and _load_of_rows(transpose) is op for transpose in transposes
    )
