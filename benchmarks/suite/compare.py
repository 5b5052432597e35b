"""Compares two result files: prints the cases whose time on deplodock changed by more than the noise.

    python -m benchmarks.suite.compare benchmarks/results/A.json benchmarks/results/B.json [--all]

The machine may have been slower during one of the runs. PyTorch's arms (eager, torch.compile) are the same in both
runs, so the change of our time is divided by the mean change of theirs. A case counts as faster or slower only if the
95 % intervals of all medians exclude "no change". The exit status is 1 if a case is slower, or has become wrong.
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
    """Change of our time for one case, relative to the change of PyTorch's times. Below 1 deplodock became faster.

    Attributes:
        value: our time in the second file over our time in the first, divided by the same ratio for PyTorch's arms.
        low, high: bounds of the value for 95 % intervals of all medians.
    """

    value: float
    low: float
    high: float

    @property
    def verdict(self) -> str:
        """`faster` or `slower` if the bounds exclude 1, else `same`."""
        return "faster" if self.high < 1 else "slower" if self.low > 1 else "same"


def change(first: Row, second: Row) -> Change | None:
    """Returns the change between two rows of a case, or None if deplodock has no time in one of them."""
    before, after = times_of(first), times_of(second)
    if OURS not in before or OURS not in after:
        return None
    ratios = {arm: after[arm]["median"] / before[arm]["median"] for arm in before if arm in after}
    noises = {arm: math.hypot(noise(before[arm]), noise(after[arm])) for arm in ratios}
    ours, scatter, others = ratios.pop(OURS), noises.pop(OURS), [*ratios]
    slowest = max((ratios[arm] * (1 + noises[arm]) for arm in others), default=1.0)
    fastest = min((ratios[arm] * max(1 - noises[arm], 0.01) for arm in others), default=1.0)
    drift = geomean([*ratios.values()]) if ratios else 1.0
    return Change(ours / drift, ours * (1 - scatter) / slowest, ours * (1 + scatter) / fastest)


def main() -> int:
    """Compares the two files of the command line. Returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("first", type=Path)
    parser.add_argument("second", type=Path)
    parser.add_argument("--all", action="store_true", help="print unchanged cases, too")
    options = parser.parse_args()
    before = {key_of(r): r for r in read(options.first)["rows"]}
    after = {key_of(r): r for r in read(options.second)["rows"]}
    changes = {key: c for key in before if key in after and (c := change(before[key], after[key])) is not None}
    wrong = [key for key in before if before[key]["right"] is True and key in after and after[key]["right"] is False]
    for key, c in sorted(changes.items(), key=lambda item: item[1].value):
        if options.all or c.verdict != "same":
            name = " ".join(str(part) for part in key[:-1] if part)
            print(f"{c.verdict}  {c.value:.2f} ({c.low:.2f} .. {c.high:.2f})  {name}, {key[-1]} threads")
    for key in wrong:
        print("WRONG ", *key)
    counts = {v: sum(c.verdict == v for c in changes.values()) for v in ("faster", "slower", "same")}
    mean = geomean([c.value for c in changes.values()])
    text = ", ".join(f"{n} {verdict}" for verdict, n in counts.items())
    print(f"{len(changes)} cases in both: {text}; geometric mean of our time, second over first: {mean:.3f}")
    return int(bool(wrong) or counts["slower"] > 0)


if __name__ == "__main__":
    sys.exit(main())
