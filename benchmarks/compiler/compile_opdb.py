"""Measures the processor time of compiling each operator of PyTorch's test database (op_db) for the CPU.

    python -m benchmarks.compiler.compile_opdb -o FILE.jsonl [NAME ...] [--budget SECONDS] [--limit SECONDS] [--build]

The first float32 sample of every operator is captured, lowered and printed as C++. Each row is one line of the file, so
an interrupted run continues. `--budget` stops it after that many seconds on the clock. The slowest ten are printed at
the end. `--build` then compiles the C++ of these ten and prints the seconds of the C++ compiler.
"""

from __future__ import annotations

import argparse
import json
import resource
import sys
import time
import warnings
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests"))

import torch  # noqa: E402
from conformance import opdb  # noqa: E402
from conformance.tracing import Exporter  # noqa: E402

from deplodock.backend.cpu.runtime import CpuProgram  # noqa: E402
from deplodock.errors import CompileError  # noqa: E402
from deplodock.frontend.compilation import Compilation  # noqa: E402

SLOWEST_COUNT = 10
"""Number of slowest operators that are printed."""


def compiled(name: str, limit: float) -> tuple[dict[str, Any], Compilation | None]:
    """Compiles the first float32 sample of an operator.

    Args:
        name: Name of the operator with its variant, as op_db formats it.
        limit: Processor seconds after which the compilation is stopped.

    Returns:
        The row of the operator (total seconds, seconds of the slowest pass, lines of C++; or `refused`), and the
        compilation, or None if it failed.
    """
    (op,) = (op for op in opdb.op_db if op.formatted_name == name)
    if not op.supports_dtype(torch.float32, "cpu") or (sample := next(opdb.samples(op, torch.float32), None)) is None:
        return {"refused": "no float32 sample"}, None
    tensors, call = opdb.closed(op, sample[1])
    start, passes = time.process_time(), dict[str, float]()
    try:
        with opdb.limited(limit):
            compilation = Compilation(Exporter().trace(call, tensors).module, target="cpu", record="none")
            text = compilation.cpp
    except CompileError as error:
        return {"refused": str(error)[:200], "seconds": round(time.process_time() - start, 2)}, None
    except opdb.TooSlow:
        return {"seconds": limit, "over": True}, None
    seconds = time.process_time() - start
    for pass_name, spent in compilation.seconds:
        passes[pass_name] = passes.get(pass_name, 0.0) + spent
    slowest = max(passes, key=lambda p: passes[p])
    row = {"seconds": round(seconds, 2), "slowest": slowest, "of_it": round(passes[slowest], 2)}
    return {**row, "lines": len(text.splitlines())}, compilation


def main() -> int:
    """Compiles the operators that the file lacks and prints the slowest ten."""
    parser = argparse.ArgumentParser(description="Processor seconds of compiling each operator of op_db for the CPU.")
    parser.add_argument("names", nargs="*", help="operators; all without any")
    parser.add_argument("-o", "--output", type=Path, required=True, help="file of JSON lines, read and continued")
    parser.add_argument("--budget", type=float, default=1e9, help="seconds on the clock after which the run stops")
    parser.add_argument("--limit", type=float, default=120.0, help="seconds after which one operator is given up")
    parser.add_argument("--build", action="store_true", help="run the C++ compiler on the slowest ten")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    rows: dict[str, dict[str, Any]] = {}
    if options.output.exists():
        rows = {r["operator"]: r for r in map(json.loads, options.output.read_text(encoding="utf-8").splitlines())}
    names = [o.formatted_name for o in opdb.operators(options.names)]
    end = time.monotonic() + options.budget
    with options.output.open("a", encoding="utf-8") as file:
        for name in names:
            if name not in rows and time.monotonic() < end:
                rows[name] = {"operator": name} | compiled(name, options.limit)[0]
                file.write(json.dumps(rows[name]) + "\n")
                file.flush()
        measured = [rows[n] for n in names if "lines" in rows.get(n, {}) or "over" in rows.get(n, {})]
        for row in sorted(measured, key=lambda r: -r["seconds"])[:SLOWEST_COUNT]:
            print(
                f"{row['operator']:44} {row['seconds']:7.2f} s  {row.get('slowest', '')} {row.get('of_it', '')}", end=""
            )
            print(f"  {row.get('lines', '')} lines", end="", flush=True)
            if options.build and (done := compiled(row["operator"], options.limit)[1]) is not None:
                print(f"  C++ compiler {build_seconds(done):.1f} s", end="")
            print()
    print(f"{sum(r['seconds'] for r in measured):.0f} s for {len(measured)} operators, {len(names) - len(rows)} left")
    return 0


def build_seconds(compilation: Compilation) -> float:
    """Compiles the C++ of a program. Returns the processor seconds of the C++ compiler."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
    CpuProgram(compilation.at("kernel"), compilation.cpp)
    return resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before


if __name__ == "__main__":
    sys.exit(main())
