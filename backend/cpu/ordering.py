"""Groups the operations of a block of one thread into loops over SIMD vectors."""

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

    A later group repeats loads from global memory and their conversions. The repeated loads hit L1, whereas an array
    for the values would have to be written and read.
    """

    def __init__(self, block: Block) -> None:
        self._loadable: set[SSAValue] = set()
        """Loaded or converted values that a later group may load again, because nothing was written since."""
        self._readers: dict[SSAValue, set[Operation]] = {}
        """Value that could be loaded again -> operations of all groups that compute it."""
        super().__init__(block)
        self._number = {op: n for n, s in enumerate(self.statements) for op in (s.ops if isinstance(s, Group) else [s])}
        """Operation -> number of the last statement that computes it."""

    def operations(self, block: Block) -> Iterator[Operation]:
        """Yields the operations of a block. A reduction directly follows its source, so that one loop computes both."""
        early = {op: op.source.owner for op in block.ops if isinstance(op, kernel.ReduceRegistersOp)}
        for op in block.ops:
            if getattr(early.get(op), "parent", None) is not block:
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
        """Returns the open groups that must be printed before an operation."""
        if not isinstance(op, LoadOp | Write | Walk):
            return []
        return [g for g in self._pending.values() if any(_conflict(op, other) for other in g.ops)]

    def _load_again(self, size: int, value: SSAValue) -> None:
        """Adds the load or conversion of `value` to the open group of `size`, unless an open group computes it."""
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

    def is_read_by(self, value: SSAValue, number: int, last: Operation) -> bool:
        """Returns true if all users of a value are computed before a point.

        Args:
            value: the value.
            number: number of a statement.
            last: operation of the statement; the point is after it.
        """
        group = self.statements[number]
        assert isinstance(group, Group)
        late = {*group.ops[group.ops.index(last) + 1 :]}
        users = {use.operation for use in value.uses}
        return all(self._number.get(op, number + 1) <= number and op not in late for op in users)

    def is_kept(self, value: SSAValue, group: Group) -> bool:
        """Returns true if a value must be stored: an operation that does not recompute it reads it later."""
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
    """Returns true for a load of contiguous global memory, or a conversion of one."""
    if isinstance(op, LoadOp):
        same = op.fill is None or isinstance(op.fill.owner, ConstantOp)
        one = all(registers(v) == 1 for v in op.coordinates)
        return same and one and space_of(op.memory.type) is GLOBAL and lane_steps(op) == SIDE_BY_SIDE
    return isinstance(op, CastOp) and op.operand in loadable


Walk = kernel.ReduceRegistersOp | kernel.ScanRegistersOp
"""Operations that determine the loop of their group."""


def _walk(op: Walk) -> object:
    if isinstance(op, kernel.ScanRegistersOp):
        loop = row_of_scan(op)
        return None if loop is None else ("scan", loop.row)
    return row_of(op), columns_of(op)


def _conflict(op: LoadOp | Write | Walk, other: Operation) -> bool:
    """Returns true if `op` must be printed after `other`.

    One of them writes memory that the other accesses, or their loops differ. Buffers of a block may overlap, so all of
    them count as the same memory.
    """
    if isinstance(op, Walk):
        return isinstance(other, Walk) and _walk(op) != _walk(other)
    if not isinstance(other, LoadOp | Write) or isinstance(op, LoadOp) and isinstance(other, LoadOp):
        return False
    return op.memory is other.memory or GLOBAL not in [space_of(o.memory.type) for o in (op, other)]


def is_same_in_lanes(value: SSAValue) -> bool:
    """Returns true if a value is equal in all lanes, such as a row number."""
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
    """Returns the offsets in memory, in elements, of lanes 1, 2, 4 and 8; None if they are not constant."""
    if not all(map(is_same_in_lanes, op.coordinates)) or op.xor is not None:
        return None
    pitch = pitches(memory_extents(op.memory.type))
    if any(b and symbols for basis in op.reg_bases[:4] for b, (_, symbols) in zip(basis, pitch, strict=True)):
        return None
    return distances(op, SIDE_BY_SIDE)
