"""Tracing a program with PyTorch's exporter, with what features have in place of functions that the program calls."""

from __future__ import annotations

import logging
import pkgutil
import warnings
from collections.abc import Callable, Collection, Generator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import dataclass
from threading import get_ident
from typing import Any
from unittest.mock import patch

import torch
from torch._dynamo.variables.torch import TorchInGraphFunctionVariable
from torch._functorch import eager_transforms
from torch.autograd import forward_ad
from torch.export import ExportedProgram, _trace
from torch.fx import GraphModule
from torch.overrides import TorchFunctionMode

from .eager_fallback import Fallback
from .features import FEATURES, Feature
from .source_locations import chain

_functorch: Any = torch._C._functorch  # pyright: ignore[reportAttributeAccessIssue]

# Dynamo, which traces the branches of a `torch.cond`, makes its table of functions when it looks one up for the first
# time: that must not be while others stand in for them.
TorchInGraphFunctionVariable._get_handlers()


class Retrace(BaseException):
    """A program called a function for which `retraced` of a feature has to trace it. No Exception, which the program
    could catch."""

    def __init__(self, retraced: Callable[[Request], ExportedProgram]) -> None:
        super().__init__()
        self.retraced = retraced


@dataclass(frozen=True)
class Request:
    """A program to be captured.

    Args:
        module: the program.
        args: its example arguments by position.
        kwargs: its example arguments by name.
        shapes: the sizes that vary, as for `torch.export.export`; None if all are fixed.
        fallback: what happens to operators that are not supported.
        in_memory: whether results lie in memory as eager PyTorch's do.
        differentiating: whether the caller has gradients enabled.
    """

    module: torch.nn.Module
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] | None = None
    shapes: Any = None
    fallback: Fallback = None
    in_memory: bool = True
    differentiating: bool = False

    def export(self, without: Collection[str] = (), *, above: bool = True) -> ExportedProgram:
        """Returns the program as PyTorch exports it above autograd or below, where features stand in for functions,
        except those that are left out by name. Raises Retrace, and whatever PyTorch or the program raises."""
        export, varies = torch.export.export if above else _trace._export, self.shapes is not None
        how = {"dynamic_shapes": self.shapes, "strict": False, "prefer_deferred_runtime_asserts_over_guards": varies}
        features = [f for f in FEATURES if f.name not in without]

        def exported() -> ExportedProgram:
            with as_before(), _called_by(self.module, features):
                return export(self.module, self.args, self.kwargs, **how)

        try:
            return exported()
        except Exception as error:
            if (feature := _feature_of(error)) is None:
                raise
            return feature.get("failed")(exported)


def _feature_of(error: Exception) -> Feature | None:
    """Returns the feature that an error calls for."""
    names = {type(e).__name__ for e in chain(error)}
    return next((f for f in FEATURES if not names.isdisjoint(f.errors.split())), None)


def trace(request: Request) -> ExportedProgram:
    """Returns the exported program of a request, traced by the features that the program calls for. Raises what
    PyTorch or the program raises."""
    export = Request.export
    while True:
        try:
            return export(request)
        except Retrace as asked:
            export = asked.retraced


def _called_by(module: torch.nn.Module, features: Sequence[Feature]) -> AbstractContextManager[Any]:
    """Returns a context in which features stand in for functions that a module calls."""
    # The exporter interprets a graph and does not call its `forward`; the exporter itself switches gradients around it.
    if isinstance(module, GraphModule):
        return stand_ins([f for f in features if f.name != "gradients"])
    return patch.object(module, "forward", stand_ins(features)(module.forward))


@contextmanager
def stand_ins(features: Sequence[Feature]) -> Generator[None]:
    """While active, features stand in for the functions that they name. Functions that a mode of torch does not see are
    patched for the thread that enters it."""
    mode = _StandIns(features)
    with ExitStack() as patches, mode:
        for name in mode.features:
            if "." in name:
                patches.enter_context(patch(name, mode.patched(name)))
        yield


class _StandIns(TorchFunctionMode):
    def __init__(self, features: Sequence[Feature]) -> None:
        super().__init__()
        self.features = {name: f for f in features for name in f.calls.split()}

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Calls what stands in for `func`, or `func`. Dynamo traces this mode with a branch of a `torch.cond`."""
        if torch.compiler.is_dynamo_compiling():
            return func(*args, **(kwargs or {}))
        return self._call(getattr(func, "__name__", ""), func, args, kwargs or {})

    def patched(self, name: str) -> Callable[..., Any]:
        """Returns the function at a path with what stands in for it, if this thread calls it."""
        function, thread = pkgutil.resolve_name(name), get_ident()

        def called(*args: Any, **kwargs: Any) -> Any:
            inside = get_ident() == thread
            return self._call(name, function, args, kwargs) if inside else function(*args, **kwargs)

        return called

    def _call(self, name: str, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        feature = self.features.get(name)
        result = NotImplemented if feature is None else feature.get("called")(function, args, kwargs)
        return function(*args, **kwargs) if result is NotImplemented else result


@contextmanager
def as_before() -> Generator[None]:
    """Leaves transforms that were entered inside and not left, as by a graph of Dynamo's that failed in the middle:
    PyTorch would take every later function for one inside of them."""
    before = _transforms()
    try:
        yield
    finally:
        if _transforms() != before:
            _leave_transforms(*before)


def _transforms() -> tuple[int, int, bool, bool]:
    """Returns the number of transforms of torch.func that are active, and the state of forward-mode AD."""
    depth, inside = len(_functorch.get_interpreter_stack() or ()), forward_ad._current_level >= 0
    return depth, eager_transforms.JVP_NESTING, inside, torch._C._is_fwd_grad_enabled()


def _leave_transforms(depth: int, nesting: int, inside: bool, enabled: bool) -> None:
    while len(_functorch.get_interpreter_stack() or ()) > depth:
        _functorch.pop_dynamic_layer_stack()
    eager_transforms.JVP_NESTING = nesting
    torch._C._set_fwd_grad_enabled(enabled)
    if not inside:
        with suppress(RuntimeError):  # which says that none was entered
            torch._C._exit_dual_level(0)  # pyright: ignore[reportAttributeAccessIssue]
        forward_ad._current_level = -1


@contextmanager
def quiet() -> Generator[None]:
    """While active, PyTorch is silent: no warnings about itself, and neither logs nor graphs of errors that are raised
    anyway."""
    silent = patch.object(_trace, "print", lambda *values, **options: None, create=True)
    with without_logs(logging.CRITICAL), warnings.catch_warnings(), silent:
        warnings.simplefilter("ignore")
        yield


@contextmanager
def without_logs(level: int) -> Generator[None]:
    """While it is open, nothing up to `level` is logged."""
    before = logging.root.manager.disable
    logging.disable(level)
    try:
        yield
    finally:
        logging.disable(before)
