"""Calls of the CUDA driver that torch and CuPy do not offer: its version, and TMA descriptors (`kernel.tensor_map`)."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any

import numpy as np

from ....dialects.shapes.extents import static
from ....errors import ExecutionError, TargetError
from ...cpp.memory import pitches
from ...dtypes import DTYPES
from ...host.launch_plan import TensorMap

Version = tuple[int, int]
"""Major and minor number of a CUDA version."""

LOST_CONTEXT = "the process cannot use the GPU any more, so continue in a new process"
"""Advice after an error that destroys the CUDA context."""

_DESTROYING = (214, 700, 702, 709, 710, *range(714, 720))
"""CUresult of errors after which every call fails: a kernel trapped, timed out or accessed memory illegally."""


def advice(status: int) -> str:
    """Returns the end of a message about a status of the driver: empty unless the context of the process is lost."""
    return f"; {LOST_CONTEXT}" if status in _DESTROYING else ""


@cache
def library() -> Any:
    """Returns libcuda. Raises ExecutionError without a driver."""
    try:
        return ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        raise ExecutionError("there is no CUDA driver", operator="cuda") from error


def driver_version() -> Version:
    """Returns the newest version of CUDA that the driver supports. Raises ExecutionError without a driver."""
    number = ctypes.c_int()
    if status := library().cuDriverGetVersion(ctypes.byref(number)):
        raise ExecutionError(f"cuDriverGetVersion fails: error {status}", operator="cuda")
    return number.value // 1000, number.value % 1000 // 10


def check_driver(compiler: Version, driver: Version) -> None:
    """Raises TargetError if machine code of the NVRTC version `compiler` needs a newer driver.

    A driver runs code of all compilers up to its own major version (CUDA Compatibility guide, "minor version
    compatibility").
    """
    if driver[0] < compiler[0]:
        have, need = ("{}.{}".format(*v) for v in (driver, compiler))
        reason = (
            f"the driver runs CUDA up to {have}, and NVRTC {need} makes code for drivers of CUDA {compiler[0]}.0 on"
        )
        remedy = f"update the driver, or install NVRTC of CUDA {driver[0]}"
        raise TargetError(f"{reason}: {remedy}", operator="cuda")


KEPT_MAPS = 4096
"""Largest number of cached TMA descriptors: about a megabyte with their keys."""

_SWIZZLES = {0: 0, 32: 1, 64: 2, 128: 3}
"""Bytes of a swizzled row -> CUtensorMapSwizzle."""

_L2_128_BYTES = 2
"""CUtensorMapL2promotion: fetches of 128 bytes into L2."""

_WORDS = 16
"""Number of 64-bit words of a CUtensorMap, the TMA descriptor of the driver."""


@dataclass(frozen=True)
class Encoding:
    """Arguments of cuTensorMapEncodeTiled except the address. The contiguous dimension is first.

    Strides are in bytes, without the contiguous dimension. Elements are not interleaved; elements out of bounds are
    read as zero.
    """

    type: int
    extents: tuple[int, ...]
    strides: tuple[int, ...]
    box: tuple[int, ...]
    swizzle: int
    promotion: int = _L2_128_BYTES


def encoding(descriptor: TensorMap) -> Encoding:
    """Returns the arguments of the driver for a descriptor. Raises ExtentError for dynamic extents."""
    shape = static(descriptor.shape)
    strides = [number * descriptor.item for number, _ in pitches(shape)]
    extents, steps, box = (tuple(reversed(n)) for n in (shape, strides[:-1], descriptor.box))
    data_type = DTYPES[descriptor.dtype].tensor_map
    assert data_type is not None, descriptor
    return Encoding(data_type, extents, steps, box, _SWIZZLES[descriptor.swizzle])


@lru_cache(KEPT_MAPS)
def encode(descriptor: TensorMap, address: int) -> Any:
    """Encodes a descriptor for the memory at `address`, memoised.

    Returns:
        The 128 bytes, as a NumPy array of one record, which launches pass by value.

    Raises:
        ExecutionError: without a driver, or if it refuses the descriptor.
    """
    e, rank = encoding(descriptor), len(descriptor.shape)
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
        description = (
            f"{descriptor.dtype}{list(static(descriptor.shape))} at {address:#x} in boxes {list(descriptor.box)}"
        )
        reason = f"the driver refuses a map of {description}, swizzled by {descriptor.swizzle}: error {status}"
        raise ExecutionError(reason, operator="kernel.tensor_map")
    result.flags.writeable = False
    return result.view(f"V{_WORDS * 8}")


def describe(descriptor: TensorMap, address: int) -> list[int]:
    """Returns the words that the emulator reads instead of a descriptor.

    They are the address, rank, swizzle, element bytes, five extents, and five extents of the TMA tile.
    """
    fill = [1] * (5 - len(descriptor.shape))
    words = [address, len(descriptor.shape), descriptor.swizzle, descriptor.item]
    words += [*static(descriptor.shape), *fill, *descriptor.box, *fill]
    return words + [0] * (_WORDS - len(words))


def aligned(size: int) -> np.ndarray:
    """Returns an array of `size` bytes, aligned to 64 bytes."""
    raw = np.zeros(size + 64, np.uint8)
    start = -raw.ctypes.data % 64
    return raw[start : start + size]
