"""Section "Search": the trials of `deplodock tune`, and the best time after each."""

from __future__ import annotations

from collections.abc import Sequence

from ...frontend.tuning.search import Search, curve
from ...tools.tables import curves, seconds
from ...tools.tune import noise_text, result_lines
from .html import Html, code_block, element, joined, table
from .program import ReportedProgram
from .sections import Section


def section(program: ReportedProgram) -> Section | None:
    """Returns the section, or None for a program that was not tuned."""
    if not program.searches:
        return None
    parts = [Html(curve_svg(program.searches)), *map(_search, program.searches)]
    return Section("search", "Search", joined(parts))


def curve_svg(searches: Sequence[Search]) -> str:
    """Returns the best time after each trial, divided by the time of the planner's pick, as curves in SVG."""
    lines = {}
    for search in searches:
        points, first = curve(search), search.untuned.seconds if search.untuned else None
        scale = first or (points[0][1] if points else 1.0)
        lines[f"{search.task.name}: {search.task.what}"] = [(float(n), t / scale) for n, t in points]
    return curves("best time by the planner's pick, after each trial", lines)


def _search(search: Search) -> Html:
    task = search.task
    heads = ["trial", "schedule", "options", "at", search.label, "predicted"]
    body = [
        element("h3", f"{task.name}: {task.what}"),
        *(element("p", line) for line in result_lines(search)),
        table(heads, _rows(search), 3, class_="trials"),
        element("details", element("summary", "program"), code_block(task.text, "mlir")),
    ]
    return joined(body)


def _rows(search: Search) -> list[list[object]]:
    rows: list[list[object]] = []
    for number, (at, t) in enumerate(search.trials, 1):
        took = t.failure or f"{seconds(t.seconds or 0.0)} {noise_text(t.noise)}"
        schedule = element("code", t.candidate.schedule.removeprefix("#tile.schedule"))
        options = " ".join(f"{p}.{o}={v}" for p, o, v in t.candidate.options)
        mark = " ◂ best" if t is search.best else ""
        predicted = seconds(t.candidate.predicted) if t.candidate.predicted else ""
        rows.append([f"{number}{mark}", schedule, options, f"{at:.1f} s", took, predicted])
    return rows
