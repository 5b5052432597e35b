"""Replacements for functions of PyTorch that read the elements of a tensor, although the result's shape needs none of
them.

Examples: `torch.bincount(x, minlength=8)`, whose number of bins is passed by the caller, and `x[mask]` with a mask that
is a constant of the program. The replacements can be traced. A function that does read data is called as it is, and the
exporter refuses it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import combinations, combinations_with_replacement
from typing import Any

import torch
import torch.nn.functional as F
from torch.nn.modules.batchnorm import _BatchNorm  # pyright: ignore[reportPrivateUsage]
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import _disable_current_modes  # pyright: ignore[reportPrivateUsage]

Tensor = torch.Tensor


def called(function: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """Calls the replacement of a function.

    Args:
        function: the function of PyTorch.
        args, kwargs: its arguments.

    Returns:
        The result, or NotImplemented if the function has no replacement for these arguments.
    """
    if function in _OF_CONSTANTS and all(not isinstance(v, Tensor) or _is_mask(v) for v in pytree.tree_leaves(args)):
        with _disable_current_modes():
            return function(*args, **kwargs)
    stand_in = _batch_norm if function.__name__ == "forward" else _FUNCTIONS.get(function)
    result = None if stand_in is None or "out" in kwargs else stand_in(*args, **kwargs)
    return NotImplemented if result is None else result


def _bincount(input: Tensor, weights: Tensor | None = None, minlength: int = 0) -> Tensor | None:
    """Returns counts in `minlength` bins, and asserts that no number needs another bin; None without `minlength`."""
    if minlength <= 0:
        return None
    number = input.to(torch.int64)
    inside = (number >= 0) & (number < minlength)
    torch._assert_async(  # pyright: ignore[reportPrivateImportUsage]
        inside.all(), f"bincount: a size that depends on data: a number is outside [0, {minlength})"
    )
    values = torch.ones_like(number) if weights is None else weights
    if values.dtype != torch.float32 and weights is not None:
        values = values.to(torch.float64)
    return values.new_zeros(minlength).index_add(0, number, values)


def _cov(
    input: Tensor, *, correction: int = 1, fweights: Tensor | None = None, aweights: Tensor | None = None
) -> Tensor | None:
    """Returns the covariances of rows, without PyTorch's check that the sum of weights is positive.

    Returns None for arguments that PyTorch refuses.
    """
    count = input.shape[-1] if input.dim() else 1
    fits = all(w is None or w.dim() <= 1 and w.numel() == count for w in (fweights, aweights))
    counts = fweights is None or not (fweights.is_floating_point() or fweights.is_complex())
    if input.dim() > 2 or not fits or not counts or aweights is not None and not aweights.is_floating_point():
        return None
    x = input if input.dim() == 2 else input.reshape(1, -1)
    x = x if x.is_floating_point() or x.is_complex() else x.to(torch.get_default_dtype())
    provided = [w for w in (fweights, aweights) if w is not None]
    weights = (
        torch.ones_like(x[0]) if not provided else provided[0] if len(provided) == 1 else provided[0] * provided[1]
    )
    total = weights.sum()
    mean = (x * weights).sum(1, keepdim=True) / total
    correction_of_total = correction if aweights is None else correction * (weights * aweights).sum() / total
    deviations = x - mean
    return ((deviations * weights) @ deviations.mH / torch.clamp(total - correction_of_total, min=0)).squeeze()


def _corrcoef(input: Tensor) -> Tensor | None:
    """Returns the correlations of rows, or None for arguments that PyTorch refuses."""
    matrix = _cov(input)
    if matrix is None:
        return None
    if matrix.dim() == 0:
        return matrix / matrix
    size = matrix.diagonal().sqrt()
    matrix = matrix / size[:, None] / size[None, :]
    return matrix if matrix.is_complex() else matrix.clamp(-1, 1)


def _combinations(input: Tensor, r: int = 2, with_replacement: bool = False) -> Tensor | None:
    """Returns all combinations of `r` elements by an index that is a constant. PyTorch selects them with a mask."""
    count = input.shape[0]
    if not isinstance(count, int) or r < 1:
        return None
    chosen = (combinations_with_replacement if with_replacement else combinations)(range(count), r)
    return input[torch.tensor(list(chosen), dtype=torch.int64).reshape(-1, r)]


def _getitem(x: Tensor, index: Any) -> Tensor | None:
    """Indexes with constant masks as with the indices of their true elements; returns None without such a mask."""
    parts = index if isinstance(index, tuple) else (index,)
    if not any(isinstance(p, Tensor) and _constant_mask(p) is not None for p in parts):
        return None
    indices: list[Any] = []
    for part in parts:
        mask = _constant_mask(part) if isinstance(part, Tensor) else None
        indices += [part] if mask is None else _true_indices(mask)
    return x[tuple(indices)]


def _masked_select(input: Tensor, mask: Tensor) -> Tensor | None:
    constant = _constant_mask(mask)
    if constant is None:
        # PyTorch traces at most as many results as the input has elements, also if the mask has more.
        shape = torch.broadcast_shapes(input.shape, mask.shape)
        return None if shape == input.shape else torch.masked_select(input.expand(shape), mask)
    shape = torch.broadcast_shapes(input.shape, constant.shape)
    if not all(isinstance(n, int) for n in shape):
        return None
    return input.expand(shape)[tuple(_true_indices(constant, shape))]


def _constant_mask(mask: Tensor) -> Tensor | None:
    """Returns `mask` if its elements are known during capture and its rank is not 0, else None."""
    return mask if _is_mask(mask) and mask.dim() > 0 else None


def _is_mask(x: Tensor) -> bool:
    """Returns true if `x` is a boolean tensor with known elements, and not a wrapper by a tracer or transform of
    PyTorch."""
    wrapped = torch._is_functional_tensor(x) or torch._C._functorch.is_functorch_wrapped_tensor(x)  # pyright: ignore
    return type(x) is Tensor and x.dtype == torch.bool and not wrapped and not x.is_meta


def _true_indices(mask: Tensor, shape: Sequence[int] | None = None) -> list[Tensor]:
    with _disable_current_modes():
        return list((mask if shape is None else mask.expand(shape)).nonzero(as_tuple=True))


def _batch_norm(self: _BatchNorm, input: Tensor) -> Tensor | None:
    """Replaces batch normalization with momentum None, where running statistics are averages over all batches.

    PyTorch converts the counter of batches, a tensor, to a number. Here it stays a tensor.
    """
    mean, var, count = self.running_mean, self.running_var, self.num_batches_tracked
    counts = self.training and self.track_running_stats and self.momentum is None
    if not counts or mean is None or var is None or count is None:
        return None
    self._check_input_dim(input)
    count.add_(1)
    over = [d for d in range(input.dim()) if d != 1]
    x = input.to(mean.dtype)
    mean.add_((x.mean(over) - mean) / count)
    var.add_((x.var(over, correction=1) - var) / count)
    return F.batch_norm(input, None, None, self.weight, self.bias, True, 0.0, self.eps)


def _constant(function: Callable[..., Tensor], *args: Any, **kwargs: Any) -> Tensor:
    """Calls a function of numbers, such as a window function, and returns a constant of the program."""
    with _disable_current_modes():
        value = function(*args, **kwargs)
    return torch.tensor(value.tolist(), dtype=value.dtype)


_OF_CONSTANTS = frozenset(
    getattr(Tensor, name)
    for name in (
        "__getitem__ __and__ __or__ __xor__ __invert__ logical_and logical_or logical_xor logical_not expand view"
        " reshape flatten squeeze unsqueeze t transpose permute flip roll repeat"
    ).split()
)
"""Functions that are computed while the program is traced if all their tensors are constant masks: views, and logic."""

_FUNCTIONS: dict[Any, Callable[..., Tensor | None]] = {
    **dict.fromkeys((torch.bincount, Tensor.bincount), _bincount),
    **dict.fromkeys((torch.cov, Tensor.cov), _cov),
    **dict.fromkeys((torch.corrcoef, Tensor.corrcoef), _corrcoef),
    **dict.fromkeys((torch.masked_select, Tensor.masked_select), _masked_select),
    **{
        window: partial(_constant, window)
        for window in (torch.bartlett_window, torch.blackman_window, torch.hamming_window, torch.kaiser_window)
    },
    torch.combinations: _combinations,
    Tensor.__getitem__: _getitem,
}
"""Replacement by function. A replacement returns None for arguments that it does not support."""
