"""Autocast around a call: a program has the types that it was traced with, while eager PyTorch looks at every call."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import torch

from ..backend.interpreter.running import main_function
from ..errors import ExecutionError
from .capture.captured_program import CapturedProgram

State: TypeAlias = tuple[tuple[str, torch.dtype], ...]
"""The devices for which autocast is enabled in this thread, each with its data type."""

_KEYS = {"cpu": "AutocastCPU", "cuda": "AutocastCUDA"}


def cast_devices(captured: CapturedProgram) -> Sequence[str]:
    """The devices of the program's tensors for which autocast casts what one of its operators reads."""
    tensors = [v for v in (*captured.examples, *(b.tensor for b in captured.bindings)) if isinstance(v, torch.Tensor)]
    ops = {op.name for op in main_function(captured.module).body.block.ops if op.name.startswith("torch.")}
    names = [n for o in ops if torch._C._dispatch_has_kernel(n := f"aten::{o.removeprefix('torch.')}")]
    has_kernel = torch._C._dispatch_has_kernel_for_dispatch_key
    devices = sorted({t.device.type for t in tensors} & _KEYS.keys())
    return [d for d in devices if any(has_kernel(name, _KEYS[d]) for name in names)]


def autocast_state(devices: Sequence[str]) -> State:
    """What autocast does now on these devices."""
    if not torch._C._is_any_autocast_enabled():
        return ()
    return tuple((d, torch.get_autocast_dtype(d)) for d in devices if torch.is_autocast_enabled(d))


def check_autocast(devices: Sequence[str], compiled: State) -> None:
    """Raises ExecutionError where autocast does something else on these devices than when a program was compiled."""
    if (now := autocast_state(devices)) != compiled:
        raise ExecutionError(
            f"called {_said(now)} and compiled {_said(compiled)}, with operators that autocast casts; "
            "compile it as it is called, or put autocast into what is compiled",
            operator="autocast",
        )


def _said(state: State) -> str:
    enabled = " and ".join(f"torch.autocast({d!r}, {dtype})" for d, dtype in state)
    return f"under {enabled}" if enabled else "without autocast"
