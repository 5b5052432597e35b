"""Types of StableHLO as types of the tensor dialect."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from jaxlib.mlir import ir
from xdsl.dialects.builtin import IntegerType, bf16, f16, f32, f64, i1
from xdsl.ir import Attribute

from ...dialects.shapes.extents import Extent, tensor_of
from ...errors import UnsupportedError

_WIDTHS = (8, 16, 32, 64)

_ELEMENTS: dict[str, Attribute] = {
    **{"f64": f64, "f32": f32, "f16": f16, "bf16": bf16, "i1": i1},
    **{f"{sign}{width}": IntegerType(width) for sign in ("i", "ui") for width in _WIDTHS},
}
"""Element type of StableHLO -> element type of the tensor dialect."""

MOST_ELEMENTS = 1 << 40
"""Elements of the largest tensor that a program may declare. A larger one is a mistake, or a hostile file."""


@dataclass(frozen=True)
class HloType:
    """Type of a value of StableHLO.

    Attributes:
        element: element type of the tensor dialect. An unsigned integer is the signless one with the same bits.
        dims: sizes, None where a size is known only at run time.
        unsigned: whether the elements are unsigned integers.
    """

    element: Attribute
    dims: tuple[int | None, ...]
    unsigned: bool = False

    @property
    def shape(self) -> tuple[int, ...]:
        """The sizes. Raises UnsupportedError for a size that is known only at run time."""
        if None in self.dims:
            raise UnsupportedError("expected a static shape, but got a size that is known only at run time")
        return tuple(n for n in self.dims if n is not None)

    @property
    def is_static(self) -> bool:
        return None not in self.dims

    def accepts(self, extents: tuple[Extent, ...]) -> bool:
        """Returns true if a tensor of this type can have these extents."""
        return len(extents) == len(self.dims) and all(n in (None, e) for n, e in zip(self.dims, extents, strict=True))

    def __str__(self) -> str:
        shape = "x".join("?" if n is None else str(n) for n in self.dims)
        return f"{shape}{'x' if shape else ''}{'u' if self.unsigned else ''}{self.element}"


def type_of(value: ir.Value) -> HloType:
    """Returns the type of a value.

    Raises:
        UnsupportedError: for a type that is no tensor, an element type such as `complex<f32>`, or a tensor with more
            than `MOST_ELEMENTS` elements.
    """
    try:
        ranked = ir.RankedTensorType(value.type)
    except ValueError:
        raise UnsupportedError(f"expected a ranked tensor, but got {value.type}") from None
    name = str(ranked.element_type)
    if name not in _ELEMENTS:
        remedy = "compute with real and imaginary parts" if name.startswith("complex") else "convert it before the call"
        raise UnsupportedError(f"elements of type {name} are not supported", remedy=remedy)
    dims = tuple(None if ranked.is_dynamic_dim(d) else ranked.get_dim_size(d) for d in range(ranked.rank))
    elements = prod(n for n in dims if n is not None)
    if elements > MOST_ELEMENTS:
        raise UnsupportedError(f"expected at most {MOST_ELEMENTS} elements, but got {elements}, of {value.type}")
    return HloType(_ELEMENTS[name], dims, name.startswith("ui"))


def static_type(type: HloType) -> Attribute:
    """Returns the type of the tensor dialect for a type with a static shape."""
    return tensor_of(type.element, type.shape)
