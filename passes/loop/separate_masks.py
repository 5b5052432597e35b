"""Conditions of loads that do not affect the address, as selects after the loads: `loop-separate-masks`."""

# Variadic operands of xDSL have no known element type.
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false
from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

from xdsl.dialects import arith
from xdsl.dialects.builtin import i64
from xdsl.ir import BlockArgument, Operation, SSAValue

from ...dialects import loop, payload
from ...dialects.payload import Predicate
from ...dialects.shapes.affine import Form, Simplifier
from ...dialects.shapes.extents import Extent, extents_of
from ..pass_manager import NestPass
from ..rewriting import replace
from .dimensions import computed, is_linear, load_at

UNBOUNDED = 1 << 62


class SeparateMasksPass(NestPass):
    """Load without the conditions on indices that do not say where, and select by these afterwards.

    What: of the domain of a load, the conditions in which an index occurs that its map has not become comparisons, and
    a `payload.select` between what is loaded and the fill value; where those that are left, or the ranges of the
    indices, keep the access inside of the tensor.
    Why: the load no longer depends on that index. Scans sum x[j] where j <= i: what was a load for each i and j is one
    for each j.
    Why here: after `loop-split-dimensions`, as conditions and maps may have different digits of one index.

    ```mlir
    %0 = loop.load %x[%k]
           where 0 <= %i - %k < 32 else %fill : tensor<32xf32>
    ```
    becomes
    ```mlir
    %0 = loop.load %x[%k] : tensor<32xf32>
    %1 = payload.cmp ge %difference, %zero : i64        // i - k
    %2 = payload.select %1, %0, %fill : f32
    ```
    """

    name = "loop-separate-masks"
    needs: ClassVar[Mapping[str, int]] = {"loop.load{domain}": 1}

    def on(self, op: loop.NestOp) -> None:
        for load in [o for o in op.walk() if isinstance(o, loop.LoadOp)]:
            _separate(load)


def _separate(load: loop.LoadOp) -> None:
    if load.domain is None or load.fill is None:
        return
    simplifier = Simplifier([_extent(i) for i in load.indices], [None] * len(load.symbols))
    coordinates = simplifier.read_map(load.map.data)
    read = {atom for form in coordinates for atom in form.atoms()}
    forms = simplifier.read_map(load.domain.affine)
    constraints = [(form, lo, hi) for form, (lo, hi) in zip(forms, load.domain.limits, strict=True)]
    inside = [c for c in constraints if read.issuperset(c[0].atoms())]
    outside = [(form, lo, hi) for form, lo, hi in constraints if (form, lo, hi) not in inside and isinstance(hi, int)]
    if not outside or len(inside) + len(outside) < len(constraints) or not all(is_linear(f) for f, *_ in outside):
        return
    if all(
        any(simplifier.within(form, 0, extent, constraint) for constraint in (None, *inside))
        for form, extent in zip(coordinates, extents_of(load.source.type), strict=True)
    ):
        ops, holds = _condition(outside, load.indices, simplifier)
        loaded = load_at(load, load.indices, coordinates, inside)
        replace(load, *ops, loaded, payload.SelectOp(holds, loaded.result, load.fill))


def _extent(index: SSAValue) -> Extent:
    assert isinstance(index, BlockArgument)
    op = index.owner.parent_op()
    assert isinstance(op, loop.NestOp | loop.ReduceOp)
    return op.sizes[index.index]


def _condition(
    constraints: Sequence[tuple[Form, int, int]], indices: Sequence[SSAValue], simplifier: Simplifier
) -> tuple[list[Operation], SSAValue]:
    """Returns operations that compute whether all constraints hold, and the result."""
    ops, holds = list[Operation](), list[SSAValue]()
    for form, lo, hi in constraints:
        ops += computed(form, indices, i64)
        value = ops[-1].results[0]
        for predicate, bound, range in ((Predicate.GE, lo, (lo, UNBOUNDED)), (Predicate.LT, hi, (-UNBOUNDED, hi))):
            if not simplifier.within(form, *range):
                limit = payload.ConstantOp(bound, i64)
                ops += [limit, compare := payload.CmpOp(predicate, value, limit.result)]
                holds.append(compare.result)
    while len(holds) > 1:
        ops.append(both := arith.AndIOp(holds.pop(), holds.pop()))
        holds.append(both.result)
    return ops, holds[0]
