"""Data dependences between the operations of one block, for passes that move operations next to each other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from xdsl.ir import Block, Operation, SSAValue

from ...dialects import loop


class BlockOrder:
    """Transitive data dependences of a block. Operands that are used inside regions count.

    A set of operations is an integer with one bit for each operation.

    Attributes:
        ops: operations of the block, in order.
        position: operation -> its number, which is its bit in a set.
        needs: for each operation the set of operations that it depends on, itself included.
        needed: for each operation the set of operations that depend on it, itself included.
        with_regions: set of the operations with regions.
    """

    def __init__(self, block: Block) -> None:
        self.block = block
        self.ops = tuple(block.ops)
        self.position = {op: i for i, op in enumerate(self.ops)}
        self.needs = [1 << i for i in range(len(self.ops))]
        self.needed = list(self.needs)
        self.with_regions = sum(1 << i for i, op in enumerate(self.ops) if op.regions)
        direct = [
            sorted(
                self.position[owner]
                for owner in {v.owner for inner in op.walk() for v in inner.operands}
                if isinstance(owner, Operation) and owner in self.position
            )
            for op in self.ops
        ]
        for i, owners in enumerate(direct):
            for owner in owners:
                self.needs[i] |= self.needs[owner]
        for i, owners in reversed([*enumerate(direct)]):
            for owner in owners:
                self.needed[owner] |= self.needed[i]

    def uses(self, op: Operation, other: Operation) -> bool:
        """Returns true if `op` depends on a result of `other`, directly or indirectly."""
        return bool(self.needs[self.position[op]] >> self.position[other] & 1)

    def after(self, ops: Sequence[Operation]) -> list[Operation]:
        """Returns the operations that depend on one of `ops`, except `ops` themselves, in order."""
        return self._ops(self._after(ops))

    def between(self, ops: Sequence[Operation]) -> list[Operation]:
        """Returns the operations that depend on one of `ops` and that another of `ops` depends on, in order."""
        return self._ops(self._between(ops))

    def blocked(self, ops: Sequence[Operation]) -> Operation | None:
        """Returns an operation with regions in `between(ops)`, which prevents moving `ops` together, or None."""
        return next(iter(self._ops(self._between(ops) & self.with_regions)), None)

    def _after(self, ops: Sequence[Operation]) -> int:
        after = 0
        for op in ops:
            after |= self.needed[self.position[op]]
        return after & ~sum(1 << self.position[op] for op in ops)

    def _between(self, ops: Sequence[Operation]) -> int:
        before = 0
        for op in ops:
            before |= self.needs[self.position[op]]
        return before & self._after(ops)

    def _ops(self, bits: int) -> list[Operation]:
        """Returns the operations of a set, in order."""
        ops: list[Operation] = []
        while bits:
            lowest = bits & -bits
            ops.append(self.ops[lowest.bit_length() - 1])
            bits ^= lowest
        return ops


def first_use(op: Operation, positions: Mapping[Operation, int]) -> int:
    """Returns the position of the first operation of the block that uses a result of `op`, in its regions too.

    A reshape of a result is no use; its own uses count.

    Args:
        op: the operation.
        positions: operation of the block -> its position.

    Returns:
        The position, or `len(positions)` if there is no use.
    """
    block = op.parent
    assert block is not None
    users = [block.find_ancestor_op_in_block(use.operation) for result in op.results for use in result.uses]
    return min((_use_position(user, positions) for user in users if user is not None), default=len(positions))


def _use_position(op: Operation, positions: Mapping[Operation, int]) -> int:
    return first_use(op, positions) if isinstance(op, loop.ReshapeOp) else positions[op]


def shares_a_load(a: loop.ReduceOp, b: loop.ReduceOp) -> bool:
    """Returns true if two reductions over the same range load the same element in the same iteration."""
    return not _load_keys(a).isdisjoint(_load_keys(b))


def _load_keys(of: loop.ReduceOp) -> set[tuple[object, ...]]:
    """Returns keys of the loads of a reduction. Two loads of the same element have the same key.

    A key has the position of a reduction index in its place, so that keys of different reductions can be compared.
    """
    numbers: dict[SSAValue, object] = dict(zip(of.body.block.args, range(len(of.sizes)), strict=True))
    return {
        (op.source, op.map.data, op.domain, tuple(numbers.get(i, i) for i in op.indices))
        for op in of.body.block.ops
        if isinstance(op, loop.LoadOp) and not op.symbols and any(i in numbers for i in op.indices)
    }
