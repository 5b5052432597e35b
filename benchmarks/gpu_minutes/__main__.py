"""Entry point of `gpu_minutes.sh`: runs the steps of `steps.py` within a time budget, and continues earlier calls."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
import tarfile
import time
from pathlib import Path

from ..common.sources import sources_digest
from .machine import card, provide
from .running import Runner
from .steps import FILES, Settings, steps
from .summary import write_summary

ROOT = Path(__file__).resolve().parent.parent.parent
BUILD = ROOT / "build"

EXIT_CALL_AGAIN = 75
"""Exit code if the budget ended before the last step: another call continues. EX_TEMPFAIL of sysexits.h."""

EXIT_PACKAGES_MISSING = 3
"""Exit code if Python packages are missing."""


def main() -> int:
    """Runs unfinished steps until the budget ends. Returns the exit code."""
    options = _options()
    deadline = time.monotonic() + options.budget
    cache = BUILD / "gpu-cache"
    if missing := provide(options.bundle / "wheels", cache / "site"):
        print(f"Python packages are missing, here and in {options.bundle}: {', '.join(missing)}")
        print(f"  {sys.executable} -m pip install {' '.join(missing)}")
        return EXIT_PACKAGES_MISSING
    folder = options.out.absolute()
    folder.mkdir(parents=True, exist_ok=True)
    for name in FILES if options.resume else ():
        if (options.resume / name).exists() and not (folder / name).exists():
            shutil.copyfile(options.resume / name, folder / name)
    programs, helpers = _prepared(options.bundle, cache), options.bundle / "helpers.npz"
    settings = Settings(folder, programs, helpers, options.small, options.cases)
    print(f"{card()['name']}: results in {folder}")
    runner = Runner(ROOT, folder, deadline, _environment(cache))
    limits = {name: float(seconds) for name, _, seconds in (text.partition("=") for text in options.limit)}
    todo = [s for s in steps(settings, limits) if options.only in ("", s.name)]
    for step in todo:
        runner.run(step)
        write_summary(folder, runner.states)
        if step.required and runner.states[step.name]["status"] != "done":
            print(f"{step.name} is {runner.states[step.name]['status']}: no other step is run")
            break
    print((folder / "summary.txt").read_text(encoding="utf-8"), end="")
    if any(s.required and runner.is_done(s) and runner.states[s.name]["status"] != "done" for s in todo):
        return 1
    if unfinished := [s.name for s in todo if not runner.is_done(s)]:
        print(f"not done yet: {', '.join(unfinished)}. Call the script again.")
        return EXIT_CALL_AGAIN
    return 0 if all(runner.states[s.name]["status"] in ("done", "skipped") for s in todo) else 1


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="gpu_minutes.sh", description=__doc__)
    out = Path(os.environ.get("OUT") or BUILD / "gpu-minutes")
    parser.add_argument("--budget", type=float, default=540.0, help="seconds of this call (540)")
    parser.add_argument("--out", type=Path, default=out, help="folder of the results; $OUT, or build/gpu-minutes")
    parser.add_argument("--resume", type=Path, help="folder with the files of an earlier call")
    parser.add_argument("--bundle", type=Path, default=BUILD / "gpu-bundle", help="build/gpu-bundle")
    parser.add_argument("--only", default="", help="only the step of this name")
    parser.add_argument("--cases", default="", help="only cases whose key contains this text")
    parser.add_argument("--small", action="store_true", help="small cases and few tests: a rehearsal")
    parser.add_argument(
        "--limit", action="append", default=[], metavar="STEP=SECONDS", help="replace the limit of a step"
    )
    return parser.parse_args()


def _environment(cache: Path) -> dict[str, str]:
    """Returns the environment variables of the steps. Caches are stored outside of the results folder."""
    paths = [str(ROOT), str(cache / "site"), os.environ.get("PYTHONPATH", "")]
    additions = {"PYTHONPATH": os.pathsep.join(filter(None, reversed(paths))), "XDG_CACHE_HOME": str(cache)}
    return {**os.environ, **additions, "TORCHINDUCTOR_CACHE_DIR": str(cache / "inductor")}


def _prepared(bundle: Path, cache: Path) -> Path:
    """Returns the folder of compiled programs, unpacked from the bundle if its programs have the present sources."""
    folder = cache / "prepared"
    manifest = bundle / "manifest.json"
    digest = json.loads(manifest.read_text(encoding="utf-8"))["library"] if manifest.exists() else None
    if digest != sources_digest():
        print(f"programs are compiled here: {bundle} is {'absent' if digest is None else 'of other sources'}")
    elif not (marker := folder / sources_digest()).exists():
        with tarfile.open(bundle / "prepared.tar.gz") as archive:
            archive.extractall(folder, filter="data")
        marker.touch()
    return folder


if __name__ == "__main__":
    raise SystemExit(main())
