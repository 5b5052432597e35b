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
from typing import Any

from steps import WORST
from summary import journal

BENCHMARKS = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(BENCHMARKS), str(BENCHMARKS.parent / "tests")]

KERNELS = r"regex:^k[0-9]+$"
"""How generated kernels are called."""


def worst(folder: Path) -> list[tuple[str, float]]:
    """The cases with the smallest ratio of PyTorch's time to ours; keys of `seed84.jsonl` and of `targets.jsonl`."""
    found = {key: row["ratio"] for key, row in journal(folder / "seed84.jsonl").items() if "ratio" in row}
    for key, row in journal(folder / "targets.jsonl").items():
        times = {arm: t["median"] for arm, t in row.get("device", {}).items()}
        if "deplodock" in times:
            found[key] = min(t for arm, t in times.items() if arm != "deplodock") / times["deplodock"]
    return sorted(found.items(), key=lambda item: item[1])[:WORST]


def profile(folder: Path, small: bool) -> int:
    """Run ncu for each; gives the number of those that failed."""
    (folder / "ncu").mkdir(exist_ok=True)
    failed = 0
    for number, (case, ratio) in enumerate(worst(folder), 1):
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
        print(f"{case}: {ratio:.2f} of the best; ncu ends with {done.returncode}", done.stderr[-2000:], flush=True)
        failed += done.returncode != 0
    return failed


def run_one(folder: Path, case: str, small: bool) -> None:
    """Run the program of a case three times."""
    import torch
    from prepared import DTYPES, class_case, program
    from seed84 import make_case

    from deplodock.backend.cuda.runtime import arch_of

    target, options = arch_of(torch.cuda.get_device_capability()), dict[str, Any]()
    if ": " in case:
        found: Any = class_case(*case.split(": ", 1))
        options["f32_matmul_precision"] = found.f32_matmul_precision
        inputs = found.inputs("cuda", seed=1)
    else:
        dtype, name = case.removesuffix(" small").split(" ", 1)
        found = make_case(name, DTYPES[dtype], small=small)
        inputs = [t.cuda() for t in found.inputs()]
    ours = program(case, found, target, folder / "prepared", **options)
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
