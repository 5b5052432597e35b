"""What came of all steps, as JSON and as a page of text."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from results import geomean, ratio, times_of  # noqa: E402

SHOWN = 10
"""So many cases of a kind are listed in the text."""


def journal(path: Path) -> dict[str, dict[str, Any]]:
    """The rows of a journal; what is cut off at its end is left out."""
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
    """Write summary.json and summary.txt."""
    versions = folder / "versions.json"
    found: dict[str, Any] = {
        "versions": json.loads(versions.read_text()) if versions.exists() else {},
        "steps": states,
        "gpu-tests": _tests(folder / "gpu-tests.xml"),
        "sanitizers": {tool: _sanitizer(folder / f"{tool}.log") for tool in ("memcheck", "racecheck", "synccheck")},
    }
    for name in ("right", "seed84", "targets"):
        found[name] = _cases(journal(folder / f"{name}.jsonl"))
    (folder / "summary.json").write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    (folder / "summary.txt").write_text("\n".join(_lines(found)) + "\n", encoding="utf-8")


def _cases(rows: dict[str, dict[str, Any]]) -> dict[str, Any]:
    ratios = {key: ratio(row) for key, row in rows.items()}
    known = {key: r for key, r in ratios.items() if r is not None}
    return {
        "cases": len(rows),
        "right": sum(bool(row.get("right")) for row in rows.values()),
        "wrong": sorted(key for key, row in rows.items() if not row.get("right") and "error" not in row),
        "errors": {key: row["error"] for key, row in rows.items() if "error" in row},
        "geomean": geomean([*known.values()]) if known else None,
        "worst": sorted(known.items(), key=lambda item: item[1])[:SHOWN],
        "without graphs": sorted({f"{key}: {arm}" for key, row in rows.items() for arm in _without_graphs(row)}),
    }


def _without_graphs(row: dict[str, Any]) -> list[str]:
    return [arm for arm, t in times_of(row).items() if not t.get("graph")]


def _tests(path: Path) -> dict[str, Any]:
    """Numbers of tests and the names of those that failed, from pytest's report."""
    try:
        suites = list(ElementTree.parse(path).getroot().iter("testsuite"))
    except (OSError, ElementTree.ParseError):
        return {}
    numbers = {n: sum(int(s.get(n, 0)) for s in suites) for n in ("tests", "failures", "errors", "skipped")}
    cases = [c for s in suites for c in s.iter("testcase")]
    bad = [c for c in cases if c.find("failure") is not None or c.find("error") is not None]
    return {**numbers, "failed": [f"{c.get('classname')}::{c.get('name')}" for c in bad]}


def _sanitizer(log: Path) -> str:
    text = log.read_text(encoding="utf-8", errors="replace") if log.exists() else ""
    found = re.findall(r"(?:ERROR|RACECHECK) SUMMARY: .*", text)
    return found[-1] if found else ""


def _lines(found: dict[str, Any]) -> list[str]:
    versions = found["versions"]
    card = versions.get("card") if isinstance(versions.get("card"), dict) else {}
    known = ("driver", "nvrtc", "runtime of torch", "torch", "cupy", "commit")
    lines = [f"{(card or {}).get('name', 'unknown')}: " + ", ".join(f"{k} {versions.get(k)}" for k in known), ""]
    for name, state in found["steps"].items():
        more = state.get("why") or found["sanitizers"].get(name) or ""
        lines.append(f"{name:14} {state['status']:16} {state['seconds']:6.0f} s  {more}".rstrip())
    tests = found["gpu-tests"]
    if tests:
        lines += ["", f"gpu-tests: {tests['tests']} tests, {len(tests['failed'])} failed, {tests['skipped']} skipped"]
        lines += [f"  {name}" for name in tests["failed"][:SHOWN]]
    for name in ("right", "seed84", "targets"):
        part = found[name]
        if not part["cases"]:
            continue
        mean = "" if part["geomean"] is None else f"; geometric mean {part['geomean']:.3f} of the best of PyTorch's"
        lines += ["", f"{name}: {part['right']} of {part['cases']} right{mean}"]
        lines += [f"  WRONG {key}" for key in part["wrong"][:SHOWN]]
        lines += [f"  {key}: {why}"[:160] for key, why in list(part["errors"].items())[:SHOWN]]
        lines += [f"  {ratio:6.2f}  {key}" for key, ratio in part["worst"]]
        lines += [f"  timed without a graph: {text}" for text in part["without graphs"][:SHOWN]]
    return lines
