"""Operands of `kernel.panel_fma` as pointers, strides and ends, so that a matrix that lies in memory is not copied."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import reduce

from xdsl.ir import SSAValue

from ...dialects.kernel import FuncOp, PanelFmaOp, ShuffleRegistersOp
from ...dialects.kernel.memory import LoadOp
from ...dialects.payload import ConstantOp
from ...dialects.shapes.ranges import Ranges
from ...dialects.support.locations import enclosing
from ..cuda.expressions import ADD, Expr, infix
from ..cuda.memory import element_at, memory_extents, pitches
from ..cuda.ordering import linear_steps, registers
from ..cuda.writer import Writer


@dataclass(frozen=True)
class Strided:
    """A matrix in memory: the value that holds its elements, which of them is the first, how many elements apart
    neighbours of a column and of a row are, and the checks of a load that say where its rows and its columns end."""

    source: SSAValue
    first: int
    row: int
    column: int
    ends: tuple[tuple[int, ...], tuple[int, ...]] = ((), ())

    def pointer(self, writer: Writer) -> str:
        """The address of the first element."""
        if (load := plain_load(self.source)) is not None:
            return f"&{element_at(writer, load, self.first)}"
        return f"{writer.places[self.source].name}{f' + {self.first}' if self.first else ''}"

    def counts(self, writer: Writer, side: int) -> Iterator[str]:
        """How many rows (`side` 0) or columns (1) there are, which may be more than belong to the matrix."""
        load = plain_load(self.source)
        for c in self.ends[side] if load is not None else ():
            at, (_, end) = writer.read(load.checks[c]), load.bounds[c]
            text = Expr(str(end)) if isinstance(end, int) else writer.size(end)
            yield (text if at.text == "0" else infix(text, "-", at, ADD)).text


def operands(op: PanelFmaOp) -> tuple[Strided, Strided]:
    """The matrices that are multiplied."""
    return _strided(op.lhs, op.depth.data), _strided(op.rhs, op.extents[1])


def extents(writer: Writer, op: PanelFmaOp) -> list[str]:
    """Rows, columns and depth where they end in front of what `op` says; nothing where none does."""
    lhs, rhs = operands(op)
    sides = ((lhs, 0),), ((rhs, 1),), ((lhs, 1), (rhs, 0))
    whole = *op.extents, op.depth.data
    counts = [dict.fromkeys(c for m, side in own for c in m.counts(writer, side)) for own in sides]
    if not any(counts):
        return []
    return [reduce(lambda a, b: f"min<long>({a}, {b})", [str(n), *c]) for n, c in zip(whole, counts, strict=True)]


def _strided(value: SSAValue, columns: int) -> Strided:
    """Where the matrix that `value` holds row by row lies with strides: in the memory that it is loaded from, in a
    value that it is a shuffle of, or in itself."""
    first, steps = 0, [1 << b for b in range(registers(value).bit_length() - 1)]
    found = Strided(value, 0, columns, 1)
    while True:
        load, op = plain_load(value), value.owner
        if load is not None:
            ends = _ends(load, first, steps, columns)
            here = None if ends is None else _matrix(value, first, distances(load, steps), columns)
            return found if here is None else replace(here, ends=ends)
        found = _matrix(value, first, steps, columns) or found
        linear = linear_steps(op.registers.get_values()) if isinstance(op, ShuffleRegistersOp) else None
        if linear is None or not isinstance(op, ShuffleRegistersOp):
            return found
        first, steps = linear[0] + _moved(first, linear[1]), [_moved(step, linear[1]) for step in steps]
        value = op.source


def plain_load(value: SSAValue) -> LoadOp | None:
    """The load of a value that may as well be read where it lies: from memory that the kernel does not write, and zero
    behind the ends of rows and columns."""
    load = value.owner
    if not isinstance(load, LoadOp) or load.xor is not None or load.checks and not _is_zero(load.fill):
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


def _ends(
    load: LoadOp, first: int, steps: Sequence[int], columns: int
) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    """Which checks are of rows and which of columns, if each counts one of them up to an end."""
    split, found = columns.bit_length() - 1, (list[int](), list[int]())
    func = enclosing(load, FuncOp)
    for c, (check, (low, _)) in enumerate(zip(load.checks, load.bounds, strict=True)):
        bits = [basis[c] for basis in load.check_steps]
        own = [_moved(step, bits) for step in steps]
        sides = own[split:], own[:split]
        side = 0 if any(sides[0]) else 1
        if any(sides[1 - side]) or sides[side] != [1 << b for b in range(len(sides[side]))] or not sides[side]:
            return None
        if _moved(first, bits) or registers(check) > 1 or Ranges(func).of(check)[0] < low:
            return None
        found[side].append(c)
    return tuple(found[0]), tuple(found[1])


def _is_zero(value: SSAValue | None) -> bool:
    return value is not None and isinstance(value.owner, ConstantOp) and value.owner.scalar == 0


def _moved(register: int, bits: Sequence[int]) -> int:
    """The register that `register` is, by where each bit of its number goes."""
    return sum(bit for b, bit in enumerate(bits) if register >> b & 1)


def distances(load: LoadOp, steps: Sequence[int]) -> list[int]:
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
    return Strided(source, first, strides[0], strides[1])
