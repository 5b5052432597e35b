"""Names of a program's arguments, and the differences between a call's arguments and the example ones."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import torch
from torch import nn
from torch.utils import _pytree as pytree


def parameter_names(function: Callable[..., Any], count: int) -> tuple[str, ...]:
    """Returns the names of the positional parameters of a module or function that is called with `count` arguments by
    position: `x`, and `args[0]` for those that a `*args` takes. Empty if PyTorch does not tell them."""
    called = function.forward if isinstance(function, nn.Module) else function
    try:
        parameters = list(inspect.signature(called).parameters.values())
    except (TypeError, ValueError):
        return ()
    names = [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    rest = next((p.name for p in parameters if p.kind is p.VAR_POSITIONAL), "argument")
    return (*names, *(f"{rest}[{i}]" for i in range(count - len(names))))


def leaf_names(parameters: Sequence[str], args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[str]:
    """Returns the name of each leaf of a call's arguments: `x`, `states[1]`, `batch['ids']`, or `input 0`."""
    paths, _ = pytree.tree_flatten_with_path((tuple(args), dict(kwargs)))
    names: list[str] = []
    for path, _ in paths:
        kind, first, *rest = cast("tuple[Any, ...]", path)
        if kind.idx == 1:
            name = str(first.key)
        else:
            name = parameters[first.idx] if first.idx < len(parameters) else f"input {first.idx}"
        names.append(f"{name}{pytree.keystr(tuple(rest))}")
    return names


def rearranged(
    parameters: Sequence[str], example: tuple[Sequence[Any], Mapping[str, Any]], args: Sequence[Any], kwargs: Any
) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
    """Returns a call's arguments by position and by name as in the example call, or None if they are others.

    Args:
        parameters: the names of the positional parameters.
        example: the arguments of the example call by position, and those by name.
        args, kwargs: the arguments of the call.
    """
    values = dict(zip(parameters, args, strict=False)) | dict(kwargs)
    names = [*parameters[: len(example[0])], *example[1]]
    if len(args) > len(parameters) or len(values) != len(args) + len(kwargs) or set(names) != set(values):
        return None
    return tuple(values[n] for n in names[: len(example[0])]), {n: values[n] for n in example[1]}


def structure_problem(
    parameters: Sequence[str], example: tuple[Sequence[Any], Mapping[str, Any]], args: Sequence[Any], kwargs: Any
) -> str:
    """Returns in words how the structure of a call's arguments differs from that of the example ones.

    Args:
        parameters: the names of the positional parameters.
        example: the arguments of the example call by position, and those by name.
        args, kwargs: the arguments of the call.
    """
    positional, named = example
    names = [parameters[i] if i < len(parameters) else f"input {i}" for i in range(len(positional))]
    unknown = [n for n in kwargs if n not in named and n not in names]
    takes = _count(
        len(positional) + len(named), all(isinstance(v, torch.Tensor) for v in (*positional, *named.values()))
    )
    listed = f"takes {takes} ({', '.join((*names, *(f'{n}=' for n in named)))})"
    if unknown:
        return f"{listed}, and no argument {', '.join(unknown)}"
    if len(args) + len(kwargs) != len(positional) + len(named):
        return f"{listed}, {len(args) + len(kwargs)} given"
    for name, value, wanted in (
        *zip(names, args, positional, strict=False),
        *((n, kwargs[n], named[n]) for n in named if n in kwargs),
    ):
        if pytree.tree_structure(value) != pytree.tree_structure(wanted):
            return f"{name}: expected {_described(wanted)}, but got {_described(value)}"
    return f"{listed}; the example call had the same names in another way"


def _count(number: int, tensors: bool) -> str:
    return f"{number} {'tensor' if tensors else 'argument'}{'' if number == 1 else 's'}"


def _described(value: Any) -> str:
    """The structure of an argument in words: `a tensor`, `a list of 3`, `a dict with the keys a, b`."""
    if isinstance(value, torch.Tensor):
        return "a tensor"
    if isinstance(value, Mapping):
        return f"a {type(value).__name__} with the keys {', '.join(map(str, value))}"
    if isinstance(value, tuple | list):
        return f"a {type(value).__name__} of {len(value)}"
    return "None" if value is None else f"{type(value).__name__} {value!r}"[:80]
