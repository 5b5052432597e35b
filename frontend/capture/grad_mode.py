"""Gradients that a program switches off while it is traced: `torch.no_grad()` around a part of it.

The exporter traces with gradients switched off, and records of such a part only what it computes. Its results are
detached here, which is recorded, so that they do not require gradients where eager PyTorch's would not.
"""

from __future__ import annotations

import functools
from collections.abc import Generator
from contextlib import contextmanager
from threading import get_ident
from typing import Any
from unittest.mock import patch

import torch
from torch.autograd import functional
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

from .aliasing import share


@contextmanager
def detached_without_grad(module: torch.nn.Module) -> Generator[_Switch]:
    """While active, `module` is traced so. Gradients are taken for enabled where it begins: whether they are is a
    matter of each call. What it gives tells whether the program `asked` for gradients: one that computes gradients
    itself does, and the trace is none of it then."""
    forward, switch = module.forward, _Switch()

    @functools.wraps(forward)
    def traced(*args: Any, **kwargs: Any) -> Any:
        switch.enabled, switch.thread = True, get_ident()
        with patch("torch.autograd.grad_mode.torch", _Torch(switch)), switch:
            return forward(*args, **kwargs)

    enable, grad = torch.enable_grad.__enter__, functional._autograd_grad

    def enabling(context: Any) -> None:
        switch.asked = switch.asked or switch.enabled
        enable(context)

    def differentiating(*args: Any, **kwargs: Any) -> Any:
        switch.asked = True
        return grad(*args, **kwargs)

    with (
        patch.object(module, "forward", traced),
        patch.object(torch.enable_grad, "__enter__", enabling),
        patch.object(functional, "_autograd_grad", differentiating),
    ):
        yield switch


class _Switch(TorchFunctionMode):
    """Whether gradients are enabled, as far as the program knows; what it computes while they are not is detached."""

    def __init__(self) -> None:
        super().__init__()
        self.enabled, self.thread, self.asked = True, get_ident(), False

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call `func`, unless it is the switch."""
        if func is torch._C._set_grad_enabled:
            self.asked = self.asked or self.enabled and args[0]
            (self.enabled,) = args
            return None
        result = func(*args, **(kwargs or {}))
        return result if self.enabled else _detached(result, pytree.tree_leaves((args, kwargs)))


class _Torch:
    """torch, for the context managers that ask it whether gradients are enabled before they switch them."""

    def __init__(self, switch: _Switch) -> None:
        self._switch = switch

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)

    def is_grad_enabled(self) -> bool:
        """What the program that is traced knows; another thread has its own answer."""
        return self._switch.enabled if get_ident() == self._switch.thread else torch.is_grad_enabled()


def _detached(result: Any, given: list[Any]) -> Any:
    """The tensors of a result, detached, but those that were given, which were changed in place, and views of them:
    both require gradients as before."""
    tensors = [t for t in given if isinstance(t, torch.Tensor)]

    def one(t: torch.Tensor) -> torch.Tensor:
        return t if any(share(t, other) for other in tensors) or not _has_gradient(t) else t.detach()

    return pytree.tree_map_only(torch.Tensor, one, result)


def _has_gradient(t: torch.Tensor) -> bool:
    return t.dtype.is_floating_point or t.dtype.is_complex
