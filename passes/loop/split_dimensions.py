"""`loop-split-dimensions`: splits indices that are divided in accesses, so that accesses become linear."""

from __future__ import annotations

from xdsl.dialects.builtin import AffineMapAttr

from ...dialects import loop
from ...dialects.shapes.affine import divisions
from ...dialects.shapes.domain import DomainAttr
from ..pass_manager import NestPass
from .dimensions import split_dimensions


class SplitDimensionsPass(NestPass):
    """Splits an index d that accesses use as `d floordiv c` and `d mod c` into two indices, if c divides its extent.

    ```mlir
    %y = loop.nest (%i) in [512] -> tensor<512xf32> {
      %0 = loop.load %x[%i floordiv 64, %i mod 64] : tensor<8x64xf32>
    ```
    becomes
    ```mlir
    %y = loop.nest (%io, %ii) in [8, 64] to [%io * 64 + %ii] -> tensor<512xf32> {
      %0 = loop.load %x[%io, %ii] : tensor<8x64xf32>
    ```

    Every access uses the two indices instead: d = outer * c + inner. Reductions with equal extents in one body are
    split in the same way. A result map keeps the shape of the results of a nest. The pass repeats until no division can
    be removed.

    **Rationale**: a linear access has strides. And a value that uses only `d floordiv c` no longer depends on all of d.
    So the heads of attention are recognised as a batch, and its sums of products as contractions.

    **Pipeline position**: first on nests, because all later passes analyse accesses.
    """

    name = "loop-split-dimensions"

    def on(self, op: loop.NestOp) -> None:
        attributes = [a for o in op.walk() for a in o.properties.values()]
        maps = [a.map if isinstance(a, DomainAttr) else a for a in attributes]
        if any(divisions(m.data) for m in maps if isinstance(m, AffineMapAttr)):
            split_dimensions(op)
