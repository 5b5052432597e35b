"""Marks of the nodes of a graph at which a program has switched gradients on or off.

The exporter traces with gradients switched off, and knows nothing of parts of a program that switch them: nodes of such
parts are marked as they are traced.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Generator
from contextlib import AbstractContextManager, contextmanager
from threading import get_ident
from typing import Any
from unittest.mock import patch

import torch
from torch.fx import Graph, Node
from torch.fx.experimental.proxy_tensor import get_proxy_mode
from torch.overrides import TorchFunctionMode

from .source_locations import is_users


def may_require_grad(node: Node) -> bool:
    """Returns true for a node that is a tensor of floats or complex numbers."""
    value = node.meta.get("val")
    return isinstance(value, torch.Tensor) and (value.dtype.is_floating_point or value.dtype.is_complex)


_GRAD = "grad_enabled"
"""The mark, in what PyTorch keeps of a node for others."""


class _AsCalled(int):
    """Whether gradients are enabled where the program has not switched them: a matter of each call. It is true, and is
    what the program switches back to."""


_AS_CALLED = _AsCalled(True)


def grad_enabled(node: Node, as_called: bool) -> bool:
    """Whether gradients are enabled at a node, in a call where they are `as_called`."""
    return node.meta.get("custom", {}).get(_GRAD, as_called)


@contextmanager
def marked_grad_mode(module: torch.nn.Module) -> Generator[_Switch]:
    """While active, `module` is traced so. What it gives tells whether the program `asked` for gradients to be enabled:
    one that computes gradients itself does, and the trace is none of it then."""
    forward, switch = module.forward, _Switch()

    @functools.wraps(forward)
    def traced(*args: Any, **kwargs: Any) -> Any:
        switch.enabled, switch.thread = _AS_CALLED, get_ident()
        asked = patch("torch.is_grad_enabled", switch.is_grad_enabled)
        with asked, patch("torch.autograd.grad_mode.torch", _torch(switch)), switch:
            return forward(*args, **kwargs)

    enable = torch.enable_grad.__enter__

    def enabling(context: Any) -> None:
        switch.asked = True
        enable(context)

    with patch.object(module, "forward", traced), patch.object(torch.enable_grad, "__enter__", enabling):
        yield switch


class _Switch(TorchFunctionMode):
    """Whether gradients are enabled, as far as the program knows; what it does while it has switched them is marked."""

    def __init__(self) -> None:
        super().__init__()
        self.enabled: int = _AS_CALLED
        self.thread, self.asked = get_ident(), False
        self._last: dict[Graph, Node] = {}
        self._is_grad_enabled = torch.is_grad_enabled

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call `func`, unless it is the switch."""
        if func is torch._C._set_grad_enabled:
            return self.set_grad_enabled(*args)
        result = func(*args, **(kwargs or {}))
        if not torch.compiler.is_dynamo_compiling():  # which traces this mode with a branch of a `torch.cond`
            self._mark()
        return result

    def _mark(self) -> None:
        """Mark the nodes that are new."""
        if (mode := get_proxy_mode()) is None:
            return
        graph: Graph = mode.tracer.graph
        end, node = self._last.get(graph), graph._root.prev
        self._last[graph] = node
        while node is not end and node is not graph._root and self.enabled is not _AS_CALLED:
            node.meta["custom"] = {**node.meta.get("custom", {}), _GRAD: bool(self.enabled)}
            node = node.prev

    def set_grad_enabled(self, enabled: int) -> None:
        """Take note that the program switches; another thread does it."""
        if get_ident() != self.thread:
            return torch._C._set_grad_enabled(bool(enabled))
        self.enabled = enabled
        self.asked = self.asked or enabled is True
        return None

    def inference_mode(self, enabled: bool) -> AbstractContextManager[Any]:
        """What stands in for the mode, of which tensors that are traced know nothing: it switches gradients, too."""
        return self._switched(not enabled) if get_ident() == self.thread else torch._C._InferenceMode(enabled)

    @contextmanager
    def _switched(self, enabled: bool) -> Generator[None]:
        before = self.enabled
        self.set_grad_enabled(enabled)
        try:
            yield
        finally:
            self.set_grad_enabled(before)

    def known(self) -> int:
        """What the program that is traced knows; another thread has its own answer."""
        return self.enabled if get_ident() == self.thread else self._is_grad_enabled()

    def is_grad_enabled(self) -> int:
        """The same for who asks in the user's code; the exporter itself has switched gradients off."""
        return self.known() if is_users(sys._getframe(1).f_code.co_filename) else self._is_grad_enabled()


class _Instead:
    """An object with others in place of some of its attributes."""

    def __init__(self, of: Any, **others: Any) -> None:
        self._of = of
        self.__dict__.update(others)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._of, name)


def _torch(switch: _Switch) -> _Instead:
    """torch, for the context managers that switch gradients, and ask before whether they are enabled."""
    inner = _Instead(torch._C, _set_grad_enabled=switch.set_grad_enabled, _InferenceMode=switch.inference_mode)
    return _Instead(torch, _C=inner, is_grad_enabled=switch.known)
