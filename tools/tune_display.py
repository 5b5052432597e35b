"""How far a search is, while it is under way: on a terminal a table that is renewed, else a line for each trial with
`-v` and nothing without."""

from __future__ import annotations

import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from . import terminal
from .tables import seconds

if TYPE_CHECKING:
    from ..frontend.tuning.search import Search
    from ..frontend.tuning.trial import Trial

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
        table.add_row(Text(outcome(trial), style=mark), Text(limit(search, trial)), _schedule(trial))
    return Group(*lines, table)


def outcome(trial: Trial) -> str:
    """A trial's time, or that it has none."""
    return "failed" if trial.seconds is None else f"{seconds(trial.seconds)} +-{trial.noise:.1%}"


def limit(search: Search, trial: Trial) -> str:
    """What limits a candidate, or why it has no time."""
    from ..frontend.tuning.search import limit_of

    return limit_of(search.task, trial)


def _schedule(trial: Trial) -> str:
    options = " ".join(f"{p}.{o}={v}" for p, o, v in trial.candidate.options)
    return f"{trial.candidate.schedule.removeprefix('#tile.schedule')} {options}".rstrip()


def _line(search: Search) -> None:
    """A line for the trial that was just done."""
    number, (at, trial) = len(search.trials), search.trials[-1]
    mark = "*" if trial is search.best else " "
    text = (
        f"{search.task.name} {number:4} {at:6.1f} s {mark} {outcome(trial)}  {limit(search, trial)}  {_schedule(trial)}"
    )
    terminal.tell(f"{text}\n")
