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

from ....dialects import payload
from ....dialects.payload.folding import decided, same_as_operand
from ....dialects.shapes.affine import Form, add, constant
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
    fits = graph.simplifier.fits(form, type.bitwidth)
    return graph.index(form, IntegerType(type.bitwidth), op) if fits else None


def _fold_arithmetic(graph: Graph, op: Operation, operands: tuple[Node, ...]) -> Node | None:
    a, b = _form(operands[0]), _form(operands[1])
    form = None if a is None or b is None else graph.simplifier.computed(op.name, a, b)
    if form is None or operands[0].type == i1:
        return None
    return _index(graph, graph.simplifier.tidy(form), operands[0].type, op)


def _fold_compare(graph: Graph, op: Operation, operands: tuple[Node, ...]) -> Node | None:
    assert isinstance(op, payload.CmpOp)
    a, b = _form(operands[0]), _form(operands[1])
    if a is None or b is None or operands[0].type == i1:
        return None
    bounds = graph.simplifier.interval(graph.simplifier.tidy(add(a, b, -1)))
    if bounds is None:
        return None
    known = decided(op.predicate.data, *bounds)
    return None if known is None else graph.number(known, i1)


def _fold_operand(graph: Graph, op: Operation, operands: tuple[Node, ...]) -> Node | None:
    """One of the operands, where constants among them decide that it is the result."""
    known = [o.number if isinstance(o, Constant) else None for o in operands]
    if (number := same_as_operand(op, known)) is not None:
        return operands[number]
    return operands[1] if isinstance(op, payload.SelectOp) and operands[1] is operands[2] else None


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
    arith.FloorDivSIOp: _fold_arithmetic,
    arith.DivSIOp: _fold_arithmetic,
    arith.RemSIOp: _fold_arithmetic,
    arith.AndIOp: _fold_operand,
    arith.OrIOp: _fold_operand,
    payload.CmpOp: _fold_compare,
    payload.SelectOp: _fold_operand,
    payload.CastOp: _fold_cast,
    payload.AssertOp: _fold_operand,
}
