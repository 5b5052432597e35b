"""Operators of ATen by name. Versions of PyTorch have different operators: tables skip unknown names."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, TypeVar

import torch

T = TypeVar("T")


def operator_named(name: str) -> Any:
    """Returns the overload `relu.default`, or the operator `relu` with all its overloads, or None if unknown."""
    operator: Any = torch.ops.aten
    for part in name.split("."):
        operator = getattr(operator, part, None)
    return operator


def operators_named(names: Iterable[str]) -> tuple[Any, ...]:
    """Returns the operators that the installed PyTorch has of these names."""
    return tuple(operator for name in names if (operator := operator_named(name)) is not None)


def by_operator(table: Mapping[str, T]) -> dict[Any, T]:
    """Returns a table by name as a table by operator."""
    return {operator: value for name, value in table.items() if (operator := operator_named(name)) is not None}
