"""`loop-fuse-siblings`: fuses independent nests over the same indices into one nest with several results."""

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

MAX_INDEPENDENT_REDUCTIONS = 2
"""Maximum number of reductions that only one of two fused nests has. Each needs accumulators in registers."""

MAX_COMPARED_NESTS = 32
"""Maximum number of later nests with which a nest is compared, so that compile time grows linearly."""


@dataclass(frozen=True)
class FuseSiblingsPass(ModulePass):
    """Fuses two independent nests with equal indices that load the same element of a tensor.

    ```mlir
    %a = loop.nest (%i) in [64] -> tensor<64xf32> { %0 = loop.load %x[...](%i) ... loop.yield %1 : f32 }
    %b = loop.nest (%i) in [64] -> tensor<64xf32> { %0 = loop.load %x[...](%i) ... loop.yield %2 : f32 }
    ```
    becomes
    ```mlir
    %a, %b = loop.nest (%i) in [64] -> tensor<64xf32>, tensor<64xf32> { ... loop.yield %1, %2 : f32, f32 }
    ```

    The nests must have the same extents and result map, and neither may use the other's result. At most
    `MAX_INDEPENDENT_REDUCTIONS` reductions may be in only one of them. Equal reductions become one. A nest is never
    moved past an operation that uses its results.

    **Rationale**: one launch less, and shared inputs are read once. Examples: the projections to keys and values of
    attention, the updates of both caches.

    **Pipeline position**: after dimensions are split, so that equal indices mean equal accesses. Before reductions are
    grouped, so that sums of both nests can run in one loop.
    """

    name = "loop-fuse-siblings"
    needs: ClassVar[Mapping[str, int]] = {"loop.nest": 2}

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for function in op.ops:
            if isinstance(function, func.FuncOp) and not function.is_declaration:
                merge_siblings(function.body.block)


def merge_siblings(block: Block) -> None:
    """Fuses each nest of `block` with the nearest later one that fits."""
    positions: dict[Operation, int] = {op: i for i, op in enumerate(block.ops)}
    numbering, kinds = Numbering(), dict[object, list[_FusedNests]]()
    groups = [_FusedNests.of(op, positions, numbering) for op in positions if isinstance(op, loop.NestOp)]
    for group in groups:
        if "schedule" not in group.members[0].attributes:
            kinds.setdefault(group.kind, []).append(group)
    for same_kind in kinds.values():
        for i, first in enumerate(same_kind):
            for second in same_kind[i + 1 : i + 1 + MAX_COMPARED_NESTS]:
                if second.place >= first.used_from:
                    break
                if first.fits(second):
                    second.take(first)
                    break
    for group in groups:
        if len(group.members) > 1:
            merge(group.members)


@dataclass(eq=False)
class _FusedNests:
    """Nests that will become one nest, at the position of the last one."""

    members: list[loop.NestOp]
    place: int
    """Position of the last nest in the block."""
    used_from: int
    """Position of the first operation that uses a result."""
    reads: set[object]
    """(Source, map, domain) of each load."""
    reductions: dict[int, int]
    """Value number of each operation that contains reductions -> number of its reductions. Equal computations have
    equal value numbers."""

    @classmethod
    def of(cls, nest: loop.NestOp, positions: dict[Operation, int], numbering: Numbering) -> _FusedNests:
        loads = (op for op in nest.body.walk() if isinstance(op, loop.LoadOp))
        reads: set[object] = {(op.source, op.map.data, op.domain) for op in loads}
        return cls([nest], positions[nest], first_use(nest, positions), reads, _reductions(nest, numbering))

    @property
    def kind(self) -> object:
        """Key that is equal for nests with equal indices and result shapes; only those are fused."""
        nest = self.members[0]
        result_map = None if nest.result_map is None else nest.result_map.data
        scanned = loop.scanned_index(nest)
        scan = None if scanned is None else nest.body.block.args.index(scanned)
        return tuple(nest.sizes), result_map, extents_of(nest.res[0].type), bool(self.reductions), scan

    def fits(self, other: _FusedNests) -> bool:
        """Returns true if both load a common element, and few enough reductions are in only one of them."""
        unshared = self.reductions.keys() ^ other.reductions.keys()
        affordable = sum(self.reductions.get(n) or other.reductions[n] for n in unshared) <= MAX_INDEPENDENT_REDUCTIONS
        return affordable and not self.reads.isdisjoint(other.reads)

    def take(self, first: _FusedNests) -> None:
        """Adds the nests of `first` before those of this group, and empties `first`."""
        self.members, first.members = [*first.members, *self.members], []
        self.used_from = min(first.used_from, self.used_from)
        small, large = sorted((first.reads, self.reads), key=len)
        large |= small
        self.reads = large
        self.reductions.update(first.reductions)


def _reductions(nest: loop.NestOp, numbering: Numbering) -> dict[int, int]:
    """Returns value number -> number of reductions, for each operation in the body that contains reductions."""
    for place, index in enumerate(nest.body.block.args):
        numbering.identify(index, place)
    counts = ((op, sum(isinstance(inner, loop.ReduceOp) for inner in op.walk())) for op in nest.body.block.ops)
    return {numbering.of_op(op): count for op, count in counts if count}


def merge(nests: Sequence[loop.NestOp]) -> loop.NestOp:
    """Replaces `nests` by one nest with all results, at the position of the last one. Returns the new nest."""
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
