"""The parameters and buffers that a program was compiled with, as its module has them now."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from operator import is_
from typing import Any

import torch

from ..errors import ShapeError
from .capture.captured_program import Binding, CapturedProgram, kind_of

Link = tuple[dict[str, Any], str, Any]
"""The dictionary of a module, a name in it, and the tensor or submodule of that name."""


class ModuleState:
    """The tensors of a program in the module that it was compiled from, and the submodules that lead to them.

    Args:
        module: The module that was compiled.
        bindings: The arguments of the program.
    """

    def __init__(self, module: torch.nn.Module, bindings: Sequence[Binding]) -> None:
        self._module = module
        links = [link for b in bindings if _is_state(b) for link in _links(module, b.name)]
        links = list({(id(owner), name): (owner, name, value) for owner, name, value in links}.values())
        self._owners, self._names = [owner for owner, _, _ in links], [name for _, name, _ in links]
        self._values = [value for _, _, value in links]
        tensors = [(b, b.tensor) for b in bindings if _is_state(b) and b.tensor is not None]
        self._tensors = [(b, tensor, tensor.dtype, tensor.shape, tensor.device) for b, tensor in tensors]

    def is_current(self) -> bool:
        """Returns true if the module has the same tensors and submodules as before."""
        return all(map(is_, map(dict.get, self._owners, self._names), self._values))

    def check(self) -> None:
        """Raises ShapeError for a tensor that has become another one in place, as `module.half()` makes parameters."""
        for b, tensor, dtype, shape, device in self._tensors:
            if tensor.dtype != dtype or tensor.shape != shape or tensor.device != device:
                expected = _shown(torch.empty(shape, dtype=dtype, device="meta")).removesuffix("meta")
                raise _stale(b, f"expected {expected}{device}, but the module now has {_shown(tensor)}")

    def renewed(self, captured: CapturedProgram) -> CapturedProgram:
        """Returns the program with the tensors that the module has now.

        Raises ShapeError for a tensor that does not fit, and where a submodule is of another class.
        """
        classes = {(id(o), n): type(v) for o, n, v in zip(self._owners, self._names, self._values, strict=True)}

        def current(b: Binding) -> Binding:
            if not _is_state(b) or b.tensor is None:
                return b
            links = list(_links(self._module, b.name))
            tensor = links[-1][2]
            for owner, name, value in links[:-1]:
                if type(value) is not classes.get((id(owner), name), type(value)):
                    raise _stale(b, f"the submodule {name!r} is now a {type(value).__name__}")
            if not isinstance(tensor, torch.Tensor) or kind_of(tensor) is not None:
                raise _stale(b, "the module has no such tensor any more")
            if _shown(tensor) != _shown(b.tensor):
                raise _stale(b, f"expected {_shown(b.tensor)}, but the module now has {_shown(tensor)}")
            return replace(b, tensor=tensor)

        return replace(captured, bindings=tuple(map(current, captured.bindings)))


def _is_state(b: Binding) -> bool:
    return b.kind in ("parameter", "buffer")


def _links(module: torch.nn.Module, path: str) -> Iterator[Link]:
    """Yields the links from a module to a tensor; the last one has None if there is none."""
    *parents, leaf = path.split(".")
    for name in parents:
        yield module._modules, name, module._modules.get(name)
        child = module._modules.get(name)
        if child is None:
            return
        module = child
    owner: dict[str, Any] = module._parameters if leaf in module._parameters else module._buffers
    yield owner, leaf, owner.get(leaf)


def _shown(tensor: torch.Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)} on {tensor.device}"


def _stale(b: Binding, reason: str) -> ShapeError:
    return ShapeError(reason, argument=b.name, kind="stale-weights", remedy="compile the module again")
