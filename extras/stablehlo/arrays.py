"""Conversion between arrays of JAX or NumPy and tensors of a program, without copies where the memory permits it."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import torch
from jax.core import Tracer

from ...errors import ExecutionError
from ...frontend.capture.arrays import to_torch

_UNSIGNED = {torch.uint16: torch.int16, torch.uint32: torch.int32, torch.uint64: torch.int64, torch.uint8: torch.int8}
"""Unsigned type -> the type of the same bits in the program."""


def to_tensor(array: Any) -> torch.Tensor:
    """Returns an array as a tensor of the type that the program has, without a copy where the memory permits it.

    Raises:
        ExecutionError: the array is one of a transform of JAX.
    """
    if isinstance(array, Tracer):
        raise ExecutionError(
            "transforms of JAX around a compiled function are not supported", remedy="compile the transformed function"
        )
    if isinstance(array, jax.Array):
        tensor = torch.from_dlpack(jax.random.key_data(array) if is_key(array.dtype) else array)
    else:
        host = np.asarray(array)
        if host.dtype in (np.float64, np.int64, np.uint64) and not jax.config.read("jax_enable_x64"):
            host = host.astype(host.dtype.str[:2] + "4")
        is_plain = host.dtype.kind in "fiub" and host.flags.writeable and host.flags.c_contiguous and host.size
        tensor = torch.from_numpy(host) if is_plain else to_torch(host)
    return tensor.view(_UNSIGNED[tensor.dtype]) if tensor.dtype in _UNSIGNED else tensor


def is_key(dtype: Any) -> bool:
    """Returns true for the type of keys of random numbers, which are unsigned integers in a program."""
    return jnp.issubdtype(dtype, jax.dtypes.prng_key)


def to_jax(tensor: torch.Tensor, unsigned: bool, dtype: Any = None) -> jax.Array:
    """Returns a tensor as a JAX array, without a copy.

    Args:
        tensor: the tensor.
        unsigned: whether its integers are unsigned.
        dtype: data type of the array, which may be a type of keys; by default that of the tensor.
    """
    if unsigned:
        tensor = tensor.view(next(u for u, signed in _UNSIGNED.items() if signed == tensor.dtype))
    array = jax.dlpack.from_dlpack(tensor)
    return array if dtype is None or not is_key(dtype) else jax.random.wrap_key_data(array, impl=dtype)
