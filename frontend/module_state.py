"""The connection of a compiled program to its modules: changes of their state, and their attributes.

`ModuleState` detects that submodules, modes, hooks, parameters or buffers have changed since the compilation.
`attribute` returns attributes of the module on the program (`program.state_dict()`), or explains why there are none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import nn
from torch.nn.modules import module as every_module

from ..backend.host.calls import extension
from ..errors import AttributeRefusedError, ExecutionError, ShapeError
from .capture.arrays import describe_tensor, kind_of
from .capture.captured_program import Binding, CapturedProgram


class ModuleState:
    """Snapshot of the state of modules at the compilation of a program.

    Args:
        modules: name -> module.
        bindings: the arguments of the program.

    Attributes:
        entries: flat tuple (dictionary, key, value, dictionary, key, value, ...) over the dictionaries of the modules.
            A call compares each `dictionary[key]` with the value by identity. With the key None, the value is the
            length of the dictionary.
    """

    def __init__(self, modules: Mapping[str, nn.Module], bindings: Sequence[Binding]) -> None:
        self.modules = modules
        every = {m: name for root, top in modules.items() for name, m in top.named_modules(prefix=root)}
        tensors = {id(b.tensor): b.tensor for b in bindings if b.tensor is not None}
        owners = ((name, owner) for m, name in every.items() for owner in (m._parameters, m._buffers, vars(m)))
        self._links = [
            (id(tensor), f"{name}.{leaf}".removeprefix("."), owner, leaf)
            for name, owner in owners
            for leaf, tensor in owner.items()
            if id(tensor) in tensors
        ]
        linked = {id(tensors[i]): tensors[i] for i, *_ in self._links}
        self._tensors = {i: (t, t.dtype, t.shape, t.device) for i, t in linked.items()}
        hooks = [d for m in every for d in (m._forward_pre_hooks, m._forward_hooks)]
        hooks += [every_module._global_forward_pre_hooks, every_module._global_forward_hooks]
        modes = [(vars(m), "training", m.training) for m in every if "training" in vars(m)]
        self._hooks = tuple(entry for owner in hooks for entry in _all_of(owner))
        self._structure = (*(e for m in every for e in _all_of(m._modules)), *(e for mode in modes for e in mode))
        weights = tuple(e for i, _, owner, leaf in self._links for e in (owner, leaf, tensors[i]))
        self.entries = self._structure + self._hooks + weights

    def is_current(self) -> bool:
        """Returns true if the modules have the same submodules, modes, hooks and tensors as before."""
        return _holds(self.entries)

    def has_same_structure(self) -> bool:
        """Returns true if submodules and modes are the same, and names that shared a tensor still share one."""
        tensors = {(i, id(owner.get(leaf))) for i, _, owner, leaf in self._links}
        return _holds(self._structure) and len(tensors) == len(self._tensors)

    def check(self) -> None:
        """Checks for changes of the modules that the program cannot adapt to.

        Raises:
            ExecutionError: a forward hook was added or removed.
            ShapeError: a tensor has changed its type, shape or device in place, for example by `module.half()`.
        """
        if not _holds(self._hooks):
            remedy = "undo that, or compile again for its effect on the results"
            reason = "a forward hook of the module was added or removed after the program was compiled"
            raise ExecutionError(reason, kind="stale-weights", remedy=remedy)
        for i, name, *_ in self._links:
            tensor, dtype, shape, device = self._tensors[i]
            if tensor.dtype != dtype or tensor.shape != shape or tensor.device != device:
                expected = _shown(torch.empty(shape, dtype=dtype, device="meta")).removesuffix("meta")
                raise _stale(name, f"expected {expected}{device}, but the module now has {_shown(tensor)}")

    def renewed(self, captured: CapturedProgram) -> CapturedProgram:
        """Returns the program with the present tensors of the modules.

        Raises:
            ShapeError: a tensor is missing, or has another type, shape or device.
        """
        now: dict[int, torch.Tensor] = {}
        for i, name, owner, leaf in self._links:
            tensor, before = owner.get(leaf), self._tensors[i][0]
            if not isinstance(tensor, torch.Tensor) or kind_of(tensor) is not None:
                raise _stale(name, "the module has no such tensor any more")
            if _shown(tensor) != _shown(before):
                raise _stale(name, f"expected {_shown(before)}, but the module now has {_shown(tensor)}")
            now[i] = tensor
        bindings = (replace(b, tensor=now[id(b.tensor)]) if id(b.tensor) in now else b for b in captured.bindings)
        return replace(captured, bindings=tuple(bindings))


def _all_of(owner: Mapping[Any, Any]) -> Iterator[Any]:
    """Yields the items of `ModuleState.entries` for one dictionary: its length, then its entries."""
    yield from (owner, None, len(owner))
    for key, value in owner.items():
        yield from (owner, key, value)


def _holds(entries: Sequence[Any]) -> bool:
    if (native := extension()) is not None:
        return native.holds(entries)
    triples = zip(entries[::3], entries[1::3], entries[2::3], strict=True)
    return all(len(owner) == v if key is None else owner.get(key) is v for owner, key, v in triples)


def _shown(tensor: torch.Tensor) -> str:
    return f"{describe_tensor(tensor)} on {tensor.device}"


def _stale(name: str, reason: str) -> ShapeError:
    return ShapeError(reason, argument=name, kind="stale-weights", remedy="compile the module again")


_READ = frozenset(
    "training state_dict load_state_dict parameters named_parameters buffers named_buffers modules named_modules"
    " children named_children get_parameter get_buffer get_submodule zero_grad extra_repr".split()
)
"""Attributes of a compiled program that return those of the module."""

_MOVES = frozenset("to cuda cpu xpu half float double bfloat16 type to_empty".split())
"""Methods of a module that change the device or the type of its parameters."""

_HOOKS = "a compiled program calls no hooks; register it on the module and compile again"


def attribute(module: nn.Module | None, program: Any, name: str) -> Any:
    """Returns the attribute `name` of a compiled program, as a module would have it.

    Args:
        module: the module that was compiled, or None for a function.
        program: the compiled program, which methods such as `eval()` return.
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
    if name in _MOVES:
        return lambda *args, **kwargs: _moved(module, program, name, *args, **kwargs)
    if name in _READ:
        return getattr(module, name)
    if "hook" in name and of_modules:
        raise _refused(name, "hooks are part of what was captured", _HOOKS)
    value = getattr(module, name, _MISSING)
    if value is _MISSING:
        raise _refused(name, f"neither the program nor {type(module).__name__} has this attribute", "check its name")
    if of_modules or callable(value) and not isinstance(value, nn.Module):
        raise _refused(name, f"it is a method of {type(module).__name__}", "call it on the module, and compile again")
    return value


def attribute_names(module: nn.Module) -> list[str]:
    """Returns names for which `attribute` returns an attribute of a module; attributes of its class are left out."""
    fields = (name for name in vars(module) if not name.startswith("_"))
    return [*_READ, *_MOVES, "eval", "train", *module._parameters, *module._buffers, *module._modules, *fields]


_MISSING = object()


def _moved(module: nn.Module, program: Any, name: str, *args: Any, **kwargs: Any) -> Any:
    """Returns the program if the method `name` changes no parameter; else raises AttributeRefusedError."""
    tensors = [*module.parameters(), *module.buffers()]
    try:
        change: Callable[[torch.Tensor], torch.Tensor] = lambda t: getattr(t, name)(*args, **kwargs)  # noqa: E731
        same = name != "to_empty" and all(change(t) is t for t in tensors if t.is_floating_point())
    except (RuntimeError, TypeError, AssertionError):
        same = False
    if same:
        return program
    arguments = ", ".join((*map(str, args), *(f"{k}={v}" for k, v in kwargs.items())))
    remedy = f"call {name}({arguments}) on the module, and compile it again with arguments like its new ones"
    raise _refused(name, "a program is compiled for the device and the types of its parameters", remedy)


def _refused(name: str, reason: str, remedy: str) -> AttributeRefusedError:
    return AttributeRefusedError(reason, operator=name, kind="wrong-arguments", remedy=remedy)
