"""Names of a program's arguments, and differences between the arguments of a call and the example arguments."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

import torch
from torch import nn
from torch.utils import _pytree as pytree


def parameter_names(function: Callable[..., Any], count: int) -> tuple[str, ...]:
    """Returns the names of a callable's positional parameters, for a call with `count` arguments by position.

    Arguments taken by `*args` are called `args[0]`, `args[1]`, ... The tuple is empty if the callable has no signature.
    """
    called = function.forward if isinstance(function, nn.Module) else function
    try:
        parameters = list(inspect.signature(called).parameters.values())
    except (TypeError, ValueError):
        return ()
    names = [p.name for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    variadic = next((p.name for p in parameters if p.kind is p.VAR_POSITIONAL), "argument")
    return (*names, *(f"{variadic}[{i}]" for i in range(count - len(names))))


def leaf_names(parameters: Sequence[str], args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[str]:
    """Returns the name of each leaf of a call's arguments: `x`, `states[1]`, `batch['ids']`, or `input 0`.

    Args:
        parameters: names of the positional parameters.
        args: arguments by position.
        kwargs: arguments by name.
    """
    paths, _ = pytree.tree_flatten_with_path((tuple(args), dict(kwargs)))
    names: list[str] = []
    for path, _ in paths:
        kind, first, *inner = cast("tuple[Any, ...]", path)
        if kind.idx == 1:
            name = str(first.key)
        else:
            name = parameters[first.idx] if first.idx < len(parameters) else f"input {first.idx}"
        names.append(f"{name}{pytree.keystr(tuple(inner))}")
    return names


def rearranged(
    parameters: Sequence[str], example: tuple[Sequence[Any], Mapping[str, Any]], args: Sequence[Any], kwargs: Any
) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
    """Moves arguments between positions and names, so that a call has the form of the example call.

    If the example call was `f(x, 2)`, the call `f(x, scale=3)` gives `((x, 3), {})`.

    Args:
        parameters: names of the positional parameters.
        example: arguments of the example call by position, and by name.
        args, kwargs: arguments of the call.

    Returns:
        Arguments by position and by name, or None if the call has other parameters than the example call.
    """
    values = dict(zip(parameters, args, strict=False)) | dict(kwargs)
    names = [*parameters[: len(example[0])], *example[1]]
    if len(args) > len(parameters) or len(values) != len(args) + len(kwargs) or set(names) != set(values):
        return None
    return tuple(values[n] for n in names[: len(example[0])]), {n: values[n] for n in example[1]}


def structure_problem(
    parameters: Sequence[str], example: tuple[Sequence[Any], Mapping[str, Any]], args: Sequence[Any], kwargs: Any
) -> str:
    """Returns a message: the difference between the structures of a call's arguments and of the example arguments.

    Args:
        parameters: names of the positional parameters.
        example: arguments of the example call by position, and by name.
        args, kwargs: arguments of the call.
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
    for name, value, expected in (
        *zip(names, args, positional, strict=False),
        *((n, kwargs[n], named[n]) for n in named if n in kwargs),
    ):
        if pytree.tree_structure(value) != pytree.tree_structure(expected):
            return f"{name}: expected {_described(expected)}, but got {_described(value)}"
    return f"{listed}; the example call had the same names in another way"


def _count(number: int, tensors: bool) -> str:
    return f"{number} {'tensor' if tensors else 'argument'}{'' if number == 1 else 's'}"


def _described(value: Any) -> str:
    """Returns the structure of an argument in words: `a tensor`, `a list of 3`, `a dict with the keys a, b`."""
    if isinstance(value, torch.Tensor):
        return "a tensor"
    if isinstance(value, Mapping):
        return f"a {type(value).__name__} with the keys {', '.join(map(str, value))}"
    if isinstance(value, tuple | list):
        return f"a {type(value).__name__} of {len(value)}"
    return "None" if value is None else f"{type(value).__name__} {value!r}"[:80]
