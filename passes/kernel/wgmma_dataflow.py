"""What the passes that move `kernel.wgmma` and its waits have in common."""

from __future__ import annotations

from xdsl.dialects.builtin import UnitAttr
from xdsl.ir import SSAValue

from ...dialects import kernel, payload
from ...dialects.support.editing import set_fields

HARMLESS = (
    kernel.MbarWaitOp,
    kernel.SubviewOp,
    kernel.WgmmaFenceOp,
    kernel.WgmmaCommitOp,
    kernel.AdvanceOp,
    kernel.ShuffleRegistersOp,
)
"""What may stand beside products in a loop, besides computations."""


def is_zero(value: SSAValue) -> bool:
    """Whether all registers of `value` are the constant zero."""
    return isinstance(value.owner, payload.ConstantOp) and value.owner.scalar == 0


def start_over(product: kernel.WgmmaOp, condition: SSAValue | None = None) -> None:
    """Let the old values of a product's accumulators not count, or count only where the condition holds."""
    set_fields(product, scale_d_zero=UnitAttr() if condition is None else None, use_acc=condition)
