"""The device: what is allocated, which streams there are, and what is being captured."""

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
    """Something that the real device, driver or CuPy would refuse, or that is not what the IR says."""


class Memory:
    """Which tensors are on the device: by their storages, as long as these live."""

    def __init__(self) -> None:
        self.storages: dict[int, tuple[StorageWeakRef, int, int]] = {}

    def add(self, tensor: torch.Tensor) -> torch.Tensor:
        """`tensor` is on the device from now on, with all that shares its storage."""
        storage = tensor.untyped_storage()
        self.storages[storage._cdata] = (StorageWeakRef(storage), storage.data_ptr(), storage.nbytes())
        return tensor

    def has(self, tensor: torch.Tensor) -> bool:
        """Whether `tensor` is on the device."""
        key = tensor.untyped_storage()._cdata
        if key in self.storages and self.storages[key][0].expired():
            del self.storages[key]
        return key in self.storages

    def after(self, address: int) -> int | None:
        """How many bytes there are from `address` to the end of its allocation; None outside of all."""
        for key, (reference, start, size) in list(self.storages.items()):
            if reference.expired():
                del self.storages[key]
            elif start <= address < start + size:
                return start + size - address
        return None


@dataclass(frozen=True)
class Stream:
    """A stream, by its handle. 0 is the default one."""

    cuda_stream: int

    def synchronize(self) -> None:
        """Wait for it."""
        DEVICE.synchronise("Stream.synchronize")

    def wait_stream(self, other: Stream) -> None:
        """Order: there is one thread, so all is in order."""


class Graph:
    """A CUDA graph: what was done while it was captured, to be done again."""

    def __init__(self, *_: Any, **__: Any) -> None:
        self.steps: list[Callable[[], object]] = []

    def replay(self) -> None:
        """Do it."""
        if DEVICE.capturing is not None:
            raise RuntimeError(CAPTURE_ERROR)
        for step in self.steps:
            step()


@dataclass
class Device:
    """One H200, by what programs ask of it."""

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
        """Makes the context current in the calling thread. Functions of PyTorch do not: in which of them the real one
        does depends on its version and on the state of its allocator."""
        self.thread.bound = True

    def status(self) -> int:
        """Returns the status of a call of the driver in the calling thread."""
        return LAUNCH_FAILED if self.lost else 0 if hasattr(self.thread, "bound") else INVALID_CONTEXT

    def synchronise(self, what: str) -> None:
        """The host waits for the device. An error while a graph is captured, or after a kernel has trapped."""
        if self.lost:
            raise RuntimeError("CUDA error: unspecified launch failure\nCompile with ...")
        if self.capturing is not None:
            raise RuntimeError(f"{CAPTURE_ERROR} ({what})")
        if not self.may_wait:
            raise RuntimeError(f"called a synchronizing CUDA operation ({what})")

    def run(self, step: Callable[[], object], stream: int) -> None:
        """Do `step` on the stream with that handle: now, or whenever the graph that is captured is replayed."""
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
    """A fresh device, with these properties."""
    DEVICE.__init__(**changes)
    return DEVICE
