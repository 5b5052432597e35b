"""How coarsely the products of a program round their factors, where they are permitted to."""

from __future__ import annotations

from xdsl.dialects.builtin import Float32Type, ModuleOp
from xdsl.ir import Operation

from ..dialects import kernel, tile
from ..dialects.payload import RoundTf32Op, element_type

TF32_ROUNDED, TF32_CUT = 2.0**-11, 2.0**-10
"""The relative error of an f32 that is rounded to tf32, and of one whose last bits are left out."""


def factor_roundoff(module: ModuleOp) -> float:
    """The largest relative error of a factor that tensor cores take as tf32, at the tile or the kernel level; 0.0 for a
    program without such."""
    return max((_roundoff(op) for op in module.walk()), default=0.0)


def _roundoff(op: Operation) -> float:
    if isinstance(op, tile.DotOp) and op.atom is not None and isinstance(element_type(op.lhs.type), Float32Type):
        return TF32_ROUNDED if op.atom.data == "mma" else TF32_CUT
    if isinstance(op, kernel.MmaOp) and isinstance(element_type(op.lhs.type), Float32Type):
        factors = (op.lhs.owner, op.rhs.owner)
        return TF32_ROUNDED if all(isinstance(f, RoundTf32Op) for f in factors) else TF32_CUT
    if isinstance(op, tile.DotAsyncOp) and isinstance(element_type(op.lhs.type), Float32Type):
        return TF32_CUT
    return TF32_CUT if isinstance(op, kernel.WgmmaOp) and isinstance(op.element, Float32Type) else 0.0
