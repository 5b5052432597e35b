"""Matmuls with few rows: the planner's schedules are memory bound and right."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from deplodock.backend.cuda.printer import print_cuda
from deplodock.backend.cuda.runtime.nvrtc import compile_cubin
from deplodock.backend.emulator import EmulatedProgram
from deplodock.backend.host.launch_plan import make_plan
from deplodock.backend.simulator import simulate
from deplodock.dialects import kernel, loop
from deplodock.dialects.tile.schedule import ScheduleAttr
from deplodock.frontend.capture.arrays import to_numpy
from deplodock.frontend.capture.export import capture
from deplodock.frontend.compilation import Compilation
from deplodock.passes.planning.choose import rank
from deplodock.passes.planning.nest_info import NestInfo
from deplodock.target.attribute import get_target

Function = Callable[..., torch.Tensor]
Schedule = ScheduleAttr.get

BF16, F16, F32 = torch.bfloat16, torch.float16, torch.float32
H200 = get_target("sm_90a")


def compiled(function: Function, inputs: list[torch.Tensor], *schedules: ScheduleAttr | None) -> Compilation:
    """Returns the compilation of a function. Each schedule that is not None is set on the nest at its position."""
    compilation = Compilation(capture(function, inputs).module)
    for nest, schedule in zip(nests(compilation), schedules, strict=False):
        if schedule is not None:
            nest.attributes["schedule"] = schedule
    return compilation


def nests(compilation: Compilation) -> list[loop.NestOp]:
    return [op for op in compilation.at("loop").walk() if isinstance(op, loop.NestOp)]


def inputs_of(*shapes: tuple[int, ...], dtype: torch.dtype = BF16) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(len(shapes))
    return [(torch.randn(s, generator=generator) / s[-1] ** 0.5).to(dtype) for s in shapes]


def check(compilation: Compilation, function: Function, inputs: list[torch.Tensor]) -> None:
    """Asserts that simulator and emulator compute PyTorch's results without reports, and that nothing spills."""
    arrays = [to_numpy(t) for t in inputs]
    want = function(*(t.double() for t in inputs)).numpy()
    kernels = compilation.at("kernel")
    found = simulate(kernels, arrays)
    assert not found.report.findings, str(found.report)
    results = [found.outputs[0]]
    if inputs[0].dtype == BF16:  # the text differs little between types, and takes a second to compile
        outputs, reports = EmulatedProgram(print_cuda(kernels), make_plan(kernels)).run(arrays)
        assert not reports, str(reports[0])
        results.append(outputs[0])
    size = max(1.0, float(np.abs(want).max()))
    for result in results:
        near = 1e-5 if inputs[0].dtype == F32 else 1e-2
        np.testing.assert_allclose(result.astype(np.float64).reshape(want.shape), want, rtol=near, atol=near * size)
    assert all(use.spills == 0 for use in compile_cubin(compilation.cuda, "sm_90a").kernels.values())


def seconds_of_bytes(inputs: list[torch.Tensor]) -> float:
    return sum(t.nbytes for t in inputs) / H200.rates.memory


def norm_first(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return F.linear(F.rms_norm(x, x.shape[-1:]), w)


def gelu_of_sum(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor, r: torch.Tensor) -> torch.Tensor:
    return F.gelu(F.linear(x, w, b)) + r


def square(rows: int, columns: int, depth: int) -> list[tuple[int, ...]]:
    return [(rows, depth), (depth, columns)]


VECTORS: dict[str, tuple[Function, tuple[tuple[int, ...], ...], torch.dtype]] = {
    "a matrix of rows": (torch.matmul, ((1, 4096), (4096, 4096)), BF16),
    "a matrix of rows, f32": (torch.matmul, ((1, 4096), (4096, 4096)), F32),
    "a matrix of columns": (F.linear, ((1, 4096), (4096, 4096)), BF16),
    "a long sum": (F.linear, ((1, 11008), (4096, 11008)), F16),
    "a norm first": (norm_first, ((1, 4096), (4096, 4096)), BF16),
    "bias, gelu, residual": (gelu_of_sum, ((1, 4096), (4096, 4096), (4096,), (1, 4096)), BF16),
}


@pytest.mark.parametrize("name", VECTORS)
def test_a_vector_times_a_matrix_is_bound_by_memory(name: str) -> None:
    function, shapes, dtype = VECTORS[name]
    inputs = [torch.empty(s, dtype=dtype) for s in shapes]
    (nest,) = nests(compiled(function, inputs))
    best = rank(NestInfo(nest), H200)[0].prediction
    assert best is not None
    assert best.limit == "memory"
    assert best.times.memory < 1.02 * seconds_of_bytes(inputs)


ROWS_OF_FEW: dict[str, tuple[Function, tuple[tuple[int, ...], ...], ScheduleAttr]] = {
    "longer chunks": (torch.matmul, ((1, 203), (203, 72)), Schedule([1, 32], [128], warps=4)),
    "several rows": (F.linear, ((1, 203), (27, 203)), Schedule([1, 4], [128], warps=2)),
    "eight rows": (gelu_of_sum, ((1, 96), (29, 96), (29,), (1, 29)), Schedule([1, 8], [64], warps=1)),
    "a norm first": (norm_first, ((1, 136), (29, 136)), Schedule([1, 8], [64, 64], warps=4)),
}


@pytest.mark.parametrize("dtype", [F32, BF16])
@pytest.mark.parametrize("name", ROWS_OF_FEW)
def test_vectors_times_matrices_are_right(name: str, dtype: torch.dtype) -> None:
    function, shapes, schedule = ROWS_OF_FEW[name]
    inputs = inputs_of(*shapes, dtype=dtype)
    check(compiled(function, inputs, schedule), function, inputs)


FEW_ROWS = {rows: ((rows, 4096), (11008, 4096)) for rows in (2, 4, 8, 16)}


@pytest.mark.parametrize("rows", FEW_ROWS)
def test_few_rows_times_a_matrix_are_on_tensor_cores_and_bound_by_memory(rows: int) -> None:
    inputs = [torch.empty(s, dtype=BF16) for s in FEW_ROWS[rows]]
    (nest,) = nests(compiled(F.linear, inputs))
    best = rank(NestInfo(nest), H200)[0]
    assert best.prediction is not None
    assert best.prediction.limit == "memory"
    assert best.prediction.blocks >= H200.sms
    assert best.schedule.data.atom == "mma"
    assert best.schedule.data.split_k == 1
    assert best.prediction.times.memory < 1.02 * seconds_of_bytes(inputs)


PADDED = Schedule([16, 32], [64], warps=4, atom="mma", copy="cp_async", stages=3)

FILLED: dict[str, tuple[Function, tuple[tuple[int, ...], ...], ScheduleAttr, torch.dtype]] = {
    "5 rows": (F.linear, ((5, 200), (50, 200)), PADDED, BF16),
    "5 rows, f16": (torch.matmul, ((5, 200), (200, 40)), PADDED, F16),
    "3 columns": (torch.matmul, ((40, 200), (200, 3)), PADDED.changed(block=[32, 16], warps=2), BF16),
    "a norm first": (norm_first, ((7, 136), (29, 136)), PADDED.changed(chunk=[64, 64]), BF16),
    "gelu": (gelu_of_sum, ((2, 96), (29, 96), (29,), (2, 29)), PADDED.changed(copy="sync", stages=1), BF16),
    "in parts of a sum": (F.linear, ((4, 256), (50, 256)), PADDED.changed(split_k=2), BF16),
}


@pytest.mark.parametrize("name", FILLED)
def test_tiles_are_filled_up_to_an_atom(name: str) -> None:
    function, shapes, schedule, dtype = FILLED[name]
    inputs = inputs_of(*shapes, dtype=dtype)
    compilation = compiled(function, inputs, schedule)
    check(compilation, function, inputs)
    assert any(isinstance(op, kernel.MmaOp) for op in compilation.at("kernel").walk())


def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return F.scaled_dot_product_attention(q, k, v, enable_gqa=True)


def cache(heads: int, groups: int, keys: int, width: int, batch: int = 1) -> tuple[tuple[int, ...], ...]:
    """Returns the shapes of attention with one query: queries of every head, keys and values of every group."""
    return (batch, heads, 1, width), (batch, groups, keys, width), (batch, groups, keys, width)


@pytest.mark.parametrize("shapes", [cache(32, 8, 8192, 128), cache(28, 4, 8192, 128), cache(32, 8, 2048, 64, batch=16)])
def test_a_group_of_queries_is_on_tensor_cores_and_bound_by_memory(shapes: tuple[tuple[int, ...], ...]) -> None:
    inputs = [torch.empty(s, dtype=BF16) for s in shapes]
    (nest,) = nests(compiled(attention, inputs))
    best = rank(NestInfo(nest), H200)[0]
    assert best.prediction is not None
    assert best.prediction.times.longest < 1.3 * seconds_of_bytes(inputs)
    assert best.prediction.blocks >= 2 * H200.sms * 0.9
    assert best.schedule.data.atom == "mma"


GROUPS: dict[str, tuple[tuple[tuple[int, ...], ...], ScheduleAttr, torch.dtype]] = {
    "four heads": (
        cache(8, 2, 90, 32),
        Schedule([1, 1, 16, 1, 32], [32] * 6, warps=1, atom="mma", copy="cp_async", stages=2),
        BF16,
    ),
    "seven heads in parts": (
        cache(14, 2, 192, 32),
        Schedule([1, 1, 16, 1, 32], [32] * 6, warps=1, atom="mma", copy="cp_async", stages=3, split_k=2),
        BF16,
    ),
    "f16": (cache(10, 2, 130, 16), Schedule([1, 1, 16, 1, 16], [64, 16] * 3, warps=1, atom="mma"), F16),
}


@pytest.mark.parametrize("name", GROUPS)
def test_a_warp_has_a_group_of_queries(name: str) -> None:
    shapes, schedule, dtype = GROUPS[name]
    inputs = inputs_of(*shapes, dtype=dtype)
    compilation = compiled(attention, inputs, schedule)
    check(compilation, attention, inputs)
    products = [op for op in compilation.at("kernel").walk() if isinstance(op, kernel.MmaOp)]
    assert len(products) >= 2


@pytest.mark.parametrize(
    ("function", "shapes", "target"),
    [
        (torch.matmul, ((1, 3000), (3000, 1000)), "sm_90a"),
        (norm_first, ((1, 4096), (4096, 4096)), "sm_80"),
        (attention, cache(32, 32, 4096, 128), "sm_80"),
        (attention, cache(32, 8, 8192, 128), "sm_90a"),
    ],
)
def test_what_is_chosen_does_not_spill(function: Function, shapes: tuple[tuple[int, ...], ...], target: str) -> None:
    inputs = [torch.empty(s, dtype=BF16) for s in shapes]
    compilation = Compilation(capture(function, inputs).module, target)
    assert {use.spills for use in compile_cubin(compilation.cuda, target).kernels.values()} == {0}
