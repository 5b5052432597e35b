"""Verdicts, summed up by operator, and the list of refusals that are expected."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from .opdb import Verdict, named_reason

EXPECTED = Path(__file__).with_name("expected_refusals.json")
"""Data type -> operator -> the named reason; with " (some)" behind it where other samples are right."""


@dataclass(frozen=True)
class Summary:
    """One operator with one data type."""

    operator: str
    right: int
    refused: int
    failed: int
    reason: str

    @property
    def entry(self) -> str:
        """The entry in the list of expected refusals; "" for an operator that is right."""
        if not self.refused:
            return ""
        return f"{self.reason} (some)" if self.right else self.reason


def summarize(verdicts: Iterable[Verdict]) -> dict[str, Summary]:
    """By operator, in the order in which they first appear."""
    counts: dict[str, Counter[str]] = {}
    reasons: dict[str, Counter[str]] = {}
    for v in verdicts:
        counts.setdefault(v.operator, Counter())[v.kind] += 1
        if v.kind == "refused":
            reasons.setdefault(v.operator, Counter())[named_reason(v.reason)] += 1
    found: dict[str, Summary] = {}
    for operator, count in counts.items():
        reason = min(reasons.get(operator, Counter({"": 1})).items(), key=lambda item: (-item[1], item[0]))[0]
        failed = count["wrong"] + count["crash"]
        found[operator] = Summary(operator, count["right"], count["refused"], failed, reason)
    return found


def expected(dtype: str) -> Mapping[str, str]:
    """The expected refusals for a data type (`"float32"`)."""
    return json.loads(EXPECTED.read_text(encoding="utf-8"))[dtype]


def unexpected(verdicts: Iterable[Verdict], dtype: str, *, every_sample: bool = False) -> list[str]:
    """What contradicts the law or the list: failures, refusals that are not in it, and entries that now work.

    Without `every_sample` an operator of which some samples are refused may show only its right ones.
    """
    verdicts = list(verdicts)
    listed = expected(dtype)
    problems = [
        f"{v.kind}: {v.operator} sample {v.sample}: {v.reason}" for v in verdicts if v.kind in ("wrong", "crash")
    ]
    for name, summary in summarize(verdicts).items():
        entry = listed.get(name, "")
        if summary.refused and not entry:
            problems.append(f"{name} is refused ({summary.reason}), and is not in the list of expected refusals")
        if summary.right and entry and not entry.endswith("(some)"):
            problems.append(f"{name} is right now: take it off the list of expected refusals")
        if every_sample and summary.right and not summary.refused and entry:
            problems.append(f"{name} is right now: take it off the list of expected refusals")
    return problems
