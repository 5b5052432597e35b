"""Runs many random programs in one process. Stores verdicts in a file, from which a stopped run continues."""

from __future__ import annotations

import json
import resource
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

import torch
from conformance.levels import down_to
from conformance.opdb import Trial
from conformance.tracing import Tracer, tracer

BATCH = 8
"""Number of programs that one run of the C++ compiler builds."""


class Program(Protocol):
    """A random program with its inputs and its text."""

    inputs: list[torch.Tensor]

    def __call__(self, *inputs: torch.Tensor) -> list[Any]: ...


@dataclass(frozen=True)
class Verdict:
    """Result of the program of a seed at a level, for a target."""

    seed: int
    level: str
    target: str
    kind: str
    reason: str = ""
    seconds: float = 0.0


def run(
    program: Callable[[int], Program], seeds: Sequence[int], level: str, targets: Sequence[str], log: Path | None
) -> int:
    """Judges the programs of all seeds without a verdict in `log`. Prints those that are not right, and a summary.

    Returns 1 if a program is wrong or crashes. The seed selects the target.
    """
    started, verdicts = time.monotonic(), _read(log)
    done = {(v.seed, v.level) for v in verdicts}
    left = [seed for seed in seeds if (seed, level) not in done]
    most_maps = 0
    with tracer() as t:
        for first in range(0, len(left), BATCH * len(targets)):
            part = left[first : first + BATCH * len(targets)]
            for target in targets:
                own = [seed for seed in part if targets[seed % len(targets)] == target]
                for verdict, text in judge(t, {seed: program(seed) for seed in own}, level, target):
                    verdicts.append(verdict)
                    if log is not None:
                        with log.open("a", encoding="utf-8") as file:
                            file.write(json.dumps(asdict(verdict)) + "\n")
                    if verdict.kind not in ("right", "skipped"):
                        head = f"seed {verdict.seed}, {target}: {verdict.kind}: {verdict.reason[:400]}"
                        print(head if verdict.kind == "refused" else f"--- {head}\n{text}", flush=True)
                most_maps = max(most_maps, memory_maps())
    counts = Counter(v.kind for v in verdicts)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    took = time.monotonic() - started
    print(f"{dict(counts)}: {len(left)} programs in {took:.0f} s, at most {peak} MiB and {most_maps} memory maps")
    return int(counts["wrong"] + counts["crash"] > 0)


def judge(t: Tracer, programs: dict[int, Program], level: str, target: str) -> Iterator[tuple[Verdict, str]]:
    """Yields the verdict and the text of each program. The programs are built together."""
    down = down_to(level, target)
    trials = {seed: Trial(program, program.inputs) for seed, program in programs.items()}
    for trial in trials.values():
        trial.trace(t)
        trial.attempt(lambda trial=trial: down.lower(trial.module))
    left = [trial for trial in trials.values() if trial.open]
    try:
        runs = down.build([trial.module for trial in left])
    except Exception:  # Judge one at a time to learn which one failed.
        runs = [lambda args, trial=trial: down.build([trial.module])[0](args) for trial in left]
    for trial, run_one in zip(left, runs, strict=True):
        trial.run(run_one)
    for seed, trial in trials.items():
        yield Verdict(seed, level, target, *trial.verdict, round(trial.seconds, 2)), str(programs[seed])


def memory_maps() -> int:
    """Returns the number of memory maps of this process, or 0 if the system does not report it."""
    maps = Path("/proc/self/maps")
    return len(maps.read_text().splitlines()) if maps.exists() else 0


def _read(log: Path | None) -> list[Verdict]:
    """Returns the verdicts in a file. Ignores an incomplete last line."""
    if log is None or not log.exists():
        return []
    lines = log.read_text(encoding="utf-8").splitlines(keepends=True)
    if lines and not lines[-1].endswith("\n"):
        log.write_text("".join(lines[:-1]), encoding="utf-8")
        lines = lines[:-1]
    return [Verdict(**json.loads(line)) for line in lines]
