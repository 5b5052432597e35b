"""Variables of Python functions, and the modules among them."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from types import CellType
from typing import Any

from torch import nn


def variables_of(function: Callable[..., Any]) -> dict[str, Any]:
    """Returns what a function, a method or another callable object is known to read besides its arguments, by name."""
    if isinstance(function, functools.partial):
        return variables_of(function.func) | {"arguments": function.args, **function.keywords}
    if inspect.ismethod(function):
        owner = function.__self__
        fields = {} if isinstance(owner, nn.Module) else getattr(owner, "__dict__", {})
        return variables_of(function.__func__) | fields | {"self": owner}
    if not inspect.isfunction(function):
        method = function.__call__
        return variables_of(method) if inspect.ismethod(method) else {}
    code, cells = inspect.unwrap(function).__code__, inspect.unwrap(function).__closure__ or ()
    known = {name: function.__globals__[name] for name in code.co_names if name in function.__globals__}
    return known | {n: c.cell_contents for n, c in zip(code.co_freevars, cells, strict=True) if c != CellType()}


def modules_of(function: Callable[..., Any]) -> dict[str, nn.Module]:
    """Returns a module itself, or the modules among the variables of a function, also in lists, tuples and
    dictionaries. Keys are prefixes for the names of their tensors."""
    if isinstance(function, nn.Module):
        return {"": function}
    variables = variables_of(function)
    modules = {name: value for name, value in variables.items() if isinstance(value, nn.Module)}
    for name, value in variables.items():
        items = (
            value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list | tuple) else ()
        )
        modules |= {f"{name}.{key}": inner for key, inner in items if isinstance(inner, nn.Module)}
    return modules
