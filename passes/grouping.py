"""Order and dependence among the ops of one block, for passes that gather some of them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from xdsl.ir import Block, Operation, SSAValue

from ..dialects import loop


class BlockOrder:
    """Which ops of a block use which others, directly, through each other, or from inside their regions."""

    def __init__(self, block: Block) -> None:
        self.block = block
        self.ops = tuple(block.ops)
        self.position = {op: i for i, op in enumerate(self.ops)}
        self.needs: dict[Operation, int] = {}
        for i, op in enumerate(self.ops):
            mask = 1 << i
            for value in _captured(op):
                owner = value.owner
                if isinstance(owner, Operation) and owner in self.needs:
                    mask |= self.needs[owner]
            self.needs[op] = mask

    def uses(self, op: Operation, other: Operation) -> bool:
        """Whether `op` needs a result of `other`, directly or not."""
        return bool(self.needs[op] >> self.position[other] & 1)

    def after(self, ops: Sequence[Operation]) -> list[Operation]:
        """All ops that need a result of one of `ops`, without these, in order."""
        return [o for o in self.ops if o not in ops and any(self.uses(o, op) for op in ops)]

    def between(self, ops: Sequence[Operation]) -> list[Operation]:
        """The ops that need a result of some of `ops` and are needed by others of them."""
        return [o for o in self.after(ops) if any(self.uses(op, o) for op in ops)]

    def blocked(self, ops: Sequence[Operation]) -> Operation | None:
        """An op with a region between some of `ops`, which keeps them apart."""
        return next((o for o in self.between(ops) if o.regions), None)


def _captured(op: Operation) -> Iterable[SSAValue]:
    yield from op.operands
    for region in op.regions:
        for inner in region.walk():
            yield from inner.operands


def shares_a_load(a: loop.ReduceOp, b: loop.ReduceOp) -> bool:
    """Whether the bodies of two reductions over the same range read the same element in the same iteration."""
    return not _load_keys(a).isdisjoint(_load_keys(b))


def _load_keys(reduce: loop.ReduceOp) -> set[tuple[object, ...]]:
    own: dict[SSAValue, object] = dict(zip(reduce.body.block.args, range(len(reduce.sizes)), strict=True))
    return {
        (op.source, op.map.data, op.domain, tuple(own.get(i, i) for i in op.indices))
        for op in reduce.body.block.ops
        if isinstance(op, loop.LoadOp) and not op.symbols and any(i in own for i in op.indices)
    }
