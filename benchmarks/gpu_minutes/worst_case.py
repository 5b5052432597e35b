"""Profiles with ncu the case that is slowest relative to PyTorch.

python -m benchmarks.gpu_minutes.worst_case FOLDER [--prepared FOLDER] [--small]  # writes FOLDER/ncu.txt
python -m benchmarks.gpu_minutes.worst_case FOLDER --one CASE ...  # runs the program; called by ncu
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

from deplodock.backend.cuda.kernel_texts import ENTRY  # noqa: E402

from ..common.results import ratio
from .summary import journal

KERNELS = f"regex:^{ENTRY}$"
"""ncu filter that matches generated kernels."""


def worst(folder: Path) -> str | None:
    """Returns the key of the case with the smallest ratio of PyTorch's time to ours, or None if none was timed."""
    ratios = {key: r for key, row in journal(folder / "seed84.jsonl").items() if (r := ratio(row)) is not None}
    return min(ratios, key=lambda key: ratios[key], default=None)


def profile(folder: Path, arguments: list[str]) -> int:
    """Runs ncu on the worst case and writes its report to ncu.txt. Returns ncu's exit code, or 1 without a case."""
    case = worst(folder)
    if case is None:
        print("no case was timed")
        return 1
    print(case, flush=True)
    command = [sys.executable, "-m", "benchmarks.gpu_minutes.worst_case", *arguments, "--one", case]
    ncu = ["ncu", "--set", "full", "--clock-control", "none", "-k", KERNELS, "--launch-count", "2", "--page", "details"]
    with (folder / "ncu.txt").open("w", encoding="utf-8") as report:
        report.write(f"{case}\n")
        report.flush()
        return subprocess.run([*ncu, *command], stdout=report, stderr=subprocess.STDOUT, check=False).returncode


def run_one(case: str, prepared: Path | None, small: bool) -> None:
    """Runs the program of a case twice.

    Args:
        case: key of the case.
        prepared: folder of compiled programs, or None.
        small: whether the 84 shapes are shrunk.
    """
    import torch

    from deplodock.backend.cuda.runtime import arch_of

    from ..common.cases import DTYPES, cases
    from ..common.prepared import program

    target = arch_of(torch.cuda.get_device_capability())
    (selected,) = (c for c in cases(["seed84"], "cuda", list(DTYPES), small=small) if c.key == case)
    inputs = [t.cuda() for t in selected.make()[1]]
    ours = program(selected, target, prepared)
    for _ in range(2):
        ours(*inputs)
    torch.cuda.synchronize()


def main() -> int:
    """Profiles the worst case, or runs the case of `--one`."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--prepared", type=Path)
    parser.add_argument("--one")
    parser.add_argument("--small", action="store_true")
    options = parser.parse_args()
    if options.one is None:
        return profile(options.folder, sys.argv[1:])
    run_one(options.one, options.prepared, options.small)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
