"""Which kernels a kernel stands for: its own launch, or those of several that became one."""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.dialects.builtin import ArrayAttr, StringAttr
from xdsl.utils.hints import isa

from ...dialects import kernel

_PARTS = "parts"
"""The attribute of a kernel that names the kernels it stands for, in the order of their blocks."""


def parts_of(function: kernel.FuncOp) -> tuple[str, ...]:
    """The names of the kernels that `function` stands for: its own, unless it was made of others."""
    parts = function.attributes.get(_PARTS)
    return tuple(p.data for p in parts) if isa(parts, ArrayAttr[StringAttr]) else (function.sym_name.data,)


def set_parts(function: kernel.FuncOp, parts: Sequence[str]) -> None:
    """`function` stands for the kernels of these names."""
    function.attributes[_PARTS] = ArrayAttr([StringAttr(part) for part in parts])


def has_parts(function: kernel.FuncOp) -> bool:
    """Whether `function` was made of other kernels."""
    return _PARTS in function.attributes
