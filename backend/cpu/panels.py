"""Operands of `kernel.panel_fma` as pointers and strides, so that a matrix that lies in memory is not copied whole."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from xdsl.ir import SSAValue

from ...dialects.kernel import PanelFmaOp, ShuffleRegistersOp
from ...dialects.kernel.memory import LoadOp
from ..cuda.memory import element_at, memory_extents, pitches
from ..cuda.ordering import linear_steps, registers
from ..cuda.writer import Writer


@dataclass(frozen=True)
class Strided:
    """A matrix in memory: the value that holds its elements, which of them is the first, and how many elements apart
    neighbours of a column and of a row are."""

    source: SSAValue
    first: int
    row: int
    column: int

    def pointer(self, writer: Writer) -> str:
        """The address of the first element."""
        if (load := plain_load(self.source)) is not None:
            return f"&{element_at(writer, load, self.first)}"
        return f"{writer.places[self.source].name}{f' + {self.first}' if self.first else ''}"


def operands(op: PanelFmaOp) -> tuple[Strided, Strided]:
    """The matrices that are multiplied."""
    return _strided(op.lhs, op.depth.data), _strided(op.rhs, op.extents[1])


def _strided(value: SSAValue, columns: int) -> Strided:
    """Where the matrix that `value` holds row by row lies with strides: in the memory that it is loaded from, in a
    value that it is a shuffle of, or in itself."""
    first, steps = 0, [1 << b for b in range(registers(value).bit_length() - 1)]
    found = Strided(value, 0, columns, 1)
    while True:
        load, op = plain_load(value), value.owner
        found = _matrix(value, first, steps if load is None else _distances(load, steps), columns) or found
        linear = linear_steps(op.registers.get_values()) if isinstance(op, ShuffleRegistersOp) else None
        if linear is None or not isinstance(op, ShuffleRegistersOp):
            return found
        first, steps = linear[0] + _moved(first, linear[1]), [_moved(step, linear[1]) for step in steps]
        value = op.source


def plain_load(value: SSAValue) -> LoadOp | None:
    """The load of a value that may as well be read where it lies: without checks, from memory that the kernel does not
    write."""
    load = value.owner
    if not isinstance(load, LoadOp) or load.checks or load.xor is not None:
        return None
    if any(registers(c) > 1 for c in load.coordinates) or any(u.operation.name != load.name for u in load.memory.uses):
        return None
    return None if any(symbols for _, symbols in pitches(memory_extents(load.memory.type))) else load


def is_read_in_place(load: LoadOp) -> bool:
    """Whether nothing but products of matrices reads a load, and those read the memory."""

    def only_products(value: SSAValue) -> bool:
        for use in value.uses:
            op = use.operation
            if isinstance(op, ShuffleRegistersOp):
                if not only_products(op.result):
                    return False
            elif not isinstance(op, PanelFmaOp) or use.index > 1 or operands(op)[use.index].source is not load.result:
                return False
        return True

    return plain_load(load.result) is load and only_products(load.result)


def _moved(register: int, bits: Sequence[int]) -> int:
    """The register that `register` is, by where each bit of its number goes."""
    return sum(bit for b, bit in enumerate(bits) if register >> b & 1)


def _distances(load: LoadOp, steps: Sequence[int]) -> list[int]:
    """How many elements apart registers lie whose numbers are `steps` apart."""
    pitch = [number for number, _ in pitches(memory_extents(load.memory.type))]
    bits = [sum(b * n for b, n in zip(basis, pitch, strict=True)) for basis in load.reg_bases]
    return [_moved(step, bits) for step in steps]


def _matrix(source: SSAValue, first: int, steps: Sequence[int], columns: int) -> Strided | None:
    """The matrix of which the bits of an element's number are `steps` apart, if its rows and columns have strides."""
    split = columns.bit_length() - 1
    sides = steps[split:], steps[:split]
    strides = [side[0] if side else 0 for side in sides]
    if any(step != stride << b for side, stride in zip(sides, strides, strict=True) for b, step in enumerate(side)):
        return None
    return Strided(source, first, *strides)
