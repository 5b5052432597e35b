"""What is left of a loop's body where the answers of some conditions are known."""

from __future__ import annotations

from collections.abc import Iterable

from xdsl.dialects.builtin import IntegerType
from xdsl.ir import Operation, SSAValue
from xdsl.ir.affine import AffineMap

from ....dialects import payload, tile
from ....dialects.payload import element_type, with_element
from ....dialects.payload.folding import same_as_operand
from ....dialects.shapes.domain import DomainAttr
from ...rewriting import erase, insert_before
from .regions import Access


def answer(op: payload.CmpOp, value: bool) -> None:
    """Replace a comparison by its answer, and what is computed from the answer alone."""
    _replace(op, payload.ConstantOp(value, op.result.type))


def unbounded(op: Access, constraints: Iterable[int]) -> None:
    """Take constraints off the domain of an access: they always hold."""
    assert op.domain is not None
    dropped = set(constraints)
    kept = [i for i in range(len(op.domain.limits)) if i not in dropped]
    domain = None
    if kept:
        affine, limits = op.domain.affine, op.domain.limits
        results = tuple(affine.results[i] for i in kept)
        domain = DomainAttr.get(AffineMap(affine.num_dims, affine.num_symbols, results), [limits[i] for i in kept])
    if domain is not None or not isinstance(op, tile.LoadOp):
        if domain is None:
            del op.properties["domain"]
        else:
            op.properties["domain"] = domain
        return
    _replace(op, tile.LoadOp(op.source, op.map, op.symbols, result=op.result.type))


def _replace(op: Operation, new: Operation) -> None:
    """Put `new` in the place of `op`, and simplify what uses its result."""
    new.results[0].name_hint = op.results[0].name_hint
    insert_before(op, new)
    _substitute(op, new.results[0])


def _substitute(op: Operation, value: SSAValue) -> None:
    users = [use.operation for use in op.results[0].uses]
    op.results[0].replace_all_uses_with(value)
    erase(op)
    for user in dict.fromkeys(users):
        _simplify(user)


def _simplify(op: Operation) -> None:
    """Replace `op` by what it is, if a constant operand decides that."""
    if op.parent is None:
        return
    numbers = [_constant(o) for o in op.operands]
    if (same := same_as_operand(op, numbers)) is not None:
        _substitute(op, op.operands[same])
    elif isinstance(op, payload.CastOp | tile.BroadcastOp | tile.ConvertLayoutOp) and numbers[0] is not None:
        _moved(op, numbers[0])


def _moved(op: payload.CastOp | tile.BroadcastOp | tile.ConvertLayoutOp, number: float) -> None:
    """A truth value as another type, repeated, or elsewhere."""
    source = element_type(op.operands[0].type)
    if source != IntegerType(1):
        return
    element = element_type(op.results[0].type)
    _replace(op, payload.ConstantOp(abs(number), with_element(op.results[0].type, element)))


def _constant(value: SSAValue) -> float | None:
    return value.owner.scalar if isinstance(value.owner, payload.ConstantOp) else None
