"""A stub of the CUDA driver, CuPy and torch.cuda for tests without a GPU. It runs on the host and checks every call.

Memory of the device is host memory that torch allocated and that `state.py` knows as the device's. A launch is checked
against the kernel IR and the printed CUDA (`launches.py`); then the emulator runs it on the addresses that were passed.
While a CUDA graph is captured nothing runs, and a call that would wait for the device is an error. `install` installs
the stub; in a separate process `PYTHONPATH=tests/stub_cuda/startup` does.

Differences from a GPU: PyTorch's kernels are those of the CPU, and torch.compile returns the function.
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
    """Installs a new stubbed device.

    Args:
        put: sets an attribute, called as `put(object, name, value)`: `setattr`, or `monkeypatch.setattr` of pytest.
        **device: properties of the device, fields of `state.Device`.

    Returns:
        The torch function mode of the device, which the caller must enter.
    """
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
