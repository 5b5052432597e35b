"""Applying patterns: the one way in which passes rewrite a module.

A thin layer over xDSL's walker that does three things the walker does not: ops inserted by a pattern inherit the
location of the op that was matched, an error raised by a pattern arrives as itself (with the place filled in) rather
than wrapped in a printout of the whole module, and dead ops are left alone unless asked for.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NoReturn

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Operation, Region
from xdsl.pattern_rewriter import (
    GreedyRewritePatternApplier,
    PatternRewriter,
    PatternRewriterListener,
    PatternRewriteWalker,
    RewritePattern,
)

from ..dialects.locations import copy_location, location_text
from ..errors import CompileError


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


def rewrite_region(
    region: Region,
    patterns: Sequence[RewritePattern],
    *,
    recursive: bool = False,
    dce: bool = False,
    fold: Context | None = None,
    reverse: bool = False,
    regions_first: bool = False,
) -> bool:
    """`rewrite_module`, restricted to the ops inside `region`."""
    applier = GreedyRewritePatternApplier(list(patterns), fold, folding_enabled=fold is not None, dce_enabled=dce)
    located = _Located(applier)
    listener = PatternRewriterListener(operation_insertion_handler=[located.inserted])
    walker = PatternRewriteWalker(
        located,
        apply_recursively=recursive,
        walk_reverse=reverse,
        walk_regions_first=regions_first,
        listener=listener,
    )
    try:
        return walker.rewrite_region(region)
    except _Escape as escape:
        raise escape.error from None


def rewrite_module(
    module: ModuleOp,
    patterns: Sequence[RewritePattern],
    *,
    recursive: bool = False,
    dce: bool = False,
    fold: Context | None = None,
    reverse: bool = False,
    regions_first: bool = False,
) -> bool:
    """Apply `patterns` to every op of `module`; the first that acts on an op wins. Returns whether anything changed.

    recursive: also visit inserted and modified ops, again and again until nothing changes (a pattern that always
      changes something hangs). The default is one walk, top down, over the ops that were there at the start.
    dce: erase pure ops without users that the walk meets.
    fold: a context; ops with a folder are folded before the patterns see them.
    reverse, regions_first: the order of the walk.

    Inserted ops without a location of their own, and everything inside them, get the location of the matched op.
    A `CompileError` raised by a pattern gets the matched op's name and place if it has none.
    """
    return rewrite_region(
        module.body,
        patterns,
        recursive=recursive,
        dce=dce,
        fold=fold,
        reverse=reverse,
        regions_first=regions_first,
    )
