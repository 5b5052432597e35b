"""Calls of command line tools inside of a process, with streams of their own."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable
from typing import Any


def call(
    command: Callable[[list[str]], Any], args: list[str], stdin: bytes, merge: bool = False
) -> tuple[int, bytes, bytes]:
    """Calls the `main` function of a command line tool.

    Args:
        command: the function.
        args: arguments of the command line.
        stdin: content of stdin.
        merge: whether stderr is written to stdout (`2>&1`).

    Returns:
        The exit code, stdout and stderr.
    """
    out_bytes, err_bytes = io.BytesIO(), io.BytesIO()
    out = io.TextIOWrapper(out_bytes, encoding="utf-8", write_through=True)
    err = out if merge else io.TextIOWrapper(err_bytes, encoding="utf-8", write_through=True)
    saved = sys.stdin, sys.stdout, sys.stderr
    sys.stdin, sys.stdout, sys.stderr = io.TextIOWrapper(io.BytesIO(stdin), encoding="utf-8"), out, err
    try:
        code = command(args)
    except SystemExit as stop:
        code = stop.code if isinstance(stop.code, int) else 0 if stop.code is None else 1
    except Exception as error:
        print(f"{type(error).__name__}: {error}", file=err)
        code = 1
    finally:
        sys.stdin, sys.stdout, sys.stderr = saved
        out.flush()
        err.flush()
    return code or 0, out_bytes.getvalue(), err_bytes.getvalue()
