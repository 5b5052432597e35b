"""Launches of a call as a CUDA graph, without a GPU: the calls of the driver, and replays at new addresses.

On the stubbed driver (`stub_cuda`) the emulator runs the nodes of a graph.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from stub_cuda.state import Stream
from stub_cuda.torch_stub import OnDevice
from support.scaled_rows import SIZES, five_times, module

import deplodock
from deplodock.backend.cuda import runtime
from deplodock.backend.cuda.printer import print_cuda
from deplodock.backend.cuda.runtime import CudaProgram, GraphWarning, driver
from deplodock.backend.cuda.runtime.graphs import Frame, LaunchGraph
from deplodock.errors import ExecutionError
from deplodock.frontend import api, dynamo
from deplodock.frontend.capture.eager_fallback import FallbackWarning


def taken(name: str | None = None) -> list[Any]:
    """Returns and clears the driver's recorded calls: (name, node) pairs, or the nodes of the calls `name`."""
    calls = list(driver.library().calls)
    driver.library().calls.clear()
    return calls if name is None else [node for n, node in calls if n == name]


def graph(given: Any, **how: Any) -> CudaProgram:
    return CudaProgram(*given, graphs=True, **how)


def test_a_graph_is_made_at_the_second_call(program, stub_cuda) -> None:
    """Later calls launch the graph once. They update only nodes whose arguments have other addresses."""
    cuda, x = graph(program), torch.randn(4, 256, device="cuda")
    kept = [cuda.run([x])[0]]
    assert taken() == []
    kept += cuda.run([x])
    made = [("cuGraphAddKernelNode", i) for i in range(5)]
    assert taken() == [("cuGraphCreate", None), *made, ("cuGraphInstantiate", None), ("cuGraphLaunch", None)]
    kept += cuda.run([x])
    assert taken() == [("cuGraphExecKernelNodeSetParams", 4), ("cuGraphLaunch", None)]  # the result
    other = torch.randn(4, 256, device="cuda")
    kept += cuda.run([other])
    assert taken("cuGraphExecKernelNodeSetParams") == [0, 4]
    assert len(stub_cuda.launches) == 20
    for y, source in zip(kept, (x, x, x, other), strict=True):
        torch.testing.assert_close(y.cpu(), five_times(source.cpu()), rtol=1e-4, atol=1e-5)
    x.copy_(other)  # what lies where it did needs no call
    torch.testing.assert_close(cuda.run([x])[0].cpu(), five_times(other.cpu()), rtol=1e-4, atol=1e-5)


def test_tensor_maps_of_nodes_follow_their_memory(stub_cuda) -> None:
    function = deplodock.compile(
        lambda x, w: F.linear(F.linear(x, w), w),
        tuple(torch.randn(s, dtype=torch.bfloat16) for s in ((1024, 1024), (1024, 1024))),
        executor="cuda",
    )
    kernels = function.compilation.at("kernel")
    cuda = graph((kernels, function.ir("cuda")))
    assert sum(bool(launch.maps) for launch in cuda.plan.launches) > 1
    stub_cuda.execute = False  # every launch is checked, maps among them, and none is run
    kept: list[torch.Tensor] = []
    for _ in range(4):
        pair = [torch.randn(1024, 1024, dtype=torch.bfloat16, device="cuda") for _ in range(2)]
        kept += [*pair, *cuda.run(pair)]
    assert taken("cuGraphLaunch") == [None] * 3


def test_each_shape_has_a_graph_and_the_last_ones_are_kept(stub_cuda, monkeypatch) -> None:
    monkeypatch.setattr(runtime, "KEPT_GRAPHS", 2)
    kernels = module(SIZES)
    programs = [graph((kernels, print_cuda(kernels)))]
    stub_cuda.execute = False

    def made(size: int) -> list[str]:
        for _ in range(2):
            programs[0].run([torch.randn(size, device="cuda")])
        return [name for name, _ in taken() if name in ("cuGraphInstantiate", "cuGraphExecDestroy")]

    assert made(33) == made(64) == ["cuGraphInstantiate"]
    assert made(33) == []
    assert made(1000) == ["cuGraphInstantiate", "cuGraphExecDestroy"]  # that of 64, which was not used for longest
    assert made(33) == []
    assert made(64) == ["cuGraphInstantiate", "cuGraphExecDestroy"]
    assert made(0) == []  # there is nothing to launch
    programs.clear()
    assert taken("cuGraphExecDestroy") == [None] * 2


def test_plain_launches_where_there_can_be_no_graph(program, stub_cuda) -> None:
    x, cuda = torch.randn(4, 256, device="cuda"), graph(program)
    for _ in range(2):
        cuda.trace([x])
        with torch.cuda.graph(torch.cuda.CUDAGraph()):
            cuda.run([x])
    assert taken() == []
    alone = deplodock.compile(torch.relu, (torch.ones(8),), executor="cuda", cuda_graphs=True)
    for _ in range(3):
        alone(torch.ones(8, device="cuda"))
    assert taken() == []
    with pytest.warns(FallbackWarning):
        left = deplodock.compile(
            lambda a: torch.linalg.inv(a) @ a, (torch.eye(4),), fallback="eager", executor="cuda", cuda_graphs=True
        )
    with pytest.warns(GraphWarning, match="without a CUDA graph: .* is left to PyTorch"):
        left(torch.eye(4, device="cuda"))
    assert taken() == []


def test_a_graph_that_the_driver_refuses(program, stub_cuda) -> None:
    cuda, x = graph(program), torch.randn(4, 256, device="cuda")
    cuda.run([x])
    driver.library().refuses = "cuGraphInstantiate"
    with pytest.warns(GraphWarning, match="without a CUDA graph: .*cuGraphInstantiateWithFlags fails: error 1"):
        (y,) = cuda.run([x])
    torch.testing.assert_close(y.cpu(), five_times(x.cpu()), rtol=1e-4, atol=1e-5)
    taken()
    cuda.run([x])
    assert taken() == []
    other = graph(program)
    driver.library().refuses = "cuGraphExecKernelNodeSetParams"
    kept = [other.run([x]), other.run([x])]
    with pytest.raises(ExecutionError, match="cuGraphExecKernelNodeSetParams_v2 fails: error 1"):
        other.run([x])
    driver.library().refuses = None
    taken()
    (y,) = other.run([x])
    assert taken("cuGraphExecKernelNodeSetParams") == [0, 4]  # the argument, too: nobody knows what they were left with
    torch.testing.assert_close(y.cpu(), five_times(x.cpu()), rtol=1e-4, atol=1e-5)
    del kept


def test_a_place_that_cannot_be_described(program, stub_cuda, monkeypatch) -> None:
    """If a call fails while it updates its second address, the next call updates the first address again."""
    cuda, x, other = graph(program), *(torch.randn(4, 256, device="cuda") for _ in range(2))
    kept, moved, real = [cuda.run([x]), cuda.run([x])], list[int](), Frame.move

    def move(self: Frame, memory: int, address: int) -> set[int]:
        moved.append(memory)
        if len(moved) == 2:
            raise ExecutionError("no such map")
        return real(self, memory, address)

    monkeypatch.setattr(Frame, "move", move)
    with pytest.raises(ExecutionError, match="no such map"):
        cuda.run([other])
    (y,) = cuda.run([other])
    torch.testing.assert_close(y.cpu(), five_times(other.cpu()), rtol=1e-4, atol=1e-5)
    assert moved[:2] == [0, 1]
    del kept


def test_streams_and_scratch_memory(program, stub_cuda, monkeypatch) -> None:
    """A graph runs on torch's current stream, and the allocator is told that this stream uses the scratch memory."""
    noted: list[int] = []
    monkeypatch.setattr(torch.Tensor, "record_stream", lambda self, stream: noted.append(stream.cuda_stream))
    cuda, x = graph(program), torch.randn(4, 256, device="cuda")
    cuda.run([x]), cuda.run([x])
    for _ in range(2):
        with torch.cuda.stream(Stream(7)):
            (y,) = cuda.run([x])
    assert noted == [7]
    torch.testing.assert_close(y.cpu(), five_times(x.cpu()), rtol=1e-4, atol=1e-5)


def test_threads_share_a_graph(program, stub_cuda) -> None:
    """A call updates the nodes and launches the graph before another thread may do so."""
    cuda = graph(program)
    stub_cuda.execute = False
    inputs = [torch.randn(4, 256, device="cuda") for _ in range(8)]
    cuda.run(inputs[:1]), cuda.run(inputs[:1])
    stub_cuda.launches.clear()

    def work(x: torch.Tensor) -> list[torch.Tensor]:
        with OnDevice():  # of this thread
            return [cuda.run([x])[0] for _ in range(20)]

    with ThreadPoolExecutor(8) as pool:
        results = list(pool.map(work, inputs))
    seen = [[tuple(map(int, r.arguments)) for r in stub_cuda.launches[i : i + 5]] for i in range(0, 800, 5)]
    pairs = {(call[0][0], call[4][1]) for call in seen}
    assert pairs == {(x.data_ptr(), y.data_ptr()) for x, some in zip(inputs, results, strict=True) for y in some}


def test_a_graph_that_was_closed_is_not_launched(program, stub_cuda, monkeypatch) -> None:
    """Another thread may close a graph to free memory. A call then launches its kernels one by one."""
    cuda, x = graph(program), torch.randn(4, 256, device="cuda")
    cuda.run([x]), cuda.run([x])
    real = LaunchGraph.launch
    monkeypatch.setattr(LaunchGraph, "launch", lambda self, *how: self.close() or real(self, *how))
    taken()
    (y,) = cuda.run([x])
    assert taken() == [("cuGraphExecDestroy", None), ("cuGraphDestroy", None)]
    torch.testing.assert_close(y.cpu(), five_times(x.cpu()), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("how", "graphs"),
    [
        ({}, False),
        ({"mode": "default"}, False),
        ({"mode": "reduce-overhead"}, True),
        ({"mode": "max-autotune"}, True),
        ({"mode": "max-autotune-no-cudagraphs"}, False),
        ({"options": {"cuda_graphs": True}}, True),
        ({"mode": "reduce-overhead", "options": {"cuda_graphs": False}}, False),
    ],
)
def test_modes_of_torch_compile(how: dict[str, Any], graphs: bool, monkeypatch) -> None:
    seen: list[bool] = []
    real = api.make_executor
    monkeypatch.setattr(api, "make_executor", lambda name, c, g=False: seen.append(g) or real(name, c, g))
    traced = torch.fx.symbolic_trace(lambda x: (torch.relu(x) + 1,))
    traced.graph.find_nodes(op="placeholder")[0].meta["example_value"] = torch.ones(4)
    run = dynamo.torch_compile_backend(traced, [torch.ones(4)], **how)
    assert torch.equal(run(-torch.ones(4))[0], torch.ones(4))
    assert seen == [graphs]
