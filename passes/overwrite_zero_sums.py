"""Products that overwrite zeros instead of adding to them: `overwrite-zero-sums`."""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import SSAValue
from xdsl.passes import ModulePass

from ..dialects import kernel, payload
from ..dialects.kernel_wgmma import PendingType
from ..dialects.locations import copy_location


@dataclass(frozen=True)
class OverwriteZeroSumsPass(ModulePass):
    """Let a product of warpgroups into zeros overwrite its accumulators.

    What: accumulators that are zeros and go to a product first start without values, and that product is `fresh`: what
    was there before does not count.
    Why: it costs nothing, while clearing up to 128 registers of each thread costs as many moves, again and again where
    it is inside of a loop (the weights of attention).
    Why here: behind `overlap-products`, which does so for sums that a loop carries.

    ```mlir
    %p = kernel.wgmma_resume %zero : vector<32xf32>
    %q = kernel.wgmma %x[...], %y[...] into %p ...
    ```
    becomes
    ```mlir
    %p = kernel.wgmma_start : !kernel.pending<vector<32xf32>>
    %q = kernel.wgmma %x[...], %y[...] into %p ... fresh
    ```
    """

    name = "overwrite-zero-sums"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for resume in [o for o in op.walk() if isinstance(o, kernel.WgmmaResumeOp)]:
            if is_zero(resume.source) and resume.result.has_one_use():
                (use,) = resume.result.uses
                product, parent = use.operation, resume.parent
                if isinstance(product, kernel.WgmmaOp) and product.accumulate is None and product.fresh is None:
                    assert isinstance(resume.result.type, PendingType)
                    assert parent is not None
                    start = kernel.WgmmaStartOp(resume.result.type)
                    start.result.name_hint = resume.result.name_hint
                    copy_location(resume, (start,))
                    parent.insert_op_before(start, resume)
                    resume.result.replace_all_uses_with(start.result)
                    parent.erase_op(resume)
                    start_over(product)


def is_zero(value: SSAValue) -> bool:
    """Whether all registers of `value` are the constant zero."""
    return isinstance(value.owner, payload.ConstantOp) and value.owner.scalar == 0


def start_over(product: kernel.WgmmaOp, condition: SSAValue | None = None) -> None:
    """Let the old values of a product's accumulators not count, or count only where the condition holds."""
    new = kernel.WgmmaOp(
        product.lhs,
        product.lhs_place,
        product.rhs,
        product.rhs_place,
        product.acc,
        slices=product.slices.data,
        swizzle=product.swizzle.data,
        lhs_transposed=product.lhs_transposed is not None,
        rhs_transposed=product.rhs_transposed is not None,
        panel=None if product.panel is None else product.panel.data,
        fresh=condition is None,
        accumulate=condition,
    )
    new.result.name_hint = product.result.name_hint
    copy_location(product, (new,))
    assert product.parent is not None
    product.parent.insert_op_before(new, product)
    product.result.replace_all_uses_with(new.result)
    product.parent.erase_op(product)
