"""Measures the start of `dl-opt` and the steps of `deplodock compile`: the time before a kernel can run.

    python -m benchmarks.compiler.compile_time [-n REPEATS] [-o FILE.json] [-c EXPRESSION]

Every number is the best of REPEATS runs in new processes, as wall time and as processor time, which a busy machine
disturbs less. The exit status is 1 if a wall time exceeds its limit (`LIMITS`).
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
"""Largest wall times in seconds, on an otherwise idle machine."""

STEPS = ("import torch", "import torch.export", "import deplodock", "evaluate", "export")
OURS = ("torch to tensor", "tensor to loop", "loop to tile", "tile to kernel", "print CUDA")

Seconds = dict[str, float]


def stages(code: str) -> dict[str, Seconds]:
    """Does the work of `deplodock compile -c CODE` in this process, step by step.

    Returns:
        For each step the seconds of wall time (`clock`) and of processor time (`processor`).
    """
    import gc

    # `deplodock compile` collects garbage as rarely.
    gc.set_threshold(50_000, 20, 20)
    seconds: dict[str, Seconds] = {}

    def step(name: str, work: Callable[[], Any]) -> Any:
        clock, processor = time.perf_counter(), time.process_time()
        result = work()
        seconds[name] = {"clock": time.perf_counter() - clock, "processor": time.process_time() - processor}
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
    return seconds


def _output(command: Sequence[str]) -> str:
    done = subprocess.run(list(command), capture_output=True, text=True, check=False, input="builtin.module {}\n")
    if done.returncode:
        raise SystemExit((done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1])
    return done.stdout


def process(command: Sequence[str]) -> Seconds:
    """Runs a command. Returns its wall time and processor time in seconds."""
    before, clock = os.times(), time.perf_counter()
    _output(command)
    seconds, after = time.perf_counter() - clock, os.times()
    return {
        "clock": seconds,
        "processor": after.children_user + after.children_system - before.children_user - before.children_system,
    }


def best(runs: Sequence[Seconds]) -> Seconds:
    """Returns the least wall time and the least processor time of some runs."""
    return {key: min(r[key] for r in runs) for key in runs[0]}


def measure(code: str, repeats: int) -> dict[str, Any]:
    """Returns all numbers: the times of whole commands, and of each step of `deplodock compile`."""
    scripts = Path(sysconfig.get_path("scripts"))

    def repeated(*command: str) -> Seconds:
        return best([process(command) for _ in range(repeats)])

    inside = [sys.executable, str(Path(__file__).resolve()), "--stages", "-c", code]
    runs = [json.loads(_output(inside)) for _ in range(repeats)]
    shares = {"start Python": repeated(sys.executable, "-c", "pass")}
    shares |= {name: best([r[name] for r in runs]) for name in (*STEPS, *OURS)}
    whole = repeated(str(scripts / "deplodock"), "compile", "-c", code)
    attributed = {key: sum(s[key] for s in shares.values()) for key in whole}
    shares["rest, with the end of the process"] = {key: max(0.0, whole[key] - attributed[key]) for key in whole}
    return {
        "program": code,
        "machine": {"processors": os.cpu_count(), "python": platform.python_version(), "load": os.getloadavg()[0]},
        "dl-opt": repeated(str(scripts / "dl-opt"), "-"),
        "deplodock compile": whole,
        "our passes": {key: sum(shares[name][key] for name in OURS) for key in whole},
        "shares": shares,
    }


def table(numbers: dict[str, Any]) -> str:
    """Returns the printed table."""
    whole = numbers["deplodock compile"]["clock"]
    lines = [f"{'':36} {'clock':>8} {'processor':>10} {'limit':>7}"]
    for name, limit in LIMITS.items():
        s = numbers[name]
        over = "  OVER" if s["clock"] > limit else ""
        lines.append(f"{name:36} {s['clock']:7.3f}s {s['processor']:9.3f}s {limit:6.1f}s{over}")
    lines.append(f"\nshares of deplodock compile -c {numbers['program']!r}")
    for name, s in numbers["shares"].items():
        lines.append(f"  {name:34} {s['clock']:7.3f}s {s['processor']:9.3f}s {s['clock'] / whole:6.1%}")
    return "\n".join(lines)


def main() -> int:
    """Measures and prints; with `--output`, writes JSON."""
    parser = argparse.ArgumentParser(description="Times of the commands and of the steps of compiling.")
    parser.add_argument("-c", "--code", default=RMS_NORM, help="the program to compile")
    parser.add_argument("-n", "--repeats", type=int, default=5, help="runs of each measurement; the best one counts")
    parser.add_argument("-o", "--output", type=Path, help="write the numbers there as JSON")
    parser.add_argument("--stages", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.stages:
        print(json.dumps(stages(options.code)))
        return 0
    numbers = measure(options.code, options.repeats)
    print(table(numbers))
    if options.output:
        options.output.write_text(json.dumps(numbers, indent=1) + "\n", encoding="utf-8")
    return int(any(numbers[name]["clock"] > limit for name, limit in LIMITS.items()))


if __name__ == "__main__":
    sys.exit(main())
