"""Rescaling of partial sums between reference values: the algebra behind chunk-wise reductions (online softmax).

A later reduction of a group uses the results of earlier ones, its *reference values* (*frame* in names): the sum of
exp(s - m) uses the maximum m. If the range is reduced chunk by chunk, each partial sum has its own maximum. To combine
two partial sums, they must be rescaled to a common one.

That is possible if each summand e(k, frame) has a finite linear representation: basis values b_i(k, frame) with
`b_i(k, new) = sum_j T_ij(old, new) * b_j(k, old)`, where T does not depend on k. Then the sums of the b_i are rescaled
by the matrix T.

`Typing` derives the representation from the body, value by value:

- s - m is a *shift*, with the basis {s - m, 1};
- exp of a shift is a *scale*: it has one basis value, and T is a factor;
- a scale times a value that does not depend on the frame is a scale;
- the product of two linear values has the Kronecker product of their bases and matrices.

A value without a representation is refused with a reason. The analysis knows no operators such as softmax.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import TypeAlias

from xdsl.dialects import arith, math
from xdsl.dialects.builtin import AnyFloat
from xdsl.dialects.utils import FastMathFlag
from xdsl.ir import Block, Operation, SSAValue

from ...dialects import loop, payload
from ...dialects.loop.dependence import is_in, yielded
from ...dialects.support.equivalence import Numbering
from ...dialects.tensor import ReductionKind, identity

Expr: TypeAlias = tuple[object, ...]
"""Expression of a basis value, or of an entry of T. The first element is its kind:

- `("value", v)`: the SSA value v
- `("at", v, "old" | "new")`: the SSA value v, computed from the old or from the new frame
- `("one",)`, `("zero",)`
- `("exp" | "exp2" | "exp2_afn" | "neg", a)`
- `("sub" | "add" | "mul" | "mul_reassoc" | "div", a, b)`
- `("select", condition, a)`: a where the condition is true, else 0; `"unless"`: a where it is false, else 0
- `("guard", v, a)`: a, except where the old value of v is the identity of its reduction; 0 there
"""

ONE: Expr = ("one",)
ZERO: Expr = ("zero",)


class Declined(Exception):
    """Error for a value that cannot be rescaled. Its text is the reason."""


@dataclass(frozen=True)
class Fixed:
    """A value that does not depend on the frame."""


@dataclass(frozen=True)
class OfFrame:
    """A value that depends only on the frame, and not on the reduced index."""


@dataclass(frozen=True)
class Shift:
    """A value that moves by an addition: new = old + by.

    by     difference, which does not depend on the reduced index
    bound  the running maximum that was subtracted from the value, so that it is at most 0; or None
    """

    by: Expr
    bound: SSAValue | None = None


@dataclass(frozen=True)
class Linear:
    """A value with a linear representation. With one basis value it is a scale.

    basis   basis values; the first is the value itself
    matrix  T: new basis values = matrix times old basis values
    """

    basis: tuple[Expr, ...]
    matrix: tuple[tuple[Expr, ...], ...]


@dataclass(frozen=True)
class Meets:
    """A condition that is true where a term equals the maximum or minimum of all terms, or is NaN.

    member  the maximum or minimum
    term    the term
    """

    member: SSAValue
    term: SSAValue


@dataclass(frozen=True)
class Chosen:
    """A selection by a condition `Meets`, as in argmax.

    member     the maximum or minimum that terms are compared with
    value      value where the term equals `member`; it does not depend on the frame
    otherwise  constant elsewhere
    """

    member: SSAValue
    value: SSAValue
    otherwise: SSAValue


Kinds: TypeAlias = Fixed | OfFrame | Shift | Linear | Meets | Chosen
FIXED = Fixed()
OF_FRAME = OfFrame()


def _mul(a: Expr, b: Expr) -> Expr:
    if ZERO in (a, b):
        return ZERO
    if a == ONE:
        return b
    if b == ONE:
        return a
    # A guarded factor may be 0. The product is then 0 as well, so the guard can be moved around the whole product.
    if a[0] == "guard":
        return ("guard", a[1], _mul(a[2], b))  # pyright: ignore[reportArgumentType]
    if b[0] == "guard":
        return ("guard", b[1], _mul(a, b[2]))  # pyright: ignore[reportArgumentType]
    return ("mul", a, b)


def _negated(a: Expr) -> Expr:
    if a[0] == "guard":
        return ("guard", a[1], _negated(a[2]))  # pyright: ignore[reportArgumentType]
    return ("sub", a[2], a[1]) if a[0] == "sub" else ("neg", a)


@dataclass
class Typing:
    """Derives the representation of every value in the body of one stage.

    members           earlier results of the group, which are the frame -> their reductions
    between           values that are computed from the frame outside of the bodies
    permit_narrowing  whether rounding to a narrower float counts as commuting with scaling, as in a `reassoc` cast
    """

    members: Mapping[SSAValue, loop.ReduceOp]
    between: frozenset[SSAValue] | set[SSAValue]
    permit_narrowing: bool = False

    def __post_init__(self) -> None:
        self.types: dict[SSAValue, Kinds] = {}
        self.narrowed: list[Operation] = []

    def stage(self, reduce: loop.ReduceOp) -> Kinds:
        """Returns the representation of the terms of `reduce`. Raises Declined if it cannot be rescaled."""
        block = reduce.body.block
        (value,) = yielded(block)
        result = self._type(value, block)
        kind = reduce.kind.data
        if kind == ReductionKind.ADD and not isinstance(result, Fixed | Chosen):
            return _as_linear(value, result)
        extreme = kind in (ReductionKind.MAX, ReductionKind.MIN) and isinstance(result, Shift)
        if extreme or isinstance(result, Fixed) or isinstance(result, Chosen) and _may_stand_in(result, reduce):
            return result
        raise Declined(f"a {kind.value} of values that depend on an earlier result")

    def _type(self, value: SSAValue, block: Block) -> Kinds:
        if value not in self.types:
            owner = value.owner
            if value in self.members or value in self.between:
                self.types[value] = OF_FRAME
            elif isinstance(owner, Operation) and owner.parent is block:
                self.types[value] = self._type_op(owner, value, block)
            else:
                self.types[value] = FIXED
        return self.types[value]

    def _type_op(self, op: Operation, value: SSAValue, block: Block) -> Kinds:
        if op.regions:
            return self._nested(op, block)
        types = [self._type(operand, block) for operand in op.operands]
        if all(isinstance(t, Fixed) for t in types):
            return FIXED
        if all(isinstance(t, OfFrame) or not is_in(o, block) for t, o in zip(types, op.operands, strict=True)):
            return OF_FRAME
        match op:
            case arith.AddfOp() | arith.SubfOp():
                return self._sum(op, types, block)
            case arith.NegfOp():
                return _negative(types[0], value)
            case arith.MulfOp():
                return self._product(op, types, block)
            case arith.DivfOp():
                return self._quotient(op, types, block)
            case math.ExpOp() | math.Exp2Op():
                return self._exponential(op, types[0])
            case payload.SelectOp():
                return self._select(op, types, value)
            case arith.MaximumfOp() | arith.MinimumfOp():
                a, b = types
                if isinstance(a, Shift) and isinstance(b, Shift) and a.by == b.by:
                    return Shift(a.by)
                raise Declined(f"{op.name} of values that move differently")
            case payload.CastOp():
                return self._cast(op, types[0], value)
            case payload.CmpOp() if op.predicate.data == payload.Predicate.EQ:
                return self._meeting(op, block)
            case arith.OrIOp():
                return _or_no_number(op, types)
            case _:
                raise Declined(f"{op.name} of a value that depends on an earlier result")

    def _nested(self, op: Operation, block: Block) -> Kinds:
        outside = (o for inner in op.walk() for o in inner.operands if not op.is_ancestor(o.owner))
        if not all(isinstance(self._type(operand, block), Fixed) for operand in outside):
            raise Declined(f"{op.name} inside the reduction depends on an earlier result")
        return FIXED

    def _sum(self, op: arith.AddfOp | arith.SubfOp, types: Sequence[Kinds], block: Block) -> Kinds:
        a, b = types
        minus = isinstance(op, arith.SubfOp)
        if isinstance(a, Linear) or isinstance(b, Linear):
            if isinstance(a, Linear) and isinstance(b, Linear) and a.matrix == b.matrix and len(a.basis) == 1:
                return Linear((("value", op.result),), a.matrix)
            raise Declined(f"{op.name} of terms that move differently")
        lhs_move, rhs_move = self._move_of(op.lhs, a), self._move_of(op.rhs, b)
        by: Expr = ("sub", lhs_move, rhs_move) if minus else ("add", lhs_move, rhs_move)
        bound = None
        if minus and isinstance(a, Fixed):
            bound = self._bound(op.lhs, op.rhs, block)
        if lhs_move == ZERO:
            by = _negated(rhs_move) if minus else rhs_move
        elif rhs_move == ZERO:
            by = lhs_move
        return Shift(by, bound)

    def _move_of(self, value: SSAValue, type: Kinds) -> Expr:
        if not isinstance(type, OfFrame):
            return type.by if isinstance(type, Shift) else ZERO
        move: Expr = ("sub", ("at", value, "new"), ("at", value, "old"))
        sums = [m for m, r in self.members.items() if r.kind.data == ReductionKind.ADD and depends_on(value, {m})]
        for member in [m for m in sums if is_count(self.members[m])] or sums:
            # While a sum has no elements yet, no partial result is relative to it. The guard makes the move 0.
            move = ("guard", member, move)
        return move

    def _meeting(self, op: payload.CmpOp, block: Block) -> Kinds:
        for term, member in ((op.lhs, op.rhs), (op.rhs, op.lhs)):
            reduce = self.members.get(member)
            extreme = reduce is not None and reduce.kind.data in (ReductionKind.MAX, ReductionKind.MIN)
            if reduce is not None and extreme and self._runs_over(reduce, term, block):
                return Meets(member, term)
        raise Declined("a comparison with an earlier result that is not the extreme of what it is compared with")

    def _runs_over(self, reduce: loop.ReduceOp, value: SSAValue, block: Block) -> bool:
        body = reduce.body.block
        numbering = Numbering(block.args, body.args)
        return numbering.of(value) == numbering.of(yielded(body)[0])

    def _bound(self, value: SSAValue, frame: SSAValue, block: Block) -> SSAValue | None:
        """Returns the running maximum over `value` if `frame` is that maximum, or None.

        Then value <= frame for every index. Both may be multiplied by the same positive constant.
        """
        a, b = value.owner, frame.owner
        if isinstance(a, arith.MulfOp) and isinstance(b, arith.MulfOp) and a.rhs is b.rhs and _is_positive(a.rhs):
            return self._bound(a.lhs, b.lhs, block)
        member = self._member_behind(frame)
        if member is None or self.members[member].kind.data != ReductionKind.MAX:
            return None
        return member if self._runs_over(self.members[member], value, block) else None

    def _member_behind(self, frame: SSAValue) -> SSAValue | None:
        if frame in self.members:
            return frame
        if isinstance(frame.owner, payload.SelectOp):
            sides = [s for s in (frame.owner.lhs, frame.owner.rhs) if not isinstance(s.owner, payload.ConstantOp)]
            if len(sides) == 1:
                return self._member_behind(sides[0])
        return None

    def _product(self, op: arith.MulfOp, types: Sequence[Kinds], block: Block) -> Kinds:
        (a, b), (x, y) = types, (op.lhs, op.rhs)
        if isinstance(a, Fixed):
            a, b, x, y = b, a, y, x
        # Here a depends on the frame, and b may not.
        if isinstance(b, Fixed):
            if isinstance(a, Shift) and not is_in(y, block):
                # `contract` permits (x - m) * c to become fma(x, c, -(m * c)). `reassoc` on the move then permits it to
                # become the difference of such products.
                kind = "mul_reassoc" if FastMathFlag.ALLOW_CONTRACT in op.fastmath.data else "mul"
                return Shift((kind, a.by, ("value", y)), a.bound if _is_positive(y) else None)
            return _scaled(a, x, ("value", op.result), "mul", ("value", y))
        return _kronecker(_as_linear(x, a), _as_linear(y, b), op.result)

    def _quotient(self, op: arith.DivfOp, types: Sequence[Kinds], block: Block) -> Kinds:
        a, b = types
        if isinstance(b, Fixed):
            if isinstance(a, Shift) and not is_in(op.rhs, block):
                return Shift(("div", a.by, ("value", op.rhs)), a.bound if _is_positive(op.rhs) else None)
            return _scaled(a, op.lhs, ("value", op.result), "div", ("value", op.rhs))
        raise Declined("a division by a value that depends on an earlier result")

    def _exponential(self, op: math.ExpOp | math.Exp2Op, type: Kinds) -> Kinds:
        if not isinstance(type, Shift):
            raise Declined(f"{op.name} of a value that moves by more than a shift")
        if type.bound is None:
            raise Declined(f"{op.name} of a difference whose left side is not bounded by an earlier maximum")
        name = "exp" if isinstance(op, math.ExpOp) else "exp2"
        if name == "exp2" and FastMathFlag.APPROX_FUNC in op.fastmath.data:
            name = "exp2_afn"
        return Linear((("value", op.result),), ((("guard", type.bound, (name, type.by)),),))

    def _select(self, op: payload.SelectOp, types: Sequence[Kinds], value: SSAValue) -> Kinds:
        condition, a, b = types
        if isinstance(condition, Meets) and isinstance(op.rhs.owner, payload.ConstantOp) and a == b == FIXED:
            return Chosen(condition.member, op.lhs, op.rhs)
        if not isinstance(condition, Fixed):
            raise Declined("a selection by a condition that depends on an earlier result")
        for moving, other, x, y in ((a, b, op.lhs, op.rhs), (b, a, op.rhs, op.lhs)):
            number = y.owner.scalar if isinstance(y.owner, payload.ConstantOp) else None
            if isinstance(moving, Shift) and number == float("-inf"):
                return moving
            if isinstance(moving, Shift | Linear) and number == 0:
                linear = _as_linear(x, moving)
                side = "select" if x is op.lhs else "unless"
                basis = (("value", value), *((side, op.cond, recipe) for recipe in linear.basis[1:]))
                return Linear(basis, linear.matrix)
            if isinstance(moving, Shift) and isinstance(other, Shift) and moving.by == other.by:
                return Shift(moving.by, moving.bound if moving.bound is other.bound else None)
            if isinstance(moving, Linear) and isinstance(other, Linear) and moving.matrix == other.matrix:
                if len(moving.basis) == 1:
                    return Linear((("value", value),), moving.matrix)
        raise Declined("a selection between values that move differently")

    def _cast(self, op: payload.CastOp, type: Kinds, value: SSAValue) -> Kinds:
        source, target = op.operand.type, op.result.type
        floats = isinstance(source, AnyFloat) and isinstance(target, AnyFloat)
        narrows = isinstance(source, AnyFloat) and isinstance(target, AnyFloat) and target.bitwidth < source.bitwidth
        permitted = not narrows or self.permit_narrowing or op.reassoc is not None
        if isinstance(type, Linear) and len(type.basis) == 1 and floats and permitted:
            if narrows and op.reassoc is None:
                self.narrowed.append(op)
            return Linear((("value", value),), type.matrix)
        text = f"rounding to {target} of a value that" if narrows else f"a conversion to {target} of a value that"
        raise Declined(f"{text} depends on an earlier result")


def _or_no_number(op: arith.OrIOp, types: Sequence[Kinds]) -> Kinds:
    """Returns the representation of `term == maximum or term is NaN`. The maximum is NaN if a term is."""
    for kind, other in zip(types, reversed(op.operands), strict=True):
        test = other.owner
        if isinstance(kind, Meets) and isinstance(test, payload.CmpOp) and test.predicate.data == payload.Predicate.NE:
            if test.lhs is test.rhs is kind.term:
                return kind
    raise Declined("a condition that depends on an earlier result")


def _may_stand_in(chosen: Chosen, reduce: loop.ReduceOp) -> bool:
    """Returns true if the constant `otherwise` does not change the result of `reduce`, if any term is chosen.

    This is true if the constant is the identity of the reduction. A minimum of positions (first index of a maximum)
    also permits the last position and larger numbers.
    """
    constant, index = chosen.otherwise.owner, chosen.value.owner
    assert isinstance(constant, payload.ConstantOp)
    kind = reduce.kind.data
    if constant.scalar == identity(kind, reduce.result.type):
        return True
    if not isinstance(index, payload.CastOp) or index.operand not in reduce.body.block.args:
        return False
    size = reduce.sizes[reduce.body.block.args.index(index.operand)]  # pyright: ignore[reportArgumentType]
    return kind == ReductionKind.MIN and isinstance(size, int) and constant.scalar >= size - 1


def is_count(reduce: loop.ReduceOp) -> bool:
    """Returns true if `reduce` sums ones."""
    one = yielded(reduce.body.block)[0].owner
    return reduce.kind.data == ReductionKind.ADD and isinstance(one, payload.ConstantOp) and one.scalar == 1


def terms_of(reduce: loop.ReduceOp) -> int | None:
    """Returns the number of terms of `reduce`, or None if it is not known."""
    sizes = [n for n in reduce.sizes if isinstance(n, int)]
    return prod(sizes) if len(sizes) == len(reduce.sizes) else None


def counted(reduce: loop.ReduceOp) -> int | None:
    """Returns the result of `reduce` if it counts over a known range, or None."""
    return terms_of(reduce) if is_count(reduce) else None


def depends_on(value: SSAValue, roots: set[SSAValue]) -> bool:
    """Returns true if `value` is computed from any of `roots`, by operations without regions."""
    seen, todo = set[SSAValue](), [value]
    while todo:
        v = todo.pop()
        if v in roots:
            return True
        if v not in seen and isinstance(v.owner, Operation):
            seen.add(v)
            todo.extend(v.owner.operands)
    return False


def _as_linear(value: SSAValue, type: Kinds) -> Linear:
    if isinstance(type, Linear):
        return type
    if isinstance(type, Shift):
        return Linear((("value", value), ("one",)), ((ONE, type.by), (ZERO, ONE)))
    raise Declined("a factor that depends on an earlier result and may be zero")


def _is_positive(value: SSAValue) -> bool:
    return isinstance(value.owner, payload.ConstantOp) and value.owner.scalar > 0


def _scaled(type: Kinds, value: SSAValue, head: Expr, kind: str, by: Expr) -> Kinds:
    """Returns a representation with every basis value multiplied or divided by a value independent of the frame.

    Args:
        type: the representation.
        value: the value that it represents.
        head: first basis value of the result.
        kind: `mul` or `div`.
        by: factor or divisor.
    """
    linear = _as_linear(value, type)
    others = (_mul(b, by) if kind == "mul" else (kind, b, by) for b in linear.basis[1:])
    return Linear((head, *others), linear.matrix)


def _negative(type: Kinds, value: SSAValue) -> Kinds:
    if isinstance(type, Shift):
        return Shift(_negated(type.by))
    if isinstance(type, Linear) and len(type.basis) == 1:
        return Linear((("value", value),), type.matrix)
    raise Declined("the negative of a value that moves by more than a shift or a scale")


def _kronecker(a: Linear, b: Linear, value: SSAValue) -> Linear:
    basis = [_mul(x, y) for x in a.basis for y in b.basis]
    matrix = tuple(tuple(_mul(s, t) for s in row for t in other) for row in a.matrix for other in b.matrix)
    return Linear((("value", value), *basis[1:]), matrix)
