"""`tile-defer-lane-sums`: moves the reduction across lanes of a loop-carried row sum from the loop to after it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from xdsl.dialects import arith, scf
from xdsl.dialects.builtin import TensorType
from xdsl.ir import Attribute, BlockArgument, Operation, SSAValue

from ...dialects import payload, tile
from ...dialects.layouts import attr_of, linear_of
from ...dialects.layouts.linear import Linear
from ...dialects.payload import constant_of, element_type, is_float, shape_of
from ...dialects.tensor import ReductionKind
from ...dialects.tile import encoding_of
from ..pass_manager import TilePass
from ..rewriting import erase_unneeded, insert_before, rebuilt, replace, retype
from .loops import carried_uses


class DeferLaneSumsPass(TilePass):
    """Lets each lane sum its own columns in a loop, and reduces across lanes once, after the loop.

    ```mlir
    %s = scf.for %k = %c0 to %n step %c1 iter_args(%l = %zero) -> (tensor<64xf32, #row>) {
      %old = arith.mulf %l, %f : tensor<64xf32, #row>
      %sum = tile.reduce add %e over [1] : tensor<64x16xf32, #acc> -> tensor<64xf32, #row>
      %new = arith.addf %old, %sum : tensor<64xf32, #row>
      scf.yield %new : tensor<64xf32, #row>
    }
    ```
    becomes
    ```mlir
    %t = scf.for %k = %c0 to %n step %c1 iter_args(%l = %zeros) -> (tensor<64x8xf32, #columns>) {
      %g = tile.broadcast %f along [1] : tensor<64xf32, #row> -> tensor<64x8xf32, #columns>
      %old = arith.mulf %l, %g : tensor<64x8xf32, #columns>
      %a = tile.slice %e at [0, 0] : tensor<64x16xf32, #acc> -> tensor<64x8xf32, #columns>
      %b = tile.slice %e at [0, 8] : tensor<64x16xf32, #acc> -> tensor<64x8xf32, #columns>
      %sum = arith.addf %a, %b : tensor<64x8xf32, #columns>
      %new = arith.addf %old, %sum : tensor<64x8xf32, #columns>
      scf.yield %new : tensor<64x8xf32, #columns>
    }
    %s = tile.reduce add %t over [1] : tensor<64x8xf32, #columns> -> tensor<64xf32, #row>
    ```

    The loop must carry a sum that starts at zero. An iteration may multiply the sum by a factor per row, and adds a
    `tile.reduce add` of a tile whose columns are distributed over lanes. Loops with dots on CUDA cores are not changed:
    their register tiles leave no registers for the columns, and ptxas spilled.

    **Rationale**: the iterations need no shuffles for the sum. The factor per row, with which online softmax rescales
    the sum in every chunk, may be applied to each column instead.

    **Pipeline position**: after `tile-assign-layouts`, which determines the columns of a lane; before
    `tile-split-masked-loops`, so that one reduction suffices for all parts of a loop.
    """

    name = "tile-defer-lane-sums"
    inside = scf.ForOp
    needs: ClassVar[Mapping[str, int]] = {"tile.reduce": 1}

    def on(self, op: tile.KernelOp) -> None:
        for loop in [o for o in op.body.walk() if isinstance(o, scf.ForOp) and not _has_dots_on_cuda_cores(o)]:
            sums = [s for i in range(len(loop.iter_args)) if (s := _row_sum(loop, i)) is not None]
            if sums:
                _defer(loop, sums)


def _has_dots_on_cuda_cores(loop: scf.ForOp) -> bool:
    """Returns true if a loop contains dots without a tensor-core atom."""
    return any(isinstance(o, tile.DotOp) and o.atom is None for o in loop.walk())


@dataclass(frozen=True)
class _RowSum:
    """Loop-carried sum over the columns of a tile, with one element per row.

    Attributes:
        position: Index of the carried value.
        factor: Factor per row by which an iteration multiplies the old sum, or None.
        terms: Reduction of one chunk, whose result is added to the sum.
        total: The addition. The loop yields its result.
        columns: Layout of the partial sums, as `_columns` returns it.
    """

    position: int
    factor: SSAValue | None
    terms: tile.ReduceOp
    total: arith.AddfOp
    columns: Linear


def _row_sum(loop: scf.ForOp, position: int) -> _RowSum | None:
    """Returns the row sum that `loop` carries at `position`, or None if that value is updated in another way."""
    factor, uses = None, carried_uses(loop, position)
    match [use.operation for use in uses]:
        case [arith.AddfOp() as total]:
            pass
        case [arith.MulfOp() as scaled, arith.AddfOp() as total]:
            factor = scaled.operands[1 - uses[0].index]
        case _:
            return None
    terms = next((v.owner for v in total.operands if isinstance(v.owner, tile.ReduceOp)), None)
    if terms is None or terms.kind.data != ReductionKind.ADD or not terms.result.has_one_use():
        return None
    if total.parent is not loop.body.block or constant_of(loop.iter_args[position]) != 0:
        return None
    columns = _columns(terms) if is_float(element_type(total.result.type)) else None
    return None if columns is None else _RowSum(position, factor, terms, total, columns)


def _columns(terms: tile.ReduceOp) -> Linear | None:
    """Returns the layout of a tile with the fewest leading columns such that each lane of a row holds some of them.

    In an mma accumulator 4 lanes hold a row, 2 neighbouring columns each. So the tile has 8 columns, and each lane adds
    its elements of the other columns to them.

    Returns None if the reduction `terms` needs no shuffles, or needs an exchange between warps.
    """
    layout, dims = linear_of(terms.source.type), terms.dims.get_values()
    plan = None if layout is None or len(dims) != 1 else layout.reduction(dims)
    if layout is None or plan is None or not plan.shuffles or plan.warps:
        return None
    (dim,) = dims
    width = 2 * max(basis[dim] for basis in layout.lane)
    shape = tuple(width if d == dim else n for d, n in enumerate(layout.shape))
    return Linear(shape, tuple(b for b in layout.reg if b[dim] < width), layout.lane, layout.warp)


def _defer(loop: scf.ForOp, sums: list[_RowSum]) -> None:
    """Replaces `loop` by one that carries partial sums by column for each of `sums`, and reduces them after the
    loop."""
    inits, row_types = list(loop.iter_args), {s.position: s.total.result.type for s in sums}
    for s in sums:
        columns = TensorType(element_type(s.total.result.type), s.columns.shape, attr_of(s.columns))
        zero = payload.ConstantOp(0.0, columns)
        insert_before(loop, zero)
        inits[s.position] = zero.result
        _sum_columns(loop.body.block.args[1 + s.position], s, columns)
    new = rebuilt(loop, inits)
    results, reductions = list[SSAValue](new.results), list[Operation]()
    for s in sums:
        dims, encoding = s.terms.dims.get_values(), encoding_of(row_types[s.position])
        reductions.append(tile.ReduceOp(ReductionKind.ADD, results[s.position], dims, encoding))
        results[s.position] = reductions[-1].results[0]
    replace(loop, new, *reductions, results=results)
    erase_unneeded(new.body)


def _sum_columns(carried: BlockArgument, s: _RowSum, columns: TensorType[Attribute]) -> None:
    """Replaces the update of the row sum `s` by an update of its partial sums by column, which are `carried`."""
    retype(carried, columns)
    (dim,), old = s.terms.dims.get_values(), list[Operation]()
    if s.factor is not None:
        repeated = tile.BroadcastOp(s.factor, s.terms.dims, columns)
        old = [repeated, arith.MulfOp(carried, repeated.result)]
    width, rank = s.columns.shape[dim], len(s.columns.shape)
    starts = range(0, shape_of(s.terms.source.type)[dim], width)
    parts = [tile.SliceOp(s.terms.source, [at if d == dim else 0 for d in range(rank)], columns) for at in starts]
    sums: list[SSAValue] = [parts[0].result]
    adds = list[Operation]()
    for part in [*parts[1:], *old[1:]]:
        adds.append(arith.AddfOp(sums[-1], part.results[0]))
        sums.append(adds[-1].results[0])
    if not old:
        adds.append(arith.AddfOp(sums[-1], carried))
    replace(s.total, *parts, *old, *adds)
