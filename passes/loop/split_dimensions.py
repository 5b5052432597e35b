"""Splitting the indices of nests and reductions so that accesses become linear: `loop-split-dimensions`."""

from __future__ import annotations

from xdsl.dialects.builtin import AffineMapAttr

from ...dialects import loop
from ...dialects.shapes.affine import divisions
from ...dialects.shapes.domain import DomainAttr
from ..pass_manager import NestPass
from .dimensions import split_dimensions


class SplitDimensionsPass(NestPass):
    """Split an index that is used as `d floordiv c` and `d mod c` into two, where c divides its extent.

    What: the index of a nest or of a reduction becomes two, d = outer * c + inner, in every access; reductions of equal
    extents in one body are split alike. A nest keeps the shape of its result, through a result map. Repeated until no
    access has a quotient that this removes.
    Why: a linear access has strides; and a value that depends on `d floordiv c` alone no longer seems to depend on all
    of d, so the heads of an attention are seen as a batch and its products as contractions.
    Why here: first on nests, because everything after it looks at accesses.

    ```mlir
    %y = loop.nest (%i) in [512] -> tensor<512xf32> {
      %0 = loop.load %x[%i floordiv 64, %i mod 64] : tensor<8x64xf32>
    ```
    becomes
    ```mlir
    %y = loop.nest (%io, %ii) in [8, 64] to [%io * 64 + %ii] -> tensor<512xf32> {
      %0 = loop.load %x[%io, %ii] : tensor<8x64xf32>
    ```
    """

    name = "loop-split-dimensions"

    def on(self, op: loop.NestOp) -> None:
        attributes = [a for o in op.walk() for a in o.properties.values()]
        maps = [a.map if isinstance(a, DomainAttr) else a for a in attributes]
        if any(divisions(m.data) for m in maps if isinstance(m, AffineMapAttr)):
            split_dimensions(op)
