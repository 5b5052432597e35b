"""The CUDA runtime on a GPU, against PyTorch."""

from __future__ import annotations

import pytest
import torch
from support.scaled_rows import five_times

from deplodock.backend.cuda.runtime import CudaProgram
from deplodock.backend.cuda.runtime.timing import on_device


@pytest.mark.gpu
def test_right_on_the_device(program):
    x = torch.randn(4, 256)
    (y,) = CudaProgram(*program).run([x])
    torch.testing.assert_close(y, five_times(x), rtol=1e-4, atol=1e-5)


@pytest.mark.gpu
def test_results_stay_where_the_inputs_are(program):
    cuda = CudaProgram(*program)
    x = torch.randn(4, 257, device="cuda")[:, 1:]
    (y,) = cuda.run([x])
    assert y.is_cuda
    (want,) = cuda.run([x.cpu()])
    assert not want.is_cuda
    torch.testing.assert_close(y.cpu(), want, rtol=0, atol=0)


@pytest.mark.gpu
def test_runs_on_the_current_stream(program):
    cuda, x = CudaProgram(*program), torch.randn(4, 256, device="cuda")
    (want,) = cuda.run([x])
    with torch.cuda.stream(torch.cuda.Stream()):
        (y,) = cuda.run([x])
        torch.cuda.current_stream().synchronize()
    torch.testing.assert_close(y, want, rtol=0, atol=0)


@pytest.mark.gpu
def test_times_are_positive(program):
    cuda, x = CudaProgram(*program), torch.randn(4, 256, device="cuda")
    times = on_device({"a": lambda: cuda.run([x]), "b": lambda: x + 1, "c": lambda: x.sum().item()}, repetitions=5)
    assert {name: t.graph for name, t in times.items()} == {"a": True, "b": True, "c": False}
    assert all(0 < t.median < 1 for t in times.values())
    assert "synchronizing" in (times["c"].why or "")
    torch.randn(4, device="cuda")  # the generator does not believe to be captured still


@pytest.mark.gpu
def test_part_of_a_graph(program):
    cuda, x = CudaProgram(*program), torch.randn(4, 256, device="cuda")
    cuda.run([x])
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        (y,) = cuda.run([x])
    for _ in range(2):
        x.copy_(torch.randn(4, 256))
        graph.replay()
        torch.testing.assert_close(y, cuda.run([x])[0], rtol=0, atol=0)


@pytest.mark.gpu
def test_launches_as_a_graph(program):
    """A CUDA graph computes what plain launches compute, at new addresses and on any stream."""
    plain, graph = CudaProgram(*program), CudaProgram(*program, graphs=True)
    kept = []
    for stream in [torch.cuda.current_stream(), torch.cuda.Stream()] * 3:
        x = torch.randn(4, 256, device="cuda")
        torch.cuda.synchronize()
        with torch.cuda.stream(stream):
            kept += [(x, graph.run([x])[0]), (x, graph.run([x])[0])]
    torch.cuda.synchronize()
    assert graph._graphs
    for x, y in kept:
        torch.testing.assert_close(y, plain.run([x])[0], rtol=0, atol=0)
