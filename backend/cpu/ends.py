"""Trip counts of loops over register arrays.

The size of a register array is padded, for example from 100 to 128 elements. The array may consist of rows of equal
size. The *end* of a row is the first register from which on the values in the row are not used:

- a store does not write these registers, because its bounds check fails, or
- a reduction reads its identity from them.

The analysis finds the ends of values, so that loops skip the padding.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from xdsl.dialects.arith import MulfOp
from xdsl.ir import Operation, SSAValue

from ...dialects.kernel import AtomicRmwOp, IndicesOp, LoadOp, ReduceRegistersOp, ShuffleRegistersOp, StoreOp
from ...dialects.payload import CastOp, CmpOp, ExtentOp, SelectOp, constant_of, element_type, is_payload
from ...dialects.shapes.extents import Extent
from ...dialects.shapes.ranges import constant_index
from ...dialects.tensor import identity
from ..cpp.expressions import offset_of
from ..cpp.ordering import linear_steps, registers
from .folds import row_of

Write = StoreOp | AtomicRmwOp
"""Operations that write registers to memory."""


@dataclass(frozen=True)
class End:
    """End of the used registers of a row: register r of the row is used if origin + r < bound.

    Attributes:
        origin: index of the first register; an SSA value if it is not constant.
        bound: upper bound of the index, which may be a symbolic extent.
        row: number of registers of a row.
    """

    origin: SSAValue | int
    bound: Extent
    row: int

    @property
    def length(self) -> int | None:
        """The number of used registers if it is constant, or None."""
        return self.bound - self.origin if isinstance(self.bound, int) and isinstance(self.origin, int) else None

    @staticmethod
    def at(origin: SSAValue, steps: Sequence[int], bound: Extent) -> End | None:
        """Returns the end that the check `origin` + (steps of a register) < `bound` implies, or None.

        Args:
            origin: index of the first register.
            steps: step of the index for each bit of the register number. Only steps 1, 2, 4, … have an end. If origin
                and bound are constant, zeros are allowed before them: 2 or more adjacent registers then share an index.
            bound: upper bound of the check.
        """
        number = constant_index(origin)
        low = next((bit for bit, step in enumerate(steps) if step), 0)
        bits = next((bit for bit, step in enumerate(steps) if bit >= low and step != 1 << bit - low), len(steps))
        if registers(origin) > 1 or bits == low or any(steps[bits:]):
            return None
        if number is None or not isinstance(bound, int):
            return End(origin if number is None else number, bound, 1 << bits) if low == 0 else None
        return End(number << low, bound << low, 1 << bits)


@dataclass(frozen=True)
class Limit:
    """Bound of a C++ loop over the registers of one row.

    Attributes:
        start: C++ of the first register.
        length: largest number of registers that the loop visits.
        checked: C++ condition under which the loop continues, with `{i}` for the register; "" if there is none.
        end: the end that the bound is derived from, or None.
    """

    start: str
    length: int
    checked: str = ""
    end: End | None = None

    def below(self, register: str) -> str:
        """Returns the C++ condition of the loop with the loop variable `register`."""
        last = f"{self.start} + {self.length}" if self.start != "0" else f"{self.length}"
        return f"{register} < {last}" + (f" && {self.checked.format(i=register)}" if self.checked else "")

    def divides(self, registers: int) -> bool:
        """Returns true if the number of registers is constant and a multiple of `registers`."""
        return not self.checked and self.length % registers == 0


def end_of_access(op: LoadOp | Write) -> End | None:
    """Returns the end that the bounds checks of an access imply, or None.

    If checks of several dimensions imply ends, the one with the shortest rows is returned.
    """
    checks = enumerate(zip(op.checks, op.bounds, strict=True))
    ends = [End.at(value, [basis[c] for basis in op.check_steps], hi) for c, (value, (_, hi)) in checks]
    return min((end for end in ends if end is not None), key=lambda end: end.row, default=None)


class Ends:
    """Analysis of the ends of values, memoised.

    The end of a value is the end that all its uses have in common.
    """

    def __init__(self) -> None:
        self._needed: dict[SSAValue, frozenset[End | None]] = {}

    def of(self, ops: Sequence[Operation], used: Sequence[SSAValue], row: int) -> End | None:
        """Returns the end of a loop over a row, or None if all registers are used.

        Args:
            ops: operations of the loop.
            used: results of the loop that other operations read.
            row: registers of the row.
        """
        ends = {_end_of_read(op) for op in ops if isinstance(op, Write | ReduceRegistersOp)}
        ends = ends.union(*map(self._of_value, used))
        end = ends.pop() if len(ends) == 1 else None
        return end if end is not None and end.row == row else None

    def _of_value(self, value: SSAValue) -> frozenset[End | None]:
        if value not in self._needed:
            self._needed[value] = frozenset().union(*(self._of_use(use.operation, value) for use in value.uses))
        return self._needed[value]

    def _of_use(self, op: Operation, value: SSAValue) -> frozenset[End | None]:
        if isinstance(op, ReduceRegistersOp) or isinstance(op, Write) and op.value is value:
            return frozenset((_end_of_read(op),))
        if isinstance(op, ShuffleRegistersOp) and _is_repeated(op):
            return self._of_value(op.result)
        if is_payload(op) and registers(op.results[0]) == registers(value):
            end = _end_of_select(op) if isinstance(op, SelectOp) and value is op.lhs else None
            return self._of_value(op.results[0]) if end is None else frozenset((end,))
        return frozenset((None,))


def _is_repeated(op: ShuffleRegistersOp) -> bool:
    """Returns true if the result of a shuffle consists of consecutive copies of its whole source."""
    steps, bits = linear_steps(op.registers), registers(op.source).bit_length() - 1
    identity_steps = tuple(1 << bit for bit in range(bits))
    return steps is not None and steps[0] == 0 and steps[1][:bits] == identity_steps and not any(steps[1][bits:])


def _end_of_read(op: Write | ReduceRegistersOp) -> End | None:
    """Returns the end of the registers that an operation reads, or None.

    A write stores no register after the end. The registers of a reduction after the end contain its identity.
    """
    if isinstance(op, Write):
        return end_of_access(op)
    row, neutral = row_of(op), identity(op.kind.data, element_type(op.source.type))
    end = None if row is None else _end_before(op.source, neutral)
    return end if end is not None and end.row == row else None


def _end_before(value: SSAValue, number: float) -> End | None:
    """Returns the end after which all registers of a value are `number`, or None."""
    op = value.owner
    if isinstance(op, LoadOp):
        return end_of_access(op) if op.fill is not None and constant_of(op.fill) == number else None
    if isinstance(op, SelectOp):
        return _end_of_select(op) if constant_of(op.rhs) == number else None
    if isinstance(op, ShuffleRegistersOp) and _is_repeated(op):
        return _end_before(op.source, number)
    if number == 0 and isinstance(op, CastOp | MulfOp):
        ends = {_end_before(operand, 0) for operand in op.operands}
        return ends.pop() if len(ends) == 1 else None
    return None


def _end_of_select(op: SelectOp) -> End | None:
    """Returns the end after which `indices < bound ? a : b` selects `b`."""
    test, spread = op.cond.owner, None
    if isinstance(test, ShuffleRegistersOp):
        spread, test = linear_steps(test.registers), test.source.owner
        if spread is None or spread[0]:
            return None
    if not isinstance(test, CmpOp) or test.predicate.data.value != "lt" or not isinstance(test.lhs.owner, IndicesOp):
        return None
    indices, number = test.lhs.owner, constant_of(test.rhs)
    steps = indices.steps.get_values()
    if spread is not None:
        steps = [offset_of(step, steps) for step in spread[1]]
    if isinstance(test.rhs.owner, ExtentOp):
        return End.at(indices.origin, steps, test.rhs.owner.symbol)
    return None if number is None else End.at(indices.origin, steps, int(number))
