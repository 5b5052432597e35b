"""Attributes of `torch.nn.Module` on a compiled program: those that the module answers, and those that a program has no
answer for, with what to do instead."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from ..errors import AttributeRefusedError

READ = frozenset(
    "training state_dict load_state_dict parameters named_parameters buffers named_buffers modules named_modules"
    " children named_children get_parameter get_buffer get_submodule zero_grad extra_repr".split()
)
"""Attributes of a module that its program passes on."""

MOVES = frozenset("to cuda cpu xpu half float double bfloat16 type to_empty".split())
"""Methods of a module that change where its parameters are, or their types."""

_HOOKS = "a compiled program calls no hooks; register it on the module and compile again"


def attribute(module: nn.Module | None, program: Any, name: str) -> Any:
    """Returns the attribute `name` of a compiled program, as a module would have it.

    Args:
        module: the module that was compiled, or None for a function.
        program: the compiled program, which `eval()` and its like return.
        name: the name of the attribute.

    Raises:
        AttributeRefusedError: the attribute has no meaning for the program; the message says what to do.
    """
    of_modules = hasattr(nn.Module, name) or name == "training"
    if module is None:
        if of_modules:
            remedy = "pass the nn.Module itself to deplodock.compile"
            raise _refused(name, "the program was compiled from a function, which has no state of a module", remedy)
        raise _refused(name, "a compiled program has no such attribute", "use the function that was compiled")
    if name in ("eval", "train"):
        return lambda *mode: getattr(module, name)(*mode) and program
    if name in MOVES:
        return lambda *args, **kwargs: _moved(module, program, name, *args, **kwargs)
    if name in READ:
        return getattr(module, name)
    if "hook" in name and of_modules:
        raise _refused(name, "hooks are part of what was captured", _HOOKS)
    value = getattr(module, name, _MISSING)
    if value is _MISSING:
        raise _refused(name, f"neither the program nor {type(module).__name__} has this attribute", "check its name")
    if of_modules or callable(value) and not isinstance(value, nn.Module):
        raise _refused(name, f"it is a method of {type(module).__name__}", "call it on the module, and compile again")
    return value


_MISSING = object()


def _moved(module: nn.Module, program: Any, name: str, *args: Any, **kwargs: Any) -> Any:
    """The program itself where `to` and its like change nothing."""
    tensors = [*module.parameters(), *module.buffers()]
    try:
        change: Callable[[torch.Tensor], torch.Tensor] = lambda t: getattr(t, name)(*args, **kwargs)  # noqa: E731
        same = name != "to_empty" and all(change(t) is t for t in tensors if t.is_floating_point())
    except (RuntimeError, TypeError, AssertionError):
        same = False
    if same:
        return program
    given = ", ".join((*map(str, args), *(f"{k}={v}" for k, v in kwargs.items())))
    remedy = f"call {name}({given}) on the module, and compile it again with arguments like its new ones"
    raise _refused(name, "a program is compiled for the device and the types of its parameters", remedy)


def _refused(name: str, reason: str, remedy: str) -> AttributeRefusedError:
    return AttributeRefusedError(reason, operator=name, kind="wrong-arguments", remedy=remedy)
