"""Moving partial sums between frames: the algebra behind chunk-wise reductions.

A later reduction of a group uses earlier results, its *frame*: the sum of exp(s - m) uses the maximum m. Computed on a
part of the range, the frame is that of the part; when the parts meet, the frame moves, and what was summed has to move
with it. That is possible if each summand e(k, frame) has a finite linear representation: basis values b_i(k, frame)
with `b_i(k, new) = sum_j T_ij(old, new) * b_j(k, old)`, where T does not depend on k. Then sums of the b_i move by T.

`Typing` derives this from the body, value by value: s - m is a *shift* (basis {s - m, 1}), exp of a shift a *scale*, a
scale times anything that ignores the frame is a scale, products are Kronecker products. Whatever has no representation
is refused with a reason. Nothing here knows what is being computed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from xdsl.dialects import arith, math
from xdsl.dialects.builtin import AnyFloat
from xdsl.ir import Block, Operation, Region, SSAValue

from ...dialects import loop, payload
from ...dialects.tensor import ReductionKind, identity
from .rescale_builder import Expr, depends_on

Recipe: TypeAlias = tuple[object, ...]
"""A basis value: ("value", v) | ("one",) | ("mul" | "div", a, b) | ("select" | "unless", condition, a), else 0."""

ONE: Expr = ("one",)
ZERO: Expr = ("zero",)


class Declined(Exception):
    """A value that cannot be moved between frames; `str()` says why."""


@dataclass(frozen=True)
class Fixed:
    """Does not depend on the frame."""


@dataclass(frozen=True)
class OfFrame:
    """Depends on the frame alone, not on the reduced index."""


@dataclass(frozen=True)
class Shift:
    """new = old + by. `bound` is the reduction result that no value exceeds before it is subtracted, if known."""

    by: Expr
    bound: SSAValue | None = None


@dataclass(frozen=True)
class Linear:
    """The first of `basis`; new basis values are `matrix` times the old ones. One basis value: a scale."""

    basis: tuple[Recipe, ...]
    matrix: tuple[tuple[Expr, ...], ...]


@dataclass(frozen=True)
class Meets:
    """Whether `term` is the maximum or minimum `member`, which runs over it, or no number."""

    member: SSAValue
    term: SSAValue


@dataclass(frozen=True)
class Chosen:
    """Something that does not depend on the frame, where a term meets `member`; the constant `otherwise` elsewhere."""

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
    if a[0] == "guard":  # 0 times whatever the old frame gives is 0
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
    """Types the values in the body of one stage.

    members: the earlier results of the group that serve as frame, with their reductions.
    between: values computed from them outside the bodies.
    permit_narrowing: treat rounding to a narrower float as if it commuted with scaling, as every `reassoc` cast does.
    """

    members: Mapping[SSAValue, loop.ReduceOp]
    between: frozenset[SSAValue] | set[SSAValue]
    permit_narrowing: bool = False

    def __post_init__(self) -> None:
        self.types: dict[SSAValue, Kinds] = {}
        self.narrowed: list[Operation] = []

    def stage(self, reduce: loop.ReduceOp) -> Kinds:
        """The type of what `reduce` combines. Raises Declined if its partial results cannot be moved."""
        block = reduce.body.block
        end = block.last_op
        assert end is not None
        result = self._type(end.operands[0], block)
        kind = reduce.kind.data
        if isinstance(result, Fixed):
            return result
        if kind == ReductionKind.ADD and not isinstance(result, Chosen):
            return _as_linear(end.operands[0], result)
        if kind in (ReductionKind.MAX, ReductionKind.MIN) and isinstance(result, Shift):
            return result
        if isinstance(result, Chosen) and _may_stand_in(result, reduce):
            return result
        raise Declined(f"a {kind.value} of values that depend on an earlier result")

    def _type(self, value: SSAValue, block: Block) -> Kinds:
        found = self.types.get(value)
        if found is None:
            owner = value.owner
            if value in self.members or value in self.between:
                found = OF_FRAME
            elif isinstance(owner, Block) or owner.parent is not block:
                found = FIXED
            else:
                found = self._type_op(owner, value, block)
            self.types[value] = found
        return found

    def _type_op(self, op: Operation, value: SSAValue, block: Block) -> Kinds:
        if op.regions:
            return self._nested(op)
        types = [self._type(operand, block) for operand in op.operands]
        if all(isinstance(t, Fixed) for t in types):
            return FIXED
        if all(isinstance(t, OfFrame) or self._constant_in(o, block) for t, o in zip(types, op.operands, strict=True)):
            return OF_FRAME
        if isinstance(op, arith.AddfOp | arith.SubfOp):
            return self._sum(op, types, block)
        if isinstance(op, arith.NegfOp):
            return _scaled(types[0], value, ("value", value), ("negate",))
        if isinstance(op, arith.MulfOp):
            return self._product(op, types, block)
        if isinstance(op, arith.DivfOp):
            return self._quotient(op, types, block)
        if isinstance(op, math.ExpOp | math.Exp2Op):
            return self._exponential(op, types[0])
        if isinstance(op, payload.SelectOp):
            return self._select(op, types, value)
        if isinstance(op, arith.MaximumfOp | arith.MinimumfOp):
            return self._extreme(op, types)
        if isinstance(op, payload.CastOp):
            return self._cast(op, types[0], value)
        if isinstance(op, payload.CmpOp) and op.predicate.data == payload.Predicate.EQ:
            return self._meeting(op, block)
        if isinstance(op, arith.OrIOp):
            return _or_no_number(op, types)
        raise Declined(f"{op.name} of a value that depends on an earlier result")

    @staticmethod
    def _constant_in(value: SSAValue, block: Block) -> bool:
        """Whether `value` is the same in every iteration."""
        return value.owner is not block and not (isinstance(value.owner, Operation) and value.owner.parent is block)

    def _nested(self, op: Operation) -> Kinds:
        for inner in op.walk():
            for operand in inner.operands:
                owner = operand.owner
                outer = owner.parent_op()
                if outer is op or (outer is not None and op.is_ancestor(outer)):
                    continue
                if not isinstance(self._type_outer(operand, op), Fixed):
                    raise Declined(f"{op.name} inside the reduction depends on an earlier result")
        return FIXED

    def _type_outer(self, value: SSAValue, op: Operation) -> Kinds:
        block = op.parent
        assert block is not None
        return self._type(value, block)

    def _sum(self, op: arith.AddfOp | arith.SubfOp, types: Sequence[Kinds], block: Block) -> Kinds:
        a, b = types
        minus = isinstance(op, arith.SubfOp)
        if isinstance(a, Linear) or isinstance(b, Linear):
            if isinstance(a, Linear) and isinstance(b, Linear) and a.matrix == b.matrix and len(a.basis) == 1:
                return Linear((("value", op.result),), a.matrix)
            raise Declined(f"{op.name} of terms that move differently")
        left, right = self._move_of(op.lhs, a), self._move_of(op.rhs, b)
        by: Expr = ("sub", left, right) if minus else ("add", left, right)
        bound = None
        if minus and isinstance(a, Fixed):
            bound = self._bound(op.lhs, op.rhs, block)
        if left == ZERO:
            by = _negated(right) if minus else right
        elif right == ZERO:
            by = left
        return Shift(by, bound)

    def _move_of(self, value: SSAValue, type: Kinds) -> Expr:
        if isinstance(type, Shift):
            return type.by
        if isinstance(type, OfFrame):
            move: Expr = ("sub", ("at", value, "new"), ("at", value, "old"))
            sums = [m for m, r in self.members.items() if r.kind.data == ReductionKind.ADD and depends_on(value, {m})]
            for member in [m for m in sums if is_count(self.members[m])] or sums:
                move = ("guard", member, move)  # a sum over nothing is no frame, and nothing has to move from it
            return move
        return ZERO

    def _meeting(self, op: payload.CmpOp, block: Block) -> Kinds:
        """Equality of a term with the maximum or minimum that runs over it."""
        for term, member in ((op.lhs, op.rhs), (op.rhs, op.lhs)):
            reduce = self.members.get(member)
            if (
                reduce is not None
                and reduce.kind.data in (ReductionKind.MAX, ReductionKind.MIN)
                and self._runs_over(reduce, term, block)
            ):
                return Meets(member, term)
        raise Declined("a comparison with an earlier result that is not the extreme of what it is compared with")

    def _runs_over(self, reduce: loop.ReduceOp, value: SSAValue, block: Block) -> bool:
        """Whether `value` is what `reduce` combines."""
        body = reduce.body.block
        assert body.last_op is not None
        same = Same(dict(zip(block.args, body.args, strict=True)))
        return same.values(value, body.last_op.operands[0])

    def _bound(self, value: SSAValue, frame: SSAValue, block: Block) -> SSAValue | None:
        """The maximum that `frame` is, if it is one that runs over `value`: then value <= frame for every index. Both
        may be multiplied by the same positive constant."""
        a, b = value.owner, frame.owner
        if isinstance(a, arith.MulfOp) and isinstance(b, arith.MulfOp) and a.rhs is b.rhs and _is_positive(a.rhs):
            return self._bound(a.lhs, b.lhs, block)
        member = self._member_behind(frame)
        if member is None or self.members[member].kind.data != ReductionKind.MAX:
            return None
        return member if self._runs_over(self.members[member], value, block) else None

    def _member_behind(self, frame: SSAValue) -> SSAValue | None:
        """`frame`, or what it selects, unless that is a constant."""
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
        if isinstance(b, Fixed):  # a moves, b does not
            if isinstance(a, Shift) and self._constant_in(y, block):
                return Shift(("mul", a.by, ("value", y)), a.bound if _is_positive(y) else None)
            return _scaled(a, x, ("value", op.result), ("mul", ("value", y)))
        return _kronecker(_as_linear(x, a), _as_linear(y, b), op.result)

    def _quotient(self, op: arith.DivfOp, types: Sequence[Kinds], block: Block) -> Kinds:
        a, b = types
        if isinstance(b, Fixed):
            if isinstance(a, Shift) and self._constant_in(op.rhs, block):
                return Shift(("div", a.by, ("value", op.rhs)), a.bound if _is_positive(op.rhs) else None)
            return _scaled(a, op.lhs, ("value", op.result), ("div", ("value", op.rhs)))
        raise Declined("a division by a value that depends on an earlier result")

    def _exponential(self, op: math.ExpOp | math.Exp2Op, type: Kinds) -> Kinds:
        if not isinstance(type, Shift):
            raise Declined(f"{op.name} of a value that moves by more than a shift")
        if type.bound is None:
            raise Declined(f"{op.name} of a difference whose left side is not bounded by an earlier maximum")
        name = "exp" if isinstance(op, math.ExpOp) else "exp2"
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
                left = _as_linear(x, moving)
                side = "select" if x is op.lhs else "unless"
                basis = (("value", value), *((side, op.cond, recipe) for recipe in left.basis[1:]))
                return Linear(basis, left.matrix)
            if isinstance(moving, Shift) and isinstance(other, Shift) and moving.by == other.by:
                return Shift(moving.by, moving.bound if moving.bound is other.bound else None)
            if isinstance(moving, Linear) and isinstance(other, Linear) and moving.matrix == other.matrix:
                if len(moving.basis) == 1:
                    return Linear((("value", value),), moving.matrix)
        raise Declined("a selection between values that move differently")

    @staticmethod
    def _extreme(op: arith.MaximumfOp | arith.MinimumfOp, types: Sequence[Kinds]) -> Kinds:
        a, b = types
        if isinstance(a, Shift) and isinstance(b, Shift) and a.by == b.by:
            return Shift(a.by)
        raise Declined(f"{op.name} of values that move differently")

    def _cast(self, op: payload.CastOp, type: Kinds, value: SSAValue) -> Kinds:
        source, target = op.operand.type, op.result.type
        if not (isinstance(source, AnyFloat) and isinstance(target, AnyFloat)):
            raise Declined(f"a conversion to {target} of a value that depends on an earlier result")
        if target.bitwidth < source.bitwidth:
            permitted = self.permit_narrowing or op.reassoc is not None
            if not (permitted and isinstance(type, Linear) and len(type.basis) == 1):
                raise Declined(f"rounds to {target} what depends on an earlier result")
            if op.reassoc is None:
                self.narrowed.append(op)
        if isinstance(type, Linear) and len(type.basis) == 1:
            return Linear((("value", value),), type.matrix)
        raise Declined(f"a conversion to {target} of a value that depends on an earlier result")


def _or_no_number(op: arith.OrIOp, types: Sequence[Kinds]) -> Kinds:
    """A term that meets a maximum, or is no number: then the maximum is none either."""
    for found, other in zip(types, reversed(op.operands), strict=True):
        test = other.owner
        if isinstance(found, Meets) and isinstance(test, payload.CmpOp) and test.predicate.data == payload.Predicate.NE:
            if test.lhs is test.rhs is found.term:
                return found
    raise Declined("a condition that depends on an earlier result")


def _may_stand_in(chosen: Chosen, reduce: loop.ReduceOp) -> bool:
    """Whether `otherwise` changes no result of `reduce` as long as some term is chosen: it is the identity, or beyond
    all positions among which the first or the last is looked for."""
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
    """Whether `reduce` counts what it runs over: the sum of ones."""
    end = reduce.body.block.last_op
    assert end is not None
    one = end.operands[0].owner
    return reduce.kind.data == ReductionKind.ADD and isinstance(one, payload.ConstantOp) and one.scalar == 1


def _as_linear(value: SSAValue, type: Kinds) -> Linear:
    if isinstance(type, Linear):
        return type
    if isinstance(type, Shift):
        return Linear((("value", value), ("one",)), ((ONE, type.by), (ZERO, ONE)))
    raise Declined("a factor that depends on an earlier result and may be zero")


def _is_positive(value: SSAValue) -> bool:
    return isinstance(value.owner, payload.ConstantOp) and value.owner.scalar > 0


def _scaled(type: Kinds, value: SSAValue, head: Recipe, by: Recipe) -> Kinds:
    """`type` with every basis value multiplied or divided by something that does not move."""
    if by == ("negate",):
        if isinstance(type, Shift):
            return Shift(_negated(type.by))
        if isinstance(type, Linear) and len(type.basis) == 1:
            return Linear((head,), type.matrix)
        raise Declined("the negative of a value that moves by more than a shift or a scale")
    linear = _as_linear(value, type)
    return Linear((head, *((by[0], recipe, by[1]) for recipe in linear.basis[1:])), linear.matrix)


def _kronecker(a: Linear, b: Linear, value: SSAValue) -> Linear:
    basis = [y if x == ONE else x if y == ONE else ("mul", x, y) for x in a.basis for y in b.basis]
    matrix = tuple(tuple(_mul(s, t) for s in row for t in other) for row in a.matrix for other in b.matrix)
    return Linear((("value", value), *basis[1:]), matrix)


@dataclass
class Same:
    """Whether values of two bodies are the same computation, their indices renamed."""

    pairs: dict[SSAValue, SSAValue]

    def values(self, a: SSAValue, b: SSAValue) -> bool:
        """Whether `a` in the one body computes what `b` computes in the other."""
        if a is b:
            return True
        if a in self.pairs:
            return self.pairs[a] is b
        x, y = a.owner, b.owner
        if not isinstance(x, Operation) or not isinstance(y, Operation):
            return False
        if type(x) is not type(y) or len(x.operands) != len(y.operands) or x.properties != y.properties:
            return False
        if a.type != b.type or x.results.index(a) != y.results.index(b):
            return False
        if not all(self.values(p, q) for p, q in zip(x.operands, y.operands, strict=True)):
            return False
        if not all(self._regions(p, q) for p, q in zip(x.regions, y.regions, strict=True)):
            return False
        self.pairs[a] = b
        return True

    def _regions(self, a: Region, b: Region) -> bool:
        first, second = a.block, b.block
        if [x.type for x in first.args] != [y.type for y in second.args]:
            return False
        inner = Same({**self.pairs, **dict(zip(first.args, second.args, strict=True))})
        x, y = first.last_op, second.last_op
        assert x is not None
        assert y is not None
        if len(x.operands) != len(y.operands):
            return False
        return all(inner.values(p, q) for p, q in zip(x.operands, y.operands, strict=True))
