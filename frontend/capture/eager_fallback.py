"""Operators that are left to PyTorch, on request: opaque calls inside of a compiled program.

With `fallback="eager"` an operator that would be refused becomes a call of a function that is only declared; the launch
plan has it as a step between launches, and PyTorch computes it on the same tensors. Nothing is left to PyTorch without
being asked for, and what was is listed with the reason.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch.fx import Node
from torch.utils import _pytree as pytree
from xdsl.dialects.builtin import ComplexType, f32, f64
from xdsl.ir import Attribute

from ...errors import ExecutionError, one_line

Fallback = Literal["eager"] | None
"""What happens to operators that cannot be compiled: None refuses them, `"eager"` leaves them to PyTorch."""

COMPLEX_TYPES: dict[torch.dtype, Attribute] = {torch.complex64: ComplexType(f32), torch.complex128: ComplexType(f64)}
"""Data types that nothing of ours computes on, but that PyTorch may pass on to itself."""


class FallbackWarning(UserWarning):
    """Some operators of a program are left to PyTorch."""


@dataclass(frozen=True)
class Operand:
    """Stands for the tensor operand `index` among the arguments of an operator."""

    index: int


@dataclass(frozen=True)
class EagerCall:
    """An operator with all of its arguments but the tensors; calling it with those gives the list of its results.

    `reason` says why it was not compiled, `location` where it was written, `call` what the user wrote.
    """

    overload: torch._ops.OpOverload
    leaves: tuple[Any, ...]
    spec: pytree.TreeSpec
    reason: str
    location: str | None
    call: str | None = None

    @property
    def operator(self) -> str:
        """The operator's name: `aten.linalg_inv_ex`."""
        return str(self.overload).removesuffix(".default")

    def __call__(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Compute it. Raises ExecutionError for whatever PyTorch raises."""
        given = [tensors[leaf.index] if isinstance(leaf, Operand) else leaf for leaf in self.leaves]
        args, kwargs = pytree.tree_unflatten(given, self.spec)
        try:
            with torch.no_grad():
                results = pytree.tree_leaves(self.overload(*args, **kwargs))
        except Exception as error:  # whatever the operator raises
            place = {"operator": self.operator, "call": self.call, "location": self.location}
            raise ExecutionError(one_line(error), **place, kind="wrong-program") from error
        return [r for r in results if r is not None]

    def __str__(self) -> str:
        place = f"{self.location}: " if self.location else ""
        return f"{place}{self.call or self.operator} is left to PyTorch: {self.reason}"

    @property
    def key(self) -> object:
        """Equal for calls that do the same, wherever they are."""
        return self.overload, repr(self.leaves), self.spec

    @property
    def stem(self) -> str:
        """The operator's name as part of a symbol's."""
        return "eager_" + re.sub(r"[^a-z0-9_]", "_", self.overload._schema.name.partition("::")[2].lower())


def has_effects(node: Node) -> bool:
    """Whether `node` is a call that PyTorch keeps in order: (token, operator, arguments) -> (token, results)."""
    return node.target is torch.ops.higher_order.with_effects
