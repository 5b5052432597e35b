"""A stub of CuPy 14: the part that the runtime uses."""

from __future__ import annotations

import struct
import warnings
from types import ModuleType, SimpleNamespace
from typing import Any

from deplodock.backend.cuda.kernel_texts import entries

from .launches import Request, Source, check, read_parameters
from .state import CAPTURE_ERROR, DEVICE, INVALID_CONTEXT, LAUNCH_FAILED, StubError

MAX_DYNAMIC_SHARED = 8
"""CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES."""


class CUDADriverError(RuntimeError):
    """CuPy's error for a failed call of the driver, with its `status`."""

    def __init__(self, text: str, status: int = 1) -> None:
        super().__init__(text)
        self.status = status


_TEXTS = {
    INVALID_CONTEXT: "CUDA_ERROR_INVALID_CONTEXT: invalid device context",
    LAUNCH_FAILED: "CUDA_ERROR_LAUNCH_FAILED: unspecified launch failure",
}


def _check_status() -> None:
    if status := DEVICE.status():
        raise CUDADriverError(_TEXTS[status], status)


LOADING: list[tuple[Any, str]] = []
"""The module and the text of the program that is being made."""


class Function:
    """A kernel of a loaded module."""

    pointers: dict[int, Function] = {}

    def __init__(self, source: Source, name: str) -> None:
        self.source, self.name, self.allowed, self.device = source, name, 0, Device.current()
        self.ptr = 0x1000 + len(Function.pointers)
        Function.pointers[self.ptr] = self

    def launch(self, grid: Any, block: Any, shared: int, handle: int, parameters: int) -> None:
        """Launches the kernel. `parameters` is the address of an array of pointers to the parameters."""
        self.run(self.request(grid, block, shared, parameters), handle)

    def request(self, grid: Any, block: Any, shared: int, parameters: int) -> Request:
        """Returns the launch as data, with the parameters read from memory."""
        arguments = read_parameters(self.source.cuda, self.name, parameters)
        return Request(self.name, grid, block, arguments, shared, self.allowed)

    def run(self, request: Request, handle: int) -> None:
        """Checks a launch and runs it on the stream with this handle."""
        checked = check(self.source, request)
        if Device.current() != self.device:
            raise StubError(f"a launch on device {Device.current()} of what is loaded on device {self.device}")
        if handle != DEVICE.stream.cuda_stream:
            raise StubError(f"a launch on stream {handle}; torch's current one is {DEVICE.stream.cuda_stream}")
        DEVICE.launches.append(request)
        if DEVICE.execute:
            DEVICE.run(checked.run, handle)


class Module:
    """Loaded machine code, in which kernels are looked up."""

    def load(self, cubin: bytes) -> None:
        """Loads machine code. Raises CUDADriverError if it is no code for the device."""
        if DEVICE.capturing is not None:
            raise CUDADriverError(CAPTURE_ERROR)
        DEVICE.bind()  # CuPy ensures a context
        _check_status()
        if not isinstance(cubin, bytes) or cubin[:4] != b"\x7fELF":
            raise CUDADriverError("CUDA_ERROR_INVALID_IMAGE: device kernel image is invalid")
        (flags,) = struct.unpack_from("<I", cubin, 48)
        number = 10 * DEVICE.capability[0] + DEVICE.capability[1]
        if number not in (flags & 0xFF, flags >> 8 & 0xFF):
            raise CUDADriverError("CUDA_ERROR_NO_BINARY_FOR_GPU: no kernel image is available for execution")
        self.cubin = cubin
        module, text = LOADING[-1]
        self.source = Source(module, text, {9: "sm_90a", 12: "sm_120"}.get(DEVICE.capability[0], f"sm_{number}"))

    def get_function(self, name: str) -> Function:
        """Returns a kernel by its name in the machine code. Raises CUDADriverError for an unknown name."""
        if name.encode() + b"\0" not in self.cubin:
            raise CUDADriverError("CUDA_ERROR_NOT_FOUND: named symbol not found")
        return Function(self.source, next(k for k, entry in entries(self.source.cuda).items() if entry == name))


class Device:
    """One of two devices, as a context manager. torch's tensors are on device 0."""

    @staticmethod
    def current() -> int:
        """Returns the number of the calling thread's device."""
        return getattr(DEVICE.thread, "device", 0)

    def __init__(self, device: int = 0) -> None:
        if device not in (0, 1):
            raise StubError(f"there is no device {device}")
        self._device = device

    def __enter__(self) -> Device:
        self._before = Device.current()
        if self._before != self._device:
            self.use()
        return self

    def __exit__(self, *_: object) -> None:
        Device(self._before).use()

    def use(self) -> None:
        """Makes this the current device of the thread and its context current, as cudaSetDevice does."""
        DEVICE.thread.device = self._device
        DEVICE.bind()


class ExternalStream:
    """A stream by its handle. CuPy 14 warns that the class is deprecated."""

    def __init__(self, ptr: int, device_id: int = -1) -> None:
        warnings.warn("ExternalStream is deprecated. Use Stream.from_external()", DeprecationWarning, stacklevel=2)
        self.ptr = ptr


def _set_attribute(pointer: int, attribute: int, value: int) -> None:
    _check_status()
    function = Function.pointers[pointer]
    if attribute != MAX_DYNAMIC_SHARED or not 0 <= value <= 227 * 1024:
        raise CUDADriverError("CUDA_ERROR_INVALID_VALUE: invalid argument")
    function.allowed = value


def _launch_kernel(pointer: int, *how: int) -> None:
    """Replaces cuLaunchKernel."""
    if len(how) != 10 or not all(type(n) is int for n in how) or how[9]:
        raise StubError(f"cuLaunchKernel is called with {how}")
    _check_status()
    Function.pointers[pointer].launch(how[:3], how[3:6], how[6], how[7], how[8])


def make_modules() -> dict[str, ModuleType]:
    """Returns the stubbed modules by name, for `sys.modules`."""
    cupy, cuda, function = ModuleType("cupy"), ModuleType("cupy.cuda"), ModuleType("cupy.cuda.function")
    driver = SimpleNamespace(
        CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES=MAX_DYNAMIC_SHARED,
        CUDADriverError=CUDADriverError,
        funcSetAttribute=_set_attribute,
        launchKernel=_launch_kernel,
    )
    function.Module, function.Function = Module, Function  # pyright: ignore
    contents = {"Device": Device, "ExternalStream": ExternalStream, "function": function, "driver": driver}
    cuda.__dict__.update(contents)
    cupy.cuda, cupy.__version__ = cuda, "14.2.0"  # pyright: ignore
    return {"cupy": cupy, "cupy.cuda": cuda, "cupy.cuda.function": function}
