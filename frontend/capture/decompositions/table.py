"""Decompositions at capture: PyTorch's own, and ours of operators of which it has none."""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import wraps
from typing import Any

import torch
import torch._refs  # which completes PyTorch's table
from torch._decomp import get_decompositions as pytorchs
from torch.export import default_decompositions

from ....dialects.torch import SCHEMAS
from ....errors import UnsupportedError
from ....passes.convert.torch_to_tensor.registry import get_decompositions
from ..importer import overload_name
from . import DECOMPOSITIONS

aten: Any = torch.ops.aten

_RARE = (
    aten.as_strided_copy,
    aten.cauchy,
    aten.dist,
    aten.exponential,
    aten.grid_sampler_2d,
    aten.isinf,
    aten.ldexp,
    aten.log_normal,
    aten.max_pool2d_with_indices_backward,
    aten.narrow_copy,
    aten.permute_copy,
    aten.unbind_copy,
    aten.view_copy,
)
"""Operators that PyTorch decomposes for its compiler, though not by default for an export."""

_OF_FLOATS = (
    aten._prelu_kernel.default,
    aten.hardsigmoid.default,
    aten.hardswish.default,
    aten.lerp.Scalar,
    aten.lerp.Tensor,
    aten.max_pool2d_with_indices_backward.default,
)
"""Operators of which PyTorch has no kernel for integers."""


def decomposition_table(also: Collection[Any] = ()) -> dict[Any, Callable[..., Any]]:
    """Operator -> how it is made of others, of all that are not ours, and of those of ours that are in `also`."""
    table: Any = default_decompositions()
    table.update(pytorchs(_RARE))
    for target in _OF_FLOATS:
        table[target] = _floats_only(table[target])
    for target in [t for t in table if is_ours(t) and t not in also]:
        del table[target]
    table.update(DECOMPOSITIONS)
    return table


def is_ours(target: Any) -> bool:
    """Whether an operator is one that we take as it is."""
    if not isinstance(target, torch._ops.OpOverload) or target.namespace != "aten":
        return False
    name = overload_name(target)
    return name in SCHEMAS and name in get_decompositions()


def _floats_only(function: Callable[..., Any]) -> Callable[..., Any]:
    """A decomposition that refuses tensors of integers."""

    @wraps(function)
    def checked(input: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        if not input.is_floating_point():
            raise UnsupportedError(f"PyTorch has no kernel for {input.dtype}")
        return function(input, *args, **kwargs)

    return checked
