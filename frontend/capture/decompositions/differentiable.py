"""Operators that are taken apart before they are differentiated, so that PyTorch differentiates the parts: of their own
gradients it has kernels only."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

import torch
import torch.nn.functional as F
from torch._C import DispatchKey

from .operators import by_operator
from .sampling import ANTIALIASED, SAMPLING

Tensor = torch.Tensor


@contextmanager
def above_autograd() -> Generator[None]:
    """While it is open, a traced program that is differentiated has the parts of these operators."""
    with ExitStack() as stack:
        for operator, made in by_operator(DIFFERENTIABLE).items():
            stack.callback(operator._dispatch_cache.clear)
            stack.enter_context(patch.dict(operator.py_kernels, {DispatchKey.Autograd: made}))
            operator._dispatch_cache.clear()
        yield


def _embedding_bag(
    weight: Tensor,
    indices: Tensor,
    offsets: Tensor,
    scale_grad_by_freq: bool = False,
    mode: int = 0,
    sparse: bool = False,
    per_sample_weights: Tensor | None = None,
    include_last_offset: bool = False,
    padding_idx: int = -1,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Rows of `weight`, summed (`mode` 0), averaged (1) or their maxima (2) in bags that begin at `offsets`; rows that
    are padding go to a bag behind the last one. The results after the first are for PyTorch's own gradient only."""
    bags = offsets.shape[0] - include_last_offset
    begins = offsets.new_zeros(indices.shape[0] + 1).index_add(0, offsets, torch.ones_like(offsets))
    bag = begins[:-1].cumsum(0) - 1
    bag = bag if padding_idx < 0 else torch.where(indices == padding_idx, bags, bag)
    rows = F.embedding(indices, weight, scale_grad_by_freq=scale_grad_by_freq)
    rows = rows if per_sample_weights is None else rows * per_sample_weights[:, None]
    found = rows.new_zeros(bags + (padding_idx >= 0), rows.shape[1])
    count = F.pad(offsets, (0, 1), value=indices.shape[0]).diff()[:bags]
    if padding_idx >= 0:
        count = bag.new_zeros(bags + 1).index_add(0, bag, torch.ones_like(bag))
    if mode == 2:
        found = found.index_reduce(0, bag, rows, "amax", include_self=False)
    else:
        found = found.index_add(0, bag, rows)
        found = found / count.clamp(min=1)[:, None] if mode == 1 else found
    return found[:bags], bag, count[:bags], count[:bags]


BAGS: dict[str, Callable[..., Any]] = {
    "_embedding_bag.default": _embedding_bag,
    "_embedding_bag_forward_only.default": _embedding_bag,
}

DIFFERENTIABLE: dict[str, Callable[..., Any]] = {
    **ANTIALIASED,
    **SAMPLING,
    "_embedding_bag.default": _embedding_bag,
}
