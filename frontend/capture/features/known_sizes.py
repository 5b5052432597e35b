"""Functions of PyTorch in a form that can be traced, where the one of PyTorch asks what a tensor holds although the
sizes of its result follow without that: from the caller's numbers, or from tensors that are constants of the program.

What still depends on data is left to PyTorch, and refused later.
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
    """Returns the result of what is here in place of a function, or NotImplemented."""
    if function in _OF_CONSTANTS and all(not isinstance(v, Tensor) or _is_mask(v) for v in pytree.tree_leaves(args)):
        with _disable_current_modes():
            return function(*args, **kwargs)
    stand_in = _batch_norm if function.__name__ == "forward" else _FUNCTIONS.get(function)
    result = None if stand_in is None or "out" in kwargs else stand_in(*args, **kwargs)
    return NotImplemented if result is None else result


def _bincount(input: Tensor, weights: Tensor | None = None, minlength: int = 0) -> Tensor | None:
    """With `minlength` bins, which the caller gives: that no number needs a further one is asserted."""
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
    """The covariances of rows; PyTorch asks whether the weights sum up to nothing. What it refuses is left to it."""
    count = input.shape[-1] if input.dim() else 1
    fits = all(w is None or w.dim() <= 1 and w.numel() == count for w in (fweights, aweights))
    counts = fweights is None or not (fweights.is_floating_point() or fweights.is_complex())
    if input.dim() > 2 or not fits or not counts or aweights is not None and not aweights.is_floating_point():
        return None
    x = input if input.dim() == 2 else input.reshape(1, -1)
    x = x if x.is_floating_point() or x.is_complex() else x.to(torch.get_default_dtype())
    given = [w for w in (fweights, aweights) if w is not None]
    weights = torch.ones_like(x[0]) if not given else given[0] if len(given) == 1 else given[0] * given[1]
    total = weights.sum()
    mean = (x * weights).sum(1, keepdim=True) / total
    lost = correction if aweights is None else correction * (weights * aweights).sum() / total
    rest = x - mean
    return ((rest * weights) @ rest.mH / torch.clamp(total - lost, min=0)).squeeze()


def _corrcoef(input: Tensor) -> Tensor | None:
    """The correlations of rows."""
    found = _cov(input)
    if found is None:
        return None
    if found.dim() == 0:
        return found / found
    size = found.diagonal().sqrt()
    found = found / size[:, None] / size[None, :]
    return found if found.is_complex() else found.clamp(-1, 1)


def _combinations(input: Tensor, r: int = 2, with_replacement: bool = False) -> Tensor | None:
    """The number of combinations follows from that of elements, but PyTorch makes a mask of them."""
    count = input.shape[0]
    if not isinstance(count, int) or r < 1:
        return None
    chosen = (combinations_with_replacement if with_replacement else combinations)(range(count), r)
    return input[torch.tensor(list(chosen), dtype=torch.int64).reshape(-1, r)]


def _getitem(x: Tensor, index: Any) -> Tensor | None:
    """Masks that are constants are the places where they hold."""
    parts = index if isinstance(index, tuple) else (index,)
    if not any(isinstance(p, Tensor) and _known(p) is not None for p in parts):
        return None
    found: list[Any] = []
    for part in parts:
        mask = _known(part) if isinstance(part, Tensor) else None
        found += [part] if mask is None else _places(mask)
    return x[tuple(found)]


def _masked_select(input: Tensor, mask: Tensor) -> Tensor | None:
    known = _known(mask)
    if known is None:
        return None
    shape = torch.broadcast_shapes(input.shape, known.shape)
    if not all(isinstance(n, int) for n in shape):
        return None
    return input.expand(shape)[tuple(_places(known, shape))]


def _known(mask: Tensor) -> Tensor | None:
    """The mask itself, if it is one and a constant of the program."""
    return mask if _is_mask(mask) and mask.dim() > 0 else None


def _is_mask(x: Tensor) -> bool:
    """Whether `x` are truth values that are there while the program is traced, not what a tracer or a transform of
    PyTorch's makes of such."""
    wrapped = torch._is_functional_tensor(x) or torch._C._functorch.is_functorch_wrapped_tensor(x)  # pyright: ignore
    return type(x) is Tensor and x.dtype == torch.bool and not wrapped and not x.is_meta


def _places(mask: Tensor, shape: Sequence[int] | None = None) -> list[Tensor]:
    with _disable_current_modes():
        return list((mask if shape is None else mask.expand(shape)).nonzero(as_tuple=True))


def _batch_norm(self: _BatchNorm, input: Tensor) -> Tensor | None:
    """With momentum None the running statistics are means over all batches: PyTorch makes a number of how many these
    are, which a tensor counts."""
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
    """What a function of numbers alone gives, such as a window of signals, as a constant of the program."""
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
"""What gives a constant of constants: views of masks, and logic."""

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
