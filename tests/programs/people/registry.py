"""The table of programs, and how one gets into it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn

Built = tuple[Callable[..., Any], tuple[Any, ...]]

PROGRAMS: dict[str, Callable[[], Built]] = {}
"""Name -> what makes the program and its arguments."""


def program(build: Callable[[], Built]) -> Callable[[], Built]:
    """Add a program under the name of the function that builds it."""
    assert build.__name__ not in PROGRAMS, build.__name__
    PROGRAMS[build.__name__] = build
    return build


def inference(module: nn.Module) -> nn.Module:
    """The module as it is deployed."""
    return module.eval().requires_grad_(False)
