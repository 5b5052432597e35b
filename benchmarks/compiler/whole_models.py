"""Compiles language models at full size, without weights, and writes the times and sizes to a file.

    python -m benchmarks.compiler.whole_models  # TinyLlama and Qwen2.5-7B, both phases
    python -m benchmarks.compiler.whole_models tests/data/models/tinyllama-1.1b.json --prefill 128 --layers 2

A model is a name on the Hugging Face hub, a folder, or a configuration file. For each phase (prefill, and decode with a
cache) it writes:

- seconds of capture, passes and NVRTC, and of the passes for one layer only,
- the number of kernels and launches, and the bytes that they move,
- the memory of a step in addition to parameters and caches, for deplodock and for eager PyTorch.

Needs no GPU.
"""

from __future__ import annotations

import argparse
import json
import platform
import resource
import subprocess
import time
from pathlib import Path
from typing import Any

import torch

from deplodock.backend.cuda.runtime.nvrtc import compile_cubin, nvrtc_version
from deplodock.backend.host.launch_plan import make_plan
from deplodock.extras.llm.models import build_model, config_dtype, load_config
from deplodock.extras.llm.steps import cache_shape, capture_step, launches_of_layers
from deplodock.frontend.bench import Subject
from deplodock.frontend.capture.features.memory_limit import LivePeak
from deplodock.frontend.compilation import Compilation
from deplodock.frontend.kernels import kernels_of

ROOT = Path(__file__).resolve().parents[2]
MODELS = [str(ROOT / "tests" / "data" / "models" / f"{name}.json") for name in ("tinyllama-1.1b", "qwen2.5-7b")]


def compile_phase(config: Any, length: int, context: int, target: str, *, cubin: bool) -> dict[str, Any]:
    """Compiles one phase of a model.

    Args:
        config: configuration of transformers.
        length: number of tokens of a step: 1 for decode.
        context: capacity of the cache in tokens.
        target: target name.
        cubin: whether the CUDA text is compiled by NVRTC.

    Returns:
        The row of the phase: seconds, numbers of kernels and launches, and bytes.
    """
    start = time.perf_counter()
    model = build_model(config)
    built, begun = time.perf_counter(), time.process_time()
    captured = capture_step(model, cache_shape(config, config_dtype(config), context), length)
    seen, capture_cpu, begun = time.perf_counter(), time.process_time() - begun, time.process_time()
    compilation = Compilation(captured.module, target)
    cuda = compilation.cuda
    printed, cpu = time.perf_counter(), time.process_time() - begun
    plan = make_plan(compilation.at("kernel"))
    result: dict[str, Any] = {
        "tokens": length,
        "build_seconds": built - start,
        "capture_seconds": seen - built,
        "capture_cpu_seconds": capture_cpu,
        "lowering_seconds": printed - seen,
        "lowering_cpu_seconds": cpu,
        "kernels": len({x.kernel for x in plan.launches}),
        "launches": len(plan.launches),
        "layers": config.num_hidden_layers,
        "launches_per_layer": launches_of_layers(compilation),
        "moved_bytes": sum(k.launches * k.work.bytes for k in kernels_of(compilation)),
        "arena_bytes": plan.arena_bytes,
        "peak_bytes": plan.peak_bytes,
        "eager_peak_bytes": eager_peak(config, length) if length > 1 else None,
        "bytes_updated_in_place": sum(plan.buffers[argument].bytes for _, argument in plan.in_place),
        "cuda_lines": cuda.count("\n"),
    }
    if cubin:
        begun = time.perf_counter()
        compiled = compile_cubin(cuda, target, cached=False)
        result["nvrtc_seconds"] = time.perf_counter() - begun
        result["nvrtc_kernels"] = len(compiled.kernels)
        result["spilling_kernels"] = sorted(k for k, use in compiled.kernels.items() if use.spills)
        result["warnings"] = list(compiled.warnings)
    return result


def eager_peak(config: Any, length: int) -> int | None:
    """Returns the bytes that eager PyTorch needs for a prompt of `length` tokens in addition to the parameters.

    The model runs without a cache. The cache of a compiled step is an argument and is not counted either.
    """
    model = build_model(config).to("meta")
    tokens = torch.zeros(1, length, dtype=torch.int64, device="meta")
    return LivePeak().of(Subject(model, (), {"input_ids": tokens, "use_cache": False, "logits_to_keep": 1}))


def measure(name: str, layers: int | None, lengths: dict[str, int], context: int, target: str) -> dict[str, Any]:
    """Compiles both phases of one model, with one layer and with all. Returns the row of each phase.

    Args:
        name: model name, folder or configuration file.
        layers: number of layers, or None for all.
        lengths: phase -> number of tokens of a step.
        context: capacity of the cache in tokens.
        target: target name.
    """
    config = load_config(name)
    if layers is not None:
        config.num_hidden_layers = layers
    one = load_config(name)
    one.num_hidden_layers = 1
    phases: dict[str, Any] = {}
    for phase, length in lengths.items():
        one_layer = compile_phase(one, length, context, target, cubin=False)
        row = compile_phase(config, length, context, target, cubin=True)
        row["lowering_cpu_seconds_one_layer"] = one_layer["lowering_cpu_seconds"]
        phases[phase] = row
        parts = ("build", "capture", "lowering", "nvrtc")
        eager = row["eager_peak_bytes"]
        durations = ", ".join(f"{part} {row[f'{part}_seconds']:.1f} s" for part in parts)
        print(
            f"{Path(name).stem} {phase} {length}: {row['kernels']} kernels, {row['launches']} launches"
            f" ({row['launches_per_layer']} a layer), {durations}; lowering {row['lowering_cpu_seconds']:.2f} s of CPU"
            f" (one layer {one_layer['lowering_cpu_seconds']:.2f} s);"
            f" {row['moved_bytes'] / length / 1e6:.1f} MB moved a token; memory {row['peak_bytes'] / 1e6:.1f} MB"
            + (f", of eager PyTorch {eager / 1e6:.1f} MB" if eager else ""),
            flush=True,
        )
    return phases


def main() -> None:
    """Measures the models and writes the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", default=MODELS)
    parser.add_argument("--layers", type=int, help="fewer layers than the model has")
    parser.add_argument("--prefill", type=int, default=512, help="tokens of a prefill step")
    parser.add_argument("--context", type=int, default=2048, help="tokens that the cache holds")
    parser.add_argument("--target", default="sm_90a")
    parser.add_argument("--out", default=str(ROOT / "benchmarks" / "results" / "whole_models.json"))
    args = parser.parse_args()
    start = time.perf_counter()
    lengths = {"prefill": args.prefill, "decode": 1}
    models = {Path(n).stem: measure(n, args.layers, lengths, args.context, args.target) for n in args.models}
    commit = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False)
    report = {
        "target": args.target,
        "context": args.context,
        "python": platform.python_version(),
        "nvrtc": nvrtc_version(),
        "commit": commit.stdout.strip(),
        "seconds": time.perf_counter() - start,
        "peak_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        "models": models,
    }
    Path(args.out).write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
    print(f"{report['seconds']:.0f} s, {report['peak_bytes'] / 1e9:.2f} GB at most, written to {args.out}")


if __name__ == "__main__":
    main()
