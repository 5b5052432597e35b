"""Shared helpers of decompositions: look-up of ATen operators by name, and functions on tensors."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

import torch

Tensor = torch.Tensor
T = TypeVar("T")


def operator_named(name: str, namespace: str = "aten") -> Any:
    """Returns the overload `relu.default`, or the operator `relu` with all its overloads, or None if unknown."""
    operator: Any = getattr(torch.ops, namespace)
    for part in name.split("."):
        operator = getattr(operator, part, None)
    return operator


def operators_named(names: Iterable[str]) -> tuple[Any, ...]:
    """Returns the operators with these names. Names that the installed version of PyTorch does not have are skipped."""
    return tuple(operator for name in names if (operator := operator_named(name)) is not None)


def by_operator(table: Mapping[str, T], namespace: str = "aten") -> dict[Any, T]:
    """Returns a table keyed by operator, from a table keyed by name."""
    operators = {operator_named(name, namespace): value for name, value in table.items()}
    return {operator: value for operator, value in operators.items() if operator is not None}


def wide(x: Tensor) -> Tensor:
    """Casts `x` to the type in which sums are computed: at least f32."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


def along(values: Tensor, dim: int, rank: int) -> Tensor:
    """Reshapes a vector for broadcasting along one dimension.

    Args:
        values: the vector.
        dim: dimension that the vector varies along.
        rank: number of dimensions of the result; all others have size 1.
    """
    return values.reshape([-1 if d == dim else 1 for d in range(rank)])
