"""What the host spends on a call of a program for a GPU: microseconds, and those of each launch after the first.

    python benchmarks/host_cost.py

Needs no GPU: the driver is replaced by functions that do nothing, memory is the host's. What CuPy and the driver take
comes on top. Programs: RMSNorm (one kernel), chains of products of 10 and of 50 kernels. Beside them a call on the
cores of this machine (relu of 16 floats), which is a real one.
"""

from __future__ import annotations

from contextlib import nullcontext
from time import perf_counter
from types import SimpleNamespace
from typing import Any

import click
import torch
from torch import nn

import deplodock
from deplodock.backend.cuda import runtime
from deplodock.backend.cuda.runtime import CudaProgram


def _cupy() -> Any:
    """What the runtime takes of CuPy; a launch takes as long as that of the larger of a few numbers."""
    driver = SimpleNamespace(CUDADriverError=OSError, launchKernel=max, funcSetAttribute=max)
    loaded = SimpleNamespace(load=lambda cubin: None, get_function=lambda name: SimpleNamespace(ptr=1))
    function = SimpleNamespace(Module=lambda: loaded)
    return SimpleNamespace(cuda=SimpleNamespace(Device=nullcontext, driver=driver, function=function))


def without_driver(compiled: deplodock.CompiledFunction) -> CudaProgram:
    """The program as it runs on a GPU, on memory of the host."""
    stream = SimpleNamespace(cuda_stream=0)
    for name, found in {
        "is_available": True,
        "init": None,
        "current_device": 0,
        "is_current_stream_capturing": False,
        "get_device_capability": (9, 0),
        "current_stream": stream,
    }.items():
        setattr(torch.cuda, name, lambda *_, found=found: found)
    runtime._cupy = _cupy
    runtime._compile = lambda cuda, arch: SimpleNamespace(kernels={}, cubin=b"")  # pyright: ignore
    runtime.encode = lambda wanted, address: None  # pyright: ignore
    program = CudaProgram(compiled.compilation.at("kernel"), compiled.compilation.cuda)
    program.device = torch.device("cpu")
    return program


def microseconds(call: Any, seconds: float = 1.0) -> float:
    """The least of many samples of a call."""
    call()
    best, end = float("inf"), perf_counter() + seconds
    while perf_counter() < end:
        start = perf_counter()
        for _ in range(20):
            call()
        best = min(best, (perf_counter() - start) / 20)
    return best * 1e6


def chain(layers: int) -> nn.Module:
    """Products that no two of which have one kernel."""
    widths = [64 + 32 * (i % 7) for i in range(layers + 1)]
    return nn.Sequential(*(nn.Linear(a, b) for a, b in zip(widths, widths[1:], strict=False)))


@click.command()
def main() -> None:
    """Measure and print."""
    programs: list[tuple[str, nn.Module, torch.Tensor]] = [
        ("RMSNorm", nn.RMSNorm(2048), torch.randn(32, 2048)),
        ("10 products", chain(10), torch.randn(512, 64)),
        ("50 products", chain(50), torch.randn(512, 64)),
    ]
    x = torch.randn(16)
    relu = deplodock.compile(torch.relu, (x,), target="cpu")
    ours, eager = (microseconds(lambda f=f: f(x)) for f in (relu, torch.relu))
    print(f"relu of 16 floats on the cores: {ours:.2f} us, of eager PyTorch {eager:.2f} us")
    made = [(n, deplodock.compile(m.requires_grad_(False), (x,), target="sm_90a"), x) for n, m, x in programs]
    for name, compiled, x in made:
        compiled.compilation.at("kernel")
        bind, restore = compiled.captured.bind, compiled.captured.restore
        program = without_driver(compiled)
        run, launches = program.run, len(program.plan.launches)
        tensors = bind((x,))
        both = [microseconds(lambda: run(tensors)), microseconds(lambda: restore(run(t := bind((x,))), t))]
        print(f"{name}: {launches} launches, {both[0]:.1f} us, with checks of arguments {both[1]:.1f} us")


if __name__ == "__main__":
    main()
