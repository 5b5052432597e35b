"""Independent nests over the same indices become one nest with several results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from xdsl.context import Context
from xdsl.dialects import func
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Block, Operation, Region, SSAValue
from xdsl.passes import ModulePass

from ...dialects import loop
from ...dialects.payload import element_type
from ...dialects.shapes.extents import extents_of
from ...dialects.support.equivalence import Numbering
from ..analysis.block_order import first_use
from ..rewriting import erase, insert_before

MAX_REDUCTIONS = 2
"""Reductions in one nest side by side: each has accumulators, and registers are few."""

WINDOW = 32
"""Later nests with the same indices that a nest is compared with, so that the work grows with the program."""


@dataclass(frozen=True)
class FuseSiblingsPass(ModulePass):
    """Compute what is computed over the same indices from the same data in one kernel.

    What: two nests of one function are merged if they have the same extents and result map, read some tensor at the
    same place, and neither needs the other's result; the merged nest has the results of both. At most two reductions
    come to stand side by side, not counting those that both have and that become one. A nest is only moved past
    what does not need it.
    Why: one launch less, and what both read is read once: the projections to keys and values of an attention, or the
    updates of both caches.
    Why here: after dimensions were split, so that indices say all; before reductions are merged, which lets two sums
    over one index run in one loop.

    ```mlir
    %a = loop.nest (%i) in [64] -> tensor<64xf32> { %0 = loop.load %x[...](%i) ... loop.yield %1 : f32 }
    %b = loop.nest (%i) in [64] -> tensor<64xf32> { %0 = loop.load %x[...](%i) ... loop.yield %2 : f32 }
    ```
    becomes
    ```mlir
    %a, %b = loop.nest (%i) in [64] -> tensor<64xf32>, tensor<64xf32> { ... loop.yield %1, %2 : f32, f32 }
    ```
    """

    name = "loop-fuse-siblings"
    needs: ClassVar[Mapping[str, int]] = {"loop.nest": 2}

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for function in op.ops:
            if isinstance(function, func.FuncOp) and not function.is_declaration:
                merge_siblings(function.body.block)


def merge_siblings(block: Block) -> None:
    """Merges each nest of `block` with the nearest later one that fits."""
    places: dict[Operation, int] = {op: i for i, op in enumerate(block.ops)}
    numbering, kinds = Numbering(), dict[object, list[_Group]]()
    groups = [_Group.of(op, places, numbering) for op in places if isinstance(op, loop.NestOp)]
    for group in groups:
        if "schedule" not in group.members[0].attributes:
            kinds.setdefault(group.kind, []).append(group)
    for alike in kinds.values():
        for i, first in enumerate(alike):
            for second in alike[i + 1 : i + 1 + WINDOW]:
                if second.place >= first.used_from:
                    break
                if first.fits(second):
                    second.take(first)
                    break
    for group in groups:
        if len(group.members) > 1:
            merge(group.members)


@dataclass(eq=False)
class _Group:
    """Nests that become one, at the `place` of the last. `used_from`: place of the first op that needs a result.
    `reads`: what they load. `reductions`: number of each op with reductions by its computation -> how many it holds."""

    members: list[loop.NestOp]
    place: int
    used_from: int
    reads: set[object]
    reductions: dict[int, int]

    @classmethod
    def of(cls, nest: loop.NestOp, places: dict[Operation, int], numbering: Numbering) -> _Group:
        loads = (op for op in nest.body.walk() if isinstance(op, loop.LoadOp))
        reads: set[object] = {(op.source, op.map.data, op.domain) for op in loads}
        return cls([nest], places[nest], first_use(nest, places), reads, _reductions(nest, numbering))

    @property
    def kind(self) -> object:
        """Equal for nests that may be merged."""
        nest = self.members[0]
        result_map = None if nest.result_map is None else nest.result_map.data
        scanned = loop.scanned_index(nest)
        scan = None if scanned is None else nest.body.block.args.index(scanned)
        return tuple(nest.sizes), result_map, extents_of(nest.res[0].type), bool(self.reductions), scan

    def fits(self, other: _Group) -> bool:
        """Returns true if both load the same somewhere, and few reductions are in only one of them."""
        apart = self.reductions.keys() ^ other.reductions.keys()
        few = sum(self.reductions.get(n) or other.reductions[n] for n in apart) <= MAX_REDUCTIONS
        return few and not self.reads.isdisjoint(other.reads)

    def take(self, first: _Group) -> None:
        """Inserts `first` before this group."""
        self.members, first.members = [*first.members, *self.members], []
        self.used_from = min(first.used_from, self.used_from)
        small, large = sorted((first.reads, self.reads), key=len)
        large |= small
        self.reads = large
        self.reductions.update(first.reductions)


def _reductions(nest: loop.NestOp, numbering: Numbering) -> dict[int, int]:
    for place, index in enumerate(nest.body.block.args):
        numbering.identify(index, place)
    counts = ((op, sum(isinstance(inner, loop.ReduceOp) for inner in op.walk())) for op in nest.body.block.ops)
    return {numbering.of_op(op): count for op, count in counts if count}


def merge(nests: Sequence[loop.NestOp]) -> loop.NestOp:
    """Replaces `nests` by one with the results of all, at the place of the last. Returns it."""
    last = nests[-1]
    block = Block(arg_types=[a.type for a in last.body.block.args])
    yielded: list[SSAValue] = []
    for nest in nests:
        for old, new in zip(nest.body.block.args, block.args, strict=True):
            new.name_hint = old.name_hint
            old.replace_all_uses_with(new)
        for op in list(nest.body.block.ops):
            if isinstance(op, loop.YieldOp):
                yielded.extend(op.operands)
            else:
                op.detach()
                block.add_op(op)
    block.add_op(loop.YieldOp(*yielded))
    results = [r for nest in nests for r in nest.res]
    elements = [element_type(r.type) for r in results]
    result_map = None if last.result_map is None else last.result_map.data
    merged = loop.NestOp(last.sizes, elements, Region(block), result_map, extents_of(last.res[0].type))
    insert_before(last, merged, source=nests[0])
    for old, new in zip(results, merged.res, strict=True):
        new.name_hint = old.name_hint
        old.replace_all_uses_with(new)
    erase(*nests)
    return merged
