"""Which tiles are computed at the same time: `tile-swizzle-grid`."""

from __future__ import annotations

from xdsl.dialects.builtin import IndexType
from xdsl.ir.affine import AffineExpr, AffineMap

from ...dialects import tile
from ...dialects.shapes.extents import extents_attr
from ..pass_manager import TilePass
from ..rewriting import insert_at_start


class SwizzleGridPass(TilePass):
    """Let blocks that run at the same time work on a patch of the result instead of a stripe.

    What: with `group = G` in the schedule, the last index of the grid but one is split, and its inner part becomes the
    fastest: G tiles down, then the next column. Where G does not divide the number of tiles the grid stays as it is.
    Why: blocks are started in the order of their numbers. Those of one wave read R rows and C columns of tiles of the
    factors; for a product of R and C the sum is least where the patch is about square, and what is read by several
    comes from the level-2 cache. The order by columns of tiles is that of Triton's matrix multiplication tutorial.
    Why here: it only renames indices of the grid, before anybody has looked at them.

    ```mlir
    tile.kernel @k0(...) blocks (%i, %j) in [64, 32] ... schedule<..., group_m = 8> { ... %i ... }
    ```
    becomes
    ```mlir
    tile.kernel @k0(...) blocks (%i, %j, %g) in [8, 32, 8] ... {
      %0 = tile.affine %i * 8 + %g : index
      ... %0 ...
    ```
    """

    name = "tile-swizzle-grid"
    decision = ("group_m",)

    def on(self, op: tile.KernelOp) -> None:
        self.decline(op, _order(op, op.schedule.group_m))


def _order(kernel: tile.KernelOp, group: int) -> str | None:
    """Put `group` tiles of the last index but one of the grid of `kernel` first; or the reason why not."""
    grid = kernel.grid_shape
    if len(grid) < 2:
        return f"a grid of {len(grid)} indices has no patches"
    *outer, down, across = grid
    if not isinstance(down, int):
        return "the number of tiles is known only at run time"
    if down % group:
        return f"{down} tiles are no groups of {group}"
    block, row = kernel.body.block, kernel.blocks[-2]
    inner = block.insert_arg(IndexType(), len(block.args))
    inner.name_hint = "group"
    number = AffineExpr.symbol(0) * group + AffineExpr.symbol(1)
    place = tile.AffineOp(AffineMap(0, 2, (number,)), [row, inner], IndexType())
    place.result.name_hint = row.name_hint
    row.replace_uses_with_if(place.result, lambda use: use.operation is not place)
    insert_at_start(block, place, source=kernel)
    kernel.grid = extents_attr([*outer, down // group, across, group])
    return None
