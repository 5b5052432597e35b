"""Reductions relative to a mean (variance) and positions of a maximum, computed in chunks and in parts."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from xdsl.dialects import arith
from xdsl.dialects.builtin import ModuleOp

from deplodock.backend.reference import run
from deplodock.dialects import loop, make_context, payload
from deplodock.dialects.support.parsing import parse_module
from deplodock.dialects.tile.schedule import ScheduleAttr
from deplodock.frontend.capture.arrays import to_numpy
from deplodock.frontend.capture.export import capture
from deplodock.frontend.compilation import Compilation
from deplodock.passes.pass_manager import run_passes
from deplodock.passes.pipelines import parse_passes

K = 37
CHUNKS = [1, 2, 5, 16, 36, 37]

MEAN = """
func.func @main(%x: tensor<6x37xf32>) -> tensor<6xf32> {
  %s = tensor.reduce add %x over [1] : tensor<6x37xf32> -> tensor<6xf32>
  %n = payload.constant NUMBER : tensor<6xf32>
  %m = arith.divf %s, %n : tensor<6xf32>
  %mb = tensor.index_map %m[d0] : tensor<6xf32> -> tensor<6x37xf32>
  %d = arith.subf %x, %mb : tensor<6x37xf32>
  %e = arith.mulf %d, %d : tensor<6x37xf32>
  %f = arith.mulf %e, %d : tensor<6x37xf32>
  %y = tensor.reduce add %POWER over [1] : tensor<6x37xf32> -> tensor<6xf32>
  func.return %y : tensor<6xf32>
}
"""


def merged(module: ModuleOp) -> ModuleOp:
    passes = (
        "tensor-plan-fusion{strategy=all},convert-tensor-to-loop,loop-hoist-reduction-factors,"
        "loop-fuse-reductions{count_from=2},cse,dce"
    )
    result = module.clone()
    run_passes(make_context(), result, parse_passes(passes))
    return result


def staged(module: ModuleOp) -> list[loop.StagedReduceOp]:
    return [op for op in module.walk() if isinstance(op, loop.StagedReduceOp)]


def program(power: str = "e", number: str = "37.0") -> ModuleOp:
    return parse_module(make_context(), MEAN.replace("POWER", power).replace("NUMBER", number), "mean.mlir")


def rows(around: float = 0) -> list[np.ndarray]:
    return [(np.random.default_rng(0).standard_normal((6, K)) + around).astype(np.float32)]


@pytest.mark.parametrize("power", ["e", "f"])
def test_moments_about_a_mean(power: str) -> None:
    module = program(power)
    chunked = merged(module)
    assert len(staged(chunked)) == 1
    for domain in ("real", "exact"):
        (whole,) = run(module, rows(3), domain)
        for chunk in CHUNKS:
            (parts,) = run(chunked, rows(3), domain, chunk=chunk)
            if domain == "exact":
                np.testing.assert_array_equal(parts, whole)
            else:
                np.testing.assert_allclose(parts, whole, rtol=1e-11, atol=1e-11)


def test_a_large_mean_costs_no_digits() -> None:
    x = rows(10000)
    want = ((x[0] - x[0].astype(np.float64).mean(1, keepdims=True)) ** 2).sum(1)
    for chunk in CHUNKS:
        (got,) = run(merged(program()), x, "typed", chunk=chunk)
        np.testing.assert_allclose(got, want, rtol=2e-5)
    squares = (x[0] * x[0]).sum(1) - x[0].sum(1) ** 2 / np.float32(K)
    assert (np.abs(squares - want) / want).max() > 1e-2  # which a formula with squares would


def test_only_a_mean_over_the_same_terms_is_counted() -> None:
    """A sum divided by another number than its count is no mean, so the reductions are not merged."""
    for module in (merged(program(number="36.0")), merged(program(number="-37.0"))):
        assert not staged(module)
        assert sum(isinstance(op, loop.ReduceOp) for op in module.walk()) == 2


def test_without_the_count_it_would_be_wrong() -> None:
    """Planted bugs that the comparison detects: a chunk's mean divided by the whole count, a missing rescaling term."""
    for bug in ("number", "term"):
        broken = merged(program())
        (op,) = staged(broken)
        if bug == "number":
            mean = next(o for o in op.stages.block.ops if isinstance(o, arith.DivfOp))
            number = payload.ConstantOp(37.0, mean.result.type)
            op.stages.block.insert_op_before(number, mean)
            mean.operands[1] = number.result
        else:
            add = [o for o in op.rescale.block.ops if isinstance(o, arith.AddfOp)][-1]
            add.result.replace_all_uses_with(add.lhs)
        (got,), (want,) = run(broken, rows(3), "real", chunk=5), run(program(), rows(3), "real")
        assert not np.allclose(got, want, rtol=1e-6)


def awkward() -> torch.Tensor:
    """Returns rows with ties, infinities and NaN in different chunks."""
    x = torch.randn(9, K, generator=torch.Generator().manual_seed(2)).round(decimals=1)
    x[0, :] = 1
    x[1, 5], x[1, 30] = torch.nan, torch.nan
    x[2, :] = -torch.inf
    x[3, :20] = -torch.inf
    x[4, 3], x[4, 33] = torch.inf, torch.inf
    x[5, 36] = torch.nan
    x[6, 0], x[6, 20] = torch.inf, torch.nan
    x[7, :] = torch.inf
    return x


@pytest.mark.parametrize("name", ["argmax", "argmin", "max", "min"])
def test_where_the_extreme_is(name: str) -> None:
    x = awkward()
    function = {
        "argmax": lambda x: x.argmax(1),
        "argmin": lambda x: x.argmin(1),
        "max": lambda x: x.max(1).indices,
        "min": lambda x: x.min(1).indices,
    }[name]
    module = Compilation(capture(function, (x,)).module).at("loop")
    assert len(staged(module)) == 1
    want = function(x).numpy()
    for chunk in CHUNKS:
        np.testing.assert_array_equal(run(module, [to_numpy(x)], chunk=chunk)[0], want)
    for chunk, parts in ((4, 1), (64, 1), (8, 37)):
        copy = module.clone()
        nest = next(op for op in copy.walk() if isinstance(op, loop.NestOp))
        nest.attributes["schedule"] = ScheduleAttr.get([2], [chunk, chunk], warps=1, split_k=parts)
        run_passes(make_context(), copy, parse_passes("loop-split-k,plan-schedules,convert-loop-to-tile"))
        np.testing.assert_array_equal(run(copy, [to_numpy(x)])[0], want)


@pytest.mark.parametrize("parts", [1, 37])
def test_a_variance_in_chunks_and_parts(parts: int) -> None:
    module = merged(program())
    copy = module.clone()
    nest = next(op for op in copy.walk() if isinstance(op, loop.NestOp))
    nest.attributes["schedule"] = ScheduleAttr.get([2], [8] * 4, warps=1, split_k=parts)
    run_passes(make_context(), copy, parse_passes("loop-split-k,plan-schedules,convert-loop-to-tile"))
    for domain, tolerance in (("exact", 0), ("real", 1e-12), ("typed", 1e-5)):
        (got,), (want,) = run(copy, rows(3), domain), run(module, rows(3), domain)
        np.testing.assert_allclose(got.astype(want.dtype), want, rtol=tolerance)
