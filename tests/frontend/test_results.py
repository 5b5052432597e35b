"""Results of `deplodock.compile` have PyTorch's strides, views and shared memory, without gradients."""

from __future__ import annotations

import copy
import pickle
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils import _pytree as pytree
from torch_compile.inference import STRIDES, VIEWS, shared

import deplodock
from deplodock.errors import CompileError, ExecutionError
from deplodock.frontend.capture.graph_capture import capture_graph

Tensor = torch.Tensor


@pytest.mark.parametrize("name", VIEWS)
def test_views_of_arguments_share_their_memory(name: str) -> None:
    function: Callable[[Tensor], Tensor] = VIEWS[name]
    x, y = torch.randn(2, 3), torch.randn(2, 3)
    expected, actual = function(y), deplodock.compile(function, (x,), executor="reference")(y)
    torch.testing.assert_close(actual, expected)
    assert actual.stride() == expected.stride()
    assert shared(actual, y) == shared(expected, y)
    assert (actual is y) == (expected is y)


@pytest.mark.parametrize("executor", ["reference", "simulator"])
@pytest.mark.parametrize("name", STRIDES)
def test_strides_are_those_of_pytorch(name: str, executor: str) -> None:
    function: Callable[[Tensor], Any] = STRIDES[name]
    x = torch.randn(2, 3)
    leaves = pytree.tree_leaves
    actual, expected = leaves(deplodock.compile(function, (x,), executor=executor)(x)), leaves(function(x))
    for a, b in zip(actual, expected, strict=True):
        torch.testing.assert_close(a, b)
        assert a.stride() == b.stride()
    for i, j in ((i, j) for i in range(len(actual)) for j in range(i)):
        whole = max(expected[i].numel(), expected[j].numel()) * 4 == expected[i].untyped_storage().nbytes()
        assert shared(actual[i], actual[j]) == (shared(expected[i], expected[j]) and whole)


def test_what_only_views_need_is_not_computed() -> None:
    compiled = deplodock.compile(lambda x: (x.t(), x + 1), (torch.randn(2, 3),))
    assert "permute" not in compiled.ir("torch")
    assert len(deplodock.compile(lambda x: x.t(), (torch.randn(2, 3),)).ir("cuda").split("__global__")) == 1


def test_views_by_sizes_that_vary() -> None:
    batch = torch.export.Dim("batch", max=64)
    compiled = deplodock.compile(
        lambda x: (x.view(x.shape[0] * 4), x * 2), (torch.randn(3, 4),), dynamic_shapes=({0: batch},)
    )
    x = torch.randn(5, 4)
    flat, twice = compiled(x)
    flat.zero_()
    assert flat.shape == (20,)
    assert not x.any()
    assert twice.any()


def test_a_result_that_was_copied_into_a_buffer_is_no_part_of_it() -> None:
    def keep(state: Tensor, x: Tensor) -> Tensor:
        y = x * 2
        state.copy_(y)
        return y

    state, x = torch.zeros(3), torch.ones(3)
    compiled = deplodock.compile(keep, (state, x))
    first = compiled(state, x)
    compiled(state, x * 5)
    assert first.tolist() == [2, 2, 2]
    assert state.tolist() == [10, 10, 10]


def test_views_and_strides_are_saved(tmp_path: Path) -> None:
    pytest.importorskip("cuda.bindings.nvrtc")
    program = deplodock.compile(lambda x: (x.t(), (x + 1).t(), x), (torch.randn(2, 3),))
    program.save(tmp_path / "program")
    x = torch.randn(2, 3)
    view, result, same = deplodock.load(tmp_path / "program", executor="reference")(x)
    assert shared(view, x)
    assert same is x
    assert result.stride() == (1, 3)
    torch.testing.assert_close(result, (x + 1).t())


# Gradients


def test_gradients_are_missed_aloud() -> None:
    module, x = nn.Linear(2, 3), torch.randn(4, 2)
    compiled = deplodock.compile(module, (x,))
    y = compiled(x)
    assert y.requires_grad
    with pytest.raises(ExecutionError, match=r"no gradients.*no_grad.*torch\.compile"):
        (y.sum() + module.weight.sum()).backward()
    with torch.no_grad():
        assert not compiled(x).requires_grad
    torch.testing.assert_close(y, module(x))


def test_what_needs_no_gradient_does_not_get_one() -> None:
    def function(x: Tensor, w: Tensor) -> tuple[Tensor, ...]:
        return x * 2, x.detach() + w, (x * w).argmax(), w * 2

    x, w = torch.randn(3).requires_grad_(), torch.randn(3)
    results = deplodock.compile(function, (x, w))(x, w)
    assert [t.requires_grad for t in results] == [t.requires_grad for t in function(x, w)]


def test_results_may_be_changed_in_place() -> None:
    compiled = deplodock.compile(lambda x: ((y := x * 2), y.view(-1)), (torch.randn(2, 3),))
    x = torch.randn(2, 3).requires_grad_()
    y, flat = compiled(x)
    y += 1
    flat.mul_(2)
    assert y.requires_grad
    torch.testing.assert_close(y.detach(), (x.detach() * 2 + 1) * 2)


def test_what_is_changed_in_place_requires_gradients_too() -> None:
    def add(state: Tensor, x: Tensor) -> None:
        state.add_(x)

    state, x = torch.zeros(3), torch.ones(3).requires_grad_()
    compiled = deplodock.compile(add, (state, x))
    compiled(state, x)
    assert state.requires_grad
    with pytest.raises(ExecutionError, match="no gradients"):
        state.sum().backward()
    with pytest.raises(ExecutionError, match="state: a leaf that requires a gradient would be changed"):
        compiled(torch.zeros(3).requires_grad_(), x)


def test_views_of_parameters_can_be_differentiated() -> None:
    module = nn.Linear(2, 3)
    deplodock.compile(lambda: module.weight.t(), ())().sum().backward()
    assert module.weight.grad is not None


# What else is done with a program


def test_text_for_people() -> None:
    compiled = deplodock.compile(nn.Linear(2, 3), (torch.randn(4, 2),), executor="reference")
    assert (
        repr(compiled)
        == "<deplodock program (input: float32[4, 2]) -> (float32[4, 3]), target sm_90a, executor reference>"
    )


def test_deep_copies_have_their_own_parameters() -> None:
    module, x = nn.Linear(2, 3), torch.randn(4, 2)
    compiled = deplodock.compile(module, (x,))
    copied, other = copy.deepcopy((compiled, module))
    with torch.no_grad():
        module.weight.zero_()
        torch.testing.assert_close(copied(x), other(x))
        torch.testing.assert_close(compiled(x), module(x))


def test_pickling_is_refused_with_the_way_to_save() -> None:
    with pytest.raises(CompileError, match=r"save\(folder\)"):
        pickle.dumps(deplodock.compile(torch.relu, (torch.randn(2),)))


SPARSE = torch.eye(3).to_sparse()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("function", "argument"),
    [
        (lambda x: x * 2, SPARSE),
        (lambda x: x @ torch.ones(3, 3), torch.eye(3).to_sparse_csr()),
        (lambda x: x * 2, torch.masked.masked_tensor(torch.ones(3), torch.tensor([True, False, True]))),
        (lambda x: x * 2, torch.nested.nested_tensor([torch.ones(2), torch.ones(3)], layout=torch.jagged)),
        (lambda x: x.dequantize(), torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.qint8)),
    ],
    ids=["sparse", "csr", "masked", "nested", "quantized"],
)
def test_other_kinds_of_tensors_are_refused(function: Callable[..., Any], argument: Any) -> None:
    with pytest.raises(CompileError):
        deplodock.compile(function, (argument,))
    usual = deplodock.compile(torch.relu, (torch.ones(3),))
    with pytest.raises(CompileError):
        usual(argument)


@pytest.mark.parametrize("make", [torch.Tensor.to_sparse, torch.Tensor.to_sparse_csr])
def test_graphs_with_sparse_results_are_refused(make: Callable[[torch.Tensor], torch.Tensor]) -> None:
    graph = make_fx(lambda x: [make(x)], tracing_mode="fake")(torch.eye(3))
    with pytest.raises(CompileError, match="sparse"):
        capture_graph(graph)


def test_threads_compile_and_call() -> None:
    found: dict[int, Any] = {}
    common = deplodock.compile(lambda x: x.relu() + 1, (torch.randn(3),))

    def work(i: int) -> None:
        try:
            x = torch.arange(3.0) - i
            own = deplodock.compile(lambda x: x * i, (x,), executor="reference")
            found[i] = [own(x).tolist(), common(x).tolist()]
        except BaseException as error:  # which would be lost in the thread
            found[i] = error

    threads = [threading.Thread(target=work, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    xs = [torch.arange(3.0) - i for i in range(4)]
    assert found == {i: [(x * i).tolist(), (x.relu() + 1).tolist()] for i, x in enumerate(xs)}


def test_gradients_of_what_a_function_closes_over_are_missed_aloud() -> None:
    module, x = nn.Linear(2, 3), torch.randn(4, 2)
    y = deplodock.compile(lambda x: module(x), (x,))(x)
    assert y.requires_grad
    with pytest.raises(ExecutionError, match="no gradients"):
        y.sum().backward()
