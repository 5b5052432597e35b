"""A stub of torch.cuda on the host: tensors marked as on the device, streams, events and CUDA graphs."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import torch
from torch.export import exported_program
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

from .state import CAPTURE_ERROR, DEVICE, Graph, Stream

WAITING = {"item", "tolist", "numpy", "__bool__", "__int__", "__float__", "__index__", "cpu", "nonzero", "equal"}
"""Methods of a tensor on the device for which the host waits."""

MIXING = {
    *("copy_", "__getitem__", "__setitem__", "index_put_", "to", "set_", "type_as", "data_ptr"),
    *("_has_compatible_shallow_copy_type", "__set__"),  # by which a module moves its parameters
}
"""Methods that may see tensors of the host and of the device."""

_ANYWHERE = tuple(getattr(torch.Tensor, name).__get__ for name in ("is_cuda", "device"))


def _to_cuda(device: Any) -> bool:
    return isinstance(device, torch.device | str) and str(device).startswith("cuda")


class OnDevice(TorchFunctionMode):
    """Torch function mode: results of calls with device tensors, or for the device, are marked as on the device."""

    paused = False

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if OnDevice.paused:
            return func(*args, **kwargs)
        tensors = [t for t in pytree.tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor)]
        inside = [t for t in tensors if DEVICE.memory.has(t)]
        if func in _ANYWHERE:
            on_device = bool(inside)
            return on_device if func == _ANYWHERE[0] else torch.device("cuda", 0) if inside else func(*args, **kwargs)
        name = getattr(func, "__name__", "")
        if inside and name in WAITING:
            DEVICE.synchronise(name)
        if name in ("cuda", "cpu", "to") and tensors and tensors[0] is args[0]:
            return self._moved(func, name, args, kwargs)
        if inside and len(inside) < len(tensors) and name not in MIXING:
            if any(t.dim() for t in tensors if not DEVICE.memory.has(t)):
                raise RuntimeError(f"Expected all tensors to be on the same device ({name})")
        made_there = _to_cuda(kwargs.get("device"))
        if made_there:
            kwargs["device"] = "cpu"
            if name in ("tensor", "as_tensor"):
                DEVICE.synchronise(name)
        if name == "copy_" and len(inside) == 1:
            DEVICE.synchronise("a copy between host and device")
        return self._done(func, args, kwargs, bool(inside) or made_there)

    def _done(self, func: Any, args: Any, kwargs: Any, there: bool) -> Any:
        result = func(*args, **kwargs)
        made = [t for t in pytree.tree_leaves(result) if isinstance(t, torch.Tensor)] if there else []
        for tensor in made:
            DEVICE.memory.add(tensor)
        if getattr(func, "__name__", "") == "empty" and made and made[0].numel():
            made[0].untyped_storage().fill_(255)  # pyright: ignore
        if there and DEVICE.capturing is not None:
            DEVICE.run(lambda: _again(func, args, kwargs, made), DEVICE.stream.cuda_stream)
        return result

    def _moved(self, func: Any, name: str, args: Any, kwargs: Any) -> Any:
        """Runs `.cuda()`, `.cpu()` or `.to(...)`. Copies the tensor if its device changes."""
        tensor, *rest = args
        named = [kwargs.get("device"), *rest]
        was = DEVICE.memory.has(tensor)
        goes = [d for d in named if isinstance(d, torch.device | str)]
        goes += [d.device for d in rest if isinstance(d, torch.Tensor)]
        there = name == "cuda" or (_to_cuda(goes[0]) if name == "to" and goes else name == "to" and was)
        if was != there:
            DEVICE.synchronise(name)
        if name != "to":
            return tensor if was == there else self._placed(tensor.clone(), there)
        rest = [torch.device("cpu") if _to_cuda(v) else v for v in rest]
        if "device" in kwargs:
            kwargs["device"] = "cpu"
        result = func(tensor, *rest, **kwargs)
        if result is tensor and was == there:
            return tensor
        return self._placed(result.clone() if result is tensor else result, there)

    def _placed(self, tensor: torch.Tensor, there: bool) -> torch.Tensor:
        return DEVICE.memory.add(tensor) if there else tensor


def _again(func: Any, args: Any, kwargs: Any, made: list[torch.Tensor]) -> None:
    """Replays a PyTorch call of a captured graph into the same result tensors."""
    OnDevice.paused = True
    try:
        new = [t for t in pytree.tree_leaves(func(*args, **kwargs)) if isinstance(t, torch.Tensor)]
        for old, tensor in zip(made, new, strict=True):
            if old.data_ptr() != tensor.data_ptr() and getattr(func, "__name__", "") != "empty":
                old.copy_(tensor)
    finally:
        OnDevice.paused = False


class Event:
    """An event, timed by the clock of the host."""

    def __init__(self, enable_timing: bool = False, **_: Any) -> None:
        self.at = 0.0

    def record(self, stream: Any = None) -> None:
        self.at = time.perf_counter()

    def synchronize(self) -> None:
        DEVICE.synchronise("Event.synchronize")

    def elapsed_time(self, end: Event) -> float:
        """Returns the milliseconds from this event to `end`."""
        return max((end.at - self.at) * 1e3, 1e-4)


@contextmanager
def _capture(graph: Graph, *_: Any, **__: Any) -> Iterator[None]:
    if DEVICE.capturing is not None:
        raise RuntimeError(CAPTURE_ERROR)
    before, DEVICE.stream = DEVICE.stream, Stream(0xCA)
    DEVICE.capturing = (graph, DEVICE.stream)
    try:
        yield
    finally:
        DEVICE.capturing, DEVICE.stream = None, before


@contextmanager
def _on_stream(stream: Stream | None) -> Iterator[None]:
    before, DEVICE.stream = DEVICE.stream, stream or DEVICE.stream
    try:
        yield
    finally:
        DEVICE.stream = before


class _Streams:
    made = 0


def _set_sync_debug_mode(mode: str) -> None:
    if not DEVICE.warned:
        warnings.warn("Synchronization debug mode is a prototype feature", UserWarning, stacklevel=2)
    DEVICE.warned, DEVICE.may_wait = True, mode != "error"


def _new_stream(*_: Any, **__: Any) -> Stream:
    _Streams.made += 1
    return Stream(0x100 + _Streams.made)


def _properties(*_: Any) -> Any:
    major, minor = DEVICE.capability
    numbers = {"multi_processor_count": DEVICE.multiprocessors, "total_memory": 140 << 30, "L2_cache_size": 60 << 20}
    return SimpleNamespace(name=DEVICE.name, major=major, minor=minor, **numbers)


_GENERATOR = torch.Generator


class _Generator(_GENERATOR):
    """A random generator; one for the device is a generator of the host."""

    def __new__(cls, device: Any = "cpu") -> Any:
        return _GENERATOR.__new__(cls, "cpu")  # pyright: ignore


def _bypassed(function: Any = None, **_: Any) -> Any:
    return function if function is not None else lambda f: f


def _without_device(real: Callable[..., Any]) -> Callable[..., Any]:
    """Returns `real`, called with host tensors and without the mode, for `torch.export`."""

    def call(*args: Any, **kwargs: Any) -> Any:
        OnDevice.paused = True
        try:
            return real(*args, **kwargs)
        finally:
            OnDevice.paused = False

    return call


def patch(put: Callable[[Any, str, Any], object]) -> OnDevice:
    """Installs the stub of torch.cuda by calls `put(object, name, value)`. Returns the mode, which must be entered."""
    values: dict[str, Any] = {
        "is_available": lambda: not OnDevice.paused,
        "is_initialized": lambda: not OnDevice.paused,
        "init": lambda: None,
        "device_count": lambda: 1,
        "current_device": lambda: 0,
        "get_device_capability": lambda *_: DEVICE.capability,
        "get_device_name": lambda *_: DEVICE.name,
        "get_device_properties": _properties,
        "current_stream": lambda *_: DEVICE.stream,
        "is_current_stream_capturing": lambda: DEVICE.capturing is not None,
        "synchronize": lambda *_: DEVICE.synchronise("torch.cuda.synchronize"),
        "empty_cache": lambda: None,
        "_sleep": lambda cycles: None,
        "set_sync_debug_mode": _set_sync_debug_mode,
        "Stream": _new_stream,
        "stream": _on_stream,
        "Event": Event,
        "CUDAGraph": Graph,
        "graph": _capture,
    }
    for name, value in values.items():
        put(torch.cuda, name, value)
    # There is one thread, so memory is free when nothing refers to it. PyTorch 2.11 refuses the stubbed stream.
    put(torch.Tensor, "record_stream", lambda tensor, stream: None)
    put(torch.version, "cuda", "13.0")
    put(torch, "compile", _bypassed)
    put(torch, "Generator", _Generator)
    put(torch.export, "export", _without_device(torch.export.export))
    put(exported_program, "_decompose_exported_program", _without_device(exported_program._decompose_exported_program))
    return OnDevice()
