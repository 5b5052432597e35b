"""Losses that are operators of PyTorch."""

from __future__ import annotations

import pytest
import torch
from support.aten import check


@pytest.mark.parametrize("reduction", [0, 1, 2])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_multilabel_margin_loss(reduction: int, dtype: torch.dtype) -> None:
    x = torch.randn(3, 5, generator=torch.Generator().manual_seed(5), dtype=dtype)
    target = torch.tensor([[3, 0, -1, 1, 2], [-1, 4, 4, 4, 4], [0, 1, 2, 3, 4]])
    check("multilabel_margin_loss", x, target, reduction)
    check("multilabel_margin_loss", x[0], target[0], reduction)
    check("multilabel_margin_loss", x[0, 0], torch.tensor(0), reduction)
