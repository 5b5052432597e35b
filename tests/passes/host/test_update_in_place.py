"""Arguments that a program updates are written in place: the same results, without copies of unchanged parts."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from support.tiny_models import tiny_config
from torch import nn

import deplodock
from deplodock.backend.emulator import run_cuda_on_cpu
from deplodock.backend.host.launch_plan import make_plan
from deplodock.backend.simulator import simulate
from deplodock.dialects.kernel import LaunchOp
from deplodock.dialects.support.calls import IN_PLACE, set_pairs
from deplodock.errors import CompileError, ShapeError
from deplodock.extras.llm.models import build_model
from deplodock.extras.llm.steps import capture_step, plan_model
from deplodock.extras.standalone import emit_standalone
from deplodock.frontend.compilation import Compilation


class Counter(nn.Module):
    """Adds its argument to a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("total", torch.zeros(8, 16))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.total += x
        return self.total.sum(-1)


@pytest.mark.parametrize("executor", ["reference", "simulator", "emulator"])
def test_a_buffer_is_updated_at_every_level(executor: str) -> None:
    model, expected = Counter(), Counter()
    compiled = deplodock.compile(model, (torch.zeros(8, 16),), executor=executor)
    plan = make_plan(compiled.compilation.at("kernel"))
    assert [plan.buffers[argument].name for _, argument in plan.in_place] == ["total"]
    for i in range(3):
        x = torch.randn(8, 16, generator=torch.Generator().manual_seed(i))
        torch.testing.assert_close(compiled(x), expected(x))
    torch.testing.assert_close(model.total, expected.total)


def test_a_result_of_its_own_is_not_written_over_the_argument() -> None:
    """The new value of the argument is also a result, which must be a separate tensor."""

    def twice(x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        x.copy_(y)
        return y

    x = torch.ones(4)
    compiled = deplodock.compile(twice, (torch.ones(4),), executor="reference")
    assert make_plan(compiled.compilation.at("kernel")).in_place == ()
    y = compiled(x)
    x += 1
    assert y.tolist() == [2, 2, 2, 2]
    assert x.tolist() == [3, 3, 3, 3]


def test_changed_arguments_must_be_alone() -> None:
    def bump(x: torch.Tensor, y: torch.Tensor, z: torch.Tensor) -> torch.Tensor:
        x += 1
        return x + y + z

    compiled = deplodock.compile(bump, (torch.ones(4), torch.ones(4), torch.ones(4)), executor="reference")
    memory = torch.ones(16)
    for apart in ((0, 4, 8), (8, 0, 4), (4, 8, 8)):
        compiled(*(memory[i : i + 4] for i in apart))
    for shared in ((0, 3, 8), (3, 0, 8), (3, 8, 0), (0, 8, 0)):
        with pytest.raises(ShapeError, match="shares memory"):
            compiled(*(memory[i : i + 4] for i in shared))


@pytest.fixture(scope="module")
def decode() -> tuple[Compilation, list[np.ndarray]]:
    """Returns a decode step of a model with a long cache, and its arguments."""
    model = build_model(tiny_config("gpt2", n_positions=512), seed=0)
    plan = plan_model(model, 512, 8)
    captured = capture_step(model, plan.caches, 1)
    keys, values = plan.caches.make()
    for i, cache in enumerate([*keys, *values]):
        cache.copy_(torch.randn(cache.shape, generator=torch.Generator().manual_seed(i)))
    tokens = torch.tensor([[5]]), torch.tensor([300]), torch.tensor([0])
    arguments = captured.bind((*tokens, keys, values))
    return Compilation(captured.module, "sm_90a"), [t.detach().numpy() for t in arguments]


def test_a_step_stores_one_token_and_copies_no_cache(decode: tuple[Compilation, list[np.ndarray]]) -> None:
    compilation, arguments = decode
    module = compilation.at("kernel")
    plan = make_plan(module)
    assert len(plan.in_place) == 4
    result = simulate(module, arguments)
    result.report.raise_errors()
    caches = {argument: plan.buffers[argument].bytes for _, argument in plan.in_place}
    stored = loaded = 0
    for launch, counts in zip(plan.launches, result.report.launches, strict=True):
        stored += sum(n for i, n in counts.stored.items() if launch.buffers[i] in caches)
        written = any(launch.buffers[i] in caches for i in counts.stored)
        loaded += sum(n for i, n in counts.loaded.items() if launch.buffers[i] in caches and written)
    assert stored == sum(caches.values()) // 512  # one position of 512
    assert loaded == 0  # attention reads the caches, the kernels that write them do not
    for argument, expected in zip(caches, result.outputs[-4:], strict=True):
        changed = np.flatnonzero((expected != arguments[argument]).any((0, 1, 3)))
        assert changed.tolist() == [300]


def test_a_program_of_its_own_works_in_place(decode: tuple[Compilation, list[np.ndarray]]) -> None:
    compilation, _ = decode
    text = emit_standalone(compilation.at("kernel"), compilation.at("tensor"), compilation.cuda)
    plan = make_plan(compilation.at("kernel"))
    for result, argument in plan.in_place:
        assert f"* out{result - plan.inputs} = in{argument};" in text


def test_a_wrong_order_of_launches_is_seen(decode: tuple[Compilation, list[np.ndarray]]) -> None:
    """The cache is written in place, so attention before the write computes a wrong result."""
    compilation, arguments = decode
    right = simulate(compilation.at("kernel"), arguments).outputs
    module = compilation.at("kernel").clone()
    launches = [op for op in module.walk() if isinstance(op, LaunchOp)]
    writer = next(op for op in launches if op.kernel.string_value().endswith("_in_place"))
    reader = next(op for op in launches[launches.index(writer) + 1 :] if set(op.buffers) & set(writer.buffers))
    writer.detach()
    assert reader.parent is not None
    reader.parent.insert_op_after(writer, reader)
    wrong = simulate(module, arguments).outputs
    assert not np.allclose(wrong[0], right[0])


def test_pairs_that_make_no_sense_are_refused(decode: tuple[Compilation, list[np.ndarray]]) -> None:
    compilation, arguments = decode
    for pairs in ([(10_000, 0)], [(36, 31), (37, 31)], [(36, -1)]):
        module = compilation.at("kernel").clone()
        main = next(op for op in module.ops if op.name == "func.func")
        set_pairs(main, IN_PLACE, pairs)  # pyright: ignore[reportArgumentType]
        with pytest.raises(CompileError, match="in_place"):
            make_plan(module)
        with pytest.raises(CompileError, match="in_place"):
            simulate(module, arguments)


def test_the_emulator_writes_in_place_too(decode: tuple[Compilation, list[np.ndarray]]) -> None:
    compilation, arguments = decode
    expected = simulate(compilation.at("kernel"), arguments).outputs
    outputs, reports = run_cuda_on_cpu(compilation.cuda, make_plan(compilation.at("kernel")), arguments)
    assert not reports
    for actual, wanted in zip(outputs, expected, strict=True):
        np.testing.assert_allclose(actual, wanted, rtol=1e-4, atol=1e-5)
