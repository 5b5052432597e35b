"""Where in the user's Python something was written."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from traceback import extract_tb

import torch

_FRAME = re.compile(r'File "([^"]+)", line (\d+)')
_TORCH = os.path.dirname(os.path.abspath(torch.__file__)) + os.sep
_OURS = os.path.dirname(os.path.abspath(__file__)) + os.sep


def is_users(file: str) -> bool:
    """Whether a source file is neither PyTorch's nor this frontend's, nor made up by PyTorch."""
    if file.startswith("<"):
        return file.startswith("<expression")
    path = os.path.abspath(file)
    return not path.startswith((_TORCH, _OURS)) and os.sep + "torch" + os.sep not in path and "lib/python" not in _head(path)


def _head(path: str) -> str:
    """The part of `path` that says that it is of the standard library: no `site-packages` follows in it."""
    return "" if "site-packages" in path else path


def shown(file: str) -> str:
    """`file` as it is best shown: relative to the current directory if it lies inside."""
    if file.startswith("<"):
        return file
    relative = os.path.relpath(file)
    return file if relative.startswith("..") else relative


def innermost(stack: str | None) -> tuple[str, int] | None:
    """The innermost frame of the user's own in the text of a stack trace, as (file, line)."""
    frames = [(m.group(1), int(m.group(2))) for m in _FRAME.finditer(stack or "")]
    users = [(shown(file), line) for file, line in frames if is_users(file)]
    return users[-1] if users else None


def innermost_of_error(error: BaseException) -> str | None:
    """The innermost frame of the user's own in which `error` or a cause of it was raised, as `file:line`."""
    for e in _chain(error):
        users = [f for f in extract_tb(e.__traceback__) if is_users(f.filename)]
        if users:
            return f"{shown(users[-1].filename)}:{users[-1].lineno}"
    return None


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    seen: list[BaseException] = []
    while error is not None and error not in seen:
        yield error
        seen.append(error)
        error = error.__cause__ or error.__context__
