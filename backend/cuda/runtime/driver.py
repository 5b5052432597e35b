"""The CUDA driver itself, for what neither torch nor CuPy offers: which CUDA it runs, and tensor maps."""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Any

from ....errors import ExecutionError, TargetError

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
    """Refuse machine code of the NVRTC `compiler` where `driver` is of an older major version.

    Within a major version drivers run machine code of every compiler ("minor version compatibility" in the CUDA
    Compatibility guide), and newer drivers run that of older ones. Raises TargetError, which names both versions.
    """
    if driver[0] < compiler[0]:
        have, need = ("{}.{}".format(*v) for v in (driver, compiler))
        reason = (
            f"the driver runs CUDA up to {have}, and NVRTC {need} makes code for drivers of CUDA {compiler[0]}.0 on"
        )
        remedy = f"update the driver, or install NVRTC of CUDA {driver[0]}"
        raise TargetError(f"{reason}: {remedy}", operator="cuda")
