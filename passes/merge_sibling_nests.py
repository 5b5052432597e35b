"""Independent nests over the same indices become one nest with several results."""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects import func
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Attribute, Block, IRNode, Operation, Region, SSAValue
from xdsl.ir.affine import AffineMap
from xdsl.passes import ModulePass

from ..dialects import loop
from ..dialects.extents import extents_of
from ..dialects.payload import element_type

MAX_REDUCTIONS = 2
"""Reductions in one nest side by side: each has its own accumulators, and registers are few."""


@dataclass(frozen=True)
class MergeSiblingNestsPass(ModulePass):
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

    name = "merge-sibling-nests"

    max_reductions: int = MAX_REDUCTIONS

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for function in op.ops:
            if isinstance(function, func.FuncOp) and not function.is_declaration:
                merge_siblings(function.body.block, self.max_reductions)


def merge_siblings(block: Block, max_reductions: int) -> None:
    """Merge nests of `block`, each with the nearest one behind it that fits."""
    nests = [op for op in block.ops if isinstance(op, loop.NestOp)]
    while nests:
        first = nests.pop(0)
        for second in nests:
            if fits(first, second, max_reductions) and _can_move(first, second):
                nests[nests.index(second)] = merge(first, second)
                break


def fits(a: loop.NestOp, b: loop.NestOp, max_reductions: int) -> bool:
    """Whether two nests have the same indices and common reads, and not too many reductions."""
    if a.sizes != b.sizes or _result_map(a) != _result_map(b):
        return False
    if (
        extents_of(a.res[0].type) != extents_of(b.res[0].type)
        or "schedule" in a.attributes
        or "schedule" in b.attributes
    ):
        return False
    here, there = _reductions(a), _reductions(b)
    common = _common_reductions(a, b) if here and there else 0
    if bool(here) != bool(there) or here + there - 2 * common > max_reductions:
        return False
    return not _reads(a).isdisjoint(_reads(b))


def _result_map(nest: loop.NestOp) -> AffineMap | None:
    return None if nest.result_map is None else nest.result_map.data


def _reductions(nest: loop.NestOp) -> int:
    """How many reductions are in the nest, at any depth."""
    return sum(isinstance(op, loop.ReduceOp) for op in nest.body.walk())


def _common_reductions(a: loop.NestOp, b: loop.NestOp) -> int:
    """How many reductions of `a` are in `b` as well, computed from the same: when merged, they will be one."""
    here, there = a.body.block, b.body.block
    same: dict[IRNode | SSAValue, IRNode | SSAValue] = {here: there, **dict(zip(here.args, there.args, strict=True))}
    found = 0
    for op in here.ops:
        if any(_equal(op, other, same) for other in there.ops):
            found += sum(isinstance(inner, loop.ReduceOp) for inner in op.walk())
    return found


def _equal(op: Operation, other: Operation, same: dict[IRNode | SSAValue, IRNode | SSAValue]) -> bool:
    """Whether the two compute the same from values that are the `same`; if so, their results are, from then on."""
    return op.result_types == other.result_types and op.is_structurally_equivalent(other, same)


def _reads(nest: loop.NestOp) -> set[tuple[SSAValue, AffineMap, Attribute | None]]:
    return {(op.source, op.map.data, op.domain) for op in nest.body.walk() if isinstance(op, loop.LoadOp)}


def _can_move(first: loop.NestOp, second: loop.NestOp) -> bool:
    """Whether nothing between the two, nor the second, needs the first: then it can be moved to the second."""
    op: Operation | None = first.next_op
    results = set(first.res)
    while op is not None:
        used = {operand for inner in op.walk() for operand in inner.operands}
        if not results.isdisjoint(used):
            return False
        if op is second:
            return True
        op = op.next_op
    return False


def merge(first: loop.NestOp, second: loop.NestOp) -> loop.NestOp:
    """One nest in place of `second` with the results of both."""
    block = Block(arg_types=[a.type for a in second.body.block.args])
    yielded: list[SSAValue] = []
    for nest in (first, second):
        values: dict[SSAValue, SSAValue] = dict(zip(nest.body.block.args, block.args, strict=True))
        for old, new in zip(nest.body.block.args, block.args, strict=True):
            new.name_hint = old.name_hint
        for op in nest.body.block.ops:
            if isinstance(op, loop.YieldOp):
                yielded.extend(values.get(v, v) for v in op.operands)
            else:
                block.add_op(op.clone(values))
    block.add_op(loop.YieldOp(*yielded))
    old_results = [*first.res, *second.res]
    elements = [element_type(r.type) for r in old_results]
    shape = extents_of(second.res[0].type)
    merged = loop.NestOp(second.sizes, elements, Region(block), _result_map(second), shape)
    merged.location = first.location
    parent = second.parent
    assert parent is not None
    parent.insert_op_before(merged, second)
    for old, new in zip(old_results, merged.res, strict=True):
        new.name_hint = old.name_hint
        old.replace_all_uses_with(new)
    for nest in (first, second):
        nest.detach()
        nest.erase()
    return merged
