"""Where the time goes before a kernel runs: how fast `dl-opt` starts and what `deplodock compile` spends on what.

    python -m benchmarks.compiler.compile_time [-n REPEATS] [-o FILE.json] [-c EXPRESSION]

Every number is the best of some runs in fresh processes, as time on the clock and as processor time, which a busy
machine disturbs less. The exit code is 1 where the clock shows more than a limit.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import sysconfig
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

RMS_NORM = "torch.nn.RMSNorm(2048)(torch.randn(1, 32, 2048))"

LIMITS = {"dl-opt": 0.4, "deplodock compile": 4.0, "our passes": 0.5}
"""Seconds on the clock of a machine that does nothing else."""

STEPS = ("import torch", "import torch.export", "import deplodock", "evaluate", "export")
OURS = ("torch to tensor", "tensor to loop", "loop to tile", "tile to kernel", "print CUDA")

Seconds = dict[str, float]


def stages(code: str) -> dict[str, Seconds]:
    """What `deplodock compile -c CODE` does, step by step in this process: seconds by step, on the clock and of the
    processor."""
    import gc

    gc.set_threshold(50_000, 20, 20)  # as the command does
    found: dict[str, Seconds] = {}

    def step(name: str, work: Callable[[], Any]) -> Any:
        clock, processor = time.perf_counter(), time.process_time()
        result = work()
        found[name] = {"clock": time.perf_counter() - clock, "processor": time.process_time() - processor}
        return result

    def import_ours() -> None:
        import deplodock.tools.reports  # noqa: F401
        from deplodock.passes.pipelines import parse_passes

        parse_passes("default")

    step("import torch", lambda: __import__("torch"))
    step("import torch.export", lambda: __import__("torch.export._trace"))
    step("import deplodock", import_ours)
    from deplodock.frontend.capture.export import capture
    from deplodock.frontend.compilation import Compilation
    from deplodock.tools.evaluate import evaluate

    p = step("evaluate", lambda: evaluate(code))
    captured = step("export", lambda: capture(p.function, p.args, p.kwargs, names=p.names, place=p.place))
    compilation = Compilation(captured.module)
    for name, level in zip(OURS, ("tensor", "loop", "tile", "kernel"), strict=False):
        step(name, lambda level=level: compilation.at(level))
    step("print CUDA", lambda: compilation.cuda)
    return found


def _output(command: Sequence[str]) -> str:
    done = subprocess.run(list(command), capture_output=True, text=True, check=False, input="builtin.module {}\n")
    if done.returncode:
        raise SystemExit((done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1])
    return done.stdout


def process(command: Sequence[str]) -> Seconds:
    """The time that a process takes from its start to its end."""
    before, clock = os.times(), time.perf_counter()
    _output(command)
    seconds, after = time.perf_counter() - clock, os.times()
    return {
        "clock": seconds,
        "processor": after.children_user + after.children_system - before.children_user - before.children_system,
    }


def best(runs: Sequence[Seconds]) -> Seconds:
    """The least of each clock."""
    return {key: min(r[key] for r in runs) for key in runs[0]}


def measure(code: str, repeats: int) -> dict[str, Any]:
    """All numbers: the commands as a whole, and the shares of one of them."""
    scripts = Path(sysconfig.get_path("scripts"))

    def repeated(*command: str) -> Seconds:
        return best([process(command) for _ in range(repeats)])

    inside = [sys.executable, str(Path(__file__).resolve()), "--stages", "-c", code]
    runs = [json.loads(_output(inside)) for _ in range(repeats)]
    shares = {"start Python": repeated(sys.executable, "-c", "pass")}
    shares |= {name: best([r[name] for r in runs]) for name in (*STEPS, *OURS)}
    whole = repeated(str(scripts / "deplodock"), "compile", "-c", code)
    known = {key: sum(s[key] for s in shares.values()) for key in whole}
    shares["rest, with the end of the process"] = {key: max(0.0, whole[key] - known[key]) for key in whole}
    return {
        "program": code,
        "machine": {"processors": os.cpu_count(), "python": platform.python_version(), "load": os.getloadavg()[0]},
        "dl-opt": repeated(str(scripts / "dl-opt"), "-"),
        "deplodock compile": whole,
        "our passes": {key: sum(shares[name][key] for name in OURS) for key in whole},
        "shares": shares,
    }


def table(found: dict[str, Any]) -> str:
    """The numbers for people."""
    whole = found["deplodock compile"]["clock"]
    lines = [f"{'':36} {'clock':>8} {'processor':>10} {'limit':>7}"]
    for name, limit in LIMITS.items():
        s = found[name]
        over = "  OVER" if s["clock"] > limit else ""
        lines.append(f"{name:36} {s['clock']:7.3f}s {s['processor']:9.3f}s {limit:6.1f}s{over}")
    lines.append(f"\nshares of deplodock compile -c {found['program']!r}")
    for name, s in found["shares"].items():
        lines.append(f"  {name:34} {s['clock']:7.3f}s {s['processor']:9.3f}s {s['clock'] / whole:6.1%}")
    return "\n".join(lines)


def main() -> int:
    """Measure, print, and write JSON where asked to."""
    parser = argparse.ArgumentParser(description="Times of the commands and of the steps of compiling.")
    parser.add_argument("-c", "--code", default=RMS_NORM, help="the program to compile")
    parser.add_argument("-n", "--repeats", type=int, default=5, help="runs of everything, of which the best counts")
    parser.add_argument("-o", "--output", type=Path, help="write the numbers there as JSON")
    parser.add_argument("--stages", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.stages:
        print(json.dumps(stages(options.code)))
        return 0
    found = measure(options.code, options.repeats)
    print(table(found))
    if options.output:
        options.output.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    return int(any(found[name]["clock"] > limit for name, limit in LIMITS.items()))


if __name__ == "__main__":
    sys.exit(main())
