"""The errors of deplodock: one line for the user, never a bare Python error from inside.

Every error names what was refused: the operator, the argument, and the place (`file:line` or `file:line:col`)
where the user wrote it. Nothing here imports torch or xDSL, so any part of the compiler may raise them.
"""

from __future__ import annotations

import sys
import traceback

_NOT_AT_FAULT = ("xdsl", "torch", "numpy", "click")
"""Packages that raise what others did wrong."""


def raised_at(error: BaseException) -> str:
    """`file:line` of the code at fault for an exception: the innermost that is in no library below us."""
    found = "nowhere"
    for frame, line in traceback.walk_tb(error.__traceback__):
        package = str(frame.f_globals.get("__name__", "")).partition(".")[0]
        if package not in _NOT_AT_FAULT and package not in sys.stdlib_module_names:
            found = f"{frame.f_code.co_filename}:{line}"
    return found


def one_line(error: BaseException, most: int = 300) -> str:
    """The type of an error and at most so many characters of the first line that it says: `OSError: no such file`."""
    line = next((line.strip() for line in str(error).splitlines() if line.strip()), "")
    return f"{type(error).__name__}: {line[:most]}" if line else type(error).__name__


class DeplodockError(Exception):
    """Base of everything deplodock raises on purpose."""


class CompileError(DeplodockError):
    """A program that is refused.

    `reason` says what is wrong; `operator` is the offending op (`"aten.add.Tensor"`, `"tensor.reduce"`), `argument` the
    name of the argument at fault and `location` the place as `file:line[:col]`. `str()` joins them in one line:

    >>> str(CompileError("negative stride", operator="aten.slice", argument="step", location="model.py:7"))
    'model.py:7: aten.slice: step: negative stride'
    """

    def __init__(
        self,
        reason: str,
        *,
        operator: str | None = None,
        argument: str | None = None,
        location: str | None = None,
    ) -> None:
        super().__init__(reason)
        self.reason = " ".join(reason.split())
        self.operator = operator
        self.argument = argument
        self.location = location

    @property
    def message(self) -> str:
        """The error in one line without its place, for tools that print the place themselves."""
        return ": ".join(part for part in (self.operator, self.argument, self.reason) if part)

    def __str__(self) -> str:
        return f"{self.location}: {self.message}" if self.location else self.message


class UnsupportedError(CompileError):
    """An operator, or an argument of one, that is understood well enough to be refused by name."""


class CaptureError(CompileError):
    """The Python program could not be turned into the torch dialect."""


class ShapeError(CompileError):
    """Shapes, ranks or data types that do not fit together."""


class BorderError(CompileError):
    """An op that may not appear at the level the program claims to be at; `others` are further ones."""

    others: tuple[BorderError, ...] = ()


class ScheduleError(CompileError):
    """A schedule that is inconsistent, or that a pass cannot carry out."""


class TargetError(CompileError):
    """An unknown target, or a program that the target cannot run."""


class ExecutionError(CompileError):
    """A program that failed, or gave a different answer, while it was being executed."""


class PluginError(CompileError):
    """A third-party dialect or pass that cannot be added."""
