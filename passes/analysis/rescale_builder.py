"""Writing the entries of a rescaling as operations: what moves partial results from an old frame into a new one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

from xdsl.dialects import arith, math
from xdsl.ir import Operation, SSAValue

from ...dialects import payload
from ...dialects.payload import is_float
from ...dialects.tensor import ReductionKind, identity

Expr: TypeAlias = tuple[object, ...]
"""An entry of T: ("at", value, side) | ("value", v) | ("sub" | "add" | "mul" | "div", a, b) | ("exp" | ..., a) |
("guard", value, a): `a`, but 0 where the old `value` is the identity of its reduction."""


@dataclass
class Builder:
    """Writes entries of T as ops, each once, into `ops`."""

    old: Mapping[SSAValue, SSAValue]
    new: Mapping[SSAValue, SSAValue]
    kinds: Mapping[SSAValue, ReductionKind]
    ops: list[Operation]
    guarded: bool = False
    """Whether the frames need no repair, because the case in which they would is selected away."""

    def __post_init__(self) -> None:
        self.done: dict[object, SSAValue] = {}

    def expression(self, expr: Expr, like: SSAValue) -> SSAValue:
        """The value of `expr`, of the type of `like`."""
        key = (expr, self.guarded)
        found = self.done.get(key)
        if found is None:
            found = self.done[key] = self._build(expr, like)
        return found

    def _add(self, op: Operation) -> SSAValue:
        self.ops.append(op)
        return op.results[0]

    def _build(self, expr: Expr, like: SSAValue) -> SSAValue:
        match expr:
            case ("at", SSAValue() as value, side):
                return self.frame(value, str(side))
            case ("value", SSAValue() as value):
                return value
            case ("one",):
                return self._add(payload.ConstantOp(1, like.type))
            case ("guard", SSAValue() as member, inner):
                empty = self._add(payload.ConstantOp(identity(self.kinds[member], member.type), member.type))
                at_start = self._add(payload.CmpOp("eq", self.old[member], empty))
                zero = self._add(payload.ConstantOp(0, like.type))
                outside, self.guarded = self.guarded, True
                moved = self.expression(inner, like)  # pyright: ignore[reportArgumentType]
                self.guarded = outside
                return self._add(payload.SelectOp(at_start, zero, moved))
            case (name, *parts):
                operands = [self.expression(part, like) for part in parts]  # pyright: ignore
                return self._add(_OPS[str(name)](*operands))  # pyright: ignore[reportArgumentType]
            case _:
                raise AssertionError(expr)

    def unmoved(self, member: SSAValue) -> SSAValue:
        """Whether the maximum or minimum `member` is in the new frame what it was in the old one, or was no number
        already, which it then stays."""
        old, new = self.old[member], self.new[member]
        same = self._add(payload.CmpOp("eq", old, new))
        if not is_float(old.type):
            return same
        return self._add(arith.OrIOp(same, self._add(payload.CmpOp("ne", old, old))))

    def frame(self, value: SSAValue, side: str) -> SSAValue:
        """`value`, a function of the frame, in the old or new one."""
        frame = self.old if side == "old" else self.new
        if value in frame and self.guarded:
            return frame[value]
        key = (side, value, self.guarded)
        found = self.done.get(key)
        if found is not None:
            return found
        op = value.owner
        if value in frame:
            found = repaired(frame[value], self.kinds[value], self.ops)
        elif isinstance(op, Operation) and depends_on(value, set(self.old)):
            found = self._add(payload.retyped(op, [self.frame(o, side) for o in op.operands], value.type))
        else:
            found = value
        self.done[key] = found
        return found


def repaired(value: SSAValue, kind: ReductionKind, ops: list[Operation]) -> SSAValue:
    """A maximum or minimum as a frame: 0 instead of the infinity that it starts from, appended to `ops` if needed."""
    if kind not in (ReductionKind.MAX, ReductionKind.MIN) or not is_float(value.type):
        return value
    empty = payload.ConstantOp(identity(kind, value.type), value.type)
    at_start = payload.CmpOp("eq", value, empty.result)
    zero = payload.ConstantOp(0, value.type)
    frame = payload.SelectOp(at_start.result, zero.result, value)
    ops.extend((empty, at_start, zero, frame))
    return frame.result


def depends_on(value: SSAValue, roots: set[SSAValue]) -> bool:
    """Whether `value` is computed from any of `roots`, by ops without regions."""
    seen, todo = set[SSAValue](), [value]
    while todo:
        v = todo.pop()
        if v in roots:
            return True
        if v not in seen and isinstance(v.owner, Operation):
            seen.add(v)
            todo.extend(v.owner.operands)
    return False


_OPS = {
    "add": arith.AddfOp,
    "sub": arith.SubfOp,
    "mul": arith.MulfOp,
    "div": arith.DivfOp,
    "neg": arith.NegfOp,
    "exp": math.ExpOp,
    "exp2": math.Exp2Op,
}
