"""Tensor maps on the host: what a launch passes for a `kernel.tensor_map`, on a device and in the emulator."""

from __future__ import annotations

import ctypes
from functools import lru_cache
from typing import Any

import numpy as np

from ..dialects.extents import static
from ..errors import ExecutionError
from .driver import library
from .launch_plan import TensorMap

KEPT_MAPS = 4096
"""So many encoded maps are kept, by what they describe and where it lies: about a megabyte."""

_TYPES = {"ui8": 0, "i8": 0, "i1": 0, "i16": 1, "i32": 3, "i64": 5, "f16": 6, "f32": 7, "f64": 8, "bf16": 9}
"""CUtensorMapDataType, by element type; a copy moves bits, so signs do not matter."""

_SWIZZLES = {0: 0, 32: 1, 64: 2, 128: 3}
"""CUtensorMapSwizzle, by the bytes of a row."""

_L2_128_BYTES = 2
"""CUtensorMapL2promotion: fetch 128 bytes into the level-2 cache at once."""

_WORDS = 16
"""64-bit words of a CUtensorMap."""


@lru_cache(KEPT_MAPS)
def encode(wanted: TensorMap, address: int) -> Any:
    """The 128 bytes of a map of what lies at `address` on the device: a NumPy array of one record, passed by value.

    Equal maps of one address are encoded once. Raises ExecutionError where there is no driver, or if it refuses.
    """
    rank, shape = len(wanted.shape), static(wanted.shape)
    strides = [s * wanted.item for s in _pitches(shape)]
    result = _aligned(_WORDS * 8)
    u64, u32 = ctypes.c_uint64, ctypes.c_uint32
    status = library().cuTensorMapEncodeTiled(
        ctypes.c_void_p(result.ctypes.data),
        _TYPES[wanted.dtype],
        u32(rank),
        ctypes.c_void_p(address),
        (u64 * rank)(*reversed(shape)),
        (u64 * max(rank - 1, 1))(*reversed(strides[:-1])),
        (u32 * rank)(*reversed(wanted.box)),
        (u32 * rank)(*[1] * rank),
        0,
        _SWIZZLES[wanted.swizzle],
        _L2_128_BYTES,
        0,
    )
    if status:
        what = f"{wanted.dtype}{list(shape)} at {address:#x} in boxes {list(wanted.box)}, swizzled by {wanted.swizzle}"
        raise ExecutionError(f"the driver refuses a map of {what}: error {status}", operator="kernel.tensor_map")
    result.flags.writeable = False
    return result.view(f"V{_WORDS * 8}")


def describe(wanted: TensorMap, address: int) -> list[int]:
    """What the emulator is told instead: address, rank, swizzle, bytes of an element, five extents, five of the box."""
    fill = [1] * (5 - len(wanted.shape))
    words = [address, len(wanted.shape), wanted.swizzle, wanted.item]
    words += [*static(wanted.shape), *fill, *wanted.box, *fill]
    return words + [0] * (_WORDS - len(words))


def _pitches(shape: tuple[int, ...]) -> list[int]:
    """How many elements lie between neighbours along each dimension of row-major memory."""
    return [int(np.prod(shape[d + 1 :], dtype=np.int64)) for d in range(len(shape))]


def _aligned(size: int) -> np.ndarray:
    """`size` bytes that start at a multiple of 64."""
    raw = np.zeros(size + 64, np.uint8)
    start = -raw.ctypes.data % 64
    return raw[start : start + size]
