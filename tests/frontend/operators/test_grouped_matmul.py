"""Grouped matmuls: one matmul for each group of rows, whose ends are data. Right, and with work linear in the rows."""

from __future__ import annotations

import re

import pytest
import torch
from support.aten import build, check
from torch.export import Dim
from xdsl.context import Context

import deplodock
from deplodock.errors import CompileError
from deplodock.passes.convert.torch_to_tensor.conversion import ConvertTorchToTensorPass

pytest.importorskip("transformers.integrations.moe")

Tensor = torch.Tensor

ROWS, GROUPS = 40, 4
ENDS = {
    "even": [10, 20, 30, 40],
    "uneven": [1, 18, 19, 40],
    "empty first": [0, 0, 25, 40],
    "one has all": [0, 40, 40, 40],
    "the last has all": [0, 0, 0, 40],
}


def offsets(ends: list[int]) -> Tensor:
    return torch.tensor(ends, dtype=torch.int32)


def expected(x: Tensor, w: Tensor, offs: Tensor) -> Tensor:
    """Returns the matmul of each group; rows after the last group are 0.

    Args:
        x: tensor of shape [rows, k].
        w: tensor of shape [groups, k, n].
        offs: ends of the groups.
    """
    rows = [x.new_zeros(0, w.shape[2])]
    start = 0
    for group, end in enumerate(offs.tolist()):
        rows.append(x[start:end] @ w[group])
        start = end
    return torch.cat([*rows, x.new_zeros(x.shape[0] - start, w.shape[2])])


@pytest.mark.parametrize("ends", ENDS.values(), ids=ENDS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_groups_of_rows(ends: list[int], dtype: torch.dtype) -> None:
    x, w = torch.randn(ROWS, 16).to(dtype), torch.randn(GROUPS, 16, 24).to(dtype)
    check("_grouped_mm", x, w, offsets(ends))
    check("_grouped_mm", x, w.transpose(1, 2).contiguous().transpose(1, 2), offsets(ends))


def test_other_kinds_of_groups() -> None:
    """Groups of columns, groups of the summed index, and a batch of matmuls."""
    ends = offsets(ENDS["uneven"])
    check("_grouped_mm", torch.randn(GROUPS, 24, 16), torch.randn(ROWS, 16).t(), ends)
    check("_grouped_mm", torch.randn(ROWS, 16).t(), torch.randn(ROWS, 24), ends)
    check("_grouped_mm", torch.randn(GROUPS, 8, 16), torch.randn(GROUPS, 16, 24))


@pytest.mark.parametrize("rows", [0, 1, 3])
def test_fewer_rows_than_groups(rows: int) -> None:
    ends = [0, rows // 2, rows // 2, rows]
    x, w = torch.randn(rows, 8), torch.randn(GROUPS, 8, 8)
    compiled = deplodock.compile(_fallback, (x, w, offsets(ends)), executor="reference")
    torch.testing.assert_close(compiled(x, w, offsets(ends)), expected(x, w, offsets(ends)))


def _fallback(x: Tensor, w: Tensor, offs: Tensor) -> Tensor:
    return torch.ops.transformers.grouped_mm_fallback(x, w, offs)


def test_number_of_rows_that_varies() -> None:
    """A program serves any number of rows, and ends after which rows have no group."""
    w = torch.randn(GROUPS, 8, 8)
    dim = {"x": {0: Dim("rows", min=2, max=300)}, "w": {}, "offs": {}}
    compiled = deplodock.compile(
        _fallback, (torch.randn(9, 8), w, offsets([1, 2, 5, 9])), dynamic_shapes=dim, executor="reference"
    )
    for ends in ([1, 2, 5, 9], [40, 40, 199, 200], [0, 1, 1, 2], [3, 6, 9, 20]):
        x = torch.randn(ends[-1] + (ends[-1] == 20), 8)
        torch.testing.assert_close(compiled(x, w, offsets(ends)), expected(x, w, offsets(ends)))


def _trained(x: Tensor, w: Tensor, offs: Tensor) -> Tensor:
    return torch.tanh(_fallback(x, w, offs)).square().sum()


def test_gradients() -> None:
    x, w = torch.randn(12, 8, requires_grad=True), torch.randn(GROUPS, 8, 8, requires_grad=True)
    offs = offsets([3, 3, 8, 12])
    options = {"executor": "reference"}
    compiled = torch.compile(_trained, backend="deplodock", options=options, fullgraph=True)
    actual = torch.autograd.grad(compiled(x, w, offs), (x, w))
    torch.testing.assert_close(actual, torch.autograd.grad(_trained(x, w, offs), (x, w)))


def test_work_is_linear_in_the_rows() -> None:
    """A single launch computes all experts on both targets. Its tiles have the rows of the tokens, and of a partial
    tile for each expert."""
    tokens, experts, tile = 2048, 16, 64
    x, w, offs = (
        torch.empty(tokens, 64, dtype=torch.bfloat16),
        torch.empty(experts, 64, 128, dtype=torch.bfloat16),
        torch.zeros(experts, dtype=torch.int32),
    )
    for target in ("cpu", "sm_90a"):
        text = deplodock.compile(_fallback, (x, w, offs), target=target, executor="reference").ir("tile")
        (kernel,) = [k for k in text.split("tile.kernel")[1:] if "tile.dot" in k]
        tiles = (tokens + experts * (tile - 1)) // tile
        assert f"memref<{tiles}x{tile}x128xbf16>" in kernel
        blocks = re.search(r"blocks \((.*?)\) in \[(.*?)\]", kernel)
        assert blocks is not None
        assert blocks[2].split(", ")[0] == str(tiles)
        # The expert is one number for the whole block.
        assert re.search(rf"%w\[%\d+, .*memref<{experts}x64x128xbf16>", kernel, re.DOTALL)


def test_bias_is_refused() -> None:
    arguments = {"self": torch.randn(4, 8), "mat2": torch.randn(2, 8, 8), "offs": offsets([2, 4])}
    arguments |= {"bias": torch.randn(2, 8), "out_dtype": None}
    module, _ = build("_grouped_mm", arguments, [torch.empty(4, 8)])
    with pytest.raises(CompileError, match="bias"):
        ConvertTorchToTensorPass().apply(Context(), module)
