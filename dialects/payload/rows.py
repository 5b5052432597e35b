"""Rows of tensors in memory, as scans read and write one in each step."""

from __future__ import annotations

from collections.abc import Iterable
from math import prod

from xdsl.ir import Attribute

from ..shapes.extents import Extent, SymbolAttr, extents_of, fixed, static
from . import element_bytes, element_type

ALIGNMENT = 16
"""Minimum alignment in bytes of every buffer that a kernel receives: its widest access."""


def padded_row(t: Attribute) -> tuple[Extent, ...]:
    """Returns the shape of the shortest row, as `kernel.slice` needs it, that holds a tensor of type `t`.

    A tensor of a multiple of 16 bytes keeps its shape. Otherwise the row is one-dimensional and padded at its end. With
    symbolic sizes, the last dimension is padded. Raises ExtentError if the last dimension is symbolic.
    """
    size, shape = element_bytes(element_type(t)), extents_of(t)
    if static_product(shape) * size % ALIGNMENT == 0:
        return shape
    *outer, last = shape if any(isinstance(e, SymbolAttr) for e in shape) else [prod(static(shape))]
    row_multiple = ALIGNMENT // size
    return (*outer, -(-fixed(last) // row_multiple) * row_multiple)


def static_product(shape: Iterable[Extent]) -> int:
    """Returns the product of the static extents, which divides the number of elements."""
    return prod(e for e in shape if isinstance(e, int))
