"""`loop-collapse-dimensions`: merges two adjacent indices that all accesses use as one."""

from __future__ import annotations

from ...dialects import loop
from ..pass_manager import NestPass
from .dimensions import collapse_dimensions


class CollapseDimensionsPass(NestPass):
    """Merges two adjacent indices of a nest or reduction into one, if every access uses them as one.

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

    An access uses two indices i and j as one in two cases:

    - they are two adjacent coordinates, in this order, and the dimension of j has the extent of j;
    - one coordinate is `i * extent of j + j`.

    In the first case the tensor is reshaped before the nest, and the results after it. `loop.reshape` costs nothing: no
    kernel contains it. Indices are merged only if the extent of j is no power of two. Reductions with equal extents in
    one body are changed in the same way.

    **Rationale**: tile extents are powers of two. A tile over an image of 7 x 7 elements has 8 x 8, a quarter of them
    masked, and its rows fit no vector access. A tile over 49 elements, or over all images, has neither problem.

    **Pipeline position**: last on nests, because the passes before fuse nests and group reductions by their original
    indices.
    """

    name = "loop-collapse-dimensions"

    def on(self, op: loop.NestOp) -> None:
        loops = (o for o in op.walk() if isinstance(o, loop.NestOp | loop.ReduceOp))
        if any(isinstance(n, int) and n & (n - 1) for o in loops for n in o.sizes[1:]):
            collapse_dimensions(op)
