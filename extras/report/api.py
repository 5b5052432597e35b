"""`report` of compiled functions."""

from __future__ import annotations

from os import PathLike, fspath
from typing import TYPE_CHECKING

from .program import ReportedProgram
from .write import write_page

if TYPE_CHECKING:
    from ...frontend.api import CompiledFunction


def report(function: CompiledFunction, path: str | PathLike[str], check_each: bool = False) -> None:
    """Writes a page about a compiled function.

    Args:
        function: the compiled function.
        path: the file.
        check_each: whether the program is executed after every pass, for a verdict on each.

    Raises:
        CompileError: the file cannot be written.
    """
    write_page(ReportedProgram(function.compilation, check_each=check_each, function=function), fspath(path))
