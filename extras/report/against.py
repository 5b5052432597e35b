"""Section "Against": two runs side by side, by `--report-against OTHER`: times, parts, and the diff of the texts.

OTHER is a page of `--report`, which contains the record of its run as JSON, or the output of `compile --json`.
"""

from __future__ import annotations

import json
import math
import re
import zlib
from base64 import b64decode, b64encode
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from difflib import unified_diff
from pathlib import Path
from typing import Any

from ...backend.cpp.writer import fold_sections
from ...errors import CompileError
from ...tools.tables import seconds
from .html import Html, element, joined, table
from .parts import bar, legend, shown_parts
from .program import ReportedProgram
from .sections import Section

OPTION = "--report-against"

MOST_BYTES = 64 << 20
"""Bytes of the largest text of another run that is read."""

MOST_DIFF = 600
"""Largest number of lines of the diff that the page shows."""

_DATA = re.compile(r'<script type="application/json" id="data">(.*?)</script>', re.DOTALL)


@dataclass(frozen=True)
class RecordedKernel:
    """Kernel of a recorded run.

    Attributes:
        name: its name.
        launches: launches in one call.
        seconds: time of all launches of a call.
        limit: resource that limits it; empty if the record has none.
        schedules: schedules of its nests.
        parts: parts of the predicted time of a launch, by cause.
    """

    name: str
    launches: int
    seconds: float
    limit: str = ""
    schedules: tuple[str, ...] = ()
    parts: dict[str, float] = field(default_factory=dict[str, float])


@dataclass(frozen=True)
class RecordedRun:
    """A run that another page is compared with.

    Attributes:
        title: the program.
        command: command line, or empty.
        target: name of the target.
        source: how the times were obtained.
        kernels: the kernels.
        text: CUDA or C++, without helper functions.
    """

    title: str
    command: str
    target: str
    source: str
    kernels: tuple[RecordedKernel, ...]
    text: str

    @property
    def seconds(self) -> float:
        """Time of all kernels of a call."""
        return sum(k.seconds for k in self.kernels)


def section(program: ReportedProgram) -> Section | None:
    """Returns the section, or None without another run.

    Raises:
        CompileError: the other run cannot be read.
    """
    if not program.against:
        return None
    other = read_run(program.against)
    run = run_of(program)
    if run is None:
        reason = (
            "expected a program that is compiled to kernels, but the compiler refused it; there is nothing to compare"
        )
        return Section("against", "Against", element("p", reason, class_="note"))
    body = [
        _heads(run, other, program.against),
        _kernels(run, other),
        legend(),
        element("h3", "Text"),
        _diff(run, other),
    ]
    return Section("against", "Against", joined(body))


def run_of(program: ReportedProgram) -> RecordedRun | None:
    """Returns the record of a program's run for its page, or None if the program has no kernels."""
    if not program.is_complete or program.profile is None:
        return None
    costs = {c.name: c for c in program.profile.costs}
    kernels = tuple(
        RecordedKernel(k.name, k.launches, c.seconds, c.limit, k.schedules, shown_parts(k.parts))
        for k in program.kernels
        if (c := costs.get(k.name)) is not None
    )
    text = fold_sections(program.texts[program.levels[-1]])
    target = program.compilation.target
    return RecordedRun(program.title, program.command, target, program.profile.source, kernels, text)


def recorded(program: ReportedProgram) -> dict[str, Any] | None:
    """Returns the record of a program's run as data of its page, or None if the program has no kernels."""
    run = run_of(program)
    if run is None:
        return None
    packed = b64encode(zlib.compress(run.text.encode(), 9)).decode()
    return {**asdict(run), "text": "", "zlib": packed}


def read_run(path: str) -> RecordedRun:
    """Returns the run of another page, or of the output of `compile --json`.

    Raises:
        CompileError: the file cannot be read, or has no run.
    """
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is no text in UTF-8"
        raise CompileError(f"cannot read {path}: {reason}", argument=OPTION) from None
    page = _DATA.search(text)
    try:
        data = json.loads(page[1] if page is not None else text)
        run = data.get("run") if page is not None else _of_json(data)
        return _checked(run)
    except (ValueError, TypeError, KeyError, AttributeError, zlib.error):
        reason = f"expected a page of --report or the output of `compile --json`, but got {path} without a run;"
        reason += " write it again with `deplodock compile ... --report FILE.html`"
        raise CompileError(reason, argument=OPTION) from None


def _of_json(data: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the output of `compile --json` as the data of a run."""
    kernels = [
        {"name": k["name"], "launches": k["launches"], "seconds": k["launches"] * k["predicted_seconds"]}
        for k in data["kernels"]
    ]
    text = fold_sections(data["text"]) if data["level"] in ("cuda", "cpp") else data["text"]
    facts = {"title": "", "command": "", "target": data["target"], "source": "predicted by the planning model"}
    return {**facts, "kernels": kernels, "text": text}


def _checked(data: Mapping[str, Any]) -> RecordedRun:
    """Returns data as a run. Raises ValueError, TypeError or KeyError for other data."""
    kernels = list[RecordedKernel]()
    for k in data["kernels"]:
        kernel = RecordedKernel(**{**k, "schedules": tuple(map(str, k.get("schedules", ())))})
        parts = {str(name): float(s) for name, s in kernel.parts.items()}
        if not all(map(math.isfinite, (kernel.seconds, *parts.values()))):
            raise ValueError
        kernels.append(
            RecordedKernel(
                str(kernel.name),
                int(kernel.launches),
                float(kernel.seconds),
                str(kernel.limit),
                kernel.schedules,
                parts,
            )
        )
    title, command, target, source, text = (
        str(data[name]) for name in ("title", "command", "target", "source", "text")
    )
    if packed := data.get("zlib"):
        text = zlib.decompressobj().decompress(b64decode(packed, validate=True), MOST_BYTES).decode()
    return RecordedRun(title, command, target, source, tuple(kernels), text)


def ratio_text(time: float, other: float) -> str:
    """Returns the comparison of a time with another one, in seconds: `1.25 times as fast`, `equal`."""
    if not time or not other:
        return ""
    if abs(time - other) <= 1e-9 * other:
        return "equal"
    return f"{other / time:.2f} times as fast" if time < other else f"{time / other:.2f} times as long"


def _heads(run: RecordedRun, other: RecordedRun, path: str) -> Html:
    """Returns the facts of both runs. `path`: file of the other run."""
    rows = [
        ["program", run.title, other.title or Path(path).name],
        ["target", run.target, other.target],
        ["times", run.source, other.source],
        ["kernels", len(run.kernels), len(other.kernels)],
        [
            "time of all kernels",
            f"{seconds(run.seconds)}, {ratio_text(run.seconds, other.seconds)}",
            seconds(other.seconds),
        ],
        ["command", element("code", run.command), element("code", other.command)],
    ]
    return table(["", "this run", f"against {Path(path).name}"], rows, 3, class_="against")


def _kernels(run: RecordedRun, other: RecordedRun) -> Html:
    """Returns the kernels of both runs, by name."""
    ours, theirs = ({k.name: k for k in r.kernels} for r in (run, other))
    longest = max([sum(k.parts.values()) for k in (*run.kernels, *other.kernels)] + [1e-12])
    rows = list[list[object]]()
    for name in dict.fromkeys((*ours, *theirs)):
        pair = ours.get(name), theirs.get(name)
        bars = joined([bar(k.parts, longest) for k in pair if k is not None])
        schedules = [", ".join(k.schedules) if k is not None else "" for k in pair]
        same = schedules[0] == schedules[1]
        texts = [element("code", t) for t in (schedules[:1] if same else schedules) if t]
        shown = joined([joined([t, element("br")]) for t in texts])
        times = [seconds(k.seconds) if k is not None else "not there" for k in pair]
        limits = " / ".join(dict.fromkeys(k.limit for k in pair if k is not None and k.limit))
        ratio = ratio_text(pair[0].seconds, pair[1].seconds) if pair[0] is not None and pair[1] is not None else ""
        rows.append([element("code", name), bars, shown, limits, *times, ratio])
    heads = ["kernel", "parts: this, other", "schedules: this, other", "limit", "this run", "other", ""]
    return table(heads, rows, 4, class_="against")


def _diff(run: RecordedRun, other: RecordedRun) -> Html:
    """Returns the diff between the texts of both runs."""
    if run.target.startswith("cpu") != other.target.startswith("cpu"):
        return element("p", f"The texts are for {run.target} and {other.target}, and are not compared.", class_="note")
    lines = [*unified_diff(other.text.splitlines(), run.text.splitlines(), "other", "this run", lineterm="", n=3)]
    if not lines:
        return element("p", "The texts are equal.", class_="note")
    kinds = {"+": "add", "-": "del", "@": "hunk"}
    shown = [element("span", line or " ", class_=kinds.get(line[:1])) for line in lines[:MOST_DIFF]]
    note = f"{len(lines) - MOST_DIFF} more lines of the diff are left out." if len(lines) > MOST_DIFF else ""
    block = element("div", element("pre", *shown, class_="diff"), class_="detail")
    return joined(
        [element("p", "− is the other run, + this run.", class_="note"), block, element("p", note) if note else ""]
    )
