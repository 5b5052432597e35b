"""Measures compile times of the large programs of `growing_programs.py`: processor seconds, by pass.

    python -m benchmarks.compiler.compile_programs [NAME ...] [--list] [--limit SECONDS] [-o FILE.json]

Each program is captured, lowered and printed as CUDA in a separate process. The numbers are processor seconds, which a
busy machine disturbs less than wall time; they still vary by 15 % between runs. `own` is the time of all passes,
without capture. `cuda` is a hash of the printed text: an optimization of the compiler's speed must not change it.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import platform
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch

from ..common.growing_programs import PROGRAMS


def measure(name: str) -> dict[str, Any]:
    """Compiles a program in this process. Returns its row."""
    import gc

    # `deplodock compile` collects garbage as rarely.
    gc.set_threshold(50_000, 20, 20)
    from xdsl.dialects.builtin import ModuleOp
    from xdsl.passes import ModulePass

    from deplodock.frontend.capture.export import capture
    from deplodock.frontend.compilation import Compilation
    from deplodock.passes.pass_manager import Observer

    class Processor(Observer):
        """Records the processor seconds of each pass."""

        def __init__(self) -> None:
            self.seconds: dict[str, float] = {}

        def before(self, module_pass: ModulePass, module: ModuleOp) -> None:
            self.start = time.process_time()

        def after(self, module_pass: ModulePass, module: ModuleOp) -> None:
            spent = time.process_time() - self.start
            self.seconds[module_pass.name] = self.seconds.get(module_pass.name, 0.0) + spent

    torch.manual_seed(0)
    function, args = PROGRAMS[name]()
    start = time.process_time()
    with torch.no_grad():
        captured = capture(function, args)
    seen, processor = time.process_time(), Processor()
    text = Compilation(captured.module, observers=[processor]).cuda
    end = time.process_time()
    slow = {n: round(s, 2) for n, s in sorted(processor.seconds.items(), key=lambda i: -i[1]) if s >= 0.1}
    return {
        "capture": round(seen - start, 2),
        "own": round(end - seen, 2),
        "tensor-plan-fusion": round(processor.seconds["tensor-plan-fusion"], 2),
        "passes": slow,
        "kernels": text.count("__global__"),
        "cuda": hashlib.sha256(text.encode()).hexdigest()[:16],
    }


def in_process(name: str, limit: float) -> dict[str, Any]:
    """Compiles a program in a new process, which is stopped after `limit` seconds of wall time.

    Returns:
        The row of the program. If it was stopped, the row has only the key `over` with the limit; if the compilation
        failed, only the key `error` with the last line of stderr.
    """
    command = [sys.executable, "-m", "benchmarks.compiler.compile_programs", "--one", name]
    try:
        process = subprocess.run(command, capture_output=True, text=True, check=False, timeout=limit)
    except subprocess.TimeoutExpired:
        return {"over": limit}
    if process.returncode:
        return {"error": (process.stderr.strip().splitlines() or ["?"])[-1][:300]}
    return json.loads(process.stdout.splitlines()[-1])


def line(name: str, row: dict[str, Any]) -> str:
    """Returns the printed line of a program."""
    if "own" not in row:
        return f"{name:32} {'over ' + format(row['over'], '.0f') + ' s' if 'over' in row else row['error']}"
    slowest = ", ".join(f"{n} {s:.1f}" for n, s in list(row["passes"].items())[:4])
    return (
        f"{name:32} {row['capture']:8.2f} {row['own']:9.2f} {row['tensor-plan-fusion']:12.2f}"
        f" {row['kernels']:8d}  {row['cuda']}  {slowest}"
    )


def main() -> int:
    """Measures the named programs, or all. Returns the exit status."""
    parser = argparse.ArgumentParser(description="Processor seconds of compiling programs that grow.")
    parser.add_argument("names", nargs="*", help="programs; all without any")
    parser.add_argument("--list", action="store_true", help="only list the programs")
    parser.add_argument("--limit", type=float, default=200.0, help="seconds on the clock after which one is given up")
    parser.add_argument("-o", "--output", type=Path, help="write the numbers there as JSON")
    parser.add_argument("--one", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.list:
        print("\n".join(PROGRAMS))
        return 0
    if options.one is not None:
        print(json.dumps(measure(options.one)))
        return 0
    if unknown := [n for n in options.names if n not in PROGRAMS]:
        parser.error(f"no program {unknown[0]!r}; see --list")
    print(f"{'program':32} {'capture':>8} {'own':>9} {'fusion':>12} {'kernels':>8}  {'cuda':16}  slowest passes")
    results: dict[str, Any] = {}
    for name in options.names or PROGRAMS:
        results[name] = in_process(name, options.limit)
        print(line(name, results[name]), flush=True)
    if options.output:
        machine = {"processors": os.cpu_count(), "python": platform.python_version(), "load": os.getloadavg()[0]}
        text = json.dumps({"machine": machine, "programs": results}, indent=1)
        options.output.write_text(text + "\n", encoding="utf-8")
    return int(any("own" not in r for r in results.values()))


if __name__ == "__main__":
    sys.exit(main())
