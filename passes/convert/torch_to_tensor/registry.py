"""Decompositions of ATen operators into the tensor level, one file a family.

A decomposition is a function that takes a `Builder` and the operator's arguments under their ATen names, and returns
the result (or results; those that an overload does not have are left away). It is entered in the table by a decorator:

```
@decomposes("relu")
def relu(b: Builder, self: SSAValue) -> SSAValue:
    x = b.working(self)
    return b.maximum(x, b.like(x, 0))
```
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from importlib import import_module
from inspect import signature
from keyword import iskeyword
from pathlib import Path
from pkgutil import iter_modules
from typing import TypeAlias, TypeVar

from xdsl.ir import SSAValue

from ....plugins import plugins

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


ENTRY_POINT_GROUP = "deplodock.decompositions"
"""Entry points of this group, each naming a module that enters decompositions, are third-party operators."""


@cache
def get_decompositions() -> Mapping[str, Decomposition]:
    """Every decomposition by overload name (`"add.Tensor"`), those of plugins included. Raises PluginError."""
    assert __package__ is not None
    for family in iter_modules([str(Path(__file__).parent)]):
        import_module(f".{family.name}", __package__)
    for load in plugins(ENTRY_POINT_GROUP, (), "decomposition").values():
        load()
    return dict(sorted(DECOMPOSITIONS.items()))


def argument_names(function: Callable[..., object]) -> tuple[str, ...]:
    """The ATen arguments that a decomposition takes: all its parameters but the builder, and those that are bound."""
    found = signature(function).parameters.values()
    names = tuple(p.name for p in found if p.kind is not p.KEYWORD_ONLY)[1:]
    return tuple(n.removesuffix("_") if iskeyword(n.removesuffix("_")) else n for n in names)


def parameter_name(argument: str) -> str:
    """The name of a decomposition's parameter for an ATen argument: `from_` for `from`."""
    return f"{argument}_" if iskeyword(argument) else argument
