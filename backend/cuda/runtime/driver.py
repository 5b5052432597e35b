"""The CUDA driver itself, for what neither torch nor CuPy offers: which CUDA it runs, and tensor maps, which launches
pass for a `kernel.tensor_map`, on a device and in the emulator."""

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
    """libcuda, opened once. Raises ExecutionError where there is none."""
    try:
        return ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        raise ExecutionError("there is no CUDA driver", operator="cuda") from error


def driver_version() -> Version:
    """The newest CUDA that the driver runs (`cuDriverGetVersion`). Raises ExecutionError where there is no driver."""
    number = ctypes.c_int()
    if status := library().cuDriverGetVersion(ctypes.byref(number)):
        raise ExecutionError(f"the driver does not tell its version: error {status}", operator="cuda")
    return number.value // 1000, number.value % 1000 // 10


def check_driver(compiler: Version, driver: Version) -> None:
    """Raises TargetError if machine code of the NVRTC `compiler` needs a newer major version than `driver`. Within a
    major version drivers run machine code of every compiler ("minor version compatibility" in the CUDA Compatibility
    guide), and newer drivers run that of older ones."""
    if driver[0] < compiler[0]:
        have, need = ("{}.{}".format(*v) for v in (driver, compiler))
        reason = (
            f"the driver runs CUDA up to {have}, and NVRTC {need} makes code for drivers of CUDA {compiler[0]}.0 on"
        )
        remedy = f"update the driver, or install NVRTC of CUDA {driver[0]}"
        raise TargetError(f"{reason}: {remedy}", operator="cuda")


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
    """The arguments of cuTensorMapEncodeTiled after the address, the fastest dimension first. Strides are bytes,
    without that of the fastest dimension. Elements are not interleaved, and zero outside."""

    type: int
    extents: tuple[int, ...]
    strides: tuple[int, ...]
    box: tuple[int, ...]
    swizzle: int
    promotion: int = _L2_128_BYTES


def encoding(wanted: TensorMap) -> Encoding:
    """Returns the arguments of the driver for a map. Raises ExtentError if an extent is known only at a call."""
    shape = static(wanted.shape)
    strides = [number * wanted.item for number, _ in pitches(shape)]
    extents, steps, box = (tuple(reversed(n)) for n in (shape, strides[:-1], wanted.box))
    data_type = DTYPES[wanted.dtype].tensor_map
    assert data_type is not None, wanted
    return Encoding(data_type, extents, steps, box, _SWIZZLES[wanted.swizzle])


@lru_cache(KEPT_MAPS)
def encode(wanted: TensorMap, address: int) -> Any:
    """Returns the 128 bytes of a map of the memory at `address`: a NumPy array of one record, passed by value. Equal
    maps of one address are encoded once. Raises ExecutionError where there is no driver, or if it refuses."""
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
    """Returns what the emulator reads instead: address, rank, swizzle, bytes of an element, five extents, five of the
    tile."""
    fill = [1] * (5 - len(wanted.shape))
    words = [address, len(wanted.shape), wanted.swizzle, wanted.item]
    words += [*static(wanted.shape), *fill, *wanted.box, *fill]
    return words + [0] * (_WORDS - len(words))


def aligned(size: int) -> np.ndarray:
    """Returns `size` bytes that start at a multiple of 64."""
    raw = np.zeros(size + 64, np.uint8)
    start = -raw.ctypes.data % 64
    return raw[start : start + size]
