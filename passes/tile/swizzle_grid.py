"""`tile-swizzle-grid`: reorders the tiles of the grid, so that blocks that run at the same time share operands in
L2."""

from __future__ import annotations

from xdsl.dialects.builtin import IndexType
from xdsl.ir.affine import AffineExpr, AffineMap

from ...dialects import tile
from ...dialects.shapes.extents import extents_attr
from ..pass_manager import TilePass
from ..rewriting import insert_at_start


class SwizzleGridPass(TilePass):
    """Swizzles the grid, so that blocks of one wave compute a rectangle of tiles instead of a row.

    ```mlir
    tile.kernel @k0(...) blocks (%i, %j) in [64, 32] ... schedule<..., group_m = 8> { ... %i ... }
    ```
    becomes
    ```mlir
    tile.kernel @k0(...) blocks (%i, %j, %g) in [8, 32, 8] ... {
      %0 = tile.affine %i * 8 + %g : index
      ... %0 ...
    ```

    If the schedule has `group_m = G`, the second-to-last grid index (rows of tiles) is split, and the inner part
    becomes the fastest index: G tiles down a column, then the next column. If G does not divide the number of rows of
    tiles, the grid is not changed.

    **Rationale**: the GPU starts blocks in the order of their numbers. One wave that computes R x C tiles reads R row
    tiles of the left operand and C column tiles of the right one. R + C is least if R and C are about equal, and L2
    serves the repeated reads. It is the order of Triton's matmul tutorial.

    **Pipeline position**: first of the tile passes, before any analysis of grid indices.
    """

    name = "tile-swizzle-grid"
    decision = ("group_m",)

    def on(self, op: tile.KernelOp) -> None:
        self.decline(op, _swizzle(op, op.schedule.group_m))


def _swizzle(kernel: tile.KernelOp, group: int) -> str | None:
    """Splits the rows of tiles of `kernel` into groups of `group` and makes the rows of a group the fastest grid index.

    Returns the reason if it cannot, else None.
    """
    grid = kernel.grid_shape
    if len(grid) < 2:
        return f"expected a grid of at least 2 indices, but got {len(grid)}"
    *outer, rows, columns = grid
    if not isinstance(rows, int):
        return "the number of tiles is known only at run time"
    if rows % group:
        return f"group_m = {group} does not divide {rows} row tiles"
    block, row = kernel.body.block, kernel.blocks[-2]
    inner = block.insert_arg(IndexType(), len(block.args))
    inner.name_hint = "group"
    number = AffineExpr.symbol(0) * group + AffineExpr.symbol(1)
    index = tile.AffineOp(AffineMap(0, 2, (number,)), [row, inner], IndexType())
    index.result.name_hint = row.name_hint
    row.replace_uses_with_if(index.result, lambda use: use.operation is not index)
    insert_at_start(block, index, source=kernel)
    kernel.grid = extents_attr([*outer, rows // group, columns, group])
    return None
