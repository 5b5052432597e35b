"""The commands of `first_gpu_hour.sh`: see there."""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

from machine import card, folder_name, missing_packages
from running import Runner
from steps import steps
from summary import write_summary

ROOT = Path(__file__).resolve().parent.parent.parent

AGAIN = 75
"""Exit code of a call that ended with its budget: call it again. EX_TEMPFAIL of sysexits.h."""

LACKING = 3
"""Exit code where Python packages are missing."""


def main() -> int:
    """Run the steps that are not done, as far as the budget goes."""
    parser = argparse.ArgumentParser(prog="first_gpu_hour.sh", description=__doc__)
    parser.add_argument("--budget", type=float, default=570.0, help="seconds of this call (570)")
    parser.add_argument("--out", type=Path, help="folder of the results; benchmarks/results/DEVICE-DATE")
    parser.add_argument("--only", default="", help="only the step of this name")
    parser.add_argument("--cases", default="", help="only cases with this in their names")
    parser.add_argument("--small", action="store_true", help="small cases and few tests: a rehearsal")
    parser.add_argument("--limit", action="append", default=[], metavar="STEP=SECONDS", help="another limit of a step")
    options = parser.parse_args()
    started = time.monotonic()
    if missing := missing_packages():
        print(f"Python packages are missing: {', '.join(missing)}")
        print(f"  {sys.executable} -m pip install {' '.join(missing)}")
        return LACKING
    found = card()
    folder = (options.out or ROOT / "benchmarks" / "results" / folder_name(found["name"])).absolute()
    folder.mkdir(parents=True, exist_ok=True)
    (folder / ".gitignore").write_text("cache/\nprepared/\n*.new\n", encoding="utf-8")
    print(f"{found['name']}: results in {folder}")
    limits = {name: float(seconds) for name, _, seconds in (text.partition("=") for text in options.limit)}
    runner = Runner(ROOT, folder, started + options.budget)
    todo = [s for s in steps(folder, options.small, options.cases, limits) if options.only in ("", s.name)]
    for step in todo:
        runner.run(step)
        write_summary(folder, runner.states)
    print((folder / "summary.txt").read_text(encoding="utf-8"), end="")
    left = [s.name for s in todo if not runner.is_done(s)]
    if left:
        print(f"not done yet: {', '.join(left)}. Call it again.")
        return AGAIN
    return 0 if all(runner.states[s.name]["status"] in ("done", "skipped") for s in todo) else 1


if __name__ == "__main__":
    raise SystemExit(main())
