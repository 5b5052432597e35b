"""Which products may be on tensor cores, by the types of their factors and what the schedule permits."""

from __future__ import annotations

from xdsl.dialects.builtin import bf16
from xdsl.ir import Attribute
from xdsl.ir.affine import AffineDimExpr

from ...dialects import loop
from ..analysis.operand_types import widened_from
from .matmul import Matmul


def may_be_narrow(product: Matmul, precision: str) -> bool:
    """Whether a product may be on tensor cores under the permission `f32_matmul_precision`."""
    found = narrow_type(product, precision != "ieee")
    if precision != "bf16x3":
        return found is not None or precision == "tf32"
    return found == bf16 or narrow_type(product) is not None or computed_operands(product) == 2


def is_tf32(product: Matmul, precision: str) -> bool:
    """Whether a product that is on tensor cores under the permission `f32_matmul_precision` multiplies f32 there."""
    return precision == "tf32" and narrow_type(product) is None


def lies_along_k(product: Matmul, load: loop.LoadOp) -> bool:
    """Whether what is contiguous in memory, of a factor that is loaded, is an index that is summed over."""
    last = load.map.data.results[-1]
    return isinstance(last, AffineDimExpr) and load.indices[last.position] in product.reduction.indices


def computed_operands(product: Matmul) -> int:
    """How many factors of a product were computed in f32, or loaded as such."""
    return sum(widened_from(f) is None for f in product.factors)


def narrow_type(product: Matmul, may_narrow: bool = False) -> Attribute | None:
    """The type that both factors of a product were widened from, or with `may_narrow` one of them, if it is one for
    tensor cores."""
    found = product.reduction.contraction
    assert found is not None
    types = {widened_from(found.lhs), widened_from(found.rhs)}
    if may_narrow and len(types) == 2:
        types.discard(None)
    return types.pop() if len(types) == 1 else None
