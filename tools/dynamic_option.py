"""Sizes that vary, as text: `x:0=batch:1:1000` says that dimension 0 of the input `x` is `batch`, 1 to 1000."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch.export import Dim
from torch.utils import _pytree as pytree

from ..errors import CompileError
from ..frontend.capture.export import callable_module
from .evaluate import Program

_FORM = re.compile(r"(?P<name>[^:=]+):(?P<dim>-?\d+)=(?P<size>[A-Za-z_]\w*)(?::(?P<low>\d+))?(?::(?P<high>\d+))?")


def read_dynamic(texts: Sequence[str], program: Program) -> Any:
    """What `torch.export.export` takes as `dynamic_shapes`, for a program and texts like the above.

    A range that is not given is 1 to 65535; the same size in several places has one range. Raises CompileError for a
    text of another form, an input that the program does not have, or a range that is none.
    """
    if not texts:
        return None
    wanted: dict[str, dict[int, Any]] = {}
    sizes: dict[str, Any] = {}
    for text in texts:
        found = _FORM.fullmatch(text)
        if found is None:
            raise CompileError(
                f"{text!r} is not INPUT:DIMENSION=SIZE[:MIN[:MAX]], as x:0=batch:1:1000", argument="dynamic"
            )
        size = found["size"]
        if size not in sizes:
            low, high = int(found["low"] or 1), int(found["high"] or 65535)
            if low >= high:
                raise CompileError(f"{size} lies in no range: {low} to {high}", argument="dynamic")
            sizes[size] = Dim(size, min=low, max=high)
        elif found["low"]:
            raise CompileError(f"the range of {size} is given twice", argument="dynamic")
        wanted.setdefault(found["name"], {})[int(found["dim"])] = sizes[size]
    module = callable_module(program.function)
    arguments = inspect.signature(module.forward).bind(*program.args, **program.kwargs).arguments
    names = _names(arguments, program.names)
    known: list[str] = []

    def spec(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return None
        known.append(next(names))
        given = {d % max(value.dim(), 1): s for d, s in wanted.get(known[-1], {}).items()}
        return {d: given.get(d) for d in range(value.dim())} if given else None

    shapes = pytree.tree_map(spec, dict(arguments))
    for name in wanted:
        if name not in known:
            raise CompileError(f"there is no input {name!r}; there are {', '.join(known)}", argument="dynamic")
    return shapes


def _names(arguments: dict[str, Any], given: Sequence[str]) -> Iterator[str]:
    """The names of the tensors in the arguments: those that the program gives them, or the parameters'."""
    count = 0
    for parameter, value in arguments.items():
        tensors = [t for t in pytree.tree_leaves(value) if isinstance(t, torch.Tensor)]
        for i, _ in enumerate(tensors):
            own = parameter if len(tensors) == 1 else f"{parameter}_{i}"
            yield given[count] if count < len(given) else own
            count += 1
