"""Results of a search as text, as curves and as a page, and its progress."""

from __future__ import annotations

import html
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from ..progress import steps
from . import terminal
from .tables import curves, seconds, text_table
from .terminal import write_file

if TYPE_CHECKING:
    from ..backend.host.timing import Timing
    from ..frontend.tuning.search import Search
    from ..frontend.tuning.trial import Trial

SHOWN = 12
"""Number of candidates that `--explain` prints."""

UNSTEADY = 0.2
"""Relative noise of the best time from which the search is better repeated: larger than most gains."""


def found_text(found: Sequence[Search], times: Mapping[str, Timing]) -> str:
    """Returns the results of the searches of a program, and the times of its calls."""
    lines = [line for search in found for line in _found(search)]
    if found and (change := found[0].task.fusion[1]):
        lines.append(f"another plan of fusion is faster: {change}")
    if times:
        lines.append(", ".join(f"{name} {seconds(t.median)}" for name, t in times.items()))
        tuned = times["tuned"].median
        others = (f"{t.median / tuned:.2f} times as fast as {name}" for name, t in times.items() if name != "tuned")
        lines.append(f"a call is {' and '.join(others)} (medians of calls, in turns)")
    return "".join(f"{line}\n" for line in lines)


def _found(search: Search) -> list[str]:
    task, best = search.task, search.best
    failed = sum(bool(t.failure) for _, t in search.trials)
    times = f", in the program {task.launches} times" if task.launches > 1 else ""
    head = f"{task.name}: {task.what}{times}: {len(search.trials)} trials"
    head += f", {failed} of them failed" if failed else ""
    head += f", {search.known} known before" if search.known else ""
    head += f", in {search.elapsed:.1f} s; {search.ended}"
    if best is None or best.seconds is None:
        why = next((t.failure for _, t in search.trials if t.failure), "nothing was tried")
        return [head, f"  no candidate has a time: {why}"]
    first = search.untuned.seconds if search.untuned is not None else None
    took = f"  {search.label}: {seconds(best.seconds)} {noise_text(best.noise)}, {search.share:.0%} of the roofline"
    took += f"; the planner's pick {seconds(first)}: {search.speedup:.2f} times as fast" if first else ""
    advice = ["  the times vary much: repeat it on a quiet machine, or with a longer --budget"] * (
        best.noise > UNSTEADY
    )
    return [head, took, f"  {best.candidate.schedule}", *advice]


def noise_text(noise: float) -> str:
    """Returns the relative noise of a time; one of 100 % stands for a time with too few samples to tell."""
    return "(too few samples to tell the noise)" if noise >= 1 else f"+-{noise:.1%}"


def explained(search: Search, width: int | None) -> str:
    """Returns a table of the fastest candidates: their times beside the predictions of the model."""
    from ..frontend.tuning.search import limit_of

    rows: list[list[str]] = []
    for t in sorted((t for _, t in search.trials if t.seconds), key=lambda t: t.seconds or 0.0)[:SHOWN]:
        took, predicted = t.seconds or 1.0, float(search.task.predict(t.candidate.schedule).seconds)
        cells = [seconds(took), noise_text(t.noise), seconds(predicted), f"{predicted / took:.2f}"]
        rows.append([*cells, limit_of(search.task, t), t.candidate.schedule.removeprefix("#tile.schedule")])
    heads = [search.label, "", "predicted", "by it", "limit", search.task.name]
    return text_table(heads, rows, width) if rows else ""


def curve_svg(found: Sequence[Search]) -> str:
    """Returns the best time after each trial, by that of the planner's pick, as curves."""
    from ..frontend.tuning.search import curve

    lines = {}
    for search in found:
        points, first = curve(search), search.untuned.seconds if search.untuned else None
        scale = first or (points[0][1] if points else 1.0)
        lines[f"{search.task.name}: {search.task.what}"] = [(float(n), t / scale) for n, t in points]
    return curves("best time by the planner's pick, after each trial", lines)


def write_report(path: str, found: Sequence[Search]) -> None:
    """Writes a page with all trials, which needs nothing else. Raises CompileError."""
    parts = [_HEAD, curve_svg(found)]
    for search in found:
        parts += [f"<h2>{html.escape(search.task.name)}: {html.escape(search.task.what)}</h2>"]
        parts += [f"<p>{html.escape(line)}</p>" for line in _found(search)]
        parts.append(_trials(search))
        parts.append(f"<details><summary>program</summary><pre>{html.escape(search.task.text)}</pre></details>")
    write_file(path, "\n".join([*parts, "</body></html>\n"]), "--report")


_HEAD = """<!doctype html><html lang="en"><head><meta charset="utf-8"><title>deplodock tune</title><style>
body { font-family: sans-serif; margin: 2em; max-width: 80em } table { border-collapse: collapse; font-size: 90% }
td, th { border-bottom: 1px solid #ddd; padding: 2px 8px; text-align: left } .best { background: #fdebd3 }
.failed { color: #a00 } code { font-size: 90% } pre { overflow-x: auto }
</style></head><body><h1>deplodock tune</h1>"""


def _trials(search: Search) -> str:
    rows = []
    for number, (at, t) in enumerate(search.trials, 1):
        kind = "best" if t is search.best else "failed" if t.failure else ""
        took = t.failure or f"{seconds(t.seconds or 0.0)} {noise_text(t.noise)}"
        predicted = seconds(t.candidate.predicted) if t.candidate.predicted else ""
        cells = [str(number), f"{at:.1f} s", took, predicted, t.candidate.schedule.removeprefix("#tile.schedule")]
        cells.append(" ".join(f"{p}.{o}={v}" for p, o, v in t.candidate.options))
        rows.append(f'<tr class="{kind}">' + "".join(f"<td>{html.escape(c)}</td>" for c in cells) + "</tr>")
    heads = "".join(f"<th>{h}</th>" for h in ("trial", "at", search.label, "predicted", "schedule", "options"))
    return f"<table><tr>{heads}</tr>{''.join(rows)}</table>"


@contextmanager
def display(verbose: int, quiet: bool = False) -> Generator[Callable[[Search], None]]:
    """Yields what is called after each trial: it prints a line with `-v`, or else shows the progress."""
    if verbose and not quiet:
        yield _line
        return
    with terminal.progress(quiet), steps("searching", unit="trials") as step:
        yield lambda search: step(1, f"{search.task.name}, best {outcome(search.best) if search.best else 'none'}")


def outcome(trial: Trial) -> str:
    """Returns the time of a trial, or `failed`."""
    return "failed" if trial.seconds is None else f"{seconds(trial.seconds)} {noise_text(trial.noise)}"


def _line(search: Search) -> None:
    from ..frontend.tuning.search import limit_of

    number, (at, trial) = len(search.trials), search.trials[-1]
    mark = "*" if trial is search.best else " "
    options = " ".join(f"{p}.{o}={v}" for p, o, v in trial.candidate.options)
    schedule = f"{trial.candidate.schedule.removeprefix('#tile.schedule')} {options}".rstrip()
    head = f"{search.task.name} {number:4} {at:6.1f} s {mark} {outcome(trial)}"
    terminal.tell(f"{head}  {limit_of(search.task, trial)}  {schedule}\n")
