"""Order and dependence among the ops of one block, for passes that gather some of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from xdsl.ir import Block, Operation, SSAValue

from ...dialects import loop


class BlockOrder:
    """Which ops of a block use which others, directly, through each other, or from inside their regions.

    A set of ops is a number with a bit for each op, by its position.
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
        """Whether `op` needs a result of `other`, directly or not."""
        return bool(self.needs[self.position[op]] >> self.position[other] & 1)

    def after(self, ops: Sequence[Operation]) -> list[Operation]:
        """All ops that need a result of one of `ops`, without these, in order."""
        return self._ops(self._after(ops))

    def between(self, ops: Sequence[Operation]) -> list[Operation]:
        """The ops that need a result of some of `ops` and are needed by others of them."""
        return self._ops(self._between(ops))

    def blocked(self, ops: Sequence[Operation]) -> Operation | None:
        """An op with a region between some of `ops`, which keeps them apart."""
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

    def _ops(self, found: int) -> list[Operation]:
        """The ops of a set, in order."""
        ops: list[Operation] = []
        while found:
            lowest = found & -found
            ops.append(self.ops[lowest.bit_length() - 1])
            found ^= lowest
        return ops


def first_use(op: Operation, places: Mapping[Operation, int]) -> int:
    """The place of the first op of the same block that needs a result of `op`, itself or inside; behind all others if
    there is none. `places` are those of the ops of the block."""
    block = op.parent
    assert block is not None
    users = [block.find_ancestor_op_in_block(use.operation) for result in op.results for use in result.uses]
    return min((_place(user, places) for user in users if user is not None), default=len(places))


def _place(op: Operation, places: Mapping[Operation, int]) -> int:
    """The place of an op that needs a tensor; of the first that does so in another shape, if it is a reshape."""
    return first_use(op, places) if isinstance(op, loop.ReshapeOp) else places[op]


def shares_a_load(a: loop.ReduceOp, b: loop.ReduceOp) -> bool:
    """Whether the bodies of two reductions over the same range read the same element in the same iteration."""
    return not _load_keys(a).isdisjoint(_load_keys(b))


def _load_keys(of: loop.ReduceOp) -> set[tuple[object, ...]]:
    own: dict[SSAValue, object] = dict(zip(of.body.block.args, range(len(of.sizes)), strict=True))
    return {
        (op.source, op.map.data, op.domain, tuple(own.get(i, i) for i in op.indices))
        for op in of.body.block.ops
        if isinstance(op, loop.LoadOp) and not op.symbols and any(i in own for i in op.indices)
    }
