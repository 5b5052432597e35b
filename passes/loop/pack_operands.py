"""Copying factors of products before the products, row by row of what a tile has of them: `loop-pack-operands`."""

# Variadic operands of xDSL have no known element type.
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false
from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from xdsl.dialects.builtin import AffineMapAttr, IndexType
from xdsl.ir import SSAValue
from xdsl.ir.affine import AffineExpr, AffineMap

from ...dialects import loop
from ...dialects.loop.dependence import access_indices
from ...dialects.shapes.extents import extents_attr
from ...dialects.support.locations import refused
from ...dialects.tile.schedule import ScheduleAttr
from ..analysis.nest_schedule import extents_of_nest, schedule_of
from ..analysis.operands import copying_nest, packable_loads
from ..pass_manager import NestPass
from ..rewriting import insert_before, replace
from .dimensions import split_dimensions


class PackOperandsPass(NestPass):
    """Copy what products load along an index before them, so that each tile of it lies row by row.

    What: of a nest with `pack = [i]` every factor of a product along index i is copied by a nest of its own. First come
    the indices of which a tile has one value, then those of the sum, and last i; where tiles divide i, its tiles come
    first of all, and each is as if it were alone. In the nest i, or its part within a tile, becomes the last index.
    Why: a row of a tile is read as whole vectors, where it lies, by every block that needs it: weights of a convolution
    are nine elements apart for each of its nine products, and each block of pixels would gather them anew. As the last
    index i is that of the columns of products, whose neighbours are in one vector.
    Why here: `plan-schedules` decides; the copies are planned afterwards.

    ```mlir
    %y = loop.nest (%i, %j) in [64, 512] -> tensor<64x512xf32> attributes {schedule = #tile.schedule<
           block = [32, 64], pack = [0], chunk = [16], ...>} {
      %s = loop.reduce add (%k) in [32] -> f32 {
        %a = loop.load %w[%i, %k] : tensor<64x32xf32>
    ```
    becomes
    ```mlir
    %w_packed = loop.nest (%io, %k, %ii) in [2, 32, 32] -> tensor<2x32x32xf32> { ... }  // w[io * 32 + ii, k]
    %y = loop.nest (%io, %j, %ii) in [2, 512, 32] to [%io * 32 + %ii, %j]
           -> tensor<64x512xf32> attributes {schedule = #tile.schedule<block = [1, 64, 32], chunk = [16], ...>} {
      %s = loop.reduce add (%k) in [32] -> f32 {
        %a = loop.load %w_packed[%io, %k, %ii] : tensor<2x32x32xf32>
    ```
    """

    name = "loop-pack-operands"
    decision = ("pack",)

    def on(self, op: loop.NestOp) -> None:
        for index in [op.body.block.args[i] for i in schedule_of(op).data.pack]:
            _pack(op, index)


def _pack(nest: loop.NestOp, index: SSAValue) -> None:
    """Copy the factors of products along `index`, and let it be the last."""
    data, position = schedule_of(nest).data, nest.body.block.args.index(index)
    loads, extent, tile = packable_loads(nest, index), nest.sizes[position], data.block[position]
    if isinstance(loads, str):
        raise refused(nest, loads, argument="pack")
    panels = isinstance(extent, int) and extent % tile == 0 and 1 < tile < extent
    for load in loads:
        _copy(nest, load, index, tile if panels else None)
    split_dimensions(nest)
    block = (*data.block[:position], *((1,) if panels else ()), *data.block[position + 1 :], tile)
    _make_last(nest, position + panels)
    serial = [s for s in data.serial if s != position] if not panels else data.serial
    serial = tuple(s - (not panels and s > position) for s in serial)
    nest.attributes["schedule"] = ScheduleAttr(dataclasses.replace(data, block=block, serial=serial, pack=()))


def _copy(nest: loop.NestOp, load: loop.LoadOp, index: SSAValue, tile: int | None) -> None:
    """Put a nest that copies what `load` loads in front of `nest`, in panels of so many values of `index` if they have
    a size, and load that."""
    extents = extents_of_nest(nest)
    data = schedule_of(nest).data
    tiles = dict(zip(extents, (*data.block, *data.chunk), strict=True))
    others = [i for i in extents if i in access_indices(load) and i is not index]
    others.sort(key=lambda i: tiles[i] > 1)
    sizes, last, whole = [extents[i] for i in others], len(others), extents[index]
    own = AffineExpr.dimension(last)
    wanted: Sequence[AffineExpr] = [*map(AffineExpr.dimension, range(last)), own]
    if tile is not None and isinstance(whole, int):
        outer, inner = AffineExpr.dimension(0), AffineExpr.dimension(last + 1)
        at = [*(AffineExpr.dimension(n + 1) for n in range(last)), outer * tile + inner]
        wanted = [own // tile, *wanted[:-1], own % tile]
        sizes = [whole // tile, *sizes, tile]
    else:
        at, sizes = list(wanted), [*sizes, whole]
    copy = copying_nest(load, dict(zip((*others, index), at, strict=True)), sizes)
    copy.res[0].name_hint = f"{load.source.name_hint or 'factor'}_packed"
    insert_before(nest, copy)
    replace(load, loop.LoadOp(copy.res[0], AffineMap(last + 1, 0, tuple(wanted)), [*others, index]))


def _make_last(nest: loop.NestOp, position: int) -> None:
    """Let the index at `position` be the last of `nest`, whose results stay as they are."""
    block, rank = nest.body.block, len(nest.sizes)
    order = [*(i for i in range(rank) if i != position), position]
    old = block.args[position]
    new = block.insert_arg(IndexType(), rank)
    new.name_hint = old.name_hint
    old.replace_all_uses_with(new)
    block.erase_arg(old)
    before = nest.result_map.data if nest.result_map is not None else AffineMap.identity(rank)
    dims = [AffineExpr.dimension(order.index(i)) for i in range(rank)]
    nest.properties["result_map"] = AffineMapAttr(before.replace_dims_and_symbols(dims, [], rank, 0))
    nest.properties["extents"] = extents_attr([nest.sizes[i] for i in order])
