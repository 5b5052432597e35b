"""The exceptions of deplodock. Each prints one line for the user.

An error names the operator and the argument that the compiler refuses, and the line of the user's program
(`file:line` or `file:line:col`). Errors of the frontend add the call as the user wrote it, a remedy, and a link to the
section of `docs/refusals.md`:

    model.py:7: torch.linalg.inv(x): the operator is not supported; pass fallback="eager", which leaves it to PyTorch
    (see docs/refusals.md#unsupported-operator)

This module imports neither torch nor xDSL, so that every part of the compiler can raise these errors.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Iterator
from types import TracebackType
from typing import Any

PAGE = "docs/refusals.md"
"""The page of the documentation with a section for every kind of refusal."""

REMEDIES = {
    "unsupported-operator": 'pass fallback="eager", which leaves it to PyTorch',
    "data-dependent-size": "keep the shape fixed with a mask (torch.where), pass the size as a number, or use"
    " torch.compile, which compiles the parts before and after it",
    "data-dependent-branch": "use torch.where or torch.cond, or branch outside of the compiled program",
    "dynamic-sizes": "declare the range for which the program holds (torch.export.Dim), or leave the size fixed",
    "mutation-and-aliasing": "return the new value, or change a copy (x.clone())",
    "devices-and-types": "move or convert the tensor before the call (x.to(...))",
    "python-code": "do this outside of the compiled program, on what it returns",
    "wrong-program": "correct the program; PyTorch itself says the same",
    "wrong-arguments": "call it like the example arguments, or compile again for others",
    "tensor-kinds": "pass a dense tensor (x.to_dense(), x.dequantize(), torch.nn.utils.rnn.pad_sequence)",
    "higher-order-operators": "write the graph argument as plain operators, or call it outside of the compiled program",
    "gradients": 'call it under torch.no_grad(), or use torch.compile(..., backend="deplodock")',
    "targets": "choose another target (`deplodock doctor` lists them)",
}
"""Kind of refusal -> default remedy. The kind is the anchor of a section in `PAGE`."""

_NOT_AT_FAULT = ("xdsl", "torch", "numpy", "click")
"""Packages that deplodock calls. If they raise an error, the fault is in the code that called them."""


def raised_at(error: BaseException) -> str:
    """Returns `file:line` of the code at fault: the innermost frame outside of `_NOT_AT_FAULT` and Python's library.

    Returns "nowhere" if there is no such frame.
    """
    location = "nowhere"
    for frame, line in traceback.walk_tb(error.__traceback__):
        package = str(frame.f_globals.get("__name__", "")).partition(".")[0]
        if package not in _NOT_AT_FAULT and package not in sys.stdlib_module_names:
            location = f"{frame.f_code.co_filename}:{line}"
    return location


def one_line(error: BaseException, most: int = 300) -> str:
    """Returns the type of an error and the first `most` characters of its first line: `OSError: no such file`."""
    line = next((line.strip() for line in str(error).splitlines() if line.strip()), "")
    return f"{type(error).__name__}: {line[:most]}" if line else type(error).__name__


class DeplodockError(Exception):
    """Base class of all errors that deplodock raises on purpose.

    Attributes:
        full_traceback: the traceback before `presented`.
        keeps_frames: whether notebooks show all frames, for `%%deplodock --debug`.
    """

    full_traceback: TracebackType | None = None
    keeps_frames = False

    def _render_traceback_(self) -> list[str]:
        """Returns the lines that IPython shows for the error: the message, then the lines of the user's code.

        With `%xmode Verbose`, `keeps_frames`, or if `debugging()` is true, they are the lines of the whole traceback.
        """
        formatter = getattr(_shell(), "InteractiveTB", None)
        if formatter is not None and (debugging() or self.keeps_frames or formatter.mode == "Verbose"):
            return formatter.structured_traceback(type(self), self, self.full_traceback or self.__traceback__)
        frames = [f for f in traceback.extract_tb(self.__traceback__) if not _is_hidden(f.filename)]
        # IPython runs a magic by such a line, which is not the user's.
        lines = [(f, line) for f in frames if not (line := (f.line or "").strip()).startswith("get_ipython().run_")]
        places = [f"  {cell_name(f.filename)}, line {f.lineno}: {line}" for f, line in lines]
        return [f"{type(self).__name__}: {self}", *places]


def debugging() -> bool:
    """Returns true if tracebacks keep the frames of deplodock and PyTorch (environment variable `DEPLODOCK_DEBUG`)."""
    return bool(os.environ.get("DEPLODOCK_DEBUG"))


def presented(error: DeplodockError) -> DeplodockError:
    """Removes all frames from the traceback of an error except the user's, and returns the error.

    `full_traceback` holds the whole traceback, and `origin` the exception that caused a CompileError. If `debugging()`
    is true, the error stays as it is.
    """
    if debugging():
        return error
    cause = getattr(error, "origin", None) or error.__cause__ or error.__context__
    if isinstance(error, CompileError):
        error.origin = cause
    error.full_traceback = error.full_traceback or error.__traceback__
    shown: TracebackType | None = None
    for at in reversed([*_walk(cause.__traceback__ if cause else None)]):
        if not _is_hidden(at.tb_frame.f_code.co_filename):
            shown = TracebackType(shown, at.tb_frame, at.tb_lasti, at.tb_lineno)
    error.__cause__ = error.__context__ = None
    error.__suppress_context__ = True
    return error.with_traceback(shown)


def _walk(at: TracebackType | None) -> Iterator[TracebackType]:
    while at is not None:
        yield at
        at = at.tb_next


_HERE = os.path.dirname(os.path.abspath(__file__)) + os.sep
_OURS = tuple(_HERE + name for name in ("backend", "dialects", "extras", "frontend", "passes", "tools", "__", "errors"))
_LIBRARIES = tuple(f"{os.sep}{name}{os.sep}" for name in ("torch", "IPython", "ipykernel", "xdsl", "numpy"))


def _is_hidden(file: str) -> bool:
    """Returns true if a frame of this file is hidden: a file of deplodock, PyTorch, Python or IPython."""
    if file.startswith("<"):
        return not file.startswith(("<stdin>", "<ipython-input-", "<python-input-", "<expression>"))
    of_python = file.startswith(_STANDARD) and "site-packages" not in file
    return of_python or file.startswith(_OURS) or any(name in file for name in _LIBRARIES)


_STANDARD = os.path.dirname(os.path.abspath(os.__file__)) + os.sep


def cell_name(file: str) -> str:
    """Returns the name that IPython shows for a file: `Cell In[3]` for a cell of a notebook, else the file itself."""
    named = getattr(getattr(_shell(), "compile", None), "format_code_name", lambda name: None)(file)
    return " ".join(named) if named else file


def _shell() -> Any:
    """Returns the shell of IPython in which this program runs, or None."""
    return sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None


class CompileError(DeplodockError):
    """Error for a program, an option or an argument that the compiler refuses.

    Args:
        reason: the fault, in one line.
        operator: the refused operation (`"aten.add.Tensor"`, `"tensor.reduce"`).
        argument: name of the argument at fault.
        location: `file:line[:col]` of the fault.
        call: the call as the user wrote it (`"torch.linalg.inv(x)"`), printed instead of `operator`.
        kind: section of `docs/refusals.md`, a key of `REMEDIES`.
        remedy: advice to the user; by default the remedy of `kind`.

    Attributes:
        origin: the exception of PyTorch or Python that caused this error, if any.
        others: further errors of the same program.

    `str()` joins the parts in one line:

    >>> str(CompileError("negative stride", operator="aten.slice", argument="step", location="model.py:7"))
    'model.py:7: aten.slice: step: negative stride'
    """

    origin: BaseException | None = None
    others: tuple[CompileError, ...] = ()

    def __init__(
        self,
        reason: str,
        *,
        operator: str | None = None,
        argument: str | None = None,
        location: str | None = None,
        call: str | None = None,
        kind: str | None = None,
        remedy: str | None = None,
    ) -> None:
        super().__init__(reason)
        self.reason = " ".join(reason.split())
        self.operator = operator
        self.argument = argument
        self.location = location
        self.call = call
        self.kind = kind
        self.remedy = remedy

    @property
    def message(self) -> str:
        """The error in one line without its location, for tools that print the location themselves."""
        text = ": ".join(part for part in (self.call or self.operator, self.argument, self.reason) if part)
        return text + self.advice

    @property
    def advice(self) -> str:
        """End of the message: the remedy, and the link to the section of `docs/refusals.md`."""
        remedy = self.remedy or REMEDIES.get(self.kind or "")
        page = f" (see {PAGE}#{self.kind})" if self.kind else ""
        return (f"; {remedy}" if remedy else "") + page

    @property
    def faults(self) -> list[str]:
        """Lines without advice for this error and `others`. Errors with the same text share a line with all
        locations."""
        locations_of: dict[str, list[str]] = {}
        for error in (self, *self.others):
            text = error.message.removesuffix(error.advice)
            locations_of.setdefault(text, []).extend([error.location] if error.location else [])
        return [f"{_joined(locations)}: {text}" if locations else text for text, locations in locations_of.items()]

    def __str__(self) -> str:
        faults = self.faults
        if len(faults) == 1:
            return faults[0] + self.advice
        return "\n  ".join((f"{len(faults)} calls of the program are refused{self.advice}", *faults))


def _joined(locations: list[str]) -> str:
    """Joins different locations and omits the file name where it repeats that of the first: `model.py:7, 12`."""
    first, *others = dict.fromkeys(locations)
    file = first.partition(":")[0]
    return ", ".join([first, *(location.removeprefix(f"{file}:") for location in others)])


class UnsupportedError(CompileError):
    """An operator, or a value of one of its arguments, that the compiler does not support."""


class CaptureError(CompileError):
    """A Python program that cannot be captured as IR of the torch dialect."""


class ShapeError(CompileError):
    """Shapes, ranks or data types that do not match each other or the compiled program."""


class BorderError(CompileError):
    """An operation that is illegal at the level of the program, as `verify-level` reports it.

    The attribute `others` has the errors for further operations.
    """


class ScheduleError(CompileError):
    """A schedule that is inconsistent, or that a pass cannot carry out."""


class TargetError(CompileError):
    """An unknown target, or a program that the target cannot run."""


class AttributeRefusedError(CompileError, AttributeError):
    """An attribute that a compiled program does not have. As an AttributeError it makes `hasattr` false."""


class ExecutionError(CompileError):
    """A program that failed during execution, or that computed a different result."""


class MissingPackageError(DeplodockError, ImportError):
    """A required Python package that is not installed."""


def missing_package(error: BaseException) -> str | None:
    """Returns the message for the user if the error is a failed import of an optional package, else None."""
    return OPTIONAL.get(str(error.name)) if isinstance(error, ModuleNotFoundError) else None


OPTIONAL = {
    "torch": "PyTorch is needed to capture and run programs, and is not installed: pip install torch",
    "jax": "JAX is needed to import its programs, and is not installed: pip install 'deplodock[jax]'",
    "jaxlib": "JAX is needed to import its programs, and is not installed: pip install 'deplodock[jax]'",
    "onnx": "onnx is needed to read ONNX models, and is not installed: pip install 'deplodock[onnx]'",
}
"""Package that may be missing -> the message for the user."""


class PluginError(CompileError):
    """A plugin (an entry point of an installed package) that cannot be found, imported or added."""
