"""Summarises verdicts by operator, and compares them with the recorded results of the last full run."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from support.torch_versions import VERSION

from .opdb import FAILED, Verdict, named_reason

RESULTS = Path(__file__).with_name("results.json")
"""Results of the last full runs: run -> operator -> [right, refused, wrong, reason].

The key `RUNS` has the number of samples per operator of each run ("all" or a number). A run is named by its data type
and, except for the tensor level, its level (`float32 cuda`); `errors` are the calls that PyTorch refuses.
"""

RECORDED_WITH = (2, 13)
"""Major and minor version of PyTorch in the last full runs."""

RUNS = "runs"


@dataclass(frozen=True)
class Summary:
    """Counts of the verdicts on one operator in one run."""

    operator: str
    right: int
    refused: int
    failed: int
    reason: str

    @property
    def entry(self) -> str:
        """Entry in the list of expected refusals; empty for an operator that is right."""
        if not self.refused:
            return ""
        return f"{self.reason} (some)" if self.right else self.reason


def summarize(verdicts: Iterable[Verdict]) -> dict[str, Summary]:
    """Returns the counts of verdicts by operator, in order of first appearance."""
    counts: dict[str, Counter[str]] = {}
    reasons: dict[str, Counter[str]] = {}
    for v in verdicts:
        counts.setdefault(v.operator, Counter())[v.kind] += 1
        if v.kind == "refused":
            reasons.setdefault(v.operator, Counter())[named_reason(v.reason)] += 1
    found: dict[str, Summary] = {}
    for operator, count in counts.items():
        reason = min(reasons.get(operator, Counter({"": 1})).items(), key=lambda item: (-item[1], item[0]))[0]
        failed = sum(count[kind] for kind in FAILED)
        found[operator] = Summary(operator, count["right"], count["refused"], failed, reason)
    return found


def recorded() -> dict[str, dict[str, Summary]]:
    """Returns the results of the last full runs, by run and operator."""
    return {t: {name: Summary(name, *row) for name, row in rows.items()} for t, rows in _data().items() if t != RUNS}


def samples_taken() -> dict[str, str]:
    """Returns the number of samples per operator of each run, as text."""
    return _data().get(RUNS, {})


def _data() -> dict[str, Any]:
    return json.loads(RESULTS.read_text(encoding="utf-8")) if RESULTS.exists() else {}


def record(results: Mapping[str, Mapping[str, Summary]], taken: str) -> None:
    """Replaces the recorded results of the operators in `results`. `taken` is the number of samples of each.

    Raises ValueError if a part of a run has another number of samples than the run.
    """
    merged: dict[str, dict[str, Summary]] = recorded()
    runs = samples_taken()
    for run, by_operator in results.items():
        if runs.get(run, taken) != taken and set(merged[run]) - set(by_operator):
            raise ValueError(f"{run}: the other operators were run on {runs[run]} samples, not {taken}")
        merged.setdefault(run, {}).update(by_operator)
        runs[run] = taken
    lines = [f' "{RUNS}": {json.dumps(runs)}']
    lines += [
        f' "{t}": {{\n'
        + ",\n".join(f"  {json.dumps(n)}: {json.dumps(_row(s))}" for n, s in sorted(rows.items()))
        + "\n }"
        for t, rows in merged.items()
    ]
    RESULTS.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


def _row(s: Summary) -> list[int | str]:
    return [s.right, s.refused, s.failed, s.reason]


def expected(dtype: str) -> Mapping[str, str]:
    """Returns the expected refusals of a data type (`"float32"`): operator -> entry."""
    return {name: s.entry for name, s in recorded()[dtype].items() if s.entry}


def unexpected(verdicts: Iterable[Verdict], dtype: str, *, every_sample: bool = False) -> list[str]:
    """Returns messages for failures, refusals that are not expected, and expected refusals that now work.

    Without `every_sample`, an operator with some refused samples may have only right ones. With a newer PyTorch than in
    the last full run, operators without a recorded result may be refused.
    """
    verdicts = list(verdicts)
    listed, known = expected(dtype), recorded()[dtype]
    problems = [f"{v.kind}: {v.operator} sample {v.sample}: {v.reason}" for v in verdicts if v.kind in FAILED]
    for name, summary in summarize(verdicts).items():
        entry = listed.get(name, "")
        if summary.refused and not entry and (name in known or VERSION <= RECORDED_WITH):
            problems.append(f"{name} is refused ({summary.reason}), and is not in the list of expected refusals")
        if summary.right and entry and not entry.endswith("(some)"):
            problems.append(f"{name} is right now: take it off the list of expected refusals")
        if every_sample and summary.right and not summary.refused and entry:
            problems.append(f"{name} is right now: take it off the list of expected refusals")
    return problems
