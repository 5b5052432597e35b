"""Eager calls: operators that PyTorch computes inside a compiled program.

Such an operator becomes a call of a declared function without a body. The launch plan runs the call as a step between
launches, on the same tensors, by PyTorch. There are two kinds:

- With `fallback="eager"`, an operator that would be refused. A warning lists these calls with the reasons.
- An operator that PyTorch computes by design, such as a collective (`features/collectives.py`).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch.fx import GraphModule, Node
from torch.utils import _pytree as pytree
from xdsl.dialects.builtin import ComplexType, f32, f64
from xdsl.ir import Attribute

from ...errors import ExecutionError, one_line

Fallback = Literal["eager"] | None
"""Treatment of operators that cannot be compiled: None refuses them, `"eager"` lets PyTorch compute them."""

COMPLEX_TYPES: dict[torch.dtype, Attribute] = {torch.complex64: ComplexType(f32), torch.complex128: ComplexType(f64)}
"""Complex data types. Only eager calls have operands or results of these types."""


class FallbackWarning(UserWarning):
    """Warning that PyTorch computes some operators of a program."""


@dataclass(frozen=True)
class Operand:
    """Placeholder for tensor operand number `index` in the arguments of an operator."""

    index: int


@dataclass(frozen=True)
class EagerCall:
    """Operator with all of its arguments except the tensors. A call with the tensors returns the list of its results.

    Attributes:
        overload: the operator.
        leaves: flattened arguments, with an `Operand` for each tensor.
        spec: structure of the arguments, positional and by name.
        reason: why the operator is not compiled; empty if PyTorch computes it by design.
        location: `file:line` in the user's source, or None.
        call: source text of the user's call, or None.
    """

    overload: torch._ops.OpOverload
    leaves: tuple[Any, ...]
    spec: pytree.TreeSpec
    reason: str
    location: str | None
    call: str | None = None

    @property
    def operator(self) -> str:
        """Name of the operator: `aten.linalg_inv_ex`."""
        return str(self.overload).removesuffix(".default")

    def __call__(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Computes the operator without gradients. Raises ExecutionError for any error of PyTorch."""
        leaves = [tensors[leaf.index] if isinstance(leaf, Operand) else leaf for leaf in self.leaves]
        args, kwargs = pytree.tree_unflatten(leaves, self.spec)
        try:
            with torch.no_grad():
                results = pytree.tree_leaves(self.compute(*args, **kwargs))
        except Exception as error:
            place = {"operator": self.operator, "call": self.call, "location": self.location}
            raise ExecutionError(one_line(error), **place, kind="wrong-program") from error
        return [r for r in results if r is not None]

    def compute(self, *args: Any, **kwargs: Any) -> Any:
        """Returns the result of the operator. Raises any error of PyTorch."""
        return self.overload(*args, **kwargs)

    def __str__(self) -> str:
        place = f"{self.location}: " if self.location else ""
        how = f"left to PyTorch: {self.reason}" if self.reason else "a step of PyTorch"
        return f"{place}{self.call or self.operator} is {how}"

    @property
    def arguments(self) -> str:
        """Text of the arguments in their order, with `%i` for tensor operand i: `%0, 'sum', '0'`."""
        leaves = [leaf for leaf in self.leaves if not isinstance(leaf, torch._ops.OpOverload | GraphModule)]
        return ", ".join(f"%{leaf.index}" if isinstance(leaf, Operand) else repr(leaf) for leaf in leaves)

    @property
    def key(self) -> object:
        """Key that is equal for calls of the same operator with the same arguments, independent of their locations."""
        return self.overload, repr(self.leaves), self.spec

    @property
    def stem(self) -> str:
        """Beginning of the symbol name of the call's function: `eager_linalg_inv_ex`."""
        return "eager_" + re.sub(r"[^a-z0-9_]", "_", self.overload._schema.name.partition("::")[2].lower())


def has_effects(node: Node) -> bool:
    """Returns true if `node` wraps an operator with side effects.

    PyTorch passes a token through such nodes to keep their order: (token, operator, arguments) -> (token, results).
    """
    return node.target is torch.ops.higher_order.with_effects
