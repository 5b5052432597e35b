"""Write docs/results.md from the results that are committed.

python -m benchmarks.suite.results_page  # writes them
python -m benchmarks.suite.results_page --check  # fails where they are not up to date
"""

from __future__ import annotations

import argparse
import math
import statistics
import sys
from collections.abc import Iterable, Iterator, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from deplodock.tools.tables import si

from ..common.cases import Group, groups
from ..common.results import FOLDER, OURS, UNTUNED, Row, geomean, noise, ratio, read, times_of

PAGE = FOLDER.parent.parent / "docs" / "results.md"

NEAR = 1.1
"""So many times as long as the best that was found a schedule may take to be near it."""

HEAD = """# Results

This page is written by `python -m benchmarks.suite.results_page` from the files in `benchmarks/results/`, which
`python -m benchmarks.suite.run` and `python -m benchmarks.suite.decode` write; of each kind of machine the last run is
here. Each section says on what machine, at which commit and with how many threads its numbers were measured; what is
only predicted says so.

Every result is compared with the same program in float64 first, and is right if it errs at most 1.5 times as much as
that of PyTorch's arms which errs most. Then the arms take turns; times are medians, on a GPU of CUDA graphs with a cold
level-2 cache, on cores of calls. `best / ours` is the time of PyTorch's fastest arm over ours: above 1 ours is faster.
Behind +- is half the 95 % interval that the noise within the run leaves for it. `untuned` are the schedules of the
planner's model, where ours are those that a search has found (`python -m benchmarks.suite.tune`).
"""


def page(files: Sequence[Path]) -> str:
    """The text of the page."""
    return "\n".join([HEAD, *(part for file in files for part in _file(file))])


def _file(file: Path) -> Iterator[str]:
    found = read(file)
    about, rows = found["environment"], found["rows"]
    if any("predicted" in r for r in rows):
        yield from _predicted([r for r in rows if "predicted" in r])
        return
    device = about["gpu"] or f"{about['processor']}, {about['cores']} cores"
    versions = ", ".join(f"{n} {about[n]}" for n in ("torch", "cuda", "xdsl") if about[n])
    yield f"## {device}: {file.stem[-10:]}\n"
    yield f"Measured on {device}; {versions}.{_limits(about)}\n"
    order = ("suite", "threads", "dtype")
    rows = sorted(rows, key=lambda r: [str(r[n]) for n in order])
    for (suite, threads, dtype), some in groupby(rows, lambda r: tuple(r[n] for n in order)):
        yield from _suite(suite, dtype, threads, [*some], "cuda" if about["gpu"] else "cpu")


def _limits(about: Row) -> str:
    m = about["measured"]
    if about["gpu"] or m is None:
        return ""
    copy, speed, fma = (si(m[n]) for n in ("copy", "read", "fma"))
    return f" Its cores together copy {copy}B/s, read {speed}B/s and compute {fma}FLOP/s in f32 (`doctor --measure`)."


def _suite(suite: str, dtype: str, threads: int, rows: list[Row], device: str) -> Iterator[str]:
    commits = ", ".join(dict.fromkeys(r["commit"] for r in rows))
    yield f"### {suite}, {dtype}, {threads} thread{'s' * (threads > 1)}\n"
    notes = "".join(f" {n[:1].upper()}{n[1:]}." for n in dict.fromkeys(r["note"] for r in rows if "note" in r))
    yield f"At {commits}. {_summary(rows)}{notes}\n"
    if suite.startswith("classes"):
        yield _classes(rows, {g.name: g for g in groups(device)})
    if suite == "decode":
        yield _decoding(rows)
        return
    yield f"<details><summary>{len(rows)} cases</summary>\n\n{_cases(rows)}\n</details>\n"


def _summary(rows: list[Row]) -> str:
    arms = list(dict.fromkeys(arm for r in rows for arm in times_of(r) if arm != OURS))
    means = [f"{_mean(rows, arm):.2f} of {arm}" for arm in arms]
    known = {r["case"]: v for r in rows if (v := ratio(r)) is not None}
    right = sum(r["right"] is True for r in rows)
    text = f"{right} of {len(rows)} were checked and are right." if any(r["right"] is not None for r in rows) else ""
    if not known:
        return text
    worst = min(known, key=lambda case: known[case])
    text += f" Time over ours, geometric means: **{_mean(rows, 'best'):.2f}** of the best, {', '.join(means)};"
    slower = sum(v < 1 for v in known.values())
    text += f" the least is {known[worst]:.2f} ({worst}), {slower} of {len(known)} are below 1."
    return f"{text} {_searches(rows)}" if any("kernels" in r for r in rows) else text


def _searches(rows: list[Row]) -> str:
    """What the searches of kernels have found."""
    kernels = [k for r in rows for k in r.get("kernels", ()) if k["best"] is not None]
    speedups = [k["speedup"] for k in kernels]
    near, trials = sum(s <= NEAR for s in speedups), sum(k["trials"] for k in kernels)
    seconds = statistics.median(k["seconds"] for k in kernels)
    return (
        f"Each of {len(kernels)} kernels was searched for {seconds:.0f} s (the median), {trials} candidates in all."
        f" The planner's pick is within {NEAR - 1:.0%} of the best found for {near / len(kernels):.0%} of them;"
        f" by the time of kernels alone the best found is {geomean(speedups):.3f} times as fast as it."
    )


def _mean(rows: Iterable[Row], baseline: str) -> float:
    return geomean([v for r in rows if (v := ratio(r, baseline)) is not None])


def _scatter(row: Row) -> float:
    """The relative noise of `best / ours`."""
    times = times_of(row)
    best = min((t for arm, t in times.items() if arm not in (OURS, UNTUNED)), key=lambda t: t["median"])
    return math.hypot(noise(best), noise(times[OURS]))


def _classes(rows: list[Row], known: dict[str, Group]) -> str:
    lines = []
    for name, some in groupby(rows, lambda r: r["group"]):
        found, group = [*some], known.get(name, Group(name))
        mean = _mean(found, group.baseline)
        reached = sum(mean >= t for t in group.targets)
        least = min((v for r in found if (v := ratio(r, group.baseline)) is not None), default=math.nan)
        targets = " / ".join(map(str, group.targets))
        lines.append(
            [name, len(found), group.baseline, f"{mean:.2f}", f"{least:.2f}", targets, "yes" if reached else "no"]
        )
    return _table(["class", "cases", "baseline", "baseline / ours", "least", "target", "reached"], lines)


def _cases(rows: list[Row]) -> str:
    arms = list(dict.fromkeys(arm for r in rows for arm in times_of(r)))
    lines = []
    for r in rows:
        times, value = times_of(r), ratio(r)
        cells = [_micro(times[arm]["median"]) if arm in times else "" for arm in arms]
        verdict = r.get("error") or ("WRONG" if r["right"] is False else "")
        mean = "" if value is None else f"{value:.2f} +- {value * _scatter(r):.2f}"
        lines.append([f"{r['group']}: {r['case']}" if r["group"] else r["case"], *cells, f"{mean} {verdict}".strip()])
    return _table(["case", *(f"{arm}, us" for arm in arms), "best / ours"], lines)


def _decoding(rows: list[Row]) -> str:
    lines = []
    for r in rows:
        if "error" in r:
            lines.append([r["case"], r["error"], "", "", ""])
            continue
        speeds = {arm: 1 / t["median"] for arm, t in times_of(r).items()}
        share = "" if r["share"] is None else f"{r['share']:.0%}"
        lines.append(
            [r["case"], f"{speeds[OURS]:.2f}", f"{speeds['eager']:.2f}", f"{r['bytes_read'] / 1e9:.2f}", share]
        )
    return _table(["model", "tokens/s", "eager, tokens/s", "GB a token", "of the read bandwidth"], lines)


def _predicted(rows: list[Row]) -> Iterator[str]:
    yield "## Predicted, not measured\n"
    sources, commits = (", ".join(dict.fromkeys(r[n] for r in rows)) for n in ("predicted", "commit"))
    yield f"Times are {sources}, at {commits}. The floor is the time that no program can be faster than: operations at"
    yield "the best rate of the card, or inputs and result once through memory, and a launch.\n"
    lines = []
    for r in rows:
        if "error" in r:
            lines.append([r["group"], r["case"], "", "", "", r["error"]])
            continue
        limits = ", ".join(dict.fromkeys(k["limit"] for k in r["kernels"]))
        times = _micro(r["seconds"]), _micro(r["floor"]), f"{r['seconds'] / r['floor']:.2f}"
        lines.append([r["group"], r["case"], *times, limits])
    yield _table(["class", "case", "predicted, us", "floor, us", "by the floor", "limited by"], lines)


def _micro(seconds: float) -> str:
    """Microseconds in three digits, or all before the point."""
    value = seconds * 1e6
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _table(heads: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    lines = ["| " + " | ".join(heads) + " |", "|" + "---|" * len(heads)]
    lines += ["| " + " | ".join(str(cell).replace("|", ",") for cell in row) + " |" for row in rows]
    return "\n".join(lines) + "\n"


def main() -> int:
    """Write what is not up to date, or tell."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="write nothing")
    files = [f for f in sorted(FOLDER.glob("*.json")) if "rows" in read(f)]
    text, check = page(files), parser.parse_args().check
    stale = not PAGE.exists() or PAGE.read_text(encoding="utf-8") != text
    if stale and not check:
        PAGE.write_text(text, encoding="utf-8")
    print(f"{PAGE}: {'up to date' if not stale else 'is not up to date' if check else 'written'}")
    return int(check and stale)


if __name__ == "__main__":
    sys.exit(main())
