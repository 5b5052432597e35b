"""Reduction kinds: each is one `Monoid` record, from which lowerings, interpreters and the printer derive the rest.

A new kind is a member of `ReductionKind` and its record. What combines two values is an operation of the payload, which
interpreters execute and the printer prints as they do everywhere else.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from xdsl.dialects import arith
from xdsl.dialects.builtin import IntegerType, f32, f64, i32, i64
from xdsl.dialects.utils import EnumAttribute
from xdsl.ir import Attribute, Operation, SpacedOpaqueSyntaxAttribute, SSAValue
from xdsl.irdl import irdl_attr_definition
from xdsl.utils.exceptions import VerifyException
from xdsl.utils.str_enum import StrEnum

from ..payload import LogAddExpOp, element_type, is_float, is_low_precision


class ReductionKind(StrEnum):
    """How a reduction combines: a commutative monoid on the element type.

    `max` and `min` propagate NaN (`arith.maximumf`); their identities are -inf and +inf, or the integer type's bounds.
    `and`, `or` and `xor` are bitwise; on `i1` the first two are "all" and "any". Only scans combine by
    `logaddexp`: sums of exponentials are reductions that use a maximum."""

    ADD = "add"
    MUL = "mul"
    MAX = "max"
    MIN = "min"
    AND = "and"
    OR = "or"
    XOR = "xor"
    LOGADDEXP = "logaddexp"


@irdl_attr_definition
class KindAttr(EnumAttribute[ReductionKind], SpacedOpaqueSyntaxAttribute):
    """`#tensor<kind add>`: used by the reductions of all levels."""

    name = "tensor.kind"


def _smallest(width: int) -> int:
    return -(1 << (width - 1)) if width > 1 else 0


def _largest(width: int) -> int:
    return (1 << (width - 1)) - 1 if width > 1 else 1


@dataclass(frozen=True)
class Monoid:
    """One reduction kind: the operations that combine two floats, two integers and two `i1` (None: no reduction of
    these), the identity among floats and among integers of some bits, and what CUDA calls the atomic operation on
    integers (None: a loop around `atomicCAS`), signed if it compares."""

    floats: Callable[..., Operation] | None
    integers: Callable[..., Operation] | None
    booleans: Callable[..., Operation] | None
    float_identity: float
    integer_identity: int | Callable[[int], int]
    atomic: str | None = None
    atomic_is_signed: bool = False

    def combiner(self, element: Attribute) -> Any:
        """The class of the payload operation that combines two values of type `element`."""
        if is_float(element):
            return self.floats
        return self.booleans if element_type(element) == IntegerType(1) else self.integers


_INFINITY = float("inf")

MONOIDS = {
    ReductionKind.ADD: Monoid(arith.AddfOp, arith.AddiOp, arith.AddiOp, 0, 0, "Add"),
    ReductionKind.MUL: Monoid(arith.MulfOp, arith.MuliOp, arith.MuliOp, 1, 1),
    ReductionKind.MAX: Monoid(arith.MaximumfOp, arith.MaxSIOp, arith.OrIOp, -_INFINITY, _smallest, "Max", True),
    ReductionKind.MIN: Monoid(arith.MinimumfOp, arith.MinSIOp, arith.AndIOp, _INFINITY, _largest, "Min", True),
    ReductionKind.AND: Monoid(None, arith.AndIOp, arith.AndIOp, _INFINITY, lambda width: -1 if width > 1 else 1, "And"),
    ReductionKind.OR: Monoid(None, arith.OrIOp, arith.OrIOp, 0, 0, "Or"),
    ReductionKind.XOR: Monoid(None, arith.XOrIOp, arith.XOrIOp, 0, 0, "Xor"),
    ReductionKind.LOGADDEXP: Monoid(LogAddExpOp, None, None, -_INFINITY, 0),
}


def combine(kind: ReductionKind, lhs: SSAValue, rhs: SSAValue) -> Operation:
    """The operation that combines two partial results of a reduction, in whatever container they are."""
    return MONOIDS[kind].combiner(lhs.type)(lhs, rhs)


def identity(kind: ReductionKind, element: Attribute) -> float | int:
    """The neutral element of `kind` on the scalar type `element`, as a Python number."""
    monoid = MONOIDS[kind]
    if is_float(element):
        return monoid.float_identity
    if isinstance(monoid.integer_identity, int):
        return monoid.integer_identity
    if not isinstance(element, IntegerType):
        raise VerifyException(f"no identity of {kind.value} on {element}")
    return monoid.integer_identity(element.bitwidth)


def verify_kind(kind: ReductionKind, element: Attribute, scan: bool = False) -> None:
    """Refuse a kind, of a reduction or a `scan`, that has no meaning on `element`, or computes in a storage type."""
    if kind == ReductionKind.LOGADDEXP and not scan:
        raise VerifyException(f"reduction {kind.value}: only scans combine so")
    if is_low_precision(element):
        raise VerifyException(f"reduces {element}, a storage type: cast to f32 first")
    if MONOIDS[kind].combiner(element) is None:
        raise VerifyException(f"reduction {kind.value} of {element}")


def verify_atomic(kind: ReductionKind, element: Attribute) -> None:
    """Refuse to combine in memory what no atomic operation does: elements of other widths than 32 and 64 bits."""
    verify_kind(kind, element)
    if element not in (f32, f64, i32, i64):
        raise VerifyException(f"nothing combines {element} in memory: cast to 32 or 64 bits first")
