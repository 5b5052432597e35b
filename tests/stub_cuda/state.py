"""State of the stubbed device: allocated memory, the current stream, and the graph under capture."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from threading import local
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef

INVALID_CONTEXT, LAUNCH_FAILED = 201, 719
"""CUresult of a call from a thread without a current context, and of every call after a kernel has trapped."""

CAPTURE_ERROR = "CUDA error: operation not permitted when stream is capturing"


class StubError(AssertionError):
    """Error for a call that the real device, driver or CuPy would refuse, or that contradicts the IR."""


class Memory:
    """The tensors on the device, by their storages while these are alive."""

    def __init__(self) -> None:
        self.storages: dict[int, tuple[StorageWeakRef, int, int]] = {}

    def add(self, tensor: torch.Tensor) -> torch.Tensor:
        """Puts `tensor`, and all tensors that share its storage, on the device. Returns the tensor."""
        storage = tensor.untyped_storage()
        self.storages[storage._cdata] = (StorageWeakRef(storage), storage.data_ptr(), storage.nbytes())
        return tensor

    def has(self, tensor: torch.Tensor) -> bool:
        """Returns true if `tensor` is on the device."""
        key = tensor.untyped_storage()._cdata
        if key in self.storages and self.storages[key][0].expired():
            del self.storages[key]
        return key in self.storages

    def after(self, address: int) -> int | None:
        """Returns the bytes from `address` to the end of its allocation, or None outside of all allocations."""
        for key, (reference, start, size) in list(self.storages.items()):
            if reference.expired():
                del self.storages[key]
            elif start <= address < start + size:
                return start + size - address
        return None


@dataclass(frozen=True)
class Stream:
    """A stream, identified by its handle. The default stream is 0."""

    cuda_stream: int

    def synchronize(self) -> None:
        """Waits for the stream."""
        DEVICE.synchronise("Stream.synchronize")

    def wait_stream(self, other: Stream) -> None:
        """Does nothing, because all work runs in order."""


class Graph:
    """A CUDA graph: the steps that were captured, to be replayed."""

    def __init__(self, *_: Any, **__: Any) -> None:
        self.steps: list[Callable[[], object]] = []

    def replay(self) -> None:
        """Runs the captured steps."""
        if DEVICE.capturing is not None:
            raise RuntimeError(CAPTURE_ERROR)
        for step in self.steps:
            step()


@dataclass
class Device:
    """The state of the stubbed device, an H200."""

    name: str = "NVIDIA H200 (stub)"
    capability: tuple[int, int] = (9, 0)
    multiprocessors: int = 132
    driver: int = 13000
    memory: Memory = field(default_factory=Memory)
    stream: Stream = field(default_factory=lambda: Stream(0))
    capturing: tuple[Graph, Stream] | None = None
    launches: list[Any] = field(default_factory=list[Any])
    execute: bool = True
    may_wait: bool = True
    warned: bool = False
    opened: int = 0
    thread: local = field(default_factory=local)
    lost: bool = False

    def bind(self) -> None:
        """Makes the context current in the calling thread.

        Functions of PyTorch do not. Which functions of the real PyTorch do depends on its version and its allocator.
        """
        self.thread.bound = True

    def status(self) -> int:
        """Returns the status of a driver call in this thread: lost device, no current context, or 0."""
        return LAUNCH_FAILED if self.lost else 0 if hasattr(self.thread, "bound") else INVALID_CONTEXT

    def synchronise(self, what: str) -> None:
        """Lets the host wait for the device. Raises RuntimeError during a capture and after a kernel has trapped."""
        if self.lost:
            raise RuntimeError("CUDA error: unspecified launch failure\nCompile with ...")
        if self.capturing is not None:
            raise RuntimeError(f"{CAPTURE_ERROR} ({what})")
        if not self.may_wait:
            raise RuntimeError(f"called a synchronizing CUDA operation ({what})")

    def run(self, step: Callable[[], object], stream: int) -> None:
        """Runs `step` on the stream with this handle now, or adds it to the graph under capture."""
        if self.capturing is None:
            step()
            return
        graph, captured = self.capturing
        if stream != captured.cuda_stream:
            raise StubError(f"a launch on stream {stream} while stream {captured.cuda_stream} is captured")
        graph.steps.append(step)


DEVICE = Device()
"""The device of this process; `install` makes a new one of it."""


def reset(**changes: Any) -> Device:
    """Resets the device and sets these properties. Returns the device."""
    DEVICE.__init__(**changes)
    return DEVICE
