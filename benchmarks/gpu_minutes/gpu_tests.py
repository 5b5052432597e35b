"""Runs the tests with the marker `gpu` in several processes. As a pytest plugin, writes each outcome to a journal.

python -m benchmarks.gpu_minutes.gpu_tests JOURNAL [--helpers FILE] [--jobs 8] [--small]

A failure has an origin: `device`; `emulator`, if the emulator failed to compute the expected values; or `process`, if
a worker process died. Tests with an outcome in the journal are not run again.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

TESTS = Path(__file__).resolve().parent.parent.parent / "tests"
JOURNAL, KNOWN = "GPU_TESTS_JOURNAL", "GPU_TESTS_KNOWN_BYTES"


def outcomes(path: Path, size: int | None = None) -> dict[str, dict[str, Any]]:
    """Returns outcomes by the names of tests: those in the first `size` bytes of a journal, or all of them."""
    tests: dict[str, dict[str, Any]] = {}
    for line in path.read_bytes()[:size].decode(errors="replace").splitlines() if path.exists() else ():
        try:
            entry = json.loads(line)
        except ValueError:
            continue  # The process was killed while it wrote this line.
        tests[entry.pop("test")] = entry
    return tests


def pytest_collection_modifyitems(config: Any, items: list[Any]) -> None:
    """Deselects tests that had an outcome when the run began. A replaced worker deselects the same tests."""
    finished = outcomes(Path(os.environ[JOURNAL]), int(os.environ[KNOWN]))
    config.hook.pytest_deselected(items=[item for item in items if item.nodeid in finished])
    items[:] = [item for item in items if item.nodeid not in finished]


def pytest_runtest_logreport(report: Any) -> None:
    """Writes the outcome of a test to the journal, in the main process only."""
    if "PYTEST_XDIST_WORKER" in os.environ or report.when != "call" and report.outcome == "passed":
        return
    entry: dict[str, Any] = {"test": report.nodeid, "outcome": report.outcome, "seconds": round(report.duration, 2)}
    if report.outcome == "failed":
        text = str(report.longrepr)
        entry |= {"origin": origin(text), "says": _message(text)}
    with Path(os.environ[JOURNAL]).open("a", encoding="utf-8") as file:
        file.write(json.dumps(entry) + "\n")


def origin(text: str) -> str:
    """Returns the origin of a failure from its text: `device`, `emulator` or `process`."""
    if re.search(r"worker '?\w+'? crashed", text):
        return "process"
    return "emulator" if "backend/emulator/" in text else "device"


def _message(text: str) -> str:
    lines = [line[1:].strip() for line in text.splitlines() if line.startswith("E ")] or text.splitlines()[-1:]
    return " ".join(lines)[:300]


def main() -> int:
    """Replaces this process by pytest with this plugin."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("journal", type=Path)
    parser.add_argument(
        "--helpers", type=Path, help="expected results of device functions, computed on another machine"
    )
    parser.add_argument("--jobs", type=int, default=8)
    parser.add_argument("--small", action="store_true", help="the tests of the runtime only")
    options = parser.parse_args()
    files = [f for f in sorted(TESTS.rglob("test_*.py")) if re.search(r"mark\.gpu\b", f.read_text(encoding="utf-8"))]
    files = [f for f in files if not options.small or f.name == "test_runtime_gpu.py"]
    os.environ[JOURNAL] = str(options.journal.absolute())
    os.environ[KNOWN] = str(options.journal.stat().st_size if options.journal.exists() else 0)
    if options.helpers is not None and options.helpers.exists():
        os.environ["HELPER_RESULTS"] = str(options.helpers.absolute())
    os.environ["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
    jobs = min(options.jobs, len(os.sched_getaffinity(0)))
    workers = ("-n", str(jobs)) if find_spec("xdist") and not options.small else ()
    arguments = ("-m", "gpu", "-q", "-p", "no:cacheprovider", "-p", "gpu_tests", *workers)
    os.execv(sys.executable, [sys.executable, "-m", "pytest", *arguments, *map(str, files)])


if __name__ == "__main__":
    raise SystemExit(main())
