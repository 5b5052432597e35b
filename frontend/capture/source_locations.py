"""Where in the user's Python something was written."""

from __future__ import annotations

import os
import re
import sys
import sysconfig
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cache
from traceback import FrameSummary, StackSummary, extract_tb
from types import FrameType
from typing import Any
from unittest.mock import patch

import torch
from torch.fx import Node
from torch.fx.proxy import TracerBase

from ...errors import CompileError
from .user_calls import Origin, Written, expression_of, source_text

EXPRESSION = "<expression>"
"""The file name of code that was typed on the command line."""

_FRAME = re.compile(r'File "([^"]+)", line (\d+)')
_SITE = f"{os.sep}site-packages{os.sep}"
_TORCH = os.path.dirname(os.path.abspath(torch.__file__)) + os.sep
_FRONTEND = os.path.dirname(os.path.abspath(__file__)) + os.sep
_DRIVERS = tuple(os.path.join(os.path.dirname(_FRONTEND[:-1]), name) for name in ("api.py", "dynamo.py"))
_TYPED = (EXPRESSION, "<stdin>", "<ipython-input-", "<python-input-")
"""Beginnings of the file names of code that was typed."""
_STANDARD = os.path.abspath(sysconfig.get_paths()["stdlib"]) + os.sep


@cache
def is_users(file: str) -> bool:
    """Whether a source file is the user's: not PyTorch's, not of this frontend, not Python's own library."""
    if file.startswith("<"):
        return file.startswith(_TYPED)
    path = os.path.abspath(file)
    return not path.startswith((_TORCH, _FRONTEND, *_DRIVERS)) and not (
        path.startswith(_STANDARD) and _SITE not in path
    )


def shown(file: str) -> str:
    """`file` as it is best shown: relative to the current directory if it lies inside, a cell by its number."""
    if "ipykernel_" in file or file.startswith("<ipython-input-"):
        shell = sys.modules["IPython"].get_ipython() if "IPython" in sys.modules else None
        named = getattr(getattr(shell, "compile", None), "format_code_name", lambda name: None)(file)
        return " ".join(named) if named else file
    if file.startswith("<"):
        return file
    relative = os.path.relpath(file)
    return file if relative.startswith("..") else relative


def innermost(stack: str | None) -> tuple[str, int] | None:
    """The innermost frame of the user's own in the text of a stack trace, as (file, line)."""
    users = [(m.group(1), int(m.group(2))) for m in _FRAME.finditer(stack or "") if is_users(m.group(1))]
    return (shown(users[-1][0]), users[-1][1]) if users else None


def innermost_of_error(error: BaseException) -> str | None:
    """The innermost frame of the user's own below ours in which `error` or a cause of it was raised, as
    `file:line:col`."""
    frame = frame_of_error(error)
    if frame is None:
        return None
    place = f"{shown(frame.filename)}:{frame.lineno}"
    return place if frame.colno is None else f"{place}:{frame.colno + 1}"


def frame_of_error(error: BaseException) -> FrameSummary | None:
    """The innermost frame of the user's own below ours in which `error` or a cause of it was raised."""
    users = (frames for e in _chain(error) if (frames := _inside(extract_tb(e.__traceback__))))
    return next((frames[-1] for frames in users), None)


def expression_of_error(error: BaseException) -> Written | None:
    """The expression of the user's in which `error` was raised."""
    frame = frame_of_error(error)
    if frame is None or frame.lineno is None:
        return None
    text = source_text(frame.filename, frame.lineno, frame.end_lineno, frame.colno, frame.end_colno)
    return Written(frame.filename, frame.lineno, text or frame.line or "")


def users_call(node: Node) -> str | None:
    """The call of the user's that a node of a graph comes from."""
    return Origin.of(node).call(is_users)


def blame(error: CompileError, node: Node, place: tuple[str, int] | None = None) -> CompileError:
    """`error` with the place and the call of `node`, unless it has its own; `place` is that of a node without one."""
    found = innermost(node.meta.get("stack_trace")) or place
    if error.location is None and found is not None:
        error.location = f"{found[0]}:{found[1]}"
    error.call = error.call or users_call(node)
    return error


@contextmanager
def at_node(node: Node) -> Iterator[None]:
    """Errors inside of the `with` block get the place and the call of `node`."""
    try:
        yield
    except CompileError as error:
        raise blame(error, node) from error.__cause__


def callers_place() -> str | None:
    """`file:line` of the user's frame that called into this package; None if there is none."""
    frame = _users_frame()
    return None if frame is None else f"{shown(frame.f_code.co_filename)}:{frame.f_lineno}"


def _users_frame() -> FrameType | None:
    frame = sys._getframe(1)
    while frame is not None and not is_users(frame.f_code.co_filename):
        frame = frame.f_back
    return frame


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    seen: list[BaseException] = []
    while error is not None and error not in seen:
        yield error
        seen.append(error)
        error = error.__cause__ or error.__context__


def _inside(frames: StackSummary) -> list[FrameSummary]:
    """The user's frames that are called from this frontend, not those that call it."""
    ours = [i for i, f in enumerate(frames) if f.filename.startswith(_FRONTEND)]
    return [f for f in frames[ours[0] if ours else 0 :] if is_users(f.filename)]


def users_frames_in_stack_traces() -> AbstractContextManager[Any]:
    """While it is open, PyTorch's tracers record the user's frames; by themselves only those called `forward`. The
    source line of the innermost one is the expression that it evaluates."""
    if not hasattr(TracerBase, "_filter_traceback_frames"):
        return nullcontext()
    return patch.object(TracerBase, "_filter_traceback_frames", lambda tracer, frames: _recorded(_inside(frames)))


def _recorded(frames: list[FrameSummary]) -> StackSummary:
    frame = _users_frame()
    if frames and frame is not None and (frame.f_code.co_filename, frame.f_lineno) == _position(frames[-1]):
        last, text = frames[-1], expression_of(frame)
        frames[-1] = FrameSummary(last.filename, last.lineno, last.name, lookup_line=False, line=text or last.line)
    return StackSummary.from_list(frames)


def _position(frame: FrameSummary) -> tuple[str, int | None]:
    return frame.filename, frame.lineno
