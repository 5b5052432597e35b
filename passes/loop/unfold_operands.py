"""`loop-unfold-operands`: copies marked operands of contractions, with one dimension for each index (im2col)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from xdsl.ir.affine import AffineExpr, AffineMap

from ...dialects import loop
from ...dialects.payload import ConstantOp
from ...dialects.support.locations import refused
from ...errors import CompileError
from ..analysis.nest_schedule import extents_of_nest
from ..analysis.operands import UNFOLD, copying_nest, unfolded_order
from ..pass_manager import NestPass
from ..rewriting import insert_before, replace
from .dimensions import collapse_dimensions


class UnfoldOperandsPass(NestPass):
    """Copies each operand that `unfold` marks before its nest, with a dimension for each of its indices.

    ```mlir
    %y = loop.nest (%o, %i, %j) in [512, 7, 7] -> tensor<512x7x7xf32> {
      %s = loop.reduce add (%k, %r) in [256, 3] -> f32 {
        %a = loop.load %x[%k, %i + %r, %j] {unfold} : ...
        %b = loop.load %w[%o, %k, %r] : tensor<512x256x3xf32>
    ```
    becomes
    ```mlir
    %x_unfolded = loop.nest (%k, %r, %i, %j) in [256, 3, 7, 7] -> tensor<256x3x7x7xf32> { ... }
    %y = loop.nest (%o, %i, %j) in [512, 7, 7] -> tensor<512x7x7xf32> {
      %s = loop.reduce add (%k, %r) in [256, 3] -> f32 {
        %a = loop.load %x_unfolded[%k, %r, %i, %j] : ...
        %b = loop.load %w[%o, %k, %r] : tensor<512x256x3xf32>
    ```

    **Rationale**: the contraction is then a plain matmul. Its other operand, the weights of a convolution, is read in
    the order in which it is stored, and rows of images that fill no vector become one long row.

    **Pipeline position**: after `plan-unfolding`, which sets the marks; before `loop-collapse-dimensions`, which merges
    the indices that are adjacent in the copy.
    """

    name = "loop-unfold-operands"
    needs: ClassVar[Mapping[str, int]] = {"loop.load{unfold}": 1}

    def on(self, op: loop.NestOp) -> None:
        extents = extents_of_nest(op)
        marked = [o for o in op.walk() if isinstance(o, loop.LoadOp) and UNFOLD in o.attributes]
        for load in marked:
            if load.symbols or not (load.fill is None or isinstance(load.fill.owner, ConstantOp)):
                raise refused(
                    load, "expected an operand at coordinates of indices alone, but it is gathered", CompileError
                )
            order = unfolded_order(op, load)
            dims = {index: AffineExpr.dimension(n) for n, index in enumerate(order)}
            copy = copying_nest(load, dims, [extents[i] for i in order])
            copy.res[0].name_hint = f"{load.source.name_hint or 'operand'}_unfolded"
            insert_before(op, copy)
            replace(load, loop.LoadOp(copy.res[0], AffineMap.identity(len(order)), order))
        if marked:
            collapse_dimensions(op, powers_of_two=True)
