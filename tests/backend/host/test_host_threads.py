"""Calls from several host threads: a launch needs a current CUDA context in its thread (`stub_cuda`)."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from ctypes import byref, c_void_p
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from stub_cuda import OnDevice

import deplodock
from deplodock.backend.cuda.runtime import driver, graphs
from deplodock.errors import ExecutionError
from deplodock.frontend import api, dynamo


def in_fresh_thread(function: Callable[..., Any], *args: Any) -> Any:
    """Returns the result of a call in a thread that has not used CUDA."""

    def call() -> Any:
        with OnDevice():
            return function(*args)

    with ThreadPoolExecutor(1) as threads:
        return threads.submit(call).result()


def factors() -> tuple[torch.Tensor, ...]:
    return tuple(torch.randn(s, dtype=torch.bfloat16, device="cuda") for s in ((256, 256), (128, 256)))


@pytest.mark.parametrize("loaded_here", [False, True])
def test_first_call_in_a_fresh_thread(stub_cuda, loaded_here: bool) -> None:
    """The program is loaded in the new thread, or only its tensor maps are encoded there."""
    args = factors()
    program = deplodock.compile(F.linear, args, executor="cuda")
    if loaded_here:
        program(*args)
        args = factors()
    y = in_fresh_thread(program, *args)
    torch.testing.assert_close(y.cpu(), F.linear(*args).cpu())


def chain(x: torch.Tensor) -> torch.Tensor:
    return torch.softmax(x.sum(0), -1) @ x.T


@pytest.mark.parametrize("calls_before", [0, 1, 2, 3])
def test_replay_in_a_fresh_thread(stub_cuda, calls_before: int) -> None:
    """The new thread makes the CUDA graph, or updates and launches it."""
    program = deplodock.compile(chain, (torch.zeros(16, 40),), executor="cuda", cuda_graphs=True)
    inputs = [torch.randn(16, 40, device="cuda") for _ in range(4)]
    for x in inputs[:calls_before]:
        program(x)
    for x in inputs[calls_before:]:
        y = in_fresh_thread(program, x)
        torch.testing.assert_close(y.cpu(), chain(x).cpu(), rtol=1e-4, atol=1e-5)


class Two(torch.nn.Module):
    """A graph with a tuple as result, like graphs of Dynamo."""

    def __init__(self, model: torch.nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor]:
        return (torch.tanh(self.model(x)),)


def test_backward_in_a_thread_of_autograd(stub_cuda, monkeypatch) -> None:
    """For tensors on a device PyTorch runs the backward graph in an autograd thread."""
    real = api.CompiledFunction.__call__

    def call(self: Any, *args: Any) -> Any:
        with OnDevice():  # autograd calls it outside of modes
            return real(self, *args)

    monkeypatch.setattr(api.CompiledFunction, "__call__", call)
    model = torch.nn.Linear(8, 8)
    traced = torch.fx.symbolic_trace(Two(model))
    x = torch.randn(4, 8)
    for node in traced.graph.nodes:
        node.meta["example_value"] = x
    OnDevice.paused = True  # AOTAutograd traces tensors of the host
    try:
        run = dynamo.torch_compile_backend(traced, [x], options={"executor": "cuda"})
    finally:
        OnDevice.paused = False
    loss = run(x)[0].square().sum()
    loss.backward(retain_graph=True)  # which loads the kernels
    model.weight.grad = None
    in_fresh_thread(torch.autograd.backward, loss)
    got = model.weight.grad.cpu()
    model.weight.grad = None
    model(x).tanh().square().sum().backward()
    torch.testing.assert_close(got, model.weight.grad)


def test_a_trap_loses_the_context(stub_cuda) -> None:
    """After a kernel traps, the context is lost: this call and all later ones raise errors that say so."""
    args = torch.randn(8, 4, device="cuda"), torch.tensor([0, 9], device="cuda")
    checked = deplodock.compile(lambda x, i: x[i], args, executor="cuda", checked=True)
    plain = deplodock.compile(torch.relu, args[:1], executor="cuda")
    plain(args[0])
    with pytest.raises(ExecutionError, match=f"stopped, by an assertion .*; {driver.LOST_CONTEXT}"):
        checked(*args)
    with pytest.raises(ExecutionError, match=f"a launch failed: CUDA_ERROR_LAUNCH_FAILED.*; {driver.LOST_CONTEXT}"):
        plain(args[0])
    with pytest.raises(ExecutionError, match=f"refuses code .*CUDA_ERROR_LAUNCH_FAILED.*; {driver.LOST_CONTEXT}"):
        deplodock.compile(torch.exp, args[:1], executor="cuda")(args[0])
    with pytest.raises(ExecutionError, match=f"cuGraphCreate fails: error 719; {driver.LOST_CONTEXT}"):
        graphs.call("cuGraphCreate", byref(c_void_p()), 0)


def test_errors_that_leave_the_context() -> None:
    assert [s for s in (1, 201, 700, 701, 719, 720) if driver.advice(s)] == [700, 719]
