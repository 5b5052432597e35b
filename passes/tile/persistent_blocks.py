"""`tile-persistent-blocks`: turns a kernel into a persistent one, in which each block computes several tiles in a
loop."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from xdsl.dialects import arith, scf
from xdsl.dialects.builtin import IndexType
from xdsl.ir import Block, Operation, SSAValue
from xdsl.ir.affine import AffineExpr, AffineMap

from ...dialects import tile
from ...dialects.shapes.extents import extents_attr
from ...dialects.support.locations import copy_location
from ..pass_manager import TilePass


class PersistentBlocksPass(TilePass):
    """Distributes all tiles of a kernel over a fixed number of blocks.

    ```mlir
    tile.kernel @k0(...) blocks (%i, %j) in [64, 32] ... schedule<..., num_ctas = 132> { ... %i ... %j ... }
    ```
    becomes
    ```mlir
    tile.kernel @k0(...) blocks (%block) in [132] ... {
      scf.for %t = %block to %c2048 step %c132 {
        %i = tile.affine %t floordiv 32 : index
        %j = tile.affine %t mod 32 : index
        ... %i ... %j ...
    ```

    If the schedule has `num_ctas = P` and the grid has more than P tiles, the grid becomes P blocks. Block b computes
    the tiles b, b + P, b + 2P, and so on.

    **Rationale**: barriers and partitions are set up once per block instead of once per tile. With warp specialisation,
    the producer loads the next tile while the consumer stores the last one.

    **Pipeline position**: after `tile-swizzle-grid`, whose order of tiles is kept; before the passes that analyse
    loops.
    """

    name = "tile-persistent-blocks"
    decision = ("num_ctas",)

    def on(self, op: tile.KernelOp) -> None:
        self.decline(op, _persist(op, op.schedule.num_ctas))


def _persist(kernel: tile.KernelOp, blocks: int) -> str | None:
    """Makes `kernel` persistent with `blocks` blocks. Returns the reason if it cannot, else None."""
    grid = [n for n in kernel.grid_shape if isinstance(n, int)]
    if len(grid) < len(kernel.grid_shape):
        return "the number of tiles is known only at run time"
    if prod(grid) <= blocks:
        return f"there are only {prod(grid)} tiles"
    entry, body = kernel.body.block, Block(arg_types=[IndexType()])
    numbers, counter = kernel.blocks, body.args[0]
    counter.name_hint = "tile"
    for number, index in zip(numbers, _digits(counter, grid), strict=True):
        index.result.name_hint = number.name_hint
        number.replace_all_uses_with(index.result)
        body.add_op(index)
    for op in list(entry.ops):
        op.detach()
        body.add_op(op)
    body.add_op(scf.YieldOp())
    while len(entry.args) > len(kernel.buffers):
        entry.erase_arg(entry.args[-1])
    block_index = entry.insert_arg(IndexType(), len(entry.args))
    block_index.name_hint = "block"
    total, step = (arith.ConstantOp.from_int_and_width(n, IndexType()) for n in (prod(grid), blocks))
    ops: list[Operation] = [total, step, scf.ForOp(block_index, total.result, step.result, [], body)]
    copy_location(kernel, (*ops, *body.ops))
    entry.add_ops(ops)
    kernel.grid = extents_attr([blocks])
    return None


def _digits(number: SSAValue, grid: Sequence[int]) -> list[tile.AffineOp]:
    """Returns the grid indices of the tile with linear number `number`; the last index is fastest."""
    digits: list[tile.AffineOp] = []
    for d in range(len(grid)):
        inner, expr = prod(grid[d + 1 :]), AffineExpr.symbol(0)
        expr = expr // inner if inner > 1 else expr
        expr = expr % grid[d] if d else expr
        digits.append(tile.AffineOp(AffineMap(0, 1, (expr,)), [number], IndexType()))
    return digits
