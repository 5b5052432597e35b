"""Where loops over the registers of a value may end: behind that there is padding, which nobody reads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from xdsl.ir import Operation, SSAValue

from ...dialects.kernel import IndicesOp, ReduceRegistersOp
from ...dialects.kernel.memory import LoadOp, StoreOp
from ...dialects.payload import CmpOp, ConstantOp, SelectOp, element_type, is_payload
from ...dialects.shapes.extents import Extent
from ...dialects.shapes.ranges import constant_index
from ...dialects.tensor import identity
from ..cuda.ordering import registers
from .folds import combining


@dataclass(frozen=True)
class End:
    """Register r is inside as long as origin + r is below `bound`; `origin` is a number where that is known."""

    origin: SSAValue | int
    bound: Extent

    @staticmethod
    def at(origin: SSAValue, steps: Sequence[int], bound: Extent) -> End | None:
        """Where a check of `origin` and what the bits of a register's number add ends; None if these do not count."""
        number = constant_index(origin)
        counts = registers(origin) == 1 and all(step == 1 << bit for bit, step in enumerate(steps))
        return End(origin if number is None else number, bound) if counts else None


def end_of_access(op: LoadOp | StoreOp) -> End | None:
    """Where an access ends, if that is all that is checked about it in the direction in which registers count up."""
    for c, (value, (_, hi)) in enumerate(zip(op.checks, op.bounds, strict=True)):
        end = End.at(value, [basis[c] for basis in op.check_steps], hi)
        if end is not None:
            return end
    return None


class Ends:
    """What of values is read, and from where on nothing is."""

    def __init__(self) -> None:
        self._needed: dict[SSAValue, frozenset[End | None]] = {}

    def of(self, ops: Sequence[Operation], kept: Sequence[SSAValue]) -> End | None:
        """The one end of a loop over `ops`, of which `kept` are read elsewhere; None if it has to go on to the last
        register."""
        found: set[End | None] = set()
        for op in ops:
            if isinstance(op, StoreOp):
                found.add(end_of_access(op))
            elif isinstance(op, ReduceRegistersOp):
                found.add(_end_of_reduced(op))
        for value in kept:
            found |= self._of_value(value)
        return next(iter(found)) if len(found) == 1 else None

    def _of_value(self, value: SSAValue) -> frozenset[End | None]:
        """The ends of what the uses of a value read; None for all of it."""
        known = self._needed.get(value)
        if known is None:
            self._needed[value] = frozenset((None,))  # a value that depends on itself is needed as a whole
            found = [self._of_use(use.operation, value) for use in value.uses]
            known = self._needed[value] = frozenset().union(*found)
        return known

    def _of_use(self, op: Operation, value: SSAValue) -> frozenset[End | None]:
        if isinstance(op, StoreOp) and op.value is value:
            return frozenset((end_of_access(op),))
        if isinstance(op, ReduceRegistersOp):
            return frozenset((_end_of_reduced(op),))
        if is_payload(op) and registers(op.results[0]) == registers(value):
            own = _end_of_select(op) if isinstance(op, SelectOp) and value is op.lhs else None
            return self._of_value(op.results[0]) if own is None else frozenset((own,))
        return frozenset((None,))


def _end_of_reduced(op: ReduceRegistersOp) -> End | None:
    """From where on all that is reduced changes nothing."""
    source, neutral = op.source.owner, identity(op.kind.data, element_type(op.source.type))
    if registers(op.result) > 1 or combining(op) is None:
        return None
    if isinstance(source, LoadOp):
        return end_of_access(source) if _is(source.fill, neutral) else None
    return _end_of_select(source) if isinstance(source, SelectOp) and _is(source.rhs, neutral) else None


def _is(value: SSAValue | None, number: float) -> bool:
    return value is not None and isinstance(value.owner, ConstantOp) and value.owner.scalar == number


def _end_of_select(op: SelectOp) -> End | None:
    """From where on a selection takes its second value: `indices < bound ? a : b`."""
    test = op.cond.owner
    if not isinstance(test, CmpOp) or test.predicate.data.value != "lt" or not isinstance(test.lhs.owner, IndicesOp):
        return None
    indices, bound = test.lhs.owner, test.rhs.owner
    if not isinstance(bound, ConstantOp):
        return None
    return End.at(indices.origin, indices.steps.get_values(), int(bound.scalar))
