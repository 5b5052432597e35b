"""The types that payload values have: scalars, and tensors, tiles and registers of them."""

from __future__ import annotations

from collections import Counter
from math import prod
from typing import TypeAlias

from xdsl.dialects import builtin
from xdsl.ir import Attribute

from ..shapes.extents import SymbolAttr, extents_of, static, typical

Scalar: TypeAlias = builtin.AnyFloat | builtin.IntegerType | builtin.IndexType


def element_type(t: Attribute) -> Attribute:
    """The scalar type inside `t`: `f32` of `tensor<4xf32>`, `vector<4xf32>`, `memref<4xf32>` and `f32`."""
    if isinstance(t, builtin.TensorType | builtin.VectorType | builtin.MemRefType):
        return t.element_type  # pyright: ignore[reportUnknownVariableType, reportUnknownMemberType]
    return t


def with_element(t: Attribute, element: Attribute) -> Attribute:
    """`t` with another scalar inside: `tensor<4xi1, #l>` of (`tensor<4xf32, #l>`, `i1`), and `i1` of (`f32`, `i1`)."""
    if isinstance(t, builtin.TensorType):
        return builtin.TensorType(element, t.get_shape(), t.encoding)  # pyright: ignore[reportUnknownMemberType]
    if isinstance(t, builtin.VectorType):
        return builtin.VectorType(element, t.get_shape())
    return element


def shape_of(t: Attribute) -> tuple[int, ...]:
    """The shape of a tensor or vector type; `()` for a scalar. Raises ExtentError for a size known only at run
    time: `extents_of` is for places that take those."""
    return static(extents_of(t)) if isinstance(t, builtin.TensorType | builtin.VectorType) else ()  # pyright: ignore[reportUnknownArgumentType]


def element_bytes(t: Attribute) -> int:
    """The size in memory of one element of `t`; a boolean takes a byte, a complex number two floats."""
    e = element_type(t)
    if isinstance(e, builtin.ComplexType):
        return 2 * element_bytes(e.element_type)  # pyright: ignore[reportUnknownMemberType, reportUnknownArgumentType]
    if isinstance(e, builtin.IntegerType):
        return max(e.bitwidth // 8, 1)
    if isinstance(e, builtin.IndexType):
        return 8
    assert isinstance(e, builtin.AnyFloat), e
    return e.bitwidth // 8


def tensor_bytes(t: Attribute) -> int:
    """The size in memory of a whole tensor of type `t`; an estimate where a size is known only at run time."""
    return prod(map(typical, extents_of(t))) * element_bytes(t)


def same_elements(a: Attribute, b: Attribute) -> bool:
    """Whether tensors or memrefs of the types `a` and `b` have as many elements of the same type, so that one can be
    seen as the other."""
    return element_type(a) == element_type(b) and _count(a) == _count(b)


def _count(t: Attribute) -> tuple[int, Counter[SymbolAttr]]:
    """The product of the extents of `t` that are numbers, and the others."""
    extents = extents_of(t)
    symbols = Counter(e for e in extents if isinstance(e, SymbolAttr))
    return prod(e for e in extents if isinstance(e, int)), symbols


def is_tensor(t: Attribute) -> bool:
    """Whether `t` is a tensor type: a tensor, or a tile."""
    return isinstance(t, builtin.TensorType)


def is_vector(t: Attribute) -> bool:
    """Whether `t` is a vector type: registers of a thread."""
    return isinstance(t, builtin.VectorType)


def is_float(t: Attribute) -> bool:
    """Whether the scalar inside `t` is a float of any width."""
    return isinstance(element_type(t), builtin.AnyFloat)


def is_float8(t: Attribute) -> bool:
    """Whether the scalar inside `t` is a float of eight bits, which below the torch level is stored as a byte."""
    return isinstance(element_type(t), builtin.Float8E4M3FNType | builtin.Float8E5M2Type)


def is_low_precision(t: Attribute) -> bool:
    """Whether the scalar inside `t` is a float narrower than 32 bits: a storage type, on which nothing is computed."""
    e = element_type(t)
    return isinstance(e, builtin.AnyFloat) and e.bitwidth < 32
