"""Tables of times, and numbers with units. Rich fits a table to the terminal."""

from __future__ import annotations

from collections.abc import Sequence
from io import StringIO
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..frontend.bench import Measurement
    from ..frontend.profile import Profile


def si(value: float) -> str:
    """`4.19 M` of 4190000."""
    for unit in ("", "k", "M", "G", "T"):
        if value < 1000:
            return f"{value:.3g} {unit}"
        value /= 1000
    return f"{value:.3g} P"


def seconds(value: float) -> str:
    """`5.41 us`, `12.3 ms`."""
    for unit, size in (("us", 1e-6), ("ms", 1e-3)):
        if value < 999.5 * size:
            return f"{value / size:.3g} {unit}"
    return f"{value:.3g} s"


def bench_table(found: Measurement, width: int | None) -> str:
    """A row for each arm: of each regime the median, where 60 % of the samples are, the noise, and how many times as
    long it takes as ours; and its error."""
    from ..frontend.bench import OURS, REGIMES

    several = len(found.times) > 1
    rows: list[list[str]] = []
    for arm in next(iter(found.times.values())):
        row = [arm]
        for times in found.times.values():
            t = times[arm]
            spread = [] if several else [f"{seconds(t.p20)} .. {seconds(t.p80)}"]
            row += [seconds(t.median), *spread, f"+-{t.noise:.1%}", f"{t.median / times[OURS].median:.2f}"]
        rows.append([*row, f"{found.errors[arm]:.1e}" if arm in found.errors else "-"])
    heads = [h for r in found.times for h in (REGIMES[r], *([] if several else ["20 .. 80 %"]), "+-", "by ours")]
    return text_table(["", *heads, "error"], rows, width)


def profile_table(found: Profile, width: int | None) -> str:
    """A row for each kernel, and then how each is scheduled and what lines of Python it computes."""
    counted = any(c.counters for c in found.costs)
    rows = [
        [
            c.name + (f" x {c.launches}" if c.launches > 1 else ""),
            seconds(c.seconds),
            f"{c.share:.0%}",
            f"{si(c.bytes / c.seconds)}B/s" if c.bytes else "",
            f"{si(c.flops / c.seconds)}FLOP/s" if c.flops else "",
            "" if c.roofline is None else f"{c.roofline:.0%}",
            *([f"{c.counters.memory:.0%}", f"{c.counters.compute:.0%}"] if c.counters else [""] * 2 * counted),
            c.limit,
        ]
        for c in found.costs
    ]
    busy = ["DRAM", "SM"] if counted else []
    text = text_table(["kernel", "time", "share", "bytes", "operations", "roof", *busy, "limit"], rows, width)
    from .terminal import fitted

    lines = [f"{c.name}: {' '.join([*c.schedules, *_lines(c.lines)])}\n" for c in found.costs if c.schedules]
    return text + fitted("".join(lines), width)


def _lines(lines: Sequence[str]) -> list[str]:
    """`model.py:3,5,9` of `model.py:3`, `model.py:5`, `model.py:9`."""
    files: dict[str, list[int]] = {}
    for line in lines:
        file, _, number = line.rpartition(":")
        files.setdefault(file, []).append(int(number))
    return [f"{file}:{','.join(map(str, sorted(numbers)))}" for file, numbers in files.items()]


def text_table(heads: Sequence[str], rows: Sequence[Sequence[str]], width: int | None) -> str:
    """Rows below heads, of which the first column is to the left."""
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table

    table = Table(box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1))
    for i, head in enumerate(heads):
        table.add_column(head, justify="right" if i else "left", overflow="fold")
    for row in rows:
        table.add_row(*row)
    stream = StringIO()
    Console(file=stream, width=width or 200, highlight=False, color_system=None).print(table)
    return "".join(f"{line.rstrip()}\n" for line in stream.getvalue().splitlines() if line.strip())
