"""ncu on the cases that are furthest behind PyTorch: a report and a page of text for each.

python benchmarks/gpu_hour/worst_cases.py FOLDER [--small]            # profiles the five worst of FOLDER
python benchmarks/gpu_hour/worst_cases.py FOLDER --one CASE [--small] # what ncu runs: the program, three times
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from results import ratio  # noqa: E402
from steps import WORST  # noqa: E402
from summary import journal  # noqa: E402

from deplodock.backend.cuda.kernel_texts import ENTRY  # noqa: E402

KERNELS = f"regex:^{ENTRY}$"
"""How generated kernels are called."""


def worst(folder: Path) -> list[tuple[str, float]]:
    """The cases with the smallest ratio of PyTorch's time to ours; keys of `seed84.jsonl` and of `targets.jsonl`."""
    rows = {**journal(folder / "seed84.jsonl"), **journal(folder / "targets.jsonl")}
    known = ((key, r) for key, row in rows.items() if (r := ratio(row)) is not None)
    return sorted(known, key=lambda item: item[1])[:WORST]


def profile(folder: Path, small: bool) -> int:
    """Run ncu for each; gives the number of those that failed."""
    (folder / "ncu").mkdir(exist_ok=True)
    failed = 0
    for number, (case, of_the_best) in enumerate(worst(folder), 1):
        name = f"{number}-{re.sub(r'[^A-Za-z0-9]+', '-', case).strip('-')}"
        text = folder / "ncu" / f"{name}.txt"
        if text.exists():
            continue
        one = [sys.executable, __file__, str(folder), "--one", case, *(["--small"] if small else [])]
        ncu = ["ncu", "--set", "full", "--clock-control", "none", "-k", KERNELS, "--launch-count", "4"]
        done = subprocess.run(
            [*ncu, "--page", "details", *one], capture_output=True, text=True, check=False, timeout=60
        )
        if done.returncode == 0:
            text.write_text(done.stdout, encoding="utf-8")
        print(
            f"{case}: {of_the_best:.2f} of the best; ncu ends with {done.returncode}", done.stderr[-2000:], flush=True
        )
        failed += done.returncode != 0
    return failed


def run_one(folder: Path, case: str, small: bool) -> None:
    """Run the program of a case three times."""
    import torch
    from cases import DTYPES, cases
    from prepared import program

    from deplodock.backend.cuda.runtime import arch_of

    target = arch_of(torch.cuda.get_device_capability())
    (found,) = (c for c in cases(["classes", "seed84"], "cuda", list(DTYPES), small=small) if c.key == case)
    inputs = [t.cuda() for t in found.make()[1]]
    ours = program(found, target, folder / "prepared")
    for _ in range(3):
        ours(*inputs)
    torch.cuda.synchronize()


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--one")
    parser.add_argument("--small", action="store_true")
    options = parser.parse_args()
    if options.one is None:
        raise SystemExit(1 if profile(options.folder, options.small) else 0)
    run_one(options.folder, options.one, options.small)
