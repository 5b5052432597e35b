"""A CUDA driver, CuPy and torch.cuda that run on the host and check every call: for tests where there is no GPU.

Memory of the "device" is memory of the host that torch allocated; `memory.py` knows which. A launch is checked against
the kernel IR and the printed text (`launches.py`), then the emulator runs it on the very addresses that were passed, so
results can be compared. While a CUDA graph is captured nothing runs, and what would wait for the device is an error, as
it is on a GPU. `install` puts all of it in place; in a process of its own `PYTHONPATH=tests/stub_cuda/startup` does.

What is not here: PyTorch's own kernels are those of the CPU, and torch.compile gives back the function.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable
from typing import Any

from . import cupy_stub, libcuda, torch_stub
from .state import DEVICE, Device, StubError, reset
from .torch_stub import OnDevice

__all__ = ["DEVICE", "Device", "OnDevice", "StubError", "install"]


def install(put: Callable[[Any, str, Any], object], **device: Any) -> torch_stub.OnDevice:
    """Put a fresh device in place, with `put(object, name, value)` for attributes: `setattr` for ever, or pytest's
    `monkeypatch.setattr`. Gives a mode of torch that has to be entered. `device` are properties of the device."""
    from deplodock.backend.cuda import runtime
    from deplodock.backend.cuda.runtime import driver
    from deplodock.backend.host import calls

    reset(**device)
    driver.library.cache_clear()
    driver.encode.cache_clear()
    put(ctypes, "CDLL", libcuda.open_library)
    for name, module in cupy_stub.make_modules().items():
        sys.modules[name] = module
    real = runtime.CudaProgram.__init__

    def noted(self: Any, module: Any, cuda: str, *args: Any, **kwargs: Any) -> None:
        cupy_stub.LOADING.append((module, cuda))
        try:
            real(self, module, cuda, *args, **kwargs)
        finally:
            cupy_stub.LOADING.pop()

    put(runtime.CudaProgram, "__init__", noted)
    put(calls, "extension", lambda: None)  # it sees that tensors on the device are not
    return torch_stub.patch(put)
