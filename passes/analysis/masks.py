"""Finds the index ranges in which a mask makes all terms of a reduction neutral, so that loops can skip them.

Masks are comparisons of affine expressions (causal mask, window, band) and domains of loads (border of a convolution).
For each mask, the analysis assumes that the indices are on one side of it, and evaluates the term of the reduction as
far as constants are known. If the term is then the identity of the reduction (0 of a sum), that side need not be
visited. The other side is returned as a half-space, a form that is at least 0 there:

    sum over k of select(k <= i, x[k], 0)      half-space: i - k >= 0

The analysis takes a value that is multiplied by a masked zero to be finite. It does not assume this of a reference
value, because a running maximum is minus infinity before the first element. An exception are *guarded* reference
values, such as `m == -inf ? 0 : m` (`is_repaired`).
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
    """Returns forms that are at least 0 wherever a term of a reduction is not its identity.

    Args:
        stages: the reduction, or all stages of a staged reduction.
        forms: reader of the forms. It reads the indices of all stages as those of the first one.
        dependence: dependence of values on indices.
    """
    masked = any(isinstance(op, payload.CmpOp) or getattr(op, "domain", None) for op in stages[0].body.walk())
    return _half_spaces(stages, forms, dependence) if masked else []


def _half_spaces(stages: Sequence[loop.ReduceOp], forms: Forms, dependence: Dependence) -> list[Form]:
    for stage in stages:
        for index, first in zip(stage.body.block.args, stages[0].body.block.args, strict=True):
            forms.identify(index, first)
    reduced = {f.terms[0][0] for a in stages[0].body.block.args if (f := forms.of(a)) is not None}
    spaces: dict[Form, None] = {}
    for assumed in dict.fromkeys(_assumptions(stages[0].body.block, forms)):
        if not any(atom in reduced for atom, _ in assumed.terms):
            continue
        values = ((s, _Assuming(assumed, forms, dependence, s.body.block)) for s in stages)
        if all(v.of(yielded(v.body)[0]) == identity(s.kind.data, s.result.type) for s, v in values):
            spaces.setdefault(add(constant(-1), assumed, -1))
    return list(spaces)


def _assumptions(block: Block, forms: Forms) -> Iterator[Form]:
    """Yields, for each side of every mask in a block, a form that is at least 0 exactly on that side."""
    for op in block.walk():
        if isinstance(op, payload.CmpOp) and (form := forms.difference(op)) is not None:
            for _, below in answers(op.predicate.data, form):
                yield scale(below, -1)
        elif isinstance(op, loop.LoadOp):
            for form, lo, hi in forms.constraints(op):
                yield add(constant(lo - 1), form, -1)
                yield add(form, constant(-hi))


def answers(predicate: Predicate, difference: Form) -> list[tuple[bool, Form]]:
    """Returns for each outcome of a comparison a form that is at most 0 where the comparison has that outcome.

    Args:
        predicate: the comparison.
        difference: its left side minus its right side, integers.

    Returns:
        (outcome, form). For `==` and `!=` one outcome occurs twice, once for each side.
    """
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
    """Evaluator of a reduction body, under the assumption that a form is at least 0.

    assumed     the form
    forms       reader of the forms
    dependence  dependence of values on indices
    body        body of the reduction
    """

    assumed: Form
    forms: Forms
    dependence: Dependence
    body: Block
    _numbers: dict[SSAValue, float | None] = field(default_factory=dict[SSAValue, float | None])

    def of(self, value: SSAValue) -> float | None:
        """Returns the number that `value` is under the assumption, or None if it is not known."""
        if value not in self._numbers:
            op = value.owner
            self._numbers[value] = self._compute(op) if isinstance(op, Operation) else None
        return self._numbers[value]

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
            case payload.CastOp():
                # A cast to another float type rounds, except for these numbers, which all types represent exactly.
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
        """Returns the inclusive bounds of `form` under the assumption."""
        interval = self.forms.simplifier.interval(form)
        lo, hi = (-INFINITE, INFINITE) if interval is None else interval
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
        x, number_at, unknown = (b, 1, 0) if a is None else (a, 0, 1)
        value = op.operands[unknown]
        varies = bool(self.dependence.of(value) & frozenset(self.body.args))
        if isinstance(op, arith.MulfOp | arith.DivfOp):
            return 0.0 if x == 0 and varies and (number_at == 0 or isinstance(op, arith.MulfOp)) else None
        if x not in (INFINITE, -INFINITE) or not (varies or is_repaired(value)):
            return None
        return -x if isinstance(op, arith.SubfOp) and number_at == 1 else x


def _folded(op: Operation, a: float, b: float) -> float | None:
    """Returns the result of an operation on two numbers, or None if it depends on the float type."""
    if isinstance(op, arith.DivfOp):
        result = a / b if b != 0 and not math.isinf(b) else math.nan
    else:
        result = a * b if isinstance(op, arith.MulfOp) else a + b if isinstance(op, arith.AddfOp) else a - b
    return result if result in (0, 1, INFINITE, -INFINITE) else None


def _exponential(x: float) -> float | None:
    return 0.0 if x == -INFINITE else 1.0 if x == 0 else x if x == INFINITE else None


def is_repaired(value: SSAValue) -> bool:
    """Returns true if `value` is a guarded reference value, which is finite even before the first element was reduced.

    Examples are `m == -inf ? 0 : m`, a finite constant, and the product of a guarded value and a finite constant.
    """
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
    """Returns a pseudo-random sample of `count` numbers in [`lo`, `hi`), or all of them if there are no more.

    The range is divided into `count` equal parts, with one random number in each (stratified sampling, McKay et al.
    1979). Samples for different `axis` form a Latin hypercube. Equal distances would be worse: passes divide block and
    tile numbers, and a distance that shares a factor with the divisor shows only few remainders.

    Args:
        lo: first number of the range.
        hi: end of the range, exclusive.
        count: size of the sample.
        axis: seed of the random numbers.
    """
    return list(range(lo, hi)) if hi - lo <= count else hypercube(lo, hi, count, axis)


def hypercube(lo: int, hi: int, count: int, axis: int) -> list[int]:
    """Returns a stratified sample like `scattered`, but always of `count` numbers.

    If the range has fewer numbers, they occur several times.

    Args:
        lo: first number of the range.
        hi: end of the range, exclusive.
        count: size of the sample.
        axis: seed of the random numbers.
    """
    rng, size = Random(axis), hi - lo
    sample = [lo + int((i + (rng.random() if size > count else 0)) * size / count) for i in range(count)]
    rng.shuffle(sample)
    return sample
