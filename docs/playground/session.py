"""Python side of the playground: compiles a text of IR below the torch level, and returns data for the page.

The page calls `facts` once and `respond` for each compilation. Both return JSON. This module and its imports need
xDSL, NumPy and Pygments. They need neither PyTorch nor ml_dtypes, threads or processes.
"""

from __future__ import annotations

import json
import platform
import re
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

import numpy as np
from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.utils.exceptions import DiagnosticException

from deplodock import __version__
from deplodock.backend.cpp.writer import HELPERS_MARK, HOST_MARK, KERNELS_MARK
from deplodock.dialects import LEVELS, make_context
from deplodock.dialects.support.parsing import parse_module
from deplodock.dialects.support.printing import WIDTH, print_module
from deplodock.errors import BorderError, CompileError, DeplodockError, UnsupportedError, one_line, raised_at
from deplodock.extras.report.html import highlighted, joined
from deplodock.frontend.pipeline_steps import Steps, default_steps, scheduled_steps
from deplodock.passes.pass_manager import collect_remarks, diff_lines, run_passes, verify_module
from deplodock.passes.verify_level import Level, border_violations, level_of
from deplodock.progress import Step, listen
from deplodock.target.architectures import CPU, DEFAULT, TARGETS
from deplodock.target.attribute import get_target, on_cores, set_target, stamp_comment
from deplodock.tools.recording import PassRun, Recording

FILE = "program.mlir"
"""Name of the text in error messages."""

MAX_FLOPS = 40_000_000
"""Limit of float operations of a program that is executed after each pass. Python in a browser is about a tenth as
fast as on the machine itself."""

LONGEST_DIFF = 400
"""Lines of a diff that are sent to the page."""

SHOWN_LEVELS: tuple[Level, ...] = ("tensor", "loop", "tile", "kernel")
"""Levels of IR that the page shows. The torch level needs PyTorch."""

Report = Callable[[str, int, int], object]
"""Function called with the name of a running pass, the passes that are done, and the number of passes to the level."""


@dataclass(frozen=True)
class Request:
    """A compilation that the page requests.

    Attributes:
        text: program at the tensor, loop, tile or kernel level.
        target: name of the target.
        level: level to show: one of `SHOWN_LEVELS`, or `text` for CUDA or C++.
        schedule: text that replaces the planner's choice, as for `deplodock compile --schedule`; empty for none.
        check: whether to execute the program after each pass.
    """

    text: str
    target: str = DEFAULT
    level: str = "text"
    schedule: str = ""
    check: bool = False


def facts() -> str:
    """Returns the targets, the levels and the versions of the packages as JSON."""
    targets = [{"name": name, "card": record.card} for name, record in {**TARGETS, CPU.name: CPU}.items()]
    versions = {"deplodock": __version__, "xDSL": version("xdsl"), "NumPy": np.__version__}
    data = {"targets": targets, "default": DEFAULT, "levels": SHOWN_LEVELS}
    return json.dumps({**data, "versions": {**versions, "Python": platform.python_version()}})


def respond(request: str, report: Report | None = None) -> str:
    """Compiles a program.

    Args:
        request: fields of a `Request` as JSON.
        report: receives the progress.

    Returns:
        JSON with these keys:

        - `passes`: the passes that ran, in order (`_pass_data`);
        - `summary`: a sentence about the executions after each pass, or an empty text;
        - `seconds`: time of the compilation;
        - `result`: the text of the level (`_result`), or None after an error;
        - `errors`: the errors (`_error_data`), empty if there are none.
    """
    start = time.perf_counter()
    asked = Request(**json.loads(request))
    recording = Recording(asked.check, MAX_FLOPS)
    data: dict[str, Any] = {"result": None, "errors": []}
    try:
        with _progress(report or (lambda name, done, total: None)):
            data["result"] = _compiled(asked, recording)
    except CompileError as error:
        recording.fail(error)
        data["errors"] = [_error_data(e) for e in (error, *error.others)]
    except Exception as error:
        running = f" in pass {recording.passes[-1].name!r}" if recording.passes else ""
        data["errors"] = [_error(f"internal error{running}: {one_line(error)} at {raised_at(error)}", None)]
    data["passes"] = [_pass_data(run) for run in recording.passes if not run.skipped]
    return json.dumps({**data, "summary": recording.summary, "seconds": time.perf_counter() - start})


def _compiled(request: Request, recording: Recording) -> dict[str, Any]:
    """Lowers the program to the level of the request, and returns the text of the level (`_result`)."""
    context = make_context()
    if not re.sub(r"//.*", "", request.text).strip():
        raise CompileError("the text is empty: write a function, or choose an example", location=f"{FILE}:1")
    module = parse_module(context, request.text, FILE)
    verify_module(module)
    first = _level_of(module)
    set_target(module, get_target(request.target))
    last = "kernel" if request.level == "text" else request.level
    if last not in SHOWN_LEVELS:
        raise CompileError(f"expected one of {', '.join(SHOWN_LEVELS)}, text, but got {last!r}", argument="level")
    if LEVELS.index(last) < LEVELS.index(first):
        raise CompileError(f"the program begins at the {first} level, below the {last} level; choose a lower level")
    steps = _steps(request.schedule, LEVELS[LEVELS.index(first) + 1 : LEVELS.index(last) + 1])
    _lower(context, module, steps, recording)
    if request.level != "text":
        return _result(print_module(module, width=WIDTH), "mlir")
    if on_cores(request.target):
        from deplodock.backend.cpu.printer import print_cpp

        return _result(stamp_comment(module) + print_cpp(module), "cpp")
    from deplodock.backend.cuda.printer import print_cuda

    return _result(stamp_comment(module) + print_cuda(module), "cpp")


def _level_of(module: ModuleOp) -> str:
    """Returns the level of a program.

    Raises:
        UnsupportedError: the program is at the torch level.
        BorderError: the first operation that is not legal at the level of most other operations.
    """
    try:
        level = level_of(module)
    except BorderError as error:
        faults = [[*border_violations(module, level)] for level in SHOWN_LEVELS]
        raise min(faults, key=len)[0] from error
    if level not in SHOWN_LEVELS:
        raise UnsupportedError(
            "the torch level needs PyTorch, which is not in the browser; paste the output of"
            " `deplodock compile --ir tensor`",
            location=f"{FILE}:1",
        )
    return level


def _steps(schedule: str, levels: Sequence[str]) -> Steps:
    """Returns the passes to each level. A schedule has no effect above the tile level, where it is only checked."""
    if not schedule.strip():
        return default_steps(levels, {}, ())
    steps = scheduled_steps(schedule, {}, SHOWN_LEVELS[1:], ())
    return {level: steps[level] for level in levels}


def _lower(context: Context, module: ModuleOp, steps: Steps, recording: Recording) -> None:
    for level, passes in steps.items():
        recording.level = level
        try:
            with collect_remarks():
                run_passes(context, module, passes, [recording])
        except DiagnosticException as error:
            raise CompileError(one_line(error)) from error


def _result(text: str, language: str) -> dict[str, Any]:
    """Returns a text with its sections as HTML.

    Args:
        text: text of a level.
        language: `mlir` or `cpp`.

    Returns:
        a dict with `text`, and `sections`: the HTML of each section with its title, its number of lines, and whether
        the page folds it.
    """
    parts = [("", text)]
    if HELPERS_MARK in text:
        head, _, after_head = text.partition(HELPERS_MARK)
        helpers, _, after_helpers = after_head.partition(KERNELS_MARK)
        kernels, _, host = after_helpers.partition(HOST_MARK)
        parts = [("", head), ("helper functions", helpers), ("", kernels), ("host program", host)]
    sections = [
        {
            "title": title,
            "folded": bool(title),
            "lines": part.strip("\n").count("\n") + 1,
            "html": joined(highlighted(part.strip("\n") + "\n", language), "\n"),
        }
        for title, part in parts
        if part.strip()
    ]
    return {"text": text, "sections": sections}


def _pass_data(run: PassRun) -> dict[str, Any]:
    """Returns a pass for the page: its effect, the diff of the text, remarks and the verdict of its execution."""
    before, after = run.before.splitlines(), run.after.splitlines()
    diff = [*diff_lines(before, after, 2)] if run.before != run.after else []
    return {
        **{key: getattr(run, key) for key in ("name", "level", "state", "seconds", "verdict", "precision", "wrong")},
        "operations": [run.ops_before, run.ops_after],
        "diff": diff[:LONGEST_DIFF],
        "omitted": max(0, len(diff) - LONGEST_DIFF),
        "remarks": [f"{remark.operator}: {remark.why}" for remark in run.remarks],
    }


def _error_data(error: DeplodockError) -> dict[str, Any]:
    """Returns an error as a line of text, with its line and column in the program if they are known."""
    if not isinstance(error, CompileError):
        return _error(str(error), None)
    return _error(error.message, error.location)


def _error(message: str, location: str | None) -> dict[str, Any]:
    file, *position = (location or "").rsplit(":", location.count(":")) if location else ("",)
    numbers = [int(part) for part in position if part.isdigit()] if file == FILE else []
    line, column = (*numbers, None, None)[:2]
    return {
        "message": f"{location}: error: {message}" if location else f"error: {message}",
        "line": line,
        "column": column,
    }


@contextmanager
def _progress(report: Report) -> Generator[None]:
    """Reports the passes that run inside the `with` block."""

    @contextmanager
    def task(title: str, total: int | None, unit: str) -> Generator[Step]:
        done = 0

        def step(count: int = 1, detail: str = "") -> None:
            nonlocal done
            done += count
            if title == "pass":
                report(detail, done, total or 0)

        yield step

    with listen(task):
        yield
