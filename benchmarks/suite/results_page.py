"""Writes docs/results.md from the result files in `benchmarks/results/`.

python -m benchmarks.suite.results_page  # writes the page
python -m benchmarks.suite.results_page --check  # exit status 1 if the page is not up to date
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

NEARLY_BEST = 1.1
"""Largest time of a schedule that counts as nearly the best, relative to the best one that a search found."""

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
    """Returns the Markdown text of the page: a section for each result file."""
    return "\n".join([HEAD, *(part for file in files for part in _file(file))])


def _file(file: Path) -> Iterator[str]:
    content = read(file)
    machine, rows = content["environment"], content["rows"]
    if any("predicted" in r for r in rows):
        yield from _predicted([r for r in rows if "predicted" in r])
        return
    device = machine["gpu"] or f"{machine['processor']}, {machine['cores']} cores"
    versions = ", ".join(f"{n} {machine[n]}" for n in ("torch", "cuda", "xdsl") if machine[n])
    yield f"## {device}: {file.stem[-10:]}\n"
    yield f"Measured on {device}; {versions}.{_limits(machine)}\n"
    order = ("suite", "threads", "dtype")
    rows = sorted(rows, key=lambda r: [str(r[n]) for n in order])
    for (suite, threads, dtype), suite_rows in groupby(rows, lambda r: tuple(r[n] for n in order)):
        yield from _suite(suite, dtype, threads, [*suite_rows], "cuda" if machine["gpu"] else "cpu")


def _limits(machine: Row) -> str:
    m = machine["measured"]
    if machine["gpu"] or m is None:
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
    ratios = {r["case"]: v for r in rows if (v := ratio(r)) is not None}
    right = sum(r["right"] is True for r in rows)
    text = f"{right} of {len(rows)} were checked and are right." if any(r["right"] is not None for r in rows) else ""
    if not ratios:
        return text
    worst = min(ratios, key=lambda case: ratios[case])
    text += f" Time over ours, geometric means: **{_mean(rows, 'best'):.2f}** of the best, {', '.join(means)};"
    slower = sum(v < 1 for v in ratios.values())
    text += f" the least is {ratios[worst]:.2f} ({worst}), {slower} of {len(ratios)} are below 1."
    return f"{text} {_searches(rows)}" if any("kernels" in r for r in rows) else text


def _searches(rows: list[Row]) -> str:
    """Returns two sentences about the searches of `benchmarks.suite.tune`: their effort, and the planner's hit rate."""
    kernels = [k for r in rows for k in r.get("kernels", ()) if k["best"] is not None]
    speedups = [k["speedup"] for k in kernels]
    near, trials = sum(s <= NEARLY_BEST for s in speedups), sum(k["trials"] for k in kernels)
    seconds = statistics.median(k["seconds"] for k in kernels)
    return (
        f"Each of {len(kernels)} kernels was searched for {seconds:.0f} s (the median), {trials} candidates in all."
        f" The planner's pick is within {NEARLY_BEST - 1:.0%} of the best found for {near / len(kernels):.0%} of them;"
        f" by the time of kernels alone the best found is {geomean(speedups):.3f} times as fast as it."
    )


def _mean(rows: Iterable[Row], baseline: str) -> float:
    return geomean([v for r in rows if (v := ratio(r, baseline)) is not None])


def _ratio_noise(row: Row) -> float:
    """Returns the relative noise of the ratio of PyTorch's fastest time to deplodock's."""
    times = times_of(row)
    best = min((t for arm, t in times.items() if arm not in (OURS, UNTUNED)), key=lambda t: t["median"])
    return math.hypot(noise(best), noise(times[OURS]))


def _classes(rows: list[Row], groups_by_name: dict[str, Group]) -> str:
    lines = []
    for name, rows_of_class in groupby(rows, lambda r: r["group"]):
        class_rows, group = [*rows_of_class], groups_by_name.get(name, Group(name))
        mean = _mean(class_rows, group.baseline)
        reached = sum(mean >= t for t in group.targets)
        least = min((v for r in class_rows if (v := ratio(r, group.baseline)) is not None), default=math.nan)
        targets = " / ".join(map(str, group.targets))
        lines.append(
            [name, len(class_rows), group.baseline, f"{mean:.2f}", f"{least:.2f}", targets, "yes" if reached else "no"]
        )
    return _table(["class", "cases", "baseline", "baseline / ours", "least", "target", "reached"], lines)


def _cases(rows: list[Row]) -> str:
    arms = list(dict.fromkeys(arm for r in rows for arm in times_of(r)))
    lines = []
    for r in rows:
        times, value = times_of(r), ratio(r)
        cells = [_micro(times[arm]["median"]) if arm in times else "" for arm in arms]
        verdict = r.get("error") or ("WRONG" if r["right"] is False else "")
        mean = "" if value is None else f"{value:.2f} +- {value * _ratio_noise(r):.2f}"
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
    """Returns microseconds with three digits, or without decimals from 100 on."""
    value = seconds * 1e6
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _table(heads: Sequence[str], rows: Sequence[Sequence[Any]]) -> str:
    lines = ["| " + " | ".join(heads) + " |", "|" + "---|" * len(heads)]
    lines += ["| " + " | ".join(str(cell).replace("|", ",") for cell in row) + " |" for row in rows]
    return "\n".join(lines) + "\n"


def main() -> int:
    """Writes the page if it is not up to date. With `--check`, returns 1 instead."""
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
