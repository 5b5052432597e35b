"""Where in the user's Python something was written."""

from __future__ import annotations

import os
import re
import sysconfig
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from traceback import FrameSummary, StackSummary, extract_tb
from typing import Any
from unittest.mock import patch

import torch
from torch.fx.proxy import TracerBase

EXPRESSION = "<expression>"
"""The file name of code that was typed on the command line."""

_FRAME = re.compile(r'File "([^"]+)", line (\d+)')
_SITE = f"{os.sep}site-packages{os.sep}"
_TORCH = os.path.dirname(os.path.abspath(torch.__file__)) + os.sep
_FRONTEND = os.path.dirname(os.path.abspath(__file__)) + os.sep
_STANDARD = os.path.abspath(sysconfig.get_paths()["stdlib"]) + os.sep


@cache
def is_users(file: str) -> bool:
    """Whether a source file is the user's: not PyTorch's, not of this frontend, not Python's own library."""
    if file.startswith("<"):
        return file == EXPRESSION
    path = os.path.abspath(file)
    return not path.startswith((_TORCH, _FRONTEND)) and not (path.startswith(_STANDARD) and _SITE not in path)


def shown(file: str) -> str:
    """`file` as it is best shown: relative to the current directory if it lies inside."""
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
    for e in _chain(error):
        users = _inside(extract_tb(e.__traceback__))
        if users:
            place = f"{shown(users[-1].filename)}:{users[-1].lineno}"
            return place if users[-1].colno is None else f"{place}:{users[-1].colno + 1}"
    return None


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
    """While it is open, PyTorch's tracers record the user's frames; by themselves only those called `forward`."""
    if not hasattr(TracerBase, "_filter_traceback_frames"):
        return nullcontext()
    return patch.object(
        TracerBase, "_filter_traceback_frames", lambda tracer, frames: StackSummary.from_list(_inside(frames))
    )
