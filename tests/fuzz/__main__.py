"""`python -m fuzz --count 5000` (in `tests`): executes random PyTorch programs at one level and compares them.

At the levels `kernel` (the simulator) and `cuda` (the emulator) the targets alternate, or are those of `--targets`.
`--log FILE` stores each verdict as a line. Seeds with a verdict are skipped, so a stopped run continues. The summary
covers the whole file, with the largest memory and number of memory maps of this process.

`python -m fuzz --schedules --count 1000`: runs the kernels of a corpus with random legal schedules, for `sm_90a` and
`cpu` alternately, in the simulator, and in the emulator or as C++. `--first` is the first seed. `--built 10` builds
only every tenth case.

`--expressions` simplifies and evaluates random index expressions.
"""

from __future__ import annotations

import argparse
import sys
import time
import warnings
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import torch
from conformance.levels import LEVELS

from deplodock.target.architectures import TARGETS

from . import campaign, expressions, schedules
from .graphs import Generator
from .views import draw


def main() -> int:
    """Prints each program that is wrong or crashes. Returns 1 if there is one."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=1000)
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--level", choices=LEVELS, default="tensor")
    parser.add_argument("--targets", help="for which the levels below `tile` are compiled, separated by commas")
    parser.add_argument("--log", type=Path, help="a file of verdicts to go on with")
    parser.add_argument("--simple", action="store_true", help="f32 only")
    parser.add_argument("--views", action="store_true", help="chains of views of whole numbers")
    parser.add_argument("--schedules", action="store_true", help="kernels under random schedules")
    parser.add_argument("--expressions", action="store_true", help="index expressions, simplified")
    parser.add_argument(
        "--built", type=int, default=1, help="of schedules, run every so manieth as CUDA or C++ as well"
    )
    options = parser.parse_args()
    if options.expressions:
        seeds = range(options.first, options.first + options.count)
        problems = [f"seed {seed}: {problem}" for seed in seeds if (problem := expressions.judge(seed))]
        print("\n".join([*problems, f"{len(seeds)} expressions, {len(problems)} wrong"]))
        return int(bool(problems))
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    if options.schedules:
        targets = options.targets.split(",") if options.targets else schedules.TARGETS
        return run_schedules(range(options.first, options.first + options.count), targets, options.built)

    def program(seed: int) -> campaign.Program:
        return (
            draw(seed, options.steps) if options.views else Generator(seed, simple=options.simple).draw(options.steps)
        )

    seeds = range(options.first, options.first + options.count)
    targets = options.targets.split(",") if options.targets else [*TARGETS]
    return campaign.run(program, seeds, options.level, targets, options.log)


def run_schedules(seeds: range, targets: Sequence[str], built: int = 1) -> int:
    """Judges one random legal schedule for each seed; after a round of all kernels comes the next target."""
    counts: Counter[str] = Counter()
    parts: Counter[str] = Counter()
    started = time.monotonic()
    for seed in seeds:
        target = targets[seed // len(schedules.corpus()) % len(targets)]
        case = schedules.case_for(seed, target)
        text = str(case)
        kind, reason = schedules.judge(case, target, seed % built == 0)
        counts[f"{target} {kind}"] += 1
        if kind != "right":
            print(f"--- {target}, {kind}: {reason[:400]}\n{text}", flush=True)
        else:
            parts.update(schedules.made_of(case))
    kernels = len(schedules.corpus())
    print(f"{dict(counts)} of {len(seeds)} schedules of {kernels} kernels in {time.monotonic() - started:.0f} s")
    print("of those that were right: " + ", ".join(f"{n} {part}" for part, n in parts.most_common()))
    return int(any(kind.endswith((" wrong", " crash")) for kind in counts))


if __name__ == "__main__":
    sys.exit(main())
