"""Autocast around a call: a program has the types that it was traced with, while eager PyTorch looks at every call."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, TypeAlias

import torch
from torch.utils import _pytree as pytree

from ...errors import ExecutionError

State: TypeAlias = Mapping[str, torch.dtype | None]
"""For devices on which autocast could cast what a program reads: the type that it casts to, or None if it is off."""


def autocast_state(devices: Iterable[str]) -> State:
    """What autocast does now on these devices."""
    return {d: torch.get_autocast_dtype(d) if torch.is_autocast_enabled(d) else None for d in devices}


def check_autocast(compiled: State, arguments: Any, constants: Iterable[torch.Tensor | None]) -> None:
    """Raises ExecutionError where autocast does something else now than when a program was compiled, on the device of
    one of its tensors."""
    if compiled == autocast_state(compiled):
        return
    used = {t.device.type for t in (*pytree.tree_leaves(arguments), *constants) if isinstance(t, torch.Tensor)}
    before = {d: dtype for d, dtype in compiled.items() if d in used}
    if (now := autocast_state(before)) != before:
        raise ExecutionError(
            f"called {_said(now)} and compiled {_said(before)}, with operators that autocast casts; "
            "compile it as it is called, or put autocast into what is compiled",
            operator="autocast",
        )


def _said(state: State) -> str:
    enabled = " and ".join(f"torch.autocast({d!r}, {dtype})" for d, dtype in state.items() if dtype)
    return f"under {enabled}" if enabled else "without autocast"
