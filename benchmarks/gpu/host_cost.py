"""Measures the host time of a call of a GPU program, in microseconds, without a GPU.

    python -m benchmarks.gpu.host_cost [--write]

The CUDA driver is replaced by functions that do nothing, and memory is the host's. The time inside CuPy and the driver
is not included. Programs: RMSNorm (one kernel), chains of 10 and of 50 matmuls, ResNet-50. Rows of each program:

- `unlike earlier ones`: a call whose arguments differ from earlier calls, so Python checks all of them,
- `without checks`: the runtime alone, on checked tensors,
- `launches`: a repeated call, as plain launches,
- `graph`: a repeated call, as a CUDA graph.

For comparison, a real call on the CPU is measured (relu of 16 floats). `--write` stores the numbers in
`benchmarks/results/host_cost.json`, which also has the numbers from before launches were prepared.
"""

from __future__ import annotations

import ctypes
import json
from time import perf_counter
from types import SimpleNamespace
from typing import Any

import click
import numpy as np
import torch
from torch import nn

import deplodock
from deplodock.backend.cuda import runtime
from deplodock.backend.cuda.kernel_texts import MachineCode, entries, pack
from deplodock.backend.cuda.runtime import CudaProgram, graphs
from deplodock.backend.host.calls import building
from deplodock.backend.host.launch_plan import make_plan
from deplodock.frontend.bench import environment
from deplodock.frontend.executors import Executor

from ..common.growing_programs import resnet50
from ..common.results import FOLDER, commit_here, read


class _Device:
    """Stand-in for `cupy.cuda.Device`. Each method costs one Python call, the least that CuPy's methods cost."""

    def __init__(self, number: int) -> None:
        self.number = number

    def __enter__(self) -> _Device:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def use(self) -> None:
        """Does nothing, as cudaSetDevice of the current device."""


def _cupy() -> Any:
    """Returns a stand-in for the part of CuPy that the runtime uses. A launch costs one call of the builtin `max`."""
    driver = SimpleNamespace(CUDADriverError=OSError, launchKernel=max, funcSetAttribute=max)
    driver.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES = 8
    loaded = SimpleNamespace(load=lambda cubin: None, get_function=lambda name: SimpleNamespace(ptr=1))
    function = SimpleNamespace(Module=lambda: loaded)
    return SimpleNamespace(cuda=SimpleNamespace(Device=_Device, driver=driver, function=function))


def _without_code(cuda: str, arch: str) -> Any:
    """Returns a stand-in for the result of NVRTC: empty machine code for each kernel."""
    return SimpleNamespace(kernels={}, cubin=pack({name: MachineCode(b"", name) for name in entries(cuda)}))


def _library() -> Any:
    """Returns a stand-in for libcuda's graph functions. Launching or updating a graph costs one C call."""

    def set_handle(result: Any, *_: Any) -> int:
        result._obj.value = 1
        return 0

    no_op = ctypes.CDLL(None).abs
    no_op.restype = None
    creating_names = ("cuGraphCreate", "cuGraphAddKernelNode_v2", "cuGraphInstantiateWithFlags")
    no_op_names = ("cuGraphLaunch", "cuGraphExecKernelNodeSetParams_v2", "cuGraphExecDestroy", "cuGraphDestroy")
    return SimpleNamespace(**dict.fromkeys(creating_names, set_handle), **dict.fromkeys(no_op_names, no_op))


def without_driver(compiled: deplodock.CompiledFunction, cuda_graphs: bool = False) -> CudaProgram:
    """Returns the GPU program of `compiled` on stand-ins for CuPy and the driver, and makes `compiled` call it."""
    stream, library = SimpleNamespace(cuda_stream=0), _library()
    for name, value in {
        "is_available": True,
        "init": None,
        "current_device": 0,
        "is_current_stream_capturing": False,
        "get_device_capability": (9, 0),
        "current_stream": stream,
    }.items():
        setattr(torch.cuda, name, lambda *_, value=value: value)
    runtime._cupy = _cupy
    runtime._compile = _without_code  # pyright: ignore
    graphs.encode = lambda layout, address: np.zeros(16)  # pyright: ignore
    graphs.library = lambda: library
    program = CudaProgram(compiled.compilation.at("kernel"), compiled.compilation.cuda, graphs=cuda_graphs)
    program.device = torch.device("cpu")
    compiled._forget_calls()
    compiled._executor = Executor("cuda", "its driver does nothing", program.run, program)
    return program


def microseconds(call: Any, seconds: float = 1.0) -> float:
    """Returns the least time of a call among many samples, in microseconds."""
    call()
    best, end = float("inf"), perf_counter() + seconds
    while perf_counter() < end:
        start = perf_counter()
        for _ in range(20):
            call()
        best = min(best, (perf_counter() - start) / 20)
    return best * 1e6


def in_a_loop(program: Any, x: torch.Tensor) -> Any:
    """Returns a call that keeps its last result alive, so that results alternate between two buffers, as in a loop."""
    results = [x]

    def call() -> None:
        results[0] = program(x)

    return call


def chain(layers: int) -> nn.Module:
    """Returns a chain of linear layers with different shapes, so that layers share no kernel."""
    widths = [64 + 32 * (i % 7) for i in range(layers + 1)]
    return nn.Sequential(*(nn.Linear(a, b) for a, b in zip(widths, widths[1:], strict=False)))


@click.command()
@click.option("--write", is_flag=True, help="Write the numbers to benchmarks/results.")
def main(write: bool) -> None:
    """Measures and prints the host times."""
    machine = environment()
    resnet = resnet50()
    programs: list[tuple[str, nn.Module, torch.Tensor]] = [
        ("RMSNorm", nn.RMSNorm(2048), torch.randn(32, 2048)),
        ("10 products", chain(10), torch.randn(512, 64)),
        ("50 products", chain(50), torch.randn(512, 64)),
        ("ResNet-50", resnet[0], resnet[1][0]),
    ]
    building().result()
    x = torch.randn(16)
    relu = deplodock.compile(torch.relu, (x,), target="cpu")
    ours, eager = (microseconds(lambda f=f: f(x)) for f in (relu, torch.relu))
    rows: dict[str, dict[str, float]] = {"relu of 16 floats on the cores": {"call": ours, "eager PyTorch": eager}}
    compiled_programs = [
        (n, deplodock.compile(m.requires_grad_(False), (x,), target="sm_90a"), x) for n, m, x in programs
    ]
    for name, compiled, x in compiled_programs:
        tensors = compiled.captured.bind((x,))
        launches = len(make_plan(compiled.compilation.at("kernel")).launches)
        row = rows[f"{name}, {launches} launches, {len(tensors) - 1} constants"] = {}
        for kind in ("launches", "graph"):
            program = without_driver(compiled, kind == "graph")
            checked_call, run = compiled._call, program.run
            if kind == "launches":
                row["unlike earlier ones"] = microseconds(lambda: checked_call((x,), {}))  # noqa: B023
                row["without checks"] = microseconds(lambda: run(tensors))  # noqa: B023
            compiled(x), compiled(x)
            assert compiled._repeat(x) is not NotImplemented
            row[kind] = microseconds(in_a_loop(compiled, x))
    for name, row in rows.items():
        print(f"{name}: us of a call: {', '.join(f'{kind} {us:.2f}' for kind, us in row.items())}")
    if write:
        path = FOLDER / "host_cost.json"
        now = {"commit": commit_here(), "environment": machine, "microseconds": rows}
        path.write_text(json.dumps({**read(path), "after": now}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
