"""Reductions of registers in a block that is one thread, as combinations of SIMD vectors."""

from __future__ import annotations

from xdsl.dialects.builtin import Float32Type, Float64Type, IntegerType

from ...dialects.kernel import ReduceRegistersOp
from ...dialects.payload import element_type
from ...dialects.tensor.reduction_kinds import MONOIDS

_COMBINED = {
    **dict.fromkeys(("arith.addf", "arith.addi"), "{a} + {b}"),
    **dict.fromkeys(("arith.mulf", "arith.muli"), "{a} * {b}"),
    "arith.maximumf": "max_nan({a}, {b})",
    "arith.minimumf": "min_nan({a}, {b})",
    "arith.maxsi": "{a} > {b} ? {a} : {b}",
    "arith.minsi": "{a} < {b} ? {a} : {b}",
}
"""Operations of vectors as of single elements; integers wrap."""


def combining(op: ReduceRegistersOp) -> str | None:
    """How two vectors, or two elements, {a} and {b} of what is reduced are combined; None if that is not known."""
    element = element_type(op.result.type)
    words = isinstance(element, IntegerType) and element.width.data in (32, 64)
    if not words and not isinstance(element, Float32Type | Float64Type):
        return None
    return _COMBINED.get(MONOIDS[op.kind.data].combiner(op.result.type).name)


def row_of(op: ReduceRegistersOp) -> int | None:
    """How many registers that lie side by side are combined to one; None if others are, or it is not known how."""
    bits = sorted(op.bits.get_values())
    return 1 << len(bits) if combining(op) is not None and bits == list(range(len(bits))) else None


def combiner(op: ReduceRegistersOp) -> str:
    """The same as a C++ function."""
    return f"[](auto a, auto b) {{ return {(combining(op) or '').format(a='a', b='b')}; }}"
