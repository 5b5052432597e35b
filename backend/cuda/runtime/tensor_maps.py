"""Tensor maps on the host: what a launch passes for a `kernel.tensor_map`, on a device and in the emulator."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from ....dialects.shapes.extents import static
from ....errors import ExecutionError
from ...dtypes import DTYPES
from ...host.launch_plan import TensorMap
from .driver import library

KEPT_MAPS = 4096
"""So many encoded maps are kept, by what they describe and where it lies: about a megabyte."""

_SWIZZLES = {0: 0, 32: 1, 64: 2, 128: 3}
"""CUtensorMapSwizzle, by the bytes of a row."""

_L2_128_BYTES = 2
"""CUtensorMapL2promotion: fetch 128 bytes into the level-2 cache at once."""

_WORDS = 16
"""64-bit words of a CUtensorMap."""


@dataclass(frozen=True)
class Encoding:
    """The arguments of cuTensorMapEncodeTiled behind the address, the fastest dimension first; strides are bytes, and
    that of the fastest dimension, one element, is not among them. Elements are taken one by one, not interleaved, and
    what lies outside is zero."""

    type: int
    extents: tuple[int, ...]
    strides: tuple[int, ...]
    box: tuple[int, ...]
    swizzle: int
    promotion: int = _L2_128_BYTES


def encoding(wanted: TensorMap) -> Encoding:
    """How the driver is asked for a map. Raises ExtentError if an extent is known only at a call."""
    shape = static(wanted.shape)
    strides = [s * wanted.item for s in _pitches(shape)]
    extents, steps, box = (tuple(reversed(n)) for n in (shape, strides[:-1], wanted.box))
    data_type = DTYPES[wanted.dtype].tensor_map
    assert data_type is not None, wanted
    return Encoding(data_type, extents, steps, box, _SWIZZLES[wanted.swizzle])


@lru_cache(KEPT_MAPS)
def encode(wanted: TensorMap, address: int) -> Any:
    """The 128 bytes of a map of what lies at `address` on the device: a NumPy array of one record, passed by value.

    Equal maps of one address are encoded once. Raises ExecutionError where there is no driver, or if it refuses.
    """
    e, rank = encoding(wanted), len(wanted.shape)
    result = aligned(_WORDS * 8)
    u64, u32 = ctypes.c_uint64, ctypes.c_uint32
    status = library().cuTensorMapEncodeTiled(
        ctypes.c_void_p(result.ctypes.data),
        e.type,
        u32(rank),
        ctypes.c_void_p(address),
        (u64 * rank)(*e.extents),
        (u64 * max(rank - 1, 1))(*e.strides),
        (u32 * rank)(*e.box),
        (u32 * rank)(*[1] * rank),
        0,
        e.swizzle,
        e.promotion,
        0,
    )
    if status:
        what = f"{wanted.dtype}{list(static(wanted.shape))} at {address:#x} in boxes {list(wanted.box)}"
        reason = f"the driver refuses a map of {what}, swizzled by {wanted.swizzle}: error {status}"
        raise ExecutionError(reason, operator="kernel.tensor_map")
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


def aligned(size: int) -> np.ndarray:
    """`size` bytes that start at a multiple of 64."""
    raw = np.zeros(size + 64, np.uint8)
    start = -raw.ctypes.data % 64
    return raw[start : start + size]
