"""Rewriting a module: patterns, and the few edits of which every other rewrite is made.

Edits (`insert_before`, `insert_after`, `replace`, `erase`, `retype`) give new ops the location of the op that they are
made for, and new results the name of what they replace.

Patterns are applied by a thin layer over xDSL's walker that does three things the walker does not: ops inserted by a
pattern inherit the location of the op that was matched, an error raised by a pattern arrives as itself (with the place
filled in) rather than wrapped in a printout of the whole module, and dead ops are left alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NoReturn

from xdsl.dialects.builtin import DenseArrayBase, ModuleOp, i32
from xdsl.ir import Attribute, Block, Operation, Region, SSAValue
from xdsl.irdl import AttrSizedOperandSegments, IRDLOperation
from xdsl.pattern_rewriter import (
    GreedyRewritePatternApplier,
    PatternRewriter,
    PatternRewriterListener,
    PatternRewriteWalker,
    RewritePattern,
)

from ..dialects.support.locations import copy_location, location_text
from ..errors import CompileError


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


class _Escape(BaseException):
    """Carries an error past the walker, which would catch any `Exception` and print the module into it."""

    def __init__(self, error: Exception) -> None:
        super().__init__()
        self.error = error


@dataclass
class _Located(RewritePattern):
    """Remembers which op is being matched, for the locations of what it becomes and of errors."""

    inner: RewritePattern
    current: Operation | None = field(default=None, init=False)

    def match_and_rewrite(self, op: Operation, rewriter: PatternRewriter, /) -> None:
        self.current = op
        try:
            self.inner.match_and_rewrite(op, rewriter)
        except Exception as error:
            _escape(error, op)

    def inserted(self, op: Operation) -> None:
        """Listener: `op` was inserted while `current` was being rewritten."""
        if self.current is not None:
            copy_location(self.current, (op,))


def _escape(error: Exception, op: Operation) -> NoReturn:
    place = location_text(op)
    if isinstance(error, CompileError):
        error.operator = error.operator or op.name
        error.location = error.location or place
    else:
        error.add_note(f"while rewriting {op.name}" + (f" at {place}" if place else ""))
    raise _Escape(error) from error


def rewrite_region(region: Region, patterns: Sequence[RewritePattern], *, regions_first: bool = False) -> bool:
    """Apply `patterns` to every op inside `region`, once, top down; the first that acts on an op wins. Returns whether
    anything changed.

    With `regions_first` an op comes after those inside of it. Inserted ops without a location of their own, and
    everything inside them, get the location of the matched op. A `CompileError` raised by a pattern gets the matched
    op's name and place if it has none.
    """
    located = _Located(GreedyRewritePatternApplier(list(patterns), dce_enabled=False))
    listener = PatternRewriterListener(operation_insertion_handler=[located.inserted])
    walker = PatternRewriteWalker(located, apply_recursively=False, walk_regions_first=regions_first, listener=listener)
    try:
        return walker.rewrite_region(region)
    except _Escape as escape:
        raise escape.error from None


def rewrite_module(module: ModuleOp, patterns: Sequence[RewritePattern]) -> bool:
    return rewrite_region(module.body, patterns)


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
