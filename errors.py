"""The errors of deplodock: one line for the user, never a bare Python error from inside.

Every error names what was refused: the operator, the argument, and the place (`file:line` or `file:line:col`)
where the user wrote it. Those that the frontend raises also name the call as the user wrote it, a remedy, and the
section of `docs/refusals.md` that explains the kind of refusal.
Nothing here imports torch or xDSL, so any part of the compiler may raise them.
"""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Iterator
from types import TracebackType

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
"""Kind of refusal, which is the anchor of its section in `PAGE` -> the remedy where an error has no better one."""

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

    full_traceback: TracebackType | None = None

    def _render_traceback_(self) -> list[str]:
        """The lines that IPython shows for an error: the sentence, and the user's lines that led to it."""
        frames = [f for f in traceback.extract_tb(self.__traceback__) if not _is_hidden(f.filename)]
        places = [f"  {cell_name(f.filename)}, line {f.lineno}: {(f.line or '').strip()}" for f in frames]
        return [f"{type(self).__name__}: {self}", *places]


def debugging() -> bool:
    """Returns true if errors keep the frames of this package and of PyTorch: `DEPLODOCK_DEBUG` is set."""
    return bool(os.environ.get("DEPLODOCK_DEBUG"))


def presented(error: DeplodockError) -> DeplodockError:
    """Returns an error whose traceback has none but the user's frames, to be raised `from None`.

    The whole traceback is kept as `full_traceback`, and what PyTorch raised as `origin`. Nothing changes if
    `debugging()`.
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
_OURS = tuple(_HERE + name for name in ("backend", "dialects", "frontend", "passes", "tools", "__", "errors"))
_LIBRARIES = tuple(f"{os.sep}{name}{os.sep}" for name in ("torch", "IPython", "ipykernel", "xdsl", "numpy"))


def _is_hidden(file: str) -> bool:
    """Whether a frame is ours, PyTorch's or of what runs a notebook."""
    if file.startswith("<"):
        return not file.startswith(("<stdin>", "<ipython-input-", "<python-input-", "<expression>"))
    of_python = file.startswith(_STANDARD) and "site-packages" not in file
    return of_python or file.startswith(_OURS) or any(name in file for name in _LIBRARIES)


_STANDARD = os.path.dirname(os.path.abspath(os.__file__)) + os.sep


def cell_name(file: str) -> str:
    """Returns a file as IPython calls it: `Cell In[3]` for a cell."""
    shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
    named = getattr(getattr(shell, "compile", None), "format_code_name", lambda name: None)(file)
    return " ".join(named) if named else file


class CompileError(DeplodockError):
    """A program that is refused.

    Args:
        reason: the fault, in one line.
        operator: the offending op (`"aten.add.Tensor"`, `"tensor.reduce"`).
        argument: the name of the argument at fault.
        location: the place, as `file:line[:col]`.
        call: the call as the user wrote it (`"torch.linalg.inv(x)"`), which is printed in place of `operator`.
        kind: the section of `docs/refusals.md`, one of `REMEDIES`.
        remedy: what to do; by default that of the kind.

    `origin` is the exception that PyTorch or Python raised, if there was one, `others` are further errors of the same
    program. `str()` joins the parts in one line:

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
        """The error in one line without its place, for tools that print the place themselves."""
        text = ": ".join(part for part in (self.call or self.operator, self.argument, self.reason) if part)
        return text + self.advice

    @property
    def advice(self) -> str:
        """The remedy and the section that explains the kind of refusal, as the end of a message."""
        remedy = self.remedy or REMEDIES.get(self.kind or "")
        page = f" (see {PAGE}#{self.kind})" if self.kind else ""
        return (f"; {remedy}" if remedy else "") + page

    @property
    def faults(self) -> list[str]:
        """The error and its `others` without advice, one line for each call and reason, with all of its places."""
        places: dict[str, list[str]] = {}
        for one in (self, *self.others):
            text = one.message.removesuffix(one.advice)
            places.setdefault(text, []).extend([one.location] if one.location else [])
        return [f"{_joined(lines)}: {text}" if lines else text for text, lines in places.items()]

    def __str__(self) -> str:
        faults = self.faults
        if len(faults) == 1:
            return faults[0] + self.advice
        return "\n  ".join((f"{len(faults)} calls of the program are refused{self.advice}", *faults))


def _joined(places: list[str]) -> str:
    """Places with the file name once: `model.py:7, 12`."""
    file = places[0].partition(":")[0]
    return ", ".join([places[0], *(p.removeprefix(f"{file}:") for p in dict.fromkeys(places[1:]) if p != places[0])])


class UnsupportedError(CompileError):
    """An operator, or an argument of one, that is understood well enough to be refused by name."""


class CaptureError(CompileError):
    """The Python program could not be turned into the torch dialect."""


class ShapeError(CompileError):
    """Shapes, ranks or data types that do not fit together."""


class BorderError(CompileError):
    """An op that may not appear at the level the program claims to be at; `others` are further ones."""


class ScheduleError(CompileError):
    """A schedule that is inconsistent, or that a pass cannot carry out."""


class TargetError(CompileError):
    """An unknown target, or a program that the target cannot run."""


class AttributeRefusedError(CompileError, AttributeError):
    """An attribute that a compiled program does not have, as `hasattr` asks for it."""


class ExecutionError(CompileError):
    """A program that failed, or gave a different answer, while it was being executed."""


class MissingPackageError(DeplodockError, ImportError):
    """A package that is needed and not installed."""


def missing_package(error: BaseException) -> str | None:
    """Returns what to install for an import that failed, or None for another error or package."""
    if isinstance(error, ModuleNotFoundError) and error.name == "torch":
        return "PyTorch is needed to capture and run programs, and is not installed: pip install torch"
    return None


class PluginError(CompileError):
    """A third-party dialect or pass that cannot be added."""
