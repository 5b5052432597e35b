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
    captured = capture(function, args)
    tensors = captured.bind([a.clone() for a in args])
    results = captured.restore(make_executor("reference", Compilation(captured.module)).run(tensors), tensors)
    torch.testing.assert_close(results, function(*args), equal_nan=True, **tolerance)
