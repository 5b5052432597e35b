"""Branches that depend on the values of tensors: `torch.cond`, and Python `if` statements.

`torch.cond(p, f, g, operands)` becomes both branches, and a select for each result.

A Python branch on a tensor, such as `if (x < 0).any(): raise ValueError(...)`, can be captured if one of its outcomes
ends in an error. The program then has the code of the other outcome, and an assertion at run time that the condition
has that outcome. The two outcomes are traced, one after the other, to find the one that raises.
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
    """Computes `torch.cond(predicate, f, g, operands)` as `f`, `g` and a select for each result.

    Both branches run: assertions of both must hold, and random numbers of both are drawn.

    Args:
        function: the operator; NotImplemented is returned for others than `torch.cond`.
        args, kwargs: its arguments.

    Raises:
        UnsupportedError: the branches change their operands, or their results differ in structure, shape or type, or
            they are differentiated backwards. In the last case an infinity in the branch that is not selected would
            make the gradient NaN.
    """
    return _cond(*args, **kwargs) if function is torch.ops.higher_order.cond else NotImplemented


def _cond(predicate: Any, true_fn: Callable[..., Any], false_fn: Callable[..., Any], operands: Any = ()) -> Any:
    if not isinstance(predicate, torch.Tensor):
        return (true_fn if predicate else false_fn)(*operands)
    before = [t._version for t in pytree.tree_leaves(operands) if isinstance(t, torch.Tensor)]
    with stand_ins([f for f in FEATURES if f.name == "branches"]):
        (a, form), (b, other) = (pytree.tree_flatten(branch(*operands)) for branch in (true_fn, false_fn))
    if before != [t._version for t in pytree.tree_leaves(operands) if isinstance(t, torch.Tensor)]:
        raise _refused("a branch that changes its operands is not supported")
    if form != other:
        raise _refused(f"expected branches with results of one structure, but got {form} and {other}")
    return pytree.tree_unflatten([_select(predicate, x, y) for x, y in zip(a, b, strict=True)], form)


def _select(predicate: torch.Tensor, x: Any, y: Any) -> Any:
    """Returns a select between the results of two branches, or the result itself if both are the same constant."""
    if not isinstance(x, torch.Tensor) or not isinstance(y, torch.Tensor):
        if type(x) is type(y) and x == y:
            return x
        raise _refused(f"expected equal constants from both branches, but got {x} and {y}")
    if x.requires_grad or y.requires_grad:
        raise _refused("branches are not differentiated backwards")
    if x.shape != y.shape or x.dtype != y.dtype:
        raise _refused(f"branches that give {describe_tensor(x)} and {describe_tensor(y)} are not supported")
    return torch.where(predicate.reshape(()).to(torch.bool), x, y)


def _refused(reason: str) -> UnsupportedError:
    return UnsupportedError(reason, operator="torch.cond", kind="higher-order-operators", remedy="use torch.where")


Decision = tuple[bool, str]
"""Outcome of a branch, and the message of the error that the other outcome raises."""


def failed(export: Export) -> ExportedProgram:
    """Exports a program with its Python branches decided, one more after every failed attempt. Raises the error of
    `export`."""
    decided: list[Decision] = []
    while True:
        decisions = _DecidedBranches(decided)
        try:
            with decisions:
                return export()
        except Exception:
            decision = _only_outcome(export, decided) if decisions.undecided else None
            if decision is None:
                raise
            decided.append(decision)


def _only_outcome(export: Export, decided: Sequence[Decision]) -> Decision | None:
    """Returns the outcome of the next undecided branch, or None if both outcomes are possible.

    An outcome is impossible if the program then fails before it reaches a further undecided branch.
    """
    for outcome in (True, False):
        decisions = _DecidedBranches([*decided, (outcome, "")])
        try:
            with decisions:
                export()
        except Exception as error:
            if not decisions.undecided:
                return not outcome, one_line(error, 200)
    return None


class _DecidedBranches:
    """Context in which the truth values of tensors that the program asks for are the decided ones, in their order.

    `undecided` is set if the program asks for more truth values than there are decisions.
    """

    def __init__(self, decided: Sequence[Decision]) -> None:
        self._pending = list(decided)
        self._patches = ExitStack()
        self.undecided = False

    def __enter__(self) -> None:
        # A TorchFunctionMode does not see calls inside functions of PyTorch.
        for name in ("__bool__", "item"):
            asked = self._with_decisions(getattr(torch.Tensor, name))
            self._patches.enter_context(patch.object(torch.Tensor, name, asked))

    def __exit__(self, *error: object) -> None:
        self._patches.close()

    def _with_decisions(self, original: Callable[[torch.Tensor], Any]) -> Callable[[torch.Tensor], Any]:
        def answer(tensor: torch.Tensor) -> Any:
            has_value = not isinstance(tensor, FakeTensor) or tensor.constant is not None
            if has_value or tensor.numel() != 1 or tensor.dtype != torch.bool:
                return original(tensor)
            if not self._pending:
                self.undecided = True
                return original(tensor)
            outcome, message = self._pending.pop(0)
            holds = tensor.reshape(())
            torch._assert_async(holds if outcome else ~holds, message)
            return outcome

        return answer
