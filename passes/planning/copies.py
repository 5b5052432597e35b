"""How the factors of matrix products reach shared memory: at once, or several chunks ahead of their use."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from xdsl.dialects.builtin import Float32Type
from xdsl.ir import Block, Operation, SSAValue

from ...dialects import loop, payload
from ...dialects.payload import element_bytes, element_type
from ...dialects.schedule import ScheduleAttr
from ..narrow_factors import parts_of
from .facts import Facts
from .narrowing import is_tf32
from .products import Product
from .tiles import Tiles

PART_BYTES = 6
"""Bytes of the three parts that an f32 number is split into on its way to shared memory."""


@dataclass(frozen=True)
class Staged:
    """Bytes of the factors of products in shared memory: `early` of those that can be copied ahead of their use, for
    each stage, `late` of the others, and in how many chunks a block goes through the former at most. Where all
    comes at once, a product's factors take the place of those of the one before."""

    early: int
    late: int
    chunks: int

    def bytes(self, schedule: ScheduleAttr) -> int:
        """Bytes of shared memory under a schedule."""
        return self.early * (schedule.stages.data if schedule.copy.data != "plain" else 1) + self.late


def staged(facts: Facts, schedule: ScheduleAttr, products: list[Product]) -> Staged:
    """What the products keep in shared memory."""
    tiles = Tiles(facts, schedule)
    narrow = schedule.atom.data != "fma"
    inner = {r.op for r in facts.reductions if r.contraction is not None}
    early = most = 0
    walked = 1
    late: list[int] = []
    for p in products:
        late.append(0)
        for factor in p.factors:
            tf32 = narrow and is_tf32(p, schedule.narrow.data)
            if narrow and _is_kept(factor, inner):
                continue
            loads = loads_of(factor, narrow and not tf32)
            indices = facts.dependence.of(factor)
            each = sum(element_bytes(load.source.type) for load in loads) if loads else 4
            size = tiles.elements(indices) * each
            chunks = tiles.walked(i for i in indices if i not in tiles.counts)
            walked = max(walked, chunks)
            if narrow and schedule.narrow.data == "parts" and any(map(is_wide, loads)):
                late[-1] += size * PART_BYTES // 4
            elif loads and chunks > 1:
                early, most = early + size, max(most, chunks)
            else:
                late[-1] += size
    return Staged(early, sum(late) if walked > 1 else max(late, default=0), most)


def _is_kept(factor: SSAValue, products: Collection[Operation]) -> bool:
    """Whether a factor is computed from the sums of another product (weights of attention): tensor cores take it from
    the registers of the threads that have these."""
    seen, todo = set[SSAValue](), [factor]
    while todo:
        value = todo.pop()
        op = value.owner
        if op in products:
            return True
        if value not in seen and not isinstance(op, Block | loop.LoadOp) and payload.is_payload(op):
            seen.add(value)
            todo.extend(op.operands)
    return False


def is_wide(load: loop.LoadOp) -> bool:
    """Whether a load is of f32."""
    return isinstance(element_type(load.result.type), Float32Type)


def loads_of(factor: SSAValue, narrow: bool) -> list[loop.LoadOp]:
    """The load that a factor is, behind a widening if the product is of narrow factors, or the loads of its parts; none
    if it is computed."""
    op = factor.owner
    if narrow and (parts := parts_of(factor)) is not None:
        found = [part.owner for part in parts]
        return [op for op in found if isinstance(op, loop.LoadOp)]
    if narrow and isinstance(op, payload.CastOp):
        op = op.operand.owner
    return [op] if isinstance(op, loop.LoadOp) else []
