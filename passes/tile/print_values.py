"""`tile-print-values`: prints tiles when a program runs."""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.passes import ModulePass

from ...dialects import tile
from ..printing import print_chosen


@dataclass(frozen=True)
class PrintTileValuesPass(ModulePass):
    """Inserts a `tile.print` after the definition of each value in `values`.

    ```mlir
    %v = arith.addf %a, %b : tensor<16x64xf32>
    tile.store %v, %y[d0 + %i * 16, d1] : tensor<16x64xf32>, memref<64x64xf32>
    ```
    becomes, with `values="%v[3,*]"`,
    ```mlir
    %v = arith.addf %a, %b : tensor<16x64xf32>
    %0 = tile.affine d0 + %i * 16 : tensor<16x64xindex>
    %1 = tile.affine d1 : tensor<16x64xindex>
    ...
    tile.print "k0 %v" %v[%0, %1] where %3 : tensor<16x64xf32>
    ```

    The printed index is the index in the tensor that the tile is stored to, or that it is computed from elementwise.
    Other tiles are printed with the numbers of their block, of the iterations around them, and of the element.

    **Rationale**: a person looks at a value without a change of the program. Without values the pass changes nothing.

    **Pipeline position**: after all passes on tiles, whose text has the names. `--print` inserts it there. No pass on
    tiles sees the operation, so the kernel is the one that runs without it.

    **Options**:

    - `values`: names of values, as the tile level is printed: `%7` (all elements of the first block), `k0:%7` (of one
      kernel), `%7[3,*]` (elements with this index, in all blocks).
    """

    name = "tile-print-values"

    values: tuple[str, ...] = ()

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        print_chosen(op, tile.KernelOp, self.values)
