"""Sizes that depend on data: programs that read a size while they run, on the executors and by `torch.compile`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.export import Dim

import deplodock
from deplodock.backend.cuda.runtime import GraphWarning
from deplodock.backend.host.launch_plan import BindStep, make_plan
from deplodock.backend.host.segments import Segments, divide
from deplodock.benchmarks.compiler.data_sizes import PROGRAMS, Program
from deplodock.errors import CompileError, DeplodockError, ExecutionError, ShapeError
from deplodock.frontend.capture.eager_fallback import FallbackWarning

QUICK = """
    largest_positive positions unique_with_counts histogram first_rows slices_of_selected split_by_sizes
    size_of_an_argument padded_packed_padded
""".split()

MASKS = [torch.arange(12) < n for n in (5, 0, 1, 12)]


def check(program: Program, run: Callable[..., Any]) -> None:
    """Compares a compiled program with PyTorch for all of its cases."""
    for number, arguments in enumerate(program.cases):
        if number in program.raises:
            with pytest.raises(DeplodockError):
                run(*arguments)
        else:
            expected = program.function(*arguments)
            torch.testing.assert_close(run(*arguments), expected, rtol=1e-4, atol=1e-4, equal_nan=True)


@pytest.mark.parametrize("name", QUICK)
def test_sizes_of_none_one_some_and_all(name: str) -> None:
    program = PROGRAMS[name]
    run = deplodock.compile(program.function, program.cases[0], executor="reference", dynamic_shapes=program.shapes)
    check(program, run)


def several_sizes(x: Tensor, mask: Tensor, total: Tensor) -> tuple[Tensor, ...]:
    """Has two sizes, buffers that cross segments, and an argument that is changed before and after a size."""
    total.add_(1)
    h = torch.relu(x[mask] * 2)
    large = h[h[:, 0] > 1]
    total.add_(large.sum())
    return h, large * h.shape[0], torch.cat([h, large]), x.sum(0)


SEVERAL = Program(several_sizes, [(torch.randn(12, 3), mask, torch.zeros(())) for mask in MASKS])


def check_several(run: Callable[..., Any]) -> None:
    for x, mask, _ in SEVERAL.cases:
        ours, theirs = torch.zeros(()), torch.zeros(())
        for _ in range(2):
            torch.testing.assert_close(run(x, mask, ours), several_sizes(x, mask, theirs), rtol=1e-4, atol=1e-4)
            torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("executor", ["cpu", "emulator", "simulator", "reference"])
def test_several_sizes_on_all_executors(executor: str) -> None:
    check_several(deplodock.compile(several_sizes, SEVERAL.cases[0], executor=executor))


def test_a_size_on_a_device(stub_cuda: Any) -> None:
    n = torch.tensor(3, device="cuda")
    run = deplodock.compile(lambda n: torch.arange(n.item()) * 2, (n,), executor="cuda", cuda_graphs=True)
    with pytest.warns(GraphWarning, match="sizes depend on data"):
        result = run(n)
    assert result.tolist() == [0, 2, 4]
    assert run(n * 0).tolist() == []
    (span,) = run.executor.program.trace([n])  # pyright: ignore
    assert span.name == "k0"
    with torch.cuda.graph(torch.cuda.CUDAGraph()), pytest.raises(ExecutionError, match="the host reads a size"):
        run(n)


def test_memory_is_allocated_for_the_size_that_was_read() -> None:
    """The plan of the last segment has buffers of the actual size, although the mask could select every row."""

    def program(x: Tensor, mask: Tensor) -> Tensor:
        h = x[mask]
        return torch.softmax(h @ h.t(), -1) @ h

    x, mask = torch.randn(4096, 8), torch.arange(4096) < 10
    kernels = deplodock.compile(program, (x, mask), target="cpu").compilation.at("kernel")
    plan = make_plan(kernels)
    assert [type(step) for step in plan.steps].count(BindStep) == 1
    first, last = divide(plan)
    assert first.read is not None
    assert last.read is None
    assert not set(first.released) & {*last.inputs}
    bytes_of: list[int] = []

    def execute(plan: Any, inputs: Sequence[Any]) -> list[Any]:
        bytes_of.append(plan.arena_bytes + sum(b.bytes for b in plan.output_buffers))
        return [torch.full(b.shape, 10, dtype=torch.int64) for b in plan.output_buffers]

    Segments(plan, lambda plan, sizes: plan, execute).run([x, mask])
    # The mask has 4096 rows. A product of all rows with all rows would have 64 MiB.
    assert bytes_of[-1] < 8 * 4096
    assert max(bytes_of) < 100_000


def test_released_buffers_and_sizes_are_bounded() -> None:
    from deplodock.backend.host import segments

    kernels = deplodock.compile(lambda n: torch.arange(n.item()), (torch.tensor(3),), target="cpu").compilation
    prepared = list[int]()
    driver = Segments(
        make_plan(kernels.at("kernel")),
        lambda plan, sizes: prepared.append(sizes.values.get("u0", -1)) or plan,
        lambda plan, inputs: [torch.empty(b.shape, dtype=torch.int64) for b in plan.output_buffers],
    )
    for n in [*range(segments.KEPT_SEGMENTS + 5), 3, 3]:
        (result,) = driver.run([torch.tensor(n)])
        assert result.shape == (n,)
    assert len(driver._prepared) <= segments.KEPT_SEGMENTS
    assert prepared.count(3) == 2  # Made again once, after older plans were dropped.


@pytest.mark.parametrize(
    ("function", "arguments", "illegal", "message"),
    [
        (lambda n: torch.arange(n.item()), (torch.tensor(3),), (torch.tensor(-1),), "the size u0 is -1"),
        (
            lambda x, s: [p * 2 for p in torch.split(x, s.tolist())],
            (torch.randn(6), torch.tensor([2, 4])),
            (torch.randn(6), torch.tensor([2, 3])),
            "expected .* to be 0, but got -1",
        ),
        (lambda x: x[x > 0].reshape(-1, 2), (torch.ones(4),), (torch.tensor([1.0, 0, 0, 0]),), "u0 mod 2.* to be 0"),
    ],
)
def test_a_size_that_the_program_does_not_take(
    function: Callable[..., Any], arguments: Any, illegal: Any, message: str
) -> None:
    run = deplodock.compile(function, arguments, executor="reference")
    torch.testing.assert_close(run(*arguments), function(*arguments))
    with pytest.raises(ShapeError, match=message) as caught:
        run(*illegal)
    assert "test_data_sizes.py" in str(caught.value)


def test_masked_updates_read_no_size() -> None:
    program = PROGRAMS["masked_updates"]
    run = deplodock.compile(program.function, program.cases[0], executor="reference")
    assert "host.bind_size" not in run.ir("torch")
    check(program, run)


def test_an_operator_of_pytorch_between_two_sizes() -> None:
    def program(x: Tensor, mask: Tensor) -> Tensor:
        inverse = torch.linalg.inv(x)
        h = inverse[mask]
        return torch.linalg.pinv(x)[: h.shape[0]] + h

    x, masks = torch.eye(4) * 2, [torch.arange(4) < n for n in (2, 0, 4)]
    with pytest.warns(FallbackWarning):
        run = deplodock.compile(program, (x, masks[0]), executor="cpu", fallback="eager")
    for mask in masks:
        torch.testing.assert_close(run(x, mask), program(x, mask))


def test_views_at_a_size_from_data_and_byte_indices_are_refused() -> None:
    x, n = torch.randn(4, 4), torch.tensor(1)
    with pytest.raises(CompileError, match=r"view of an argument .*; return a copy"):
        deplodock.compile(lambda x, n: x[: n.item()], (x, n))
    with pytest.raises(CompileError, match=r"x\[t\]: an index of type uint8"):
        deplodock.compile(lambda x, t: x[t] * 2, (x, n.to(torch.uint8)))


def test_numbers_as_results() -> None:
    """A size or a float is a number of Python in the result; a mask may be larger than what it selects from."""

    def program(x: Tensor, mask: Tensor) -> Any:
        selected = torch.masked_select(x, mask)
        return selected.shape[0] * 2 - 3, x.sum().item() + 1, mask.sum().item(), selected[:0].shape[0]

    x, mask = torch.arange(4.0), torch.ones(3, 4) > 0
    result = deplodock.compile(program, (x, mask), executor="reference")(x, mask)
    assert result == program(x, mask)
    assert [type(n) for n in result] == [int, float, int, int]


def test_sizes_of_arguments_vary_too() -> None:
    rows = Dim("rows", min=0, max=64)
    run = deplodock.compile(
        lambda x: x[x[:, 0] > 0].sum(0), (torch.randn(8, 2),), executor="reference", dynamic_shapes=({0: rows},)
    )
    for x in (torch.randn(5, 2), torch.ones(64, 2), torch.zeros(0, 2)):
        torch.testing.assert_close(run(x), x[x[:, 0] > 0].sum(0))


@pytest.mark.parametrize("captures", [True, False])
def test_torch_compile(captures: bool) -> None:
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    options = {"capture_scalar_outputs": captures, "capture_dynamic_output_shape_ops": captures}
    program = PROGRAMS["sum_of_positive" if not captures else "size_of_a_size"]
    with torch._dynamo.config.patch(**options):
        check(program, torch.compile(program.function, backend="deplodock", options={"executor": "reference"}))
    assert bool(torch._dynamo.utils.counters["graph_break"]) is not captures


def test_training_by_torch_compile() -> None:
    """The forward graph returns a size that the backward graph takes as a number."""

    def loss(x: Tensor, w: Tensor, mask: Tensor) -> Tensor:
        chosen = torch.where(mask)[0]
        return torch.zeros_like(x).index_add(0, chosen, torch.tanh(x[chosen] @ w)).square().sum() + x[mask].sum()

    def gradients(function: Callable[..., Tensor], mask: Tensor) -> tuple[Tensor, Tensor]:
        x, w = (torch.linspace(-1, 1, n * 4).reshape(n, 4).requires_grad_() for n in (12, 4))
        return torch.autograd.grad(function(x, w, mask), (x, w))

    torch._dynamo.reset()
    with torch._dynamo.config.patch(capture_scalar_outputs=True, capture_dynamic_output_shape_ops=True):
        run = torch.compile(loss, backend="deplodock", fullgraph=True, options={"executor": "reference"})
        for mask in MASKS:
            torch.testing.assert_close(gradients(run, mask), gradients(loss, mask), rtol=1e-4, atol=1e-5)
