"""Section "Passes": the passes with their changes as diffs, times, remarks, documentation and verdicts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...passes.pass_manager import diff_lines
from ...passes.pipelines import get_all_passes
from ...tools.pass_help import help_pass
from ...tools.recording import CHANGED, REFUSED, UNCHANGED, PassRun
from ...tools.tables import seconds
from .html import Html, element, joined, packed, shortened
from .program import ReportedProgram
from .sections import Section

MARKS = {CHANGED: "●", UNCHANGED: "○", REFUSED: "✕"}
"""State of a pass -> its mark."""


def section(program: ReportedProgram) -> Section | None:
    """Returns the section, or None for a program that no pass lowers."""
    runs = program.passes
    if not runs:
        return None
    names = dict.fromkeys(run.name for run in runs)
    documented = get_all_passes()
    help_texts = {name: help_pass(name, documented, None) for name in names if name in documented}
    changed = [number for number, run in enumerate(runs) if run.before != run.after]
    details = {"diffs": {number: _diff(runs[number]) for number in changed}, "help": help_texts}
    data = {"runs": [_data(run) for run in runs], "details": packed(details)}
    counts = {state: sum(run.state == state for run in runs) for state in MARKS}
    legend = f"● {counts[CHANGED]} changed the program, ○ {counts[UNCHANGED]} changed nothing, "
    legend += f"✕ {counts[REFUSED]} left it unchanged for a reason or failed. Keys: j and k."
    if program.recording.summary:
        legend += f" ✓ means the same results: {program.recording.summary}."
    items = element("ol", *_items(runs), class_="runs", role="listbox", aria_label="passes")
    detail = element("div", class_="detail", aria_live="polite")
    body = joined([element("p", legend, class_="note"), element("div", items, detail, class_="passes")])
    return Section("passes", "Passes", body, data)


def _items(runs: Sequence[PassRun]) -> list[Html]:
    items: list[Html] = []
    level = ""
    for number, run in enumerate(runs):
        if run.level != level:
            level = run.level
            items.append(element("li", f"to {level}", class_="level", role="presentation"))
        verdict = "✕" if run.wrong else "✓" if run.verdict else ""
        ops = f"{run.ops_before} → {run.ops_after}" if run.state == CHANGED else ""
        cells = [
            element("span", MARKS[run.state], class_="mark", title=run.state),
            element("span", run.name, class_="name"),
            element("span", ops, class_="ops", title="operations before and after"),
            element("span", "" if run.skipped else seconds(run.seconds), class_="time"),
            element("span", verdict, class_="verdict", title=run.verdict) if verdict else "",
        ]
        items.append(element("li", *cells, class_=f"run {run.state}", data_run=number, role="option", tabindex=-1))
    return items


def _diff(run: PassRun) -> str:
    return "\n".join(map(shortened, diff_lines(run.before.splitlines(), run.after.splitlines(), 3)))


def _data(run: PassRun) -> dict[str, Any]:
    """Returns the facts of a pass that the script shows when it is selected."""
    data: dict[str, Any] = {"name": run.name, "text": run.text, "state": run.state}
    if run.wrong:
        data["wrong"] = True
    if run.remarks:
        data["remarks"] = [str(r) for r in run.remarks]
    for name in ("skipped", "verdict", "precision", "error"):
        if value := getattr(run, name):
            data[name] = value
    return data
