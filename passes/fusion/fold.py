"""Folding of what follows from the ranges of the variables: index arithmetic, comparisons of indices, selections.

An `iota` that went through views and integer arithmetic stays an index expression, a comparison of it that always has
the same outcome is a constant, and a selection by a constant is one of its sides. So the mask of a `cat` or a `tril`
disappears wherever the piece is known, and a gather by an `arange` is an ordinary read.
"""

from __future__ import annotations

from collections.abc import Callable

from xdsl.dialects import arith
from xdsl.dialects.builtin import IntegerType, i1
from xdsl.ir import Attribute, Operation

from ...dialects import payload
from ...dialects.payload import Predicate
from ..index_simplify import Form, add, constant, scale
from .graph import Constant, Graph, Index, Node


def payload_node(graph: Graph, op: Operation, operands: tuple[Node, ...]) -> Node:
    """The payload op `op` on `operands`, or what it folds to."""
    folder = _FOLDERS.get(type(op))
    folded = folder(graph, op, operands) if folder is not None else None
    return folded if folded is not None else graph.payload(op, operands)


def _form(node: Node) -> Form | None:
    if isinstance(node, Index):
        return node.form
    if isinstance(node, Constant) and isinstance(node.type, IntegerType):
        return constant(int(node.number))
    return None


def _index(graph: Graph, form: Form, type: Attribute, op: Operation) -> Node | None:
    """`form` as a value of `type`, if it is known not to overflow."""
    if not isinstance(type, IntegerType) or type == i1:
        return None
    half = 1 << (type.bitwidth - 1)
    return graph.index(form, IntegerType(type.bitwidth), op) if graph.simplifier.within(form, -half, half) else None


def _fold_arithmetic(graph: Graph, op: Operation, operands: tuple[Node, ...]) -> Node | None:
    a, b = _form(operands[0]), _form(operands[1])
    if a is None or b is None or operands[0].type == i1:
        return None
    if isinstance(op, arith.MuliOp):
        if not b.is_constant:
            a, b = b, a
        return _index(graph, scale(a, b.constant), operands[0].type, op) if b.is_constant else None
    form = add(a, b, -1 if isinstance(op, arith.SubiOp) else 1)
    return _index(graph, graph.simplifier.tidy(form), operands[0].type, op)


def _fold_division(graph: Graph, op: Operation, operands: tuple[Node, ...]) -> Node | None:
    a, b = _form(operands[0]), _form(operands[1])
    if a is None or b is None or not b.is_constant or b.constant <= 0:
        return None
    bounds = graph.simplifier.interval(a)
    truncates = not isinstance(op, arith.FloorDivSIOp)
    if truncates and (bounds is None or bounds[0] < 0):
        return None  # toward zero, where a form divides downward
    remainder = isinstance(op, arith.RemSIOp)
    form = graph.simplifier.mod(a, b.constant) if remainder else graph.simplifier.floordiv(a, b.constant)
    return _index(graph, form, operands[0].type, op)


def _fold_compare(graph: Graph, op: Operation, operands: tuple[Node, ...]) -> Node | None:
    assert isinstance(op, payload.CmpOp)
    a, b = _form(operands[0]), _form(operands[1])
    if a is None or b is None or operands[0].type == i1:
        return None
    bounds = graph.simplifier.interval(graph.simplifier.tidy(add(a, b, -1)))
    if bounds is None:
        return None
    lo, hi = bounds
    always, never = {
        Predicate.LT: (hi < 0, lo >= 0),
        Predicate.LE: (hi <= 0, lo > 0),
        Predicate.GT: (lo > 0, hi <= 0),
        Predicate.GE: (lo >= 0, hi < 0),
        Predicate.EQ: (lo == hi == 0, lo > 0 or hi < 0),
        Predicate.NE: (lo > 0 or hi < 0, lo == hi == 0),
    }[op.predicate.data]
    return graph.number(always, i1) if always or never else None


def _fold_select(graph: Graph, op: Operation, operands: tuple[Node, ...]) -> Node | None:
    condition, yes, no = operands
    if isinstance(condition, Constant):
        return yes if condition.number else no
    return yes if yes is no else None


def _fold_assert(graph: Graph, op: Operation, operands: tuple[Node, ...]) -> Node | None:
    value, condition = operands
    return value if isinstance(condition, Constant) and condition.number else None


def _fold_logic(graph: Graph, op: Operation, operands: tuple[Node, ...]) -> Node | None:
    if operands[0].type != i1:
        return None
    for known, other in (operands, operands[::-1]):
        if isinstance(known, Constant):
            if isinstance(op, arith.AndIOp):
                return other if known.number else known
            return known if known.number else other
    return None


def _fold_cast(graph: Graph, op: Operation, operands: tuple[Node, ...]) -> Node | None:
    (operand,) = operands
    type = payload.element_type(op.results[0].type)
    if operand.type == type:
        return operand
    return _index(graph, operand.form, type, op) if isinstance(operand, Index) else None


_FOLDERS: dict[type[Operation], Callable[[Graph, Operation, tuple[Node, ...]], Node | None]] = {
    arith.AddiOp: _fold_arithmetic,
    arith.SubiOp: _fold_arithmetic,
    arith.MuliOp: _fold_arithmetic,
    arith.FloorDivSIOp: _fold_division,
    arith.DivSIOp: _fold_division,
    arith.RemSIOp: _fold_division,
    arith.AndIOp: _fold_logic,
    arith.OrIOp: _fold_logic,
    payload.CmpOp: _fold_compare,
    payload.SelectOp: _fold_select,
    payload.CastOp: _fold_cast,
    payload.AssertOp: _fold_assert,
}
