"""Conversion between arrays of JAX or NumPy and tensors of a program, without copies where the memory permits it."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import torch

from ...frontend.capture.arrays import to_torch

_UNSIGNED = {torch.uint16: torch.int16, torch.uint32: torch.int32, torch.uint64: torch.int64, torch.uint8: torch.int8}
"""Unsigned type -> the type of the same bits in the program."""


def to_tensor(array: Any) -> torch.Tensor:
    """Returns an array as a tensor of the type that the program has, without a copy where the memory permits it."""
    if isinstance(array, jax.Array):
        tensor = torch.from_dlpack(array)
    else:
        host = np.asarray(array)
        if host.dtype in (np.float64, np.int64, np.uint64) and not jax.config.read("jax_enable_x64"):
            host = host.astype(host.dtype.str[:2] + "4")
        is_plain = host.dtype.kind in "fiub" and host.flags.writeable and host.flags.c_contiguous and host.size
        tensor = torch.from_numpy(host) if is_plain else to_torch(host)
    return tensor.view(_UNSIGNED[tensor.dtype]) if tensor.dtype in _UNSIGNED else tensor


def to_jax(tensor: torch.Tensor, unsigned: bool) -> jax.Array:
    """Returns a tensor as a JAX array, without a copy. `unsigned`: whether its integers are unsigned."""
    if unsigned:
        tensor = tensor.view(next(u for u, signed in _UNSIGNED.items() if signed == tensor.dtype))
    return jax.dlpack.from_dlpack(tensor)
