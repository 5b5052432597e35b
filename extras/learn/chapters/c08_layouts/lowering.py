"""Passes from tiles to threads. An exercise names this module, so that they are imported once for all answers."""

from __future__ import annotations

from xdsl.dialects.builtin import ModuleOp

from .....dialects import make_context
from .....passes.pass_manager import run_passes
from .....passes.pipelines import parse_passes

PASSES = parse_passes("tile-to-kernel")


def lowered(program: ModuleOp) -> ModuleOp:
    """Returns a program of tiles at the kernel level.

    Raises:
        CompileError: a layout does not fit. The message has the line and the reason.
    """
    module = program.clone()
    run_passes(make_context(), module, PASSES)
    return module
