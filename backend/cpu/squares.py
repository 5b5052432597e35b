"""Registers in another order in which lanes are rows: transposed in squares of as many rows as there are lanes."""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.ir import Block, Operation

from ...dialects.kernel import ShuffleRegistersOp
from ...dialects.kernel.memory import LoadOp, StoreOp
from ...dialects.payload import is_payload
from ..cpp.memory import element_at
from ..cpp.ordering import linear_steps, registers
from ..cpp.writer import Writer, terms
from .panels import SIDE_BY_SIDE, distances, plain_load


@dataclass(frozen=True)
class Squares:
    """A shuffle of `source`: its vectors are columns of squares there, whose rows are `pitch` registers apart; rows of
    the result are `across` registers apart."""

    shuffle: ShuffleRegistersOp
    across: int
    pitch: int

    def source(self, writer: Writer, register: str) -> str | None:
        """The first element of the square that `register` of the result is the first one of, and how many elements
        apart rows are, as arguments; None if the source has no place."""
        shuffle, linear = self.shuffle, linear_steps(self.shuffle.registers)
        load = _load_of_rows(self)
        if load is not None and linear is not None:
            at = terms(register, distances(load, linear[1]))
            return f"&{element_at(writer, load, linear[0])} + {at.text}, {distances(load, [self.pitch])[0]}"
        found = shuffle.source in writer.places
        return f"&{writer.read(shuffle.result, register).text}, {self.pitch}" if found else None


def squares_of(op: Operation | Block) -> Squares | None:
    """How the result of an operation consists of transposed squares; None if it does not."""
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
    """The load of a source, if squares of it lie row by row in memory, and nothing else needs it."""
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
    """Whether an operation is a load that is only ever read square by square, where it lies."""
    found = [squares_of(use.operation) for use in op.result.uses] if isinstance(op, LoadOp) else []
    return bool(found) and all(square is not None and _load_of_rows(square) is op for square in found)
