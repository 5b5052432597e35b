"""Compares functions at the tensor level with PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from deplodock.frontend.capture.export import capture
from deplodock.frontend.compilation import Compilation
from deplodock.frontend.executors import make_executor


def check(function: Callable[..., Any], *args: torch.Tensor, **tolerance: float) -> None:
    """Asserts that the reference interpreter returns PyTorch's results for a function, within a tolerance."""
    torch.testing.assert_close(evaluate(function, *args), function(*args), equal_nan=True, **tolerance)


def evaluate(function: Callable[..., Any], *args: torch.Tensor) -> Any:
    """Returns the results of a function by the reference interpreter, on copies of the arguments."""
    captured = capture(function, args)
    tensors = captured.bind([a.clone() for a in args])
    return captured.restore(make_executor("reference", Compilation(captured.module)).run(tensors), tensors)
