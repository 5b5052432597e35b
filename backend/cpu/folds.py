"""Operations of two operands on SIMD vectors, and the reductions of registers in a block that is one thread as such."""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.dialects.builtin import f32, i1
from xdsl.ir import Attribute

from ...dialects.kernel import ReduceRegistersOp, ScanRegistersOp
from ...dialects.kernel.memory import AtomicRmwOp
from ...dialects.payload import element_type, is_float
from ...dialects.tensor import MONOIDS
from ...target.model import MAX_LANES
from ..cpp.expressions import ATOM, BIT_AND, BIT_OR, BIT_XOR, OPERATORS, WRAPPING, Expr, c_size, call, infix

HELPERS = {"payload.logaddexp": "vector.log_add_exp"}
"""Operations of two vectors of f32 that are functions, and the sections of functions.hpp that have them."""

BITWISE = (BIT_AND, BIT_XOR, BIT_OR)
"""Levels of operators that vectors of truth values have, too."""


def combined(name: str, element: Attribute, operands: Sequence[Expr], whole: Sequence[Expr]) -> Expr | None:
    """The operation `name` on vectors of `element`, or on single ones; None for one that has no such form. Integers
    wrap. An operator takes `operands` that may be the same in all lanes, if these are no narrower than an int; what is
    none takes `whole` vectors."""
    operator, narrow = OPERATORS.get(name), c_size(element) < 4
    if name in HELPERS and element != f32:
        return None
    if operator is None or narrow and is_float(element) or element == i1 and operator.level not in BITWISE:
        return None
    if operator.level != ATOM:
        known = is_float(element) or name in WRAPPING or operator.level in BITWISE
        lhs, rhs = whole if narrow else operands
        return infix(lhs, operator.symbol, rhs, operator.level) if known else None
    function = operator.symbol if is_float(element) else {"arith.maxsi": "larger", "arith.minsi": "smaller"}.get(name)
    return None if function is None else call(function, whole)


def combining(op: ReduceRegistersOp | ScanRegistersOp | AtomicRmwOp, a: str = "a", b: str = "b") -> str | None:
    """How two vectors, or two elements, `a` and `b` of what is reduced are combined; None if that is not known."""
    both, t = (Expr(a), Expr(b)), op.value.type if isinstance(op, AtomicRmwOp) else op.result.type
    found = combined(MONOIDS[op.kind.data].combiner(t).name, element_type(t), both, both)
    return None if found is None else found.text


def row_of(op: ReduceRegistersOp) -> int | None:
    """How many registers that lie side by side are combined to one; None if others are, or it is not known how."""
    bits = sorted(op.bits.get_values())
    return 1 << len(bits) if combining(op) is not None and bits == list(range(len(bits))) else None


def columns_of(op: ReduceRegistersOp) -> int | None:
    """How many registers that lie side by side, whole vectors, are a row of those that are combined column by column;
    None if others are, or it is not known how."""
    bits = sorted(op.bits.get_values())
    wide = bits and 1 << bits[0] >= MAX_LANES and bits == [*range(bits[0], bits[-1] + 1)]
    return 1 << bits[0] if wide and combining(op) is not None else None


def combiner(op: ReduceRegistersOp | ScanRegistersOp | AtomicRmwOp) -> str:
    """The same as a C++ function."""
    return f"[](auto a, auto b) {{ return {combining(op)}; }}"
