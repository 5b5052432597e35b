"""Traces a program with PyTorch's exporter, while features replace functions that the program calls.

A *feature* is a file of `features/`. Its entry in `FEATURES` names the functions that it replaces.
"""

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

# Dynamo traces the branches of a `torch.cond`. It builds its table of functions at the first look-up, which must not
# happen while replacements are active.
TorchInGraphFunctionVariable._get_handlers()


class Retrace(BaseException):
    """Request to trace the program again, by the function `retraced` of a feature.

    A feature raises it while the program is traced. It is a BaseException, so that `except Exception` in the program
    does not catch it.
    """

    def __init__(self, retraced: Callable[[Request], ExportedProgram]) -> None:
        super().__init__()
        self.retraced = retraced


@dataclass(frozen=True)
class Request:
    """Program to capture, with its options.

    Args:
        module: the program.
        args: example arguments by position.
        kwargs: example arguments by name.
        shapes: sizes that vary, in the form of `dynamic_shapes` of `torch.export.export`; None if all sizes are fixed.
        fallback: treatment of operators that are not supported; see `Fallback`.
        in_memory: whether results have the strides, and share the memory, that they have in eager PyTorch.
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
        """Exports the program once, with functions replaced by features.

        Args:
            without: names of features that replace nothing.
            above: whether to trace above autograd, as `torch.export.export` does, or below it.

        Raises:
            Retrace: a feature traces the program in another way.
            Exception: any error of PyTorch or of the program.
        """
        export, varies = torch.export.export if above else _trace._export, self.shapes is not None
        options = {
            "dynamic_shapes": self.shapes,
            "strict": False,
            "prefer_deferred_runtime_asserts_over_guards": varies,
        }
        features = [f for f in FEATURES if f.name not in without]

        def exported() -> ExportedProgram:
            with as_before(), _called_by(self.module, features):
                return export(self.module, self.args, self.kwargs, **options)

        try:
            return exported()
        except Exception as error:
            if (feature := _feature_of(error)) is None:
                raise
            return feature.get("failed")(exported)


def _feature_of(error: Exception) -> Feature | None:
    """Returns the feature that handles an error or one of its causes, or None."""
    names = {type(e).__name__ for e in chain(error)}
    return next((f for f in FEATURES if not names.isdisjoint(f.errors.split())), None)


def trace(request: Request) -> ExportedProgram:
    """Returns the exported program of a request, traced again if a feature asks for it.

    Raises any error of PyTorch or of the program.
    """
    export = Request.export
    while True:
        try:
            return export(request)
        except Retrace as request_to_retrace:
            export = request_to_retrace.retraced


def _called_by(module: torch.nn.Module, features: Sequence[Feature]) -> AbstractContextManager[Any]:
    """Returns a context in which features replace functions that the module calls."""
    # The exporter interprets a graph and does not call its `forward`. It switches gradients itself before and after,
    # and the feature `gradients` must not take that for a switch of the program.
    if isinstance(module, GraphModule):
        return stand_ins([f for f in features if f.name != "gradients"])
    return patch.object(module, "forward", stand_ins(features)(module.forward))


@contextmanager
def stand_ins(features: Sequence[Feature]) -> Generator[None]:
    """While active, features replace the functions that they name.

    A torch function mode replaces most functions. It does not see functions that are named by an import path, so those
    are patched, with an effect in the current thread only.
    """
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
        """Calls the replacement of `func`, or `func`."""
        # Dynamo traces this mode together with a branch of a `torch.cond`.
        if torch.compiler.is_dynamo_compiling():
            return func(*args, **(kwargs or {}))
        return self._call(getattr(func, "__name__", ""), func, args, kwargs or {})

    def patched(self, name: str) -> Callable[..., Any]:
        """Returns the function at an import path, replaced in calls from the current thread."""
        function, thread = pkgutil.resolve_name(name), get_ident()

        def called(*args: Any, **kwargs: Any) -> Any:
            same_thread = get_ident() == thread
            return self._call(name, function, args, kwargs) if same_thread else function(*args, **kwargs)

        return called

    def _call(self, name: str, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
        feature = self.features.get(name)
        result = NotImplemented if feature is None else feature.get("called")(function, args, kwargs)
        return function(*args, **kwargs) if result is NotImplemented else result


@contextmanager
def as_before() -> Generator[None]:
    """Restores, on exit, the transforms of `torch.func` that were active on entry.

    A failed trace by Dynamo does not exit its transforms. PyTorch would then run all later functions under them.
    """
    before = _transforms()
    try:
        yield
    finally:
        if _transforms() != before:
            _leave_transforms(*before)


def _transforms() -> tuple[int, int, bool, bool]:
    """Returns the number of active transforms, the nesting of `jvp`, whether forward-mode AD is active, and whether its
    gradients are enabled."""
    depth, inside = len(_functorch.get_interpreter_stack() or ()), forward_ad._current_level >= 0
    return depth, eager_transforms.JVP_NESTING, inside, torch._C._is_fwd_grad_enabled()


def _leave_transforms(depth: int, nesting: int, inside: bool, enabled: bool) -> None:
    while len(_functorch.get_interpreter_stack() or ()) > depth:
        _functorch.pop_dynamic_layer_stack()
    eager_transforms.JVP_NESTING = nesting
    torch._C._set_fwd_grad_enabled(enabled)
    if not inside:
        # PyTorch raises RuntimeError if no level is active.
        with suppress(RuntimeError):
            torch._C._exit_dual_level(0)  # pyright: ignore[reportAttributeAccessIssue]
        forward_ad._current_level = -1


@contextmanager
def quiet() -> Generator[None]:
    """While active, PyTorch prints no warnings, no logs, and no graphs for errors that it raises in addition."""
    silent = patch.object(_trace, "print", lambda *values, **options: None, create=True)
    with without_logs(logging.CRITICAL), warnings.catch_warnings(), silent:
        warnings.simplefilter("ignore")
        yield


@contextmanager
def without_logs(level: int) -> Generator[None]:
    """While active, messages up to `level` are not logged."""
    before = logging.root.manager.disable
    logging.disable(level)
    try:
        yield
    finally:
        logging.disable(before)
