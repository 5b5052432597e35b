"""Grouping of the operations of a CPU kernel into loops over SIMD vectors.

A vector loop visits the registers of its values, several at a time: the lanes of a vector are contiguous registers. A
block of a CPU kernel has one thread, which holds all registers of a tile.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

from xdsl.ir import Block, Operation, SSAValue

from ...dialects import kernel
from ...dialects.kernel import LoadOp
from ...dialects.kernel.memory import GLOBAL, space_of
from ...dialects.payload import CastOp, ConstantOp, is_payload
from ...target.model import MAX_LANES
from ..cpp.memory import pitches
from ..cpp.ordering import Group, Ordering, is_view, linear_steps, registers
from ..cpp.writer import memory_extents
from .ends import Write
from .folds import columns_of, row_of, row_of_scan
from .panels import SIDE_BY_SIDE, distances, is_read_by_panels, is_read_by_transposes


class VectorOrdering(Ordering):
    """Ordering whose groups include loads, stores and reductions of rows.

    If two groups need a value that is loaded from global memory, or converted from one, the second loads it again.
    The repeated load hits L1, whereas an array for the value would have to be written and read.
    """

    def __init__(self, block: Block) -> None:
        self._loadable: set[SSAValue] = set()
        """Loaded or converted values that a later group may load again, because nothing has been written since."""
        self._readers: dict[SSAValue, set[Operation]] = {}
        """Value that may be loaded again -> operations of all groups that load it, which need no array for it."""
        super().__init__(block)
        self._number = {op: n for n, s in enumerate(self.statements) for op in (s.ops if isinstance(s, Group) else [s])}
        """Operation -> index of the last statement that contains it."""

    def operations(self, block: Block) -> Iterator[Operation]:
        """Yields the operations of a block. A reduction directly follows its source, so that one loop computes both."""
        sources = {op: op.source.owner for op in block.ops if isinstance(op, kernel.ReduceRegistersOp)}
        for op in block.ops:
            if getattr(sources.get(op), "parent", None) is not block:
                yield op
                yield from self._reductions_of(op)

    def _reductions_of(self, op: Operation) -> Iterator[Operation]:
        for user in dict.fromkeys(use.operation for result in op.results for use in result.uses):
            if isinstance(user, kernel.ReduceRegistersOp) and user.parent is op.parent:
                yield user
                yield from self._reductions_of(user)

    def _append(self, op: Operation) -> None:
        if is_read_by_panels(op) or is_read_by_transposes(op):
            return
        if op.regions or isinstance(op, Write):
            self._loadable.clear()
        size = _size(op)
        if size is None:
            if isinstance(op, Write):
                self._flush(list(self._pending.values()))
            elif isinstance(op, LoadOp):
                self._flush(self._predecessors(op))
            makers = (self._open_group_of.get(v) for v in op.operands)
            self._flush([g for g in makers if g is not None and g.size >= MAX_LANES])
            super()._append(op)
            return
        direct = [self._open_group_of.get(v) for v in op.operands]
        needed = [g for g in direct if g is not None and g.size != size]
        self._flush([*dict.fromkeys([*needed, *self._groups_read_out_of_order(op), *self._predecessors(op)])])
        for value in op.operands:
            self._load_again(size, value)
        self._add(size, op)
        if _is_loaded(op, self._loadable):
            self._loadable.add(op.results[0])
            self._readers[op.results[0]] = set()

    def _predecessors(self, op: Operation) -> list[Group]:
        """Returns the open groups that must be closed before `op`, because of memory accesses or different loops."""
        if not isinstance(op, LoadOp | Write | RowOp):
            return []
        return [g for g in self._pending.values() if any(_conflict(op, other) for other in g.ops)]

    def _load_again(self, size: int, value: SSAValue) -> None:
        """Adds the load or conversion of `value` to the open group of `size` registers, if it may be loaded again.

        Does nothing if an open group computes the value.
        """
        op = value.owner
        if value in self._loadable and value not in self._open_group_of and isinstance(op, Operation):
            for operand in op.operands:
                self._load_again(size, operand)
            self._add(size, op)

    def _flush(self, groups: list[Group]) -> None:
        for group in groups:
            if self._pending.get(group.size) is group:
                for value in (r for op in group.ops for r in op.results if r in self._readers):
                    self._readers[value].update(group.ops)
        super()._flush(groups)

    def is_last_reader(self, op: Operation, value: SSAValue, number: int) -> bool:
        """Returns true if no operation after `op` reads a value.

        Args:
            op: operation of a group.
            value: the value.
            number: index of the group in the statements.
        """
        group = self.statements[number]
        assert isinstance(group, Group)
        later_ops = {*group.ops[group.ops.index(op) + 1 :]}
        users = {use.operation for use in value.uses}
        return all(self._number.get(user, number + 1) <= number and user not in later_ops for user in users)

    def is_kept(self, value: SSAValue, group: Group) -> bool:
        """Returns true if a value of `group` needs an array: it is read by a group that does not load it again."""
        inside = self._readers.get(value, set()) | {*group.ops}
        return any(use.operation not in inside for use in value.uses)


def _size(op: Operation) -> int | None:
    """Returns the number of registers in the vector loop of an operation, or None if it has no vector loop."""
    if isinstance(op, kernel.ReduceRegistersOp):
        size = registers(op.source) if (row_of(op) or 1) >= MAX_LANES or columns_of(op) else 1
    elif isinstance(op, kernel.ScanRegistersOp):
        size = registers(op.source) if row_of_scan(op) else 1
    elif isinstance(op, Write):
        size = registers(op.value)
    elif isinstance(op, LoadOp) or is_payload(op) and not is_view(op):
        size = registers(op.results[0])
    else:
        size = 1
    return size if size >= MAX_LANES else None


def _is_loaded(op: Operation, loadable: Collection[SSAValue]) -> bool:
    """Returns true if `op` loads contiguous global memory, or converts one of the `loadable` values."""
    if isinstance(op, LoadOp):
        has_constant_fill = op.fill is None or isinstance(op.fill.owner, ConstantOp)
        is_scalar_address = all(registers(v) == 1 for v in op.coordinates)
        return (
            has_constant_fill
            and is_scalar_address
            and space_of(op.memory.type) is GLOBAL
            and lane_steps(op) == SIDE_BY_SIDE
        )
    return isinstance(op, CastOp) and op.operand in loadable


RowOp = kernel.ReduceRegistersOp | kernel.ScanRegistersOp
"""Operations that determine the loop of their group: over each row, or over blocks of columns with the rows inside."""


def _loop_form(op: RowOp) -> object:
    """Returns a key that is equal for reductions and scans with the same form of loop."""
    if isinstance(op, kernel.ScanRegistersOp):
        loop = row_of_scan(op)
        return None if loop is None else ("scan", loop.row)
    return row_of(op), columns_of(op)


def _conflict(op: LoadOp | Write | RowOp, other: Operation) -> bool:
    """Returns true if `op` cannot be in the same group as `other`.

    Either one writes memory that the other accesses, or their loops differ. Shared buffers may overlap, so they all
    count as the same memory. Different buffers in global memory do not overlap.
    """
    if isinstance(op, RowOp):
        return isinstance(other, RowOp) and _loop_form(op) != _loop_form(other)
    if not isinstance(other, LoadOp | Write) or isinstance(op, LoadOp) and isinstance(other, LoadOp):
        return False
    return op.memory is other.memory or GLOBAL not in [space_of(o.memory.type) for o in (op, other)]


def is_same_in_lanes(value: SSAValue) -> bool:
    """Returns true if a value is provably equal in all lanes of a vector, such as a row number."""
    seen, unvisited = set[SSAValue](), [value]
    while unvisited:
        current = unvisited.pop()
        op = current.owner
        if current in seen or registers(current) == 1:
            continue
        seen.add(current)
        if isinstance(op, kernel.IndicesOp):
            same = not any(op.steps.get_values()[:4])
        elif isinstance(op, kernel.ShuffleRegistersOp):
            same = (linear := linear_steps(op.registers)) is not None and not any(linear[1][:4])
        else:
            same = isinstance(op, kernel.SplatOp) or isinstance(op, Operation) and is_payload(op)
            unvisited += op.operands if isinstance(op, Operation) else ()
        if not same:
            return False
    return True


def lane_steps(op: LoadOp | Write) -> list[int] | None:
    """Returns the offsets of lanes 1, 2, 4 and 8 from lane 0 in memory, in elements; None if they are not constant."""
    if not all(map(is_same_in_lanes, op.coordinates)) or op.xor is not None:
        return None
    pitch = pitches(memory_extents(op.memory.type))
    if any(b and symbols for basis in op.reg_bases[:4] for b, (_, symbols) in zip(basis, pitch, strict=True)):
        return None
    return distances(op, SIDE_BY_SIDE)
