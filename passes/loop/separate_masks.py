"""`loop-separate-masks`: turns load conditions that do not affect the address into selects after the load."""

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
from .dimensions import emit_form, is_linear, load_with

UNBOUNDED = 1 << 62
"""Number above every index, for a constraint with one bound."""


class SeparateMasksPass(NestPass):
    """Moves the conditions of a load that use other indices than its address into a select after the load.

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

    A condition is moved if it contains an index that the map of the load does not use. The remaining conditions and the
    ranges of the indices must keep the load inside the tensor; otherwise the load does not change.

    **Rationale**: the load no longer depends on the other index. A scan sums x[j] over j <= i: one load for each pair
    (i, j) becomes one load for each j.

    **Pipeline position**: after `loop-split-dimensions`: before, conditions and maps may use different digits of one
    index.
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
    address_atoms = {atom for form in coordinates for atom in form.atoms()}
    forms = simplifier.read_map(load.domain.affine)
    constraints = [(form, lo, hi) for form, (lo, hi) in zip(forms, load.domain.limits, strict=True)]
    inside = [c for c in constraints if address_atoms.issuperset(c[0].atoms())]
    outside = [(form, lo, hi) for form, lo, hi in constraints if (form, lo, hi) not in inside and isinstance(hi, int)]
    if not outside or len(inside) + len(outside) < len(constraints) or not all(is_linear(f) for f, *_ in outside):
        return
    if all(
        any(simplifier.within(form, 0, extent, constraint) for constraint in (None, *inside))
        for form, extent in zip(coordinates, extents_of(load.source.type), strict=True)
    ):
        ops, holds = _condition(outside, load.indices, simplifier)
        loaded = load_with(load, load.indices, coordinates, inside)
        replace(load, *ops, loaded, payload.SelectOp(holds, loaded.result, load.fill))


def _extent(index: SSAValue) -> Extent:
    assert isinstance(index, BlockArgument)
    op = index.owner.parent_op()
    assert isinstance(op, loop.NestOp | loop.ReduceOp)
    return op.sizes[index.index]


def _condition(
    constraints: Sequence[tuple[Form, int, int]], indices: Sequence[SSAValue], simplifier: Simplifier
) -> tuple[list[Operation], SSAValue]:
    """Returns operations that compute the conjunction of linear constraints, and its i1 value.

    Bounds that always hold by the ranges of the indices are omitted."""
    ops, holds = list[Operation](), list[SSAValue]()
    for form, lo, hi in constraints:
        ops += emit_form(form, indices, i64)
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
