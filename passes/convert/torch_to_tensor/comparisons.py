"""Comparisons, logic, bits, and selection."""

from __future__ import annotations

from xdsl.dialects import arith
from xdsl.dialects.builtin import i1
from xdsl.ir import SSAValue

from ....dialects.payload import element_type, is_float
from ....dialects.tensor.builder import Builder, Number, width_of, work_type
from .registry import Decomposition, decomposes
from .type_promotion import common_element, rounded

Operand = SSAValue | Number


def compared(b: Builder, self: Operand, other: Operand) -> list[SSAValue]:
    """Both sides of a comparison, in the type in which PyTorch compares them: its own, not that of the result."""
    element = common_element([self, other])
    values = [v if isinstance(v, SSAValue) else rounded(v, element) for v in (self, other)]
    return b.unify(*values, element=element)


def _comparison(predicate: str) -> Decomposition:
    def decomposition(b: Builder, self: SSAValue, other: Operand) -> SSAValue:
        return b.cmp(predicate, *compared(b, self, other))

    return decomposition


for _predicate in ("eq", "ne", "lt", "le", "gt", "ge"):
    decomposes(f"{_predicate}.Tensor", f"{_predicate}.Scalar")(_comparison(_predicate))


@decomposes("isnan")
def isnan(b: Builder, self: SSAValue) -> SSAValue:
    x = b.working(self)
    return b.isnan(x)


@decomposes("logical_not")
def logical_not(b: Builder, self: SSAValue) -> SSAValue:
    return b.negated(b.truth(self))


@decomposes("logical_and")
def logical_and(b: Builder, self: SSAValue, other: SSAValue) -> SSAValue:
    return b.both(*b.unify(b.truth(self), b.truth(other), element=i1))


@decomposes("logical_or")
def logical_or(b: Builder, self: SSAValue, other: SSAValue) -> SSAValue:
    return b.either(*b.unify(b.truth(self), b.truth(other), element=i1))


@decomposes("logical_xor")
def logical_xor(b: Builder, self: SSAValue, other: SSAValue) -> SSAValue:
    return b.math(arith.XOrIOp, *b.unify(b.truth(self), b.truth(other), element=i1))


@decomposes("bitwise_not")
def bitwise_not(b: Builder, self: SSAValue) -> SSAValue:
    x = b.working(self)
    if is_float(x.type):
        raise b.unsupported("self", "floats have no bits here")
    return b.negated(x) if element_type(x.type) == i1 else b.math(arith.XOrIOp, x, b.like(x, -1))


def _bitwise(op: type) -> Decomposition:
    def decomposition(b: Builder, self: SSAValue, other: Operand) -> SSAValue:
        x, y = b.unify(self, other)
        if is_float(x.type):
            raise b.unsupported("self", "floats have no bits here")
        return b.math(op, x, y)

    return decomposition


for _name, _op in (("and", arith.AndIOp), ("or", arith.OrIOp), ("xor", arith.XOrIOp)):
    decomposes(*(f"{p}{_name}{s}.{k}" for p, s in (("bitwise_", ""), ("__", "__")) for k in ("Tensor", "Scalar")))(
        _bitwise(_op)
    )


def _shifting(op: type[arith.ShLIOp | arith.ShRSIOp]) -> Decomposition:
    """Shifts by any number of bits, which PyTorch defines as `arith`'s are here: with fewer than 0 or more than there
    are all of them leave."""

    def shift(b: Builder, self: SSAValue, other: Operand) -> SSAValue:
        x, count = b.unify(self, other)
        if width_of(element_type(x.type)) <= 1:
            raise b.unsupported("self", "only integers can be shifted")
        return b.math(op, x, count)

    return shift


for _name, _op in (("left", arith.ShLIOp), ("right", arith.ShRSIOp)):
    decomposes(
        *(f"bitwise_{_name}_shift.{kind}" for kind in ("Tensor", "Tensor_Scalar")),
        *(f"__{_name[0]}shift__.{kind}" for kind in ("Tensor", "Scalar")),
    )(_shifting(_op))


@decomposes("where.self", "where.ScalarOther", "where.ScalarSelf", "where.Scalar")
def where(b: Builder, condition: SSAValue, self: Operand, other: Operand) -> SSAValue:
    element = work_type(b.result_element)
    cond, x, y = (
        b.operand(v, e, b.result_shape) for v, e in ((b.truth(condition), i1), (self, element), (other, element))
    )
    return b.select(cond, x, y)


@decomposes("masked_fill.Scalar", "masked_fill.Tensor")
def masked_fill(b: Builder, self: SSAValue, mask: SSAValue, value: Operand) -> SSAValue:
    return where(b, mask, value, self)


@decomposes("isclose")
def isclose(b: Builder, self: SSAValue, other: SSAValue, rtol: float, atol: float, equal_nan: bool) -> SSAValue:
    x, y = compared(b, self, other)
    close = b.cmp("eq", x, y)
    if is_float(x.type):
        allowed = b.plus(b.scaled(b.abs(y), rtol), atol)
        finite = b.cmp("lt", b.abs(y), float("inf"))
        close = b.either(close, b.both(finite, b.cmp("le", b.abs(b.sub(x, y)), allowed)))
        return b.either(close, b.both(b.isnan(x), b.isnan(y))) if equal_nan else close
    if rtol or atol:
        raise b.unsupported("rtol", "a tolerance between integers is not supported")
    return close
