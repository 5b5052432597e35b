"""What changed from one file of results to another: our times, as far as they changed more than the noise.

    python -m benchmarks.suite.compare benchmarks/results/A.json benchmarks/results/B.json [--all]

The machine may have been slower in one of the runs. That is seen by PyTorch's arms, which are the same in both: our
change is taken relative to theirs, and is called one only where the intervals of 95 % of all medians leave it no chance
to be none. The exit status is 1 where something is slower or wrong that was not.
"""

from __future__ import annotations

import argparse
import math
import sys
from dataclasses import dataclass
from pathlib import Path

from ..common.results import OURS, Row, geomean, key_of, noise, read, times_of


@dataclass(frozen=True)
class Change:
    """Our time in the second file over that in the first, by what PyTorch's arms changed; between `low` and `high`."""

    value: float
    low: float
    high: float

    @property
    def verdict(self) -> str:
        """`faster`, `slower` or `same`, as far as the noise lets one say."""
        return "faster" if self.high < 1 else "slower" if self.low > 1 else "same"


def change(first: Row, second: Row) -> Change | None:
    """How our time of a case changed; None where one of the rows has none."""
    before, after = times_of(first), times_of(second)
    if OURS not in before or OURS not in after:
        return None
    found = {arm: after[arm]["median"] / before[arm]["median"] for arm in before if arm in after}
    noises = {arm: math.hypot(noise(before[arm]), noise(after[arm])) for arm in found}
    ours, scatter, others = found.pop(OURS), noises.pop(OURS), [*found]
    slowest = max((found[arm] * (1 + noises[arm]) for arm in others), default=1.0)
    fastest = min((found[arm] * max(1 - noises[arm], 0.01) for arm in others), default=1.0)
    drift = geomean([*found.values()]) if found else 1.0
    return Change(ours / drift, ours * (1 - scatter) / slowest, ours * (1 + scatter) / fastest)


def main() -> int:
    """Compare two files."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("first", type=Path)
    parser.add_argument("second", type=Path)
    parser.add_argument("--all", action="store_true", help="also what is the same")
    options = parser.parse_args()
    before = {key_of(r): r for r in read(options.first)["rows"]}
    after = {key_of(r): r for r in read(options.second)["rows"]}
    found = {key: c for key in before if key in after and (c := change(before[key], after[key])) is not None}
    wrong = [key for key in before if before[key]["right"] is True and key in after and after[key]["right"] is False]
    for key, c in sorted(found.items(), key=lambda item: item[1].value):
        if options.all or c.verdict != "same":
            name = " ".join(str(part) for part in key[:-1] if part)
            print(f"{c.verdict}  {c.value:.2f} ({c.low:.2f} .. {c.high:.2f})  {name}, {key[-1]} threads")
    for key in wrong:
        print("WRONG ", *key)
    counts = {v: sum(c.verdict == v for c in found.values()) for v in ("faster", "slower", "same")}
    mean = geomean([c.value for c in found.values()])
    text = ", ".join(f"{n} {verdict}" for verdict, n in counts.items())
    print(f"{len(found)} cases in both: {text}; geometric mean of our time, second over first: {mean:.3f}")
    return int(bool(wrong) or counts["slower"] > 0)


if __name__ == "__main__":
    sys.exit(main())
