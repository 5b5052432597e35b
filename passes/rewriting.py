"""Rewriting a module: patterns, and the few edits of which every other rewrite is made.

Edits (`insert_before`, `insert_after`, `replace`, `erase`, `retype`) give new ops the location of the op that they are
made for, and new results the name of what they replace.

Patterns are those of xDSL, but not its walker: ops inserted by a pattern inherit the location of the op that was
matched, an error arrives as itself rather than wrapped in a printout of the whole module, and dead ops are left alone.
"""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.dialects.builtin import DenseArrayBase, ModuleOp, i32
from xdsl.ir import Attribute, Block, Operation, SSAValue
from xdsl.irdl import AttrSizedOperandSegments, IRDLOperation
from xdsl.pattern_rewriter import PatternRewriter, RewritePattern

from ..dialects.support.locations import blamed, copy_location


def block_of(op: Operation) -> Block:
    assert op.parent is not None, op
    return op.parent


def insert_before(anchor: Operation, *ops: Operation, source: Operation | None = None) -> None:
    """Put `ops` in front of `anchor`, with the location of `source`, or of `anchor`."""
    copy_location(source or anchor, ops)
    block_of(anchor).insert_ops_before(ops, anchor)


def insert_after(anchor: Operation, *ops: Operation, source: Operation | None = None) -> None:
    """Put `ops` behind `anchor`, with the location of `source`, or of `anchor`."""
    copy_location(source or anchor, ops)
    block_of(anchor).insert_ops_after(ops, anchor)


def insert_at_start(block: Block, *ops: Operation, source: Operation | None = None) -> None:
    """Put `ops` in front of all others of `block`, which is not empty."""
    assert block.first_op is not None
    insert_before(block.first_op, *ops, source=source)


def replace(op: Operation, *ops: Operation, results: Sequence[SSAValue] | None = None) -> None:
    """Put `ops` in the place of `op`; its uses are those of `results`, or of the results of the last of `ops`."""
    insert_before(op, *ops)
    for old, new in zip(op.results, ops[-1].results if results is None else results, strict=True):
        new.name_hint = new.name_hint or old.name_hint
        old.replace_all_uses_with(new)
    erase(op)


def move_before(anchor: Operation, op: Operation) -> None:
    op.detach()
    block_of(anchor).insert_op_before(op, anchor)


def erase(*ops: Operation) -> None:
    """Erase `ops`, whose results nobody uses."""
    for op in ops:
        op.detach()
        op.erase()


def retype(value: SSAValue, type: Attribute) -> None:
    value._type = type  # pyright: ignore[reportPrivateUsage, reportAttributeAccessIssue]


def rewrite_module(module: ModuleOp, patterns: Sequence[RewritePattern]) -> bool:
    """Applies `patterns` to every op of a module, once; the first that acts on an op wins.

    Inserted ops, and what is inside them, get the location of the matched op. Returns true if anything changed.
    """
    changed = False
    for op in [*module.body.walk()]:
        if op.parent is None:  # it was erased with another one
            continue
        rewriter = PatternRewriter(op)
        rewriter.operation_insertion_handler.append(lambda new, op=op: copy_location(op, (new,)))
        with blamed(op):
            for pattern in patterns:
                pattern.match_and_rewrite(op, rewriter)
                if rewriter.has_done_action:
                    break
        changed |= rewriter.has_done_action
    return changed


def set_fields(op: IRDLOperation, **fields: Attribute | SSAValue | Sequence[SSAValue] | None) -> None:
    """Set operands and properties of `op`: an attribute for a property, a value or a sequence of values for an operand;
    None removes an optional one. Everything else stays. Raises ValueError for a name that the operation does not have.
    """
    definition = op.get_irdl_definition()
    names = [name for name, _ in definition.operands]
    if unknown := fields.keys() - {*names, *definition.properties}:
        raise ValueError(f"{op.name} has no operand or property {unknown.pop()!r}")
    groups: list[tuple[SSAValue, ...]] = []
    for name in names:
        value: SSAValue | Sequence[SSAValue] | None = fields.get(name, getattr(op, name))  # pyright: ignore
        groups.append(() if value is None else (value,) if isinstance(value, SSAValue) else tuple(value))
    op.operands = [value for group in groups for value in group]
    if AttrSizedOperandSegments(as_property=True) in definition.options:
        op.properties["operandSegmentSizes"] = DenseArrayBase.from_list(i32, [len(g) for g in groups])
    for name in definition.properties.keys() & fields.keys():
        if isinstance(attribute := fields[name], Attribute):
            op.properties[name] = attribute
        else:
            op.properties.pop(name, None)
