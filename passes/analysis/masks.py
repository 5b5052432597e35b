"""Where the terms of a reduction count: half-spaces of indices outside of which every term is the identity.

A causal mask, a window, a band, the border of a convolution: each is a comparison of affine expressions, or the domain
of a load, that decides what is combined. Here a comparison is assumed to fail, and the terms are computed as far as
they are then known; if they are identities, whatever is on that side of the comparison need not be visited.

What a mask excludes is not looked at: a factor beside a masked zero is taken to be finite. The frame of a stage is not
(a running maximum is minus infinity before anything was seen), unless it has been repaired.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from random import Random

from xdsl.dialects import arith, math as math_ops
from xdsl.dialects.builtin import IntegerType
from xdsl.ir import Block, Operation, SSAValue

from ...dialects import loop, payload
from ...dialects.loop.dependence import Dependence, yielded
from ...dialects.payload import Predicate, element_type, is_float
from ...dialects.payload.folding import decided
from ...dialects.shapes.affine import Form, add, constant, scale
from ...dialects.shapes.extents import least
from ...dialects.tensor import ReductionKind, identity
from .integer_forms import Forms

INFINITE = math.inf


def half_spaces(stages: Sequence[loop.ReduceOp], forms: Forms, dependence: Dependence) -> list[Form]:
    """Forms that are at least 0 wherever a term of any of `stages`, which run together, is not its identity.

    The indices of all stages are called as those of the first.
    """
    masked = any(isinstance(op, payload.CmpOp) or getattr(op, "domain", None) for op in stages[0].body.walk())
    return _half_spaces(stages, forms, dependence) if masked else []


def _half_spaces(stages: Sequence[loop.ReduceOp], forms: Forms, dependence: Dependence) -> list[Form]:
    for stage in stages:
        for own, first in zip(stage.body.block.args, stages[0].body.block.args, strict=True):
            forms.identify(own, first)
    own = {f.terms[0][0] for a in stages[0].body.block.args if (f := forms.of(a)) is not None}
    found: dict[Form, None] = {}
    for assumed in dict.fromkeys(_assumptions(stages[0].body.block, forms)):
        if not any(atom in own for atom, _ in assumed.terms):
            continue
        values = ((s, _Assuming(assumed, forms, dependence, s.body.block)) for s in stages)
        if all(v.of(yielded(v.body)[0]) == identity(s.kind.data, s.result.type) for s, v in values):
            found.setdefault(add(constant(-1), assumed, -1))
    return list(found)


def _assumptions(block: Block, forms: Forms) -> Iterator[Form]:
    """Yields, for every comparison and every border of a domain in a body, forms that are at least 0 on one side of
    it."""
    for op in block.walk():
        if isinstance(op, payload.CmpOp) and (form := forms.difference(op)) is not None:
            for _, below in answers(op.predicate.data, form):
                yield scale(below, -1)
        elif isinstance(op, loop.LoadOp):
            for form, lo, hi in forms.constraints(op):
                yield add(constant(lo - 1), form, -1)
                yield add(form, constant(-hi))


def answers(predicate: Predicate, difference: Form) -> list[tuple[bool, Form]]:
    """Returns the answers with forms that are at most 0 where lhs - rhs = `difference` has that answer."""
    less, more = add(difference, constant(1)), add(constant(1), difference, -1)
    no_less, no_more = scale(difference, -1), difference
    return {
        Predicate.LT: [(False, no_less), (True, less)],
        Predicate.LE: [(False, more), (True, no_more)],
        Predicate.GT: [(True, more), (False, no_more)],
        Predicate.GE: [(True, no_less), (False, less)],
        Predicate.EQ: [(False, more), (False, less)],
        Predicate.NE: [(True, more), (True, less)],
    }[predicate]


@dataclass
class _Assuming:
    """Values in the body of a reduction where the form `assumed` is at least 0: a number, or None."""

    assumed: Form
    forms: Forms
    dependence: Dependence
    body: Block
    _known: dict[SSAValue, float | None] = field(default_factory=dict[SSAValue, float | None])

    def of(self, value: SSAValue) -> float | None:
        """Returns the number that `value` is."""
        if value not in self._known:
            op = value.owner
            self._known[value] = self._compute(op) if isinstance(op, Operation) else None
        return self._known[value]

    def _compute(self, op: Operation) -> float | None:
        match op:
            case payload.ConstantOp():
                return op.scalar
            case payload.CmpOp():
                form = self.forms.difference(op)
                return None if form is None else decided(op.predicate.data, *self._bounds(form))
            case payload.SelectOp():
                chosen = self.of(op.cond)
                return None if chosen is None else self.of(op.lhs if chosen else op.rhs)
            case payload.CastOp():  # numbers that every type of floats has
                x = self.of(op.operand)
                return x if is_float(op.result.type) and x in (0, 1, INFINITE, -INFINITE) else None
            case loop.LoadOp():
                bounds = ((*self._bounds(form), first, end) for form, first, end in self.forms.constraints(op))
                outside = any(hi < first or lo >= end for lo, hi, first, end in bounds)
                return self.of(op.fill) if outside and op.fill is not None else None
            case loop.ReduceOp():
                x, kind = self.of(yielded(op.body.block)[0]), op.kind.data
                idle = kind in (ReductionKind.MAX, ReductionKind.MIN) or x == identity(kind, op.result.type)
                return x if idle and all(least(n) > 0 for n in op.sizes) else None
            case arith.AndIOp() | arith.OrIOp() | arith.XOrIOp():
                return self._logic(op)
            case arith.AddfOp() | arith.SubfOp() | arith.MulfOp() | arith.DivfOp():
                return self._arithmetic(op)
            case arith.NegfOp() | math_ops.ExpOp() | math_ops.Exp2Op():
                x = self.of(op.operands[0])
                return None if x is None else -x if isinstance(op, arith.NegfOp) else _exponential(x)
            case _:
                return None

    def _bounds(self, form: Form) -> tuple[float, float]:
        """Bounds of `form`, both inclusive, where `assumed` >= 0."""
        known = self.forms.simplifier.interval(form)
        lo, hi = (-INFINITE, INFINITE) if known is None else known
        more, less = add(form, self.assumed, -1), add(form, self.assumed)
        if more.is_constant:
            lo = max(lo, more.constant)
        if less.is_constant:
            hi = min(hi, less.constant)
        return lo, hi

    def _logic(self, op: arith.AndIOp | arith.OrIOp | arith.XOrIOp) -> float | None:
        if element_type(op.result.type) != IntegerType(1):
            return None
        a, b = (self.of(o) for o in op.operands)
        decisive = None if isinstance(op, arith.XOrIOp) else float(isinstance(op, arith.OrIOp))
        if decisive is not None and decisive in (a, b):
            return decisive
        return None if a is None or b is None else float(a != b) if decisive is None else 1 - decisive

    def _arithmetic(self, op: Operation) -> float | None:
        a, b = (self.of(o) for o in op.operands)
        if a is not None and b is not None:
            return _folded(op, a, b)
        x, known, unknown = (b, 1, 0) if a is None else (a, 0, 1)
        value = op.operands[unknown]
        varies = bool(self.dependence.of(value) & frozenset(self.body.args))
        if isinstance(op, arith.MulfOp | arith.DivfOp):
            return 0.0 if x == 0 and varies and (known == 0 or isinstance(op, arith.MulfOp)) else None
        if x not in (INFINITE, -INFINITE) or not (varies or is_repaired(value)):
            return None
        return -x if isinstance(op, arith.SubfOp) and known == 1 else x


def _folded(op: Operation, a: float, b: float) -> float | None:
    """The result of arithmetic on two numbers, if it is the same in every type."""
    if isinstance(op, arith.DivfOp):
        found = a / b if b != 0 and not math.isinf(b) else math.nan
    else:
        found = a * b if isinstance(op, arith.MulfOp) else a + b if isinstance(op, arith.AddfOp) else a - b
    return found if found in (0, 1, INFINITE, -INFINITE) else None


def _exponential(x: float) -> float | None:
    return 0.0 if x == -INFINITE else 1.0 if x == 0 else x if x == INFINITE else None


def is_repaired(value: SSAValue) -> bool:
    """Returns true if `value` is a reference value that cannot be an infinity only because nothing was seen:
    `m == -inf ? 0 : m`, for example, or a positive multiple of that."""
    op = value.owner
    if isinstance(op, payload.ConstantOp):
        return math.isfinite(op.scalar)
    if isinstance(op, arith.MulfOp | arith.DivfOp):
        factor = op.rhs.owner
        return isinstance(factor, payload.ConstantOp) and math.isfinite(factor.scalar) and is_repaired(op.lhs)
    if isinstance(op, payload.CastOp):
        return is_float(op.operand.type) and is_repaired(op.operand)
    if not isinstance(op, payload.SelectOp) or not isinstance(test := op.cond.owner, payload.CmpOp):
        return False
    empty = test.rhs.owner
    return (
        test.predicate.data == Predicate.EQ
        and test.lhs is op.rhs
        and isinstance(empty, payload.ConstantOp)
        and math.isinf(empty.scalar)
        and is_repaired(op.lhs)
    )


def scattered(lo: int, hi: int, count: int, axis: int = 0) -> list[int]:
    """Returns `count` of the numbers from `lo` to `hi` - 1, or all of them if they are no more.

    One number is anywhere in each of `count` equal parts of the range (stratified sampling, McKay et al. 1979), the
    same for the same `axis`; several axes are a Latin hypercube. The numbers are not evenly spaced, because passes
    divide numbers of blocks and tiles: a distance that shares a factor with the divisor would show few of its
    remainders.
    """
    return list(range(lo, hi)) if hi - lo <= count else hypercube(lo, hi, count, axis)


def hypercube(lo: int, hi: int, count: int, axis: int) -> list[int]:
    """Returns `count` numbers as `scattered` does: numbers of a short range occur about equally often."""
    rng, size = Random(axis), hi - lo
    found = [lo + int((i + (rng.random() if size > count else 0)) * size / count) for i in range(count)]
    rng.shuffle(found)
    return found
