"""Programs that differentiate or map functions while they are traced (`torch.func`, `torch.autograd.grad`), and those
that branch by what a tensor holds.

PyTorch's exporter traces above autograd, where a transform leaves its steps in the graph, which cannot be executed
apart from it. Such a program is traced a second time below autograd and the transforms: there it is the operators that
they end in, whatever the transform was.

`torch.cond` is made both of its branches. A branch in Python that asks what a tensor holds
(`if (x < 0).any(): raise ValueError(...)`) can be captured where one way of it ends in an error: the program is the
other way, with an assertion at run time that it was that one. Each way is traced to learn this.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Generator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from typing import Any
from unittest.mock import patch

import torch
from torch._functorch import eager_transforms
from torch._subclasses.fake_tensor import FakeTensor
from torch.autograd import forward_ad
from torch.export import ExportedProgram
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

from ...errors import UnsupportedError, one_line
from .decompositions.differentiable import above_autograd

_functorch: Any = torch._C._functorch  # pyright: ignore[reportAttributeAccessIssue]


Export = Callable[[torch.nn.Module, bool], ExportedProgram]


class _Transforms(BaseException):
    """A program came to a step of a transform. No Exception: the program is not to catch it."""


def below_transforms(module: torch.nn.Module, differentiating: bool, export: Export) -> ExportedProgram:
    """What `export` gives, which traces a module: above autograd (its second argument is True) if there is no
    transform, below otherwise, where gradients are enabled as `differentiating` says. Raises what it raises."""
    try:
        with as_before(), _noticed():
            return export(module, True)
    except _Transforms:
        with as_before(), above_autograd():
            return export(_Within(module, differentiating), False)


class _Within(torch.nn.Module):
    """A module, sharing its state, that computes gradients if they are enabled: the exporter disables them."""

    def __init__(self, module: torch.nn.Module, differentiating: bool) -> None:
        super().__init__()
        self.__dict__.update(module.__dict__)

        @functools.wraps(module.forward)
        def forward(*args: Any, **kwargs: Any) -> Any:
            with torch.set_grad_enabled(differentiating):
                results = module.forward(*args, **kwargs)
            return pytree.tree_map_only(torch.Tensor, torch.Tensor.detach, results)

        self.forward = forward


@contextmanager
def _noticed() -> Generator[None]:
    """While active, `_Transforms` is raised where autograd runs, and where a transform asks whether the exporter is to
    record its step."""

    def notice(*args: Any, **kwargs: Any) -> Any:
        raise _Transforms

    with (
        patch("torch._export.utils._maybe_find_pre_dispatch_tf_mode_for_export", notice),
        patch("torch.autograd._engine_run_backward", notice),
    ):
        yield


@contextmanager
def as_before() -> Generator[None]:
    """Leave transforms that were entered inside and not left, as by a graph of Dynamo's that failed in the middle:
    PyTorch would take every later function for one inside of them."""
    depth, nesting = len(_entered()), eager_transforms.JVP_NESTING
    inside, enabled = forward_ad._current_level >= 0, torch._C._is_fwd_grad_enabled()
    try:
        yield
    finally:
        while len(_entered()) > depth:
            _functorch.pop_dynamic_layer_stack()
        eager_transforms.JVP_NESTING = nesting
        torch._C._set_fwd_grad_enabled(enabled)
        if not inside:
            with suppress(RuntimeError):  # which says that none was entered
                torch._C._exit_dual_level(0)  # pyright: ignore[reportAttributeAccessIssue]
            forward_ad._current_level = -1


def _entered() -> Sequence[Any]:
    return _functorch.get_interpreter_stack() or ()


class BothBranches(TorchFunctionMode):
    """`torch.cond(predicate, f, g, operands)` as `f` and `g`, which are both computed, and a choice for each result.

    So what a branch asserts has to hold whichever is chosen, and what it draws is drawn. Raises UnsupportedError for
    branches that change their operands, whose results differ in structure, shape or type, or that are differentiated
    backwards: what is infinite in the branch that is not chosen would make the gradient NaN.
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call `func`, or what stands in for it."""
        ours = func is _COND and not torch.compiler.is_dynamo_compiling()  # which finds the operands of a closure
        return (_both if ours else func)(*args, **(kwargs or {}))


_COND = torch.ops.higher_order.cond


def _both(predicate: Any, true_fn: Callable[..., Any], false_fn: Callable[..., Any], operands: Any = ()) -> Any:
    if not isinstance(predicate, torch.Tensor):
        return (true_fn if predicate else false_fn)(*operands)
    before = [t._version for t in pytree.tree_leaves(operands) if isinstance(t, torch.Tensor)]
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
        given = " and ".join(f"{str(t.dtype).removeprefix('torch.')}{list(t.shape)}" for t in (x, y))
        raise _refused(f"branches that give {given} are not supported")
    return torch.where(predicate.reshape(()).to(torch.bool), x, y)


def _refused(reason: str) -> UnsupportedError:
    return UnsupportedError(reason, operator="torch.cond", kind="higher-order-operators", remedy="use torch.where")


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
