"""`loop-pack-operands`: copies operands of contractions into a layout in which the rows of a tile are contiguous."""

# Variadic operands of xDSL have no known element type.
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false
from __future__ import annotations

import dataclasses

from xdsl.dialects.builtin import AffineMapAttr, IndexType
from xdsl.ir import SSAValue
from xdsl.ir.affine import AffineExpr, AffineMap

from ...dialects import loop
from ...dialects.loop.dependence import access_indices
from ...dialects.shapes.extents import extents_attr
from ...dialects.support.locations import refused
from ...dialects.tile.schedule import ScheduleAttr
from ..analysis.nest_schedule import extents_of_nest, schedule_of
from ..analysis.operands import copying_nest, gathered_extents, packable_loads, symbol_conditions
from ..pass_manager import NestPass
from ..rewriting import insert_before, replace
from .dimensions import split_dimensions


class PackOperandsPass(NestPass):
    """Packs the operands that contractions load along an index, and makes that the last index of the nest.

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

    The pass changes nests with `pack = [i]`. Each operand of a contraction that is loaded along i is copied by a nest
    of its own. The dimensions of the copy are, from the outermost to the innermost:

    1. the tiles of i, if the tile extent divides the extent of i;
    2. dimensions of the source that are read at a gathered position;
    3. indices of which a tile has one value;
    4. the other indices, such as the index of the sum;
    5. i, or its position inside a tile.

    **Rationale**: blocks then load the rows of a tile as whole vectors. In a 3 x 3 convolution, weights that one vector
    needs are nine elements apart in memory, and every block would gather them again. The last index of a nest becomes
    the columns of its matmuls, and adjacent columns are in one vector.

    **Pipeline position**: after `plan-schedules`, which decides `pack`. The copies are planned afterwards.
    """

    name = "loop-pack-operands"
    decision = ("pack",)

    def on(self, op: loop.NestOp) -> None:
        for index in [op.body.block.args[i] for i in schedule_of(op).data.pack]:
            _pack(op, index)


def _pack(nest: loop.NestOp, index: SSAValue) -> None:
    """Copies the operands that contractions load along `index`, and makes it the last index of `nest`."""
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
    """Inserts a nest that copies the source of `load` before `nest`, and loads from the copy.

    With `tile`, the outermost dimension of the copy is the tile of `index`, and the innermost the position inside
    it."""
    extents, gathered = extents_of_nest(nest), gathered_extents(load) or []
    data = schedule_of(nest).data
    tiles = dict(zip(extents, (*data.block, *data.chunk), strict=True))
    others = [i for i in extents if i in access_indices(load) and i is not index]
    others.sort(key=lambda i: tiles[i] > 1)
    sizes, last, whole = [*gathered, *(extents[i] for i in others)], len(gathered) + len(others), extents[index]
    read_at: list[AffineExpr] = [
        *map(AffineExpr.symbol, range(len(gathered))),
        *map(AffineExpr.dimension, range(len(others) + 1)),
    ]
    position = read_at[-1]
    if tile is not None and isinstance(whole, int):
        outer, inner = AffineExpr.dimension(0), AffineExpr.dimension(last + 1)
        written_from = [*(AffineExpr.dimension(n + 1) for n in range(last)), outer * tile + inner]
        read_at = [position // tile, *read_at[:-1], position % tile]
        sizes = [whole // tile, *sizes, tile]
    else:
        written_from, sizes = [AffineExpr.dimension(n) for n in range(last + 1)], [*sizes, whole]
    at = dict(zip((*others, index), written_from[len(gathered) :], strict=True))
    copy = copying_nest(load, at, sizes, symbols=written_from[: len(gathered)])
    copy.res[0].name_hint = f"{load.source.name_hint or 'factor'}_packed"
    insert_before(nest, copy)
    indices, access = [*others, index], AffineMap(len(others) + 1, len(gathered), tuple(read_at))
    domain = symbol_conditions(load, len(indices))
    fill = None if domain is None else load.fill
    replace(load, loop.LoadOp(copy.res[0], access, indices, load.symbols, domain, fill))


def _make_last(nest: loop.NestOp, position: int) -> None:
    """Moves the index at `position` to the end. A result map keeps the shape of the results."""
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
