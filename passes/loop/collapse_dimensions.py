"""Collapsing indices that all accesses use as one: `loop-collapse-dimensions`."""

from __future__ import annotations

from ...dialects import loop
from ..pass_manager import NestPass
from .dimensions import collapse_dimensions


class CollapseDimensionsPass(NestPass):
    """Collapse two adjacent indices of a nest or of a reduction into one, where every access uses them as one.

    What: d0 and d1 are used as one where they are, in this order, two adjacent coordinates of what is loaded or stored
    and the second one counts to the extent of d1, or where d1 is the lower digit of d0 in one coordinate. A tensor that
    has the two as coordinates is reshaped in front of the nest, and behind it its results (`loop.reshape`, which costs
    nothing: no kernel sees it). Only where the extent of d1 is no power of two, and for reductions of one extent in
    one body alike.
    Why: the extents of tiles are powers of two. A tile over images of 7 by 7 elements has 8 by 8, of which a quarter
    is masked, and rows that no vector access fits; one over 49 elements, or over all images, has neither.
    Why here: the last on nests, as siblings are fused and reductions grouped by the indices that programs have.

    ```mlir
    %y = loop.nest (%i, %j, %k) in [64, 7, 7] -> tensor<64x7x7xf32> {
      %0 = loop.load %x[%i, %j, %k] : tensor<64x7x7xf32>
      %1 = loop.load %b[%i] : tensor<64xf32>
    ```
    becomes
    ```mlir
    %xr = loop.reshape %x : tensor<64x7x7xf32> -> tensor<64x49xf32>
    %yr = loop.nest (%i, %jk) in [64, 49] -> tensor<64x49xf32> {
      %0 = loop.load %xr[%i, %jk] : tensor<64x49xf32>
      %1 = loop.load %b[%i] : tensor<64xf32>
    ...
    %y = loop.reshape %yr : tensor<64x49xf32> -> tensor<64x7x7xf32>
    ```
    """

    name = "loop-collapse-dimensions"

    def on(self, op: loop.NestOp) -> None:
        loops = (o for o in op.walk() if isinstance(o, loop.NestOp | loop.ReduceOp))
        if any(isinstance(n, int) and n & (n - 1) for o in loops for n in o.sizes[1:]):
            collapse_dimensions(op)
