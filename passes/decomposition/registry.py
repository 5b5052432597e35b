"""The table of decompositions, and the decorator that fills it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias, TypeVar

from xdsl.ir import SSAValue

Results: TypeAlias = SSAValue | Sequence[SSAValue]
Decomposition: TypeAlias = Callable[..., Results]

Function = TypeVar("Function", bound=Decomposition)

DECOMPOSITIONS: dict[str, Decomposition] = {}
"""Overload -> decomposition."""


def decomposes(*overloads: str) -> Callable[[Function], Function]:
    """Enter the decorated function as the decomposition of `overloads`, none of which may have one yet."""

    def enter(function: Function) -> Function:
        for overload in overloads:
            if overload in DECOMPOSITIONS:
                raise ValueError(f"two decompositions of {overload}")
            DECOMPOSITIONS[overload] = function
        return function

    return enter
