"""What a search has found, as text, as curves and as a page; and how far it is while it is under way: on a terminal a
table that is renewed, else a line for each trial with `-v` and nothing without."""

from __future__ import annotations

import html
import sys
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from . import terminal
from .plot import curves
from .tables import seconds, text_table
from .terminal import write_file

if TYPE_CHECKING:
    from ..backend.host.timing import Timing
    from ..frontend.tuning.search import Search
    from ..frontend.tuning.trial import Trial

SHOWN = 12
"""Candidates that `--explain` tells of."""


def found_text(found: Sequence[Search], times: Mapping[str, Timing]) -> str:
    """What came of the searches of a program, and the times of its calls."""
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


UNSTEADY = 0.2
"""Relative noise of the best time from which the search is better repeated: larger than most gains."""


def noise_text(noise: float) -> str:
    """Returns the relative noise of a time; one of 100 % stands for a time with too few samples to tell."""
    return "(too few samples to tell the noise)" if noise >= 1 else f"+-{noise:.1%}"


def explained(search: Search, width: int | None) -> str:
    """What the model predicted of the fastest candidates beside what was found."""
    from ..frontend.tuning.search import limit_of

    timed = sorted((t for _, t in search.trials if t.seconds), key=lambda t: t.seconds or 0.0)
    rows = [
        [
            seconds(t.seconds or 0.0),
            noise_text(t.noise),
            seconds(p := float(search.task.predict(t.candidate.schedule).seconds)),
            f"{p / (t.seconds or 1.0):.2f}",
            limit_of(search.task, t),
            t.candidate.schedule.removeprefix("#tile.schedule"),
        ]
        for t in timed[:SHOWN]
    ]
    heads = [search.label, "", "predicted", "by it", "limit", search.task.name]
    return text_table(heads, rows, width) if rows else ""


def curve_svg(found: Sequence[Search]) -> str:
    """The best time after each trial, by that of the planner's pick."""
    from ..frontend.tuning.tuned import curve

    lines = {}
    for search in found:
        points, first = curve(search), search.untuned.seconds if search.untuned else None
        scale = first or (points[0][1] if points else 1.0)
        lines[f"{search.task.name}: {search.task.what}"] = [(float(n), t / scale) for n, t in points]
    return curves("best time by the planner's pick, after each trial", lines)


def write_report(path: str, found: Sequence[Search]) -> None:
    """Write a page with all trials, which needs nothing else. Raises CompileError."""
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


LAST = 6
"""Candidates that are shown."""


@contextmanager
def display(kernels: int, budget: float, verbose: int, quiet: bool = False) -> Generator[Callable[[Search], None]]:
    """Gives what is to be called after each trial."""
    if quiet or not terminal.is_terminal(sys.stderr):
        yield _line if verbose and not quiet else lambda search: None
        return
    from rich.console import Console
    from rich.live import Live

    console = Console(file=sys.stderr, width=terminal.width_of(sys.stderr), highlight=False, emoji=False)
    seen: list[Search] = []
    with Live(console=console, transient=True, refresh_per_second=4, auto_refresh=False) as live:

        def told(search: Search) -> None:
            if search not in seen[-1:]:
                seen.append(search)
            live.update(panel(search, len(seen), kernels, budget), refresh=True)

        yield told


def panel(search: Search, number: int, kernels: int, budget: float) -> Any:
    """What is shown of a search, which is the one of that `number` among all `kernels`, with so many seconds for all:
    how far it is, the best so far, and the last candidates with what limits them."""
    from rich.console import Group
    from rich.progress_bar import ProgressBar
    from rich.table import Table
    from rich.text import Text

    from ..frontend.tuning.search import limit_of

    limits, count = search.limits, len(search.trials)
    share = min(1.0, max(search.elapsed / max(limits.seconds, 1e-9), count / limits.trials))
    rate = count / max(search.elapsed, 1e-9)
    eta = min(limits.seconds - search.elapsed, (limits.trials - count) / max(rate, 1e-9))
    of = f" of {kernels}" if number <= kernels else ", another plan of fusion"
    head = f"{search.task.name} ({number}{of}): {search.task.what}"
    told = f"{count} trials, {rate:.1f} a second, {max(0.0, eta):.0f} s left of {budget:.0f} s for all kernels"
    best = search.best
    lines = [Text(head, style="bold"), ProgressBar(total=1.0, completed=share, width=40), Text(told)]
    if best is not None and best.seconds is not None:
        text = f"best {seconds(best.seconds)} {search.label}, {search.share:.0%} of the roofline"
        first = search.trials[0][1].seconds
        lines.append(Text(text + (f", {first / best.seconds:.2f} times as fast as untuned" if first else "")))
    table = Table.grid(padding=(0, 2))
    for _, trial in search.trials[-LAST:]:
        mark = "green" if trial is best else "red" if trial.failure else ""
        table.add_row(Text(outcome(trial), style=mark), Text(limit_of(search.task, trial)), _schedule(trial))
    return Group(*lines, table)


def outcome(trial: Trial) -> str:
    """A trial's time, or that it has none."""
    return "failed" if trial.seconds is None else f"{seconds(trial.seconds)} {noise_text(trial.noise)}"


def _schedule(trial: Trial) -> str:
    options = " ".join(f"{p}.{o}={v}" for p, o, v in trial.candidate.options)
    return f"{trial.candidate.schedule.removeprefix('#tile.schedule')} {options}".rstrip()


def _line(search: Search) -> None:
    """A line for the trial that was just done."""
    from ..frontend.tuning.search import limit_of

    number, (at, trial) = len(search.trials), search.trials[-1]
    mark, limit = "*" if trial is search.best else " ", limit_of(search.task, trial)
    head = f"{search.task.name} {number:4} {at:6.1f} s {mark} {outcome(trial)}"
    terminal.tell(f"{head}  {limit}  {_schedule(trial)}\n")
