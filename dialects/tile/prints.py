"""Printing of tiles."""

from __future__ import annotations

from xdsl import irdl

from ..payload.prints import PrintingOp


@irdl.irdl_op_definition
class PrintOp(PrintingOp):
    """Prints the elements of a tile, one line each, when the block runs.

    ```
    %i = tile.affine d0 + %b * 16 : tensor<16x64xindex>
    %j = tile.affine d1 : tensor<16x64xindex>
    %upper = payload.cmp lt %i, %j : tensor<16x64xindex>
    tile.print "k0 %7" %7[%i, %j] where %upper : tensor<16x64xf32>
    ```

    The example prints `k0 %7[3, 16] = 0.25` for the element whose indices are 3 and 16. The interpreter prints elements
    in row-major order, kernels in the order of threads and registers.

    Constraints: the indices and the mask have the shape and the layout of the value.
    """

    name = "tile.print"
