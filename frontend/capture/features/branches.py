"""Branches by what a tensor holds.

`torch.cond` is made both of its branches. A branch in Python that asks what a tensor holds
(`if (x < 0).any(): raise ValueError(...)`) can be captured where one way of it ends in an error: the program is the
other way, with an assertion at run time that it was that one. Each way is traced to learn this.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any
from unittest.mock import patch

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.export import ExportedProgram
from torch.utils import _pytree as pytree

from ....errors import UnsupportedError, one_line
from ..arrays import describe_tensor
from ..tracing import stand_ins
from . import FEATURES

Export = Callable[[], ExportedProgram]


def called(function: Any, args: Any, kwargs: Any) -> Any:
    """Computes `torch.cond(predicate, f, g, operands)` as `f` and `g`, and a choice for each result.

    So what a branch asserts has to hold whichever is chosen, and what it draws is drawn. Raises UnsupportedError for
    branches that change their operands, whose results differ in structure, shape or type, or that are differentiated
    backwards: what is infinite in the branch that is not chosen would make the gradient NaN.
    """
    return _both(*args, **kwargs) if function is torch.ops.higher_order.cond else NotImplemented


def _both(predicate: Any, true_fn: Callable[..., Any], false_fn: Callable[..., Any], operands: Any = ()) -> Any:
    if not isinstance(predicate, torch.Tensor):
        return (true_fn if predicate else false_fn)(*operands)
    before = [t._version for t in pytree.tree_leaves(operands) if isinstance(t, torch.Tensor)]
    with stand_ins([f for f in FEATURES if f.name == "branches"]):  # for a `torch.cond` in a branch
        (a, form), (b, other) = (pytree.tree_flatten(branch(*operands)) for branch in (true_fn, false_fn))
    if before != [t._version for t in pytree.tree_leaves(operands) if isinstance(t, torch.Tensor)]:
        raise _refused("a branch that changes its operands is not supported")
    if form != other:
        raise _refused(f"branches of results {form} and {other} are not supported")
    return pytree.tree_unflatten([_chosen(predicate, x, y) for x, y in zip(a, b, strict=True)], form)


def _chosen(predicate: torch.Tensor, x: Any, y: Any) -> Any:
    """One of two results of branches."""
    if not isinstance(x, torch.Tensor) or not isinstance(y, torch.Tensor):
        if type(x) is type(y) and x == y:
            return x
        raise _refused(f"branches that give {x} and {y} are not supported")
    if x.requires_grad or y.requires_grad:
        raise _refused("branches are not differentiated backwards")
    if x.shape != y.shape or x.dtype != y.dtype:
        raise _refused(f"branches that give {describe_tensor(x)} and {describe_tensor(y)} are not supported")
    return torch.where(predicate.reshape(()).to(torch.bool), x, y)


def _refused(reason: str) -> UnsupportedError:
    return UnsupportedError(reason, operator="torch.cond", kind="higher-order-operators", remedy="use torch.where")


Decision = tuple[bool, str]
"""Which way a branch goes, and what is wrong if it would go the other way."""


def failed(export: Export) -> ExportedProgram:
    """Returns what `export` returns, which traces a program, with branches decided. Raises what it raises."""
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


def _only_way(export: Export, decided: Sequence[Decision]) -> Decision | None:
    """How the next branch goes, if the program fails in the other way before it comes to a further one."""
    for way in (True, False):
        ways = _Ways([*decided, (way, "")])
        try:
            with ways:
                export()
        except Exception as error:
            if not ways.undecided:
                return not way, one_line(error, 200)
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
