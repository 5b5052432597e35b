"""Writes summary.txt: versions, the state of each step, wrong results, and the slowest cases."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

from ..common.results import geomean, ratio
from .gpu_tests import outcomes

MOST_CASES = 10
"""Largest number of cases in each list of the summary."""


def journal(path: Path) -> dict[str, dict[str, Any]]:
    """Returns the rows of a journal by key. Ignores an incomplete last line."""
    rows: dict[str, dict[str, Any]] = {}
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else ():
        try:
            entry = json.loads(line)
        except ValueError:
            continue
        if "row" in entry:
            rows[entry["key"]] = entry["row"]
    return rows


def write_summary(folder: Path, states: dict[str, dict[str, Any]]) -> None:
    """Writes summary.txt from the result files in `folder` and the states of the steps by name."""
    smoke = journal(folder / "smoke.jsonl")
    lines = [*_versions(smoke.pop("versions", {})), ""]
    for name, state in states.items():
        lines.append(f"{name:10} {state['status']:16} {state['seconds']:5.0f} s  {state.get('says', '')}".rstrip())
    lines += _cases("smoke", smoke)
    lines += _tests(outcomes(folder / "gpu-tests.jsonl"))
    for name in ("right", "seed84"):
        lines += _cases(name, journal(folder / f"{name}.jsonl"))
    (folder / "summary.txt").write_text("\n".join(lines) + "\n", encoding="utf-8")


def _versions(versions: dict[str, Any]) -> list[str]:
    card = versions.get("card")
    names = ("driver", "nvrtc", "runtime of torch", "torch", "cupy", "python", "commit")
    name = card.get("name") if isinstance(card, dict) else "unknown"
    return [f"{name}: " + ", ".join(f"{k} {versions.get(k)}" for k in names)]


def _cases(name: str, rows: dict[str, dict[str, Any]]) -> list[str]:
    """Returns the lines about a journal: wrong results, errors, and the cases that are slowest relative to PyTorch."""
    if not rows:
        return []
    ratios = {key: r for key, row in rows.items() if (r := ratio(row)) is not None}
    mean = f"; geometric mean {geomean([*ratios.values()]):.3f} of eager PyTorch" if ratios else ""
    right = sum(bool(row.get("right")) for row in rows.values())
    lines = ["", f"{name}: {right} of {len(rows)} right{mean}"]
    wrong = [key for key, row in rows.items() if not row.get("right") and "error" not in row]
    lines += [f"  WRONG {key}" for key in sorted(wrong)[:MOST_CASES]]
    errors = [f"  {key}: {row['error']}"[:160] for key, row in rows.items() if "error" in row]
    lines += errors[:MOST_CASES]
    lowest = sorted(ratios.items(), key=lambda item: item[1])[:MOST_CASES]
    return lines + [f"  {r:6.2f}  {key}" for key, r in lowest]


def _tests(tests: dict[str, dict[str, Any]]) -> list[str]:
    """Returns the lines about the GPU tests: the number of failures by origin, and the first of them."""
    if not tests:
        return []
    failed = {name: t for name, t in tests.items() if t["outcome"] == "failed"}
    by_origin = Counter(t["origin"] for t in failed.values())
    origins = ", ".join(f"{count} of the {origin}" for origin, count in sorted(by_origin.items()))
    lines = ["", f"gpu-tests: {len(tests)} tests, {len(failed)} failed{f' ({origins})' if origins else ''}"]
    shown = sorted(failed.items(), key=lambda item: item[1]["origin"])[:MOST_CASES]
    return lines + [f"  {t['origin']}: {name}: {t['says']}"[:200] for name, t in shown]
