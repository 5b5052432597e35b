"""Checks of a tensor's contents in Python code (`if (x < 0).any(): raise ValueError(...)`) as assertions at run time.

A program has no branches. Where one way of such a branch ends in an error the program is the other way, with an
assertion that it was that one. Each way is traced to learn this; if neither fails the branch cannot be captured.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any
from unittest.mock import patch

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.export import ExportedProgram

Decision = tuple[bool, str]
"""Which way a branch goes, and what is wrong if it would go the other way."""


def trace(export: Callable[[], ExportedProgram]) -> ExportedProgram:
    """What `export` gives, which traces a program. Raises what it raises."""
    decided: list[Decision] = []
    while True:
        ways = _Ways(decided)
        try:
            with ways:
                return export()
        except Exception:
            decision = _only_way(export, decided) if ways.undecided else None
            if decision is None:
                raise
            decided.append(decision)


def _only_way(export: Callable[[], ExportedProgram], decided: Sequence[Decision]) -> Decision | None:
    """How the next branch goes, if the program fails in the other way before it comes to a further one."""
    for way in (True, False):
        ways = _Ways([*decided, (way, "")])
        try:
            with ways:
                export()
        except Exception as error:
            if not ways.undecided:
                text = next(iter(str(error).splitlines()), "")
                return not way, f"{type(error).__name__}: {text[:200]}"
    return None


class _Ways:
    """While active, tensors whose truth is asked for answer as it was decided, in the order of the questions."""

    def __init__(self, decided: Sequence[Decision]) -> None:
        self._left = list(decided)
        self._patches = ExitStack()
        self.undecided = False

    def __enter__(self) -> None:
        for name in ("__bool__", "item"):  # no TorchFunctionMode, which does not see into functions of PyTorch's
            asked = self._instead(getattr(torch.Tensor, name))
            self._patches.enter_context(patch.object(torch.Tensor, name, asked))

    def __exit__(self, *error: object) -> None:
        self._patches.close()

    def _instead(self, original: Callable[[torch.Tensor], Any]) -> Callable[[torch.Tensor], Any]:
        def answer(tensor: torch.Tensor) -> Any:
            known = not isinstance(tensor, FakeTensor) or tensor.constant is not None
            if known or tensor.numel() != 1 or tensor.dtype != torch.bool:
                return original(tensor)
            if not self._left:
                self.undecided = True
                return original(tensor)
            way, message = self._left.pop(0)
            holds = tensor.reshape(())
            torch._assert_async(holds if way else ~holds, message)
            return way

        return answer
