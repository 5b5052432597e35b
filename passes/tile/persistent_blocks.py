"""Few blocks for many tiles: `tile-persistent-blocks`."""

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
    """Let a fixed number of blocks share all tiles of a kernel.

    What: with `persistent = P` in the schedule and more than P tiles, the grid becomes P blocks, and each walks through
    the tiles with its own number, its number + P, and so on: the kernel's program becomes the body of a loop.
    Why: what a kernel does once a block (barriers set up, partitions begun) is done once; and with a producer of its
    own the next tile is loaded while the results of the last one are still being written.
    Why here: behind `tile-swizzle-grid`, whose order it keeps; before anything looks for loops.

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
    """

    name = "tile-persistent-blocks"
    decision = ("num_ctas",)

    def on(self, op: tile.KernelOp) -> None:
        self.decline(op, _persist(op, op.schedule.num_ctas))


def _persist(kernel: tile.KernelOp, blocks: int) -> str | None:
    """Let `blocks` blocks share the tiles of `kernel`; or the reason why not."""
    grid = [n for n in kernel.grid_shape if isinstance(n, int)]
    if len(grid) < len(kernel.grid_shape):
        return "the number of tiles is known only at run time"
    if prod(grid) <= blocks:
        return f"there are only {prod(grid)} tiles"
    entry, body = kernel.body.block, Block(arg_types=[IndexType()])
    numbers, counter = kernel.blocks, body.args[0]
    counter.name_hint = "tile"
    for number, place in zip(numbers, _digits(counter, grid), strict=True):
        place.result.name_hint = number.name_hint
        number.replace_all_uses_with(place.result)
        body.add_op(place)
    for op in list(entry.ops):
        op.detach()
        body.add_op(op)
    body.add_op(scf.YieldOp())
    while len(entry.args) > len(kernel.buffers):
        entry.erase_arg(entry.args[-1])
    own = entry.insert_arg(IndexType(), len(entry.args))
    own.name_hint = "block"
    total, step = (arith.ConstantOp.from_int_and_width(n, IndexType()) for n in (prod(grid), blocks))
    made: list[Operation] = [total, step, scf.ForOp(own, total.result, step.result, [], body)]
    copy_location(kernel, (*made, *body.ops))
    entry.add_ops(made)
    kernel.grid = extents_attr([blocks])
    return None


def _digits(number: SSAValue, grid: Sequence[int]) -> list[tile.AffineOp]:
    """The indices of tile `number` of a grid, of which the last one runs fastest."""
    digits: list[tile.AffineOp] = []
    for d in range(len(grid)):
        inner, expr = prod(grid[d + 1 :]), AffineExpr.symbol(0)
        expr = expr // inner if inner > 1 else expr
        expr = expr % grid[d] if d else expr
        digits.append(tile.AffineOp(AffineMap(0, 1, (expr,)), [number], IndexType()))
    return digits
