"""Products that overwrite zeros instead of adding to them: `kernel-overwrite-accumulators`."""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.passes import ModulePass

from ...dialects import kernel
from ...dialects.kernel.wgmma import AsyncAccumulatorsType
from ..rewriting import replace
from .wgmma_dataflow import is_zero, start_over


@dataclass(frozen=True)
class OverwriteAccumulatorsPass(ModulePass):
    """Let a product of warpgroups into zeros overwrite its accumulators.

    What: accumulators that are zeros and go to a product first start without values, and that product is `fresh`: what
    was there before does not count.
    Why: it costs nothing, while clearing up to 128 registers of each thread costs as many moves, again and again where
    it is inside of a loop (the weights of attention).
    Why here: behind `kernel-overlap-wgmma`, which does so for sums that a loop carries.

    ```mlir
    %p = kernel.registers_to_accumulators %zero : vector<32xf32>
    %q = kernel.wgmma %x[...], %y[...] into %p ...
    ```
    becomes
    ```mlir
    %p = kernel.undef_accumulators : !kernel.async_accumulators<vector<32xf32>>
    %q = kernel.wgmma %x[...], %y[...] into %p ... scale_d_zero
    ```
    """

    name = "kernel-overwrite-accumulators"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for resume in [o for o in op.walk() if isinstance(o, kernel.RegistersToAccumulatorsOp)]:
            if is_zero(resume.source) and resume.result.has_one_use():
                (use,) = resume.result.uses
                product = use.operation
                if isinstance(product, kernel.WgmmaOp) and product.use_acc is None and product.scale_d_zero is None:
                    assert isinstance(resume.result.type, AsyncAccumulatorsType)
                    replace(resume, kernel.UndefAccumulatorsOp(resume.result.type))
                    start_over(product)
