"""What decompositions share: operators of ATen by name, and helpers on tensors."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

import torch

Tensor = torch.Tensor
T = TypeVar("T")


def operator_named(name: str) -> Any:
    """Returns the overload `relu.default`, or the operator `relu` with all its overloads, or None if unknown."""
    operator: Any = torch.ops.aten
    for part in name.split("."):
        operator = getattr(operator, part, None)
    return operator


def operators_named(names: Iterable[str]) -> tuple[Any, ...]:
    """Returns the operators of these names that the installed PyTorch has; versions have different ones."""
    return tuple(operator for name in names if (operator := operator_named(name)) is not None)


def by_operator(table: Mapping[str, T]) -> dict[Any, T]:
    """Returns a table by name as a table by operator."""
    return {operator: value for name, value in table.items() if (operator := operator_named(name)) is not None}


def wide(x: Tensor) -> Tensor:
    """`x` in the type that sums are computed in."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


def along(values: Tensor, dim: int, rank: int) -> Tensor:
    """A vector as a tensor of `rank` dimensions that varies along `dim` only."""
    return values.reshape([-1 if d == dim else 1 for d in range(rank)])
