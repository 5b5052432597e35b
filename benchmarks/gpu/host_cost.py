"""What the host spends on a call of a program for a GPU: microseconds, and those of each launch after the first.

    python -m benchmarks.gpu.host_cost [--write]

Needs no GPU: the driver is replaced by functions that do nothing, memory is the host's. What CuPy and the driver take
comes on top. Programs: RMSNorm (one kernel), chains of products of 10 and of 50 kernels, ResNet-50. Of each: a call
that is unlike earlier ones in something, so that Python checks all of it; the runtime alone, for tensors that are
checked; a call like earlier ones, as plain launches and as a CUDA graph. Beside them a call on the cores of this
machine (relu of 16 floats), which is a real one. `--write` keeps it in `benchmarks/results/host_cost.json`, beside what
the same was before launches were prepared.
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
    """`cupy.cuda.Device`, whose methods cost what CuPy's do at least: a call each."""

    def __init__(self, number: int) -> None:
        self.number = number

    def __enter__(self) -> _Device:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def use(self) -> None:
        """As cudaSetDevice, which does nothing where it is the current device."""


def _cupy() -> Any:
    """What the runtime takes of CuPy; a launch takes as long as that of the larger of a few numbers."""
    driver = SimpleNamespace(CUDADriverError=OSError, launchKernel=max, funcSetAttribute=max)
    driver.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES = 8
    loaded = SimpleNamespace(load=lambda cubin: None, get_function=lambda name: SimpleNamespace(ptr=1))
    function = SimpleNamespace(Module=lambda: loaded)
    return SimpleNamespace(cuda=SimpleNamespace(Device=_Device, driver=driver, function=function))


def _without_code(cuda: str, arch: str) -> Any:
    """What NVRTC would have compiled."""
    return SimpleNamespace(kernels={}, cubin=pack({name: MachineCode(b"", name) for name in entries(cuda)}))


def _library() -> Any:
    """What is called of libcuda for graphs: launching and changing one is a call of C that does nothing."""

    def made(result: Any, *_: Any) -> int:
        result._obj.value = 1
        return 0

    nothing = ctypes.CDLL(None).abs
    nothing.restype = None
    names = ("cuGraphCreate", "cuGraphAddKernelNode_v2", "cuGraphInstantiateWithFlags")
    done = ("cuGraphLaunch", "cuGraphExecKernelNodeSetParams_v2", "cuGraphExecDestroy", "cuGraphDestroy")
    return SimpleNamespace(**dict.fromkeys(names, made), **dict.fromkeys(done, nothing))


def without_driver(compiled: deplodock.CompiledFunction, cuda_graphs: bool = False) -> CudaProgram:
    """The program as it runs on a GPU, on memory of the host; `compiled` is called so from now on."""
    stream, library = SimpleNamespace(cuda_stream=0), _library()
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
    runtime._compile = _without_code  # pyright: ignore
    graphs.encode = lambda wanted, address: np.zeros(16)  # pyright: ignore
    graphs.library = lambda: library
    program = CudaProgram(compiled.compilation.at("kernel"), compiled.compilation.cuda, graphs=cuda_graphs)
    program.device = torch.device("cpu")
    compiled._forget_calls()
    compiled._executor = Executor("cuda", "its driver does nothing", program.run, program)
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


def in_a_loop(program: Any, x: torch.Tensor) -> Any:
    """A call whose result stays until there is the next one, so that two places for it take turns."""
    kept = [x]

    def call() -> None:
        kept[0] = program(x)

    return call


def chain(layers: int) -> nn.Module:
    """Products that no two of which have one kernel."""
    widths = [64 + 32 * (i % 7) for i in range(layers + 1)]
    return nn.Sequential(*(nn.Linear(a, b) for a, b in zip(widths, widths[1:], strict=False)))


@click.command()
@click.option("--write", is_flag=True, help="Keep it in benchmarks/results.")
def main(write: bool) -> None:
    """Measure and print."""
    about = environment()
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
    made = [(n, deplodock.compile(m.requires_grad_(False), (x,), target="sm_90a"), x) for n, m, x in programs]
    for name, compiled, x in made:
        tensors = compiled.captured.bind((x,))
        launches = len(make_plan(compiled.compilation.at("kernel")).launches)
        row = rows[f"{name}, {launches} launches, {len(tensors) - 1} constants"] = {}
        for kind in ("launches", "graph"):
            program = without_driver(compiled, kind == "graph")
            unlike, run = compiled._call, program.run
            if kind == "launches":
                row["unlike earlier ones"] = microseconds(lambda: unlike((x,), {}))  # noqa: B023
                row["without checks"] = microseconds(lambda: run(tensors))  # noqa: B023
            compiled(x), compiled(x)
            assert compiled._repeat(x) is not NotImplemented
            row[kind] = microseconds(in_a_loop(compiled, x))
    for name, row in rows.items():
        print(f"{name}: us of a call: {', '.join(f'{kind} {us:.2f}' for kind, us in row.items())}")
    if write:
        path = FOLDER / "host_cost.json"
        now = {"commit": commit_here(), "environment": about, "microseconds": rows}
        path.write_text(json.dumps({**read(path), "after": now}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
