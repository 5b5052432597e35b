"""Query heads that share keys and values are rows of one block, so keys and values are read once for all of them."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from deplodock.backend.simulator import simulate
from deplodock.dialects import kernel, loop
from deplodock.dialects.tile.schedule import ScheduleAttr
from deplodock.frontend.capture.arrays import to_numpy
from deplodock.frontend.capture.export import capture
from deplodock.frontend.compilation import Compilation

KEYS = 96


def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    return F.scaled_dot_product_attention(q, k, v, enable_gqa=True)


def compiled(heads: int, groups: int, queries: int = 1) -> tuple[Compilation, list[torch.Tensor]]:
    torch.manual_seed(heads)
    shapes = ((1, heads, queries, 32), (1, groups, KEYS, 32), (1, groups, KEYS, 32))
    inputs = [torch.randn(s, dtype=torch.bfloat16) for s in shapes]
    return Compilation(capture(attention, inputs).module), inputs


def times_read(compilation: Compilation, inputs: list[torch.Tensor]) -> list[float]:
    """Returns how often all blocks together read the keys and the values. Asserts PyTorch's results."""
    args = [to_numpy(t) for t in inputs]
    found = simulate(compilation.at("kernel"), args)
    assert not found.report.findings, str(found.report)
    want = attention(*(t.double() for t in inputs)).numpy()
    np.testing.assert_allclose(found.outputs[0].astype(np.float64), want, atol=1e-2)
    return [found.report.launches[0].loaded[i] / args[i].nbytes for i in (1, 2)]


@pytest.mark.parametrize(("heads", "groups"), [(4, 2), (8, 2), (8, 1)])
def test_read_once_by_the_planner(heads: int, groups: int) -> None:
    assert times_read(*compiled(heads, groups)) == [1, 1]


def test_read_for_every_head_where_the_schedule_says_so() -> None:
    for rows, times in ((1, 4), (2, 2), (4, 1)):
        compilation, inputs = compiled(8, 2)
        (nest,) = (op for op in compilation.at("loop").walk() if isinstance(op, loop.NestOp))
        nest.attributes["schedule"] = ScheduleAttr.get([1, 1, rows, 1, 32], [32] * 6, thread=[1, 1], warps=2)
        assert times_read(compilation, inputs) == [times, times]


def test_on_tensor_cores_if_a_tile_has_rows_to_spare() -> None:
    compilation, inputs = compiled(8, 2)
    (nest,) = (op for op in compilation.at("loop").walk() if isinstance(op, loop.NestOp))
    nest.attributes["schedule"] = ScheduleAttr.get(
        [1, 1, 16, 1, 32], [32] * 6, warps=1, atom="mma", f32_matmul_precision="bf16x3"
    )
    assert times_read(compilation, inputs) == [1, 1]
    assert any(isinstance(op, kernel.MmaOp) for op in compilation.at("kernel").walk())
