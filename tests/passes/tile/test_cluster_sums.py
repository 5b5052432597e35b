"""Matmuls whose sums the blocks of a cluster share (`cluster_k`): one launch, a fixed order of addition, refusals."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch.nn import functional as F
from xdsl.dialects.builtin import ModuleOp

from deplodock.backend.cuda.printer import print_cuda
from deplodock.backend.cuda.runtime.nvrtc import compile_cubin
from deplodock.backend.emulator import run_cuda_on_cpu
from deplodock.backend.host.launch_plan import make_plan
from deplodock.backend.reference import run
from deplodock.backend.simulator import simulate
from deplodock.dialects import kernel, loop, make_context, tile
from deplodock.dialects.tile.schedule import ScheduleAttr
from deplodock.errors import ScheduleError
from deplodock.frontend.capture.arrays import to_numpy
from deplodock.frontend.capture.export import capture
from deplodock.frontend.compilation import Compilation
from deplodock.frontend.tuning.building import parse_schedule
from deplodock.frontend.tuning.space import NestSpace
from deplodock.passes.analysis.nest_schedule import schedule_of
from deplodock.passes.pass_manager import run_passes
from deplodock.passes.pipelines import parse_passes
from deplodock.passes.planning.model import model_of
from deplodock.passes.planning.nest_info import NestInfo
from deplodock.target.attribute import get_target

Function = Callable[..., torch.Tensor]


def bias_and_residual(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor, r: torch.Tensor) -> torch.Tensor:
    return torch.relu(F.linear(x, w) + b[:, None]) + r


def gated(x: torch.Tensor, w: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return F.silu(F.linear(x, w)) * F.linear(x, v)


def softmax(x: torch.Tensor) -> torch.Tensor:
    return torch.softmax(x, -1)


PROGRAMS: dict[str, tuple[Function, list[tuple[int, ...]]]] = {
    "bias and residual": (bias_and_residual, [(72, 320), (48, 320), (72,), (72, 48)]),
    "gated": (gated, [(72, 320), (48, 320), (48, 320)]),
    "softmax": (softmax, [(16, 256)]),
}
ON_TENSOR_CORES = "block=64,32 chunk=64 warps=4 atom=wgmma copy=tma stages=2"
BY_MULTIPLY_ADDS = "block=32,32 chunk=32 thread=4,4 warps=2 copy=cp_async stages=2"


def tensors(name: str, dtype: torch.dtype) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(len(name))
    return [torch.randn(*shape, generator=generator).to(dtype) for shape in PROGRAMS[name][1]]


def planned(name: str, dtype: torch.dtype, options: str, target: str = "sm_90a") -> ModuleOp:
    """Returns loop nests with a schedule that has these options. Raises ScheduleError if it is refused."""
    module = Compilation(capture(PROGRAMS[name][0], tuple(tensors(name, dtype))).module, target).at("loop").clone()
    for nest in (op for op in module.walk() if isinstance(op, loop.NestOp)):
        nest.attributes.pop("schedule", None)
    run_passes(make_context(), module, parse_passes(f"plan-schedules{{exact {options} target={target}}}"))
    return module


def lowered(module: ModuleOp) -> tuple[ModuleOp, ModuleOp]:
    """Returns a planned module at the tile level and at the kernel level."""
    tiles = module.clone()
    run_passes(make_context(), tiles, parse_passes("loop-to-tile"))
    kernels = tiles.clone()
    run_passes(make_context(), kernels, parse_passes("tile-to-kernel"))
    return tiles, kernels


@pytest.mark.parametrize(
    ("name", "dtype", "options", "sums"),
    [
        ("bias and residual", torch.bfloat16, f"{ON_TENSOR_CORES} cluster_k=4", 1),
        ("bias and residual", torch.float32, f"{BY_MULTIPLY_ADDS} cluster_k=8", 1),
        ("gated", torch.bfloat16, f"{ON_TENSOR_CORES.replace('chunk=64', 'chunk=64,64')} cluster_k=2", 2),
    ],
)
def test_one_launch_computes_all(name: str, dtype: torch.dtype, options: str, sums: int) -> None:
    """The kernel of the matmul has the epilogue. One block loads, computes and stores each element of it."""
    module, args = planned(name, dtype, options), [to_numpy(t) for t in tensors(name, dtype)]
    tiles, kernels = lowered(module)
    assert sum(isinstance(op, tile.LaunchOp) for op in tiles.walk()) == 1
    assert sum(isinstance(op, tile.ClusterReduceScatterOp) for op in tiles.walk()) == sums
    (wanted,), (exact,) = run(module, args, "typed"), run(module, args, "exact")
    np.testing.assert_array_equal(run(tiles, args, "exact")[0], exact)
    found = simulate(kernels, args)
    assert not found.report.findings, str(found.report)
    assert found.report.launches[0].stored == {len(args): exact.size * to_numpy(tensors(name, dtype)[0]).itemsize}
    source = print_cuda(kernels)
    (emulated,), reports = run_cuda_on_cpu(source, make_plan(kernels), args, (0, 1, 7))
    assert not reports, str(reports[0])
    tolerance = 2.0**-6 if dtype == torch.bfloat16 else 1e-4
    for result in (found.outputs[0], emulated):
        np.testing.assert_allclose(np.float32(result), np.float32(wanted), rtol=tolerance, atol=tolerance)
    compiled = compile_cubin(source, "sm_90a")
    assert not compiled.warnings
    assert all(use.spills == use.stack == 0 for use in compiled.kernels.values())


def test_the_sum_has_one_order() -> None:
    """Partial sums are added in the order of ranks, in whatever order they arrive. Sums that cancel show the order."""
    x, w, b, r = (np.zeros_like(to_numpy(t)) for t in tensors("bias and residual", torch.float32))
    w[:] = 1
    x[:, 0], x[:, 32], x[:, 64], x[:, 96] = 1, 2.0**24, -(2.0**24), 1  # one term for each rank: ((1 + 2^24) - 2^24) + 1
    _, kernels = lowered(planned("bias and residual", torch.float32, f"{BY_MULTIPLY_ADDS} cluster_k=4"))
    (emulated,), reports = run_cuda_on_cpu(print_cuda(kernels), make_plan(kernels), [x, w, b, r], (0, 1, 7))
    assert not reports
    for found in (emulated, simulate(kernels, [x, w, b, r]).outputs[0]):
        np.testing.assert_array_equal(found, np.ones_like(r))


def test_divided_in_two_kernels_the_second_has_the_epilogue() -> None:
    """`split_k` makes a kernel of partial sums, and one that adds them and applies bias, activation and residual."""
    args = [to_numpy(t) for t in tensors("bias and residual", torch.float32)]
    module = planned("bias and residual", torch.float32, f"{BY_MULTIPLY_ADDS} split_k=5")
    (wanted,) = run(module, args, "exact")
    tiles, kernels = lowered(module)
    (parts, rest) = (op for op in tiles.ops if isinstance(op, tile.KernelOp))
    counts = [[sum(op.name == name for op in k.walk()) for k in (parts, rest)] for name in ("tile.dot", "tile.reduce")]
    assert counts == [[1, 0], [0, 1]]
    assert [any(op.name == "arith.maximumf" for op in k.walk()) for k in (parts, rest)] == [False, True]
    assert sum(isinstance(op, kernel.FuncOp) for op in kernels.ops) == 2
    np.testing.assert_array_equal(simulate(kernels, args, domain="exact").outputs[0], wanted)


@pytest.mark.parametrize(
    ("name", "options", "target", "why"),
    [
        ("gated", f"{BY_MULTIPLY_ADDS} cluster_k=2", "sm_80", "sm_80 has no clusters of blocks"),
        ("gated", f"{BY_MULTIPLY_ADDS} cluster_k=2 cluster=2", "sm_90a", "share sums or boxes, not both"),
        ("gated", f"{BY_MULTIPLY_ADDS} cluster_k=2 group_m=2", "sm_90a", "not divided, ordered or kept any further"),
        ("gated", f"{BY_MULTIPLY_ADDS} cluster_k=2 num_ctas=2", "sm_90a", "not divided, ordered or kept any further"),
        ("gated", f"{BY_MULTIPLY_ADDS} cluster_k=2 serial=1", "sm_90a", "not divided, ordered or kept any further"),
        (
            "bias and residual",
            f"{BY_MULTIPLY_ADDS} cluster_k=2 split_k=2",
            "sm_90a",
            "not divided, ordered or kept any further",
        ),
        (
            "bias and residual",
            f"{BY_MULTIPLY_ADDS.replace('chunk=32', 'chunk=128')} cluster_k=4",
            "sm_90a",
            "no reduction has 4 chunks",
        ),
        (
            "bias and residual",
            "block=4,4 chunk=32 warps=1 cluster_k=4",
            "sm_90a",
            "no tile of the result has 4 parts of two elements",
        ),
        ("softmax", "block=8,64 chunk=32,32 serial=1 warps=2 cluster_k=2", "sm_90a", "uses the result of another one"),
    ],
)
def test_what_a_cluster_cannot_share_is_refused(name: str, options: str, target: str, why: str) -> None:
    options = options.replace("chunk=32 ", "chunk=32,32 ") if name == "gated" else options
    with pytest.raises(ScheduleError, match=why):
        planned(name, torch.float32, options, target)


def test_the_planner_considers_clusters_on_request() -> None:
    """The model predicts less time with `cluster_k` for a matmul of few tiles. Only an option and `tune` use it."""
    x, w = torch.zeros(128, 3584, dtype=torch.bfloat16), torch.zeros(512, 3584, dtype=torch.bfloat16)
    module = Compilation(capture(F.linear, (x, w)).module, "sm_90a").at("loop")
    schedules = []
    for options in ("", "{cluster_sums=true}"):
        planned = module.clone()
        (nest,) = (op for op in planned.walk() if isinstance(op, loop.NestOp))
        nest.attributes.pop("schedule", None)
        run_passes(make_context(), planned, parse_passes(f"plan-schedules{options}"))
        schedules.append(schedule_of(nest).data)
    assert [s.cluster_k > 1 for s in schedules] == [False, True]
    (nest,) = (op for op in module.walk() if isinstance(op, loop.NestOp))
    model = model_of(NestInfo(nest), get_target("sm_90a"))
    before, after = (model.predict(ScheduleAttr(s)).seconds for s in schedules)
    assert after < 0.8 * before
    found = [parse_schedule(c.schedule).data.cluster_k for c in NestSpace(nest, get_target("sm_90a")).ranked()]
    assert found[0] == 1
    assert {*found} == {1, 2, 4, 8}
