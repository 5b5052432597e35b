"""Table of the element types: their names in the IR, in NumPy, PyTorch and CUDA, and their precision.

Every executor and printer reads this table. NumPy has no bf16: its arrays need the package ml_dtypes. Without the
package programs with bf16 compile, and cannot be executed on arrays.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from xdsl.dialects import builtin
from xdsl.dialects.builtin import ComplexType, IndexType, IntegerType, Signedness
from xdsl.ir import Attribute

from ..dialects.payload import element_type
from ..errors import ExecutionError


@dataclass(frozen=True)
class DType:
    """Element type of tensors, buffers or scalars.

    Fields:
        name: name in the IR, such as `bf16`.
        element: xDSL type.
        stored: NumPy type that stores an element; None if its package is not installed.
        bytes: size of an element.
        torch: name of the type in PyTorch.
        c: name of the type in CUDA source text; empty if no kernel computes on it.
        tensor_map: `CUtensorMapDataType` of the driver API, for TMA copies; None if there is none. Signed integers
            have the code of the unsigned type, because a copy only moves bits.
        host: C++ type in a standalone program, if the host compiler has no type `c`.
        fraction: number of bits of a random fraction in [0, 1) that the type holds exactly; None if it is no float.
        mantissa: stored bits of the mantissa of a float, or of each part of a complex number; None for integers.
    """

    name: str
    element: Attribute
    stored: np.dtype[Any] | None
    bytes: int
    torch: str = ""
    c: str = ""
    tensor_map: int | None = None
    host: str = ""
    fraction: int | None = None
    mantissa: int | None = None

    @property
    def numpy(self) -> np.dtype[Any]:
        """NumPy type that stores an element. Raises ExecutionError if its package is not installed."""
        if self.stored is None:
            raise ExecutionError(f"arrays of {self.name} need the package ml_dtypes, which is not installed")
        return self.stored

    @property
    def roundoff(self) -> float:
        """Largest relative error of rounding to this type, which must be a float or complex type."""
        assert self.mantissa is not None
        return 2.0 ** -(self.mantissa + 1)


def _unsigned(width: int) -> IntegerType:
    return IntegerType(width, Signedness.UNSIGNED)


def _bfloat16() -> np.dtype[Any] | None:
    try:
        import ml_dtypes
    except ModuleNotFoundError:
        return None
    return np.dtype(ml_dtypes.bfloat16)


_ROWS = (
    DType("f64", builtin.f64, np.dtype(np.float64), 8, "float64", "double", 8, fraction=24, mantissa=52),
    DType("f32", builtin.f32, np.dtype(np.float32), 4, "float32", "float", 7, fraction=24, mantissa=23),
    DType("f16", builtin.f16, np.dtype(np.float16), 2, "float16", "f16", 6, "Half", 10, 10),
    DType("bf16", builtin.bf16, _bfloat16(), 2, "bfloat16", "bf16", 9, "Brain", 7, 7),
    DType("i64", builtin.i64, np.dtype(np.int64), 8, "int64", "long long", 5),
    DType("i32", builtin.i32, np.dtype(np.int32), 4, "int32", "int", 3),
    DType("i16", builtin.i16, np.dtype(np.int16), 2, "int16", "short", 1),
    DType("i8", builtin.i8, np.dtype(np.int8), 1, "int8", "signed char", 0),
    DType("i1", builtin.i1, np.dtype(np.bool_), 1, "bool", "bool", 0),
    DType("ui8", _unsigned(8), np.dtype(np.uint8), 1, "uint8", "unsigned char", 0),
    DType("ui16", _unsigned(16), np.dtype(np.uint16), 2, "uint16", "unsigned short", 1),
    DType("ui32", _unsigned(32), np.dtype(np.uint32), 4, "uint32", "unsigned int", 2),
    DType("ui64", _unsigned(64), np.dtype(np.uint64), 8, "uint64", "unsigned long long", 4),
    DType("index", IndexType(), np.dtype(np.int64), 8, "int64", "long long"),
    # Only PyTorch computes on these.
    DType("complex<f32>", ComplexType(builtin.f32), np.dtype(np.complex64), 8, "complex64", mantissa=23),
    DType("complex<f64>", ComplexType(builtin.f64), np.dtype(np.complex128), 16, "complex128", mantissa=52),
)

DTYPES = {row.name: row for row in _ROWS}
"""Element types by their name in the IR."""

STRUCTS = {row.c: {1: "unsigned char", 2: "unsigned short"}[row.bytes] for row in _ROWS if row.host}
"""C types that are structs of bits (`f16`, `bf16`), each with the integer type that stores the bits."""

_BY_ELEMENT = {row.element: row for row in _ROWS}


def dtype_of(t: Attribute) -> DType:
    """Returns the record of the element type of `t`, a scalar, tensor, memref, tile or vector type.

    Raises:
        ExecutionError: if the element type is not in the table.
    """
    dtype = _BY_ELEMENT.get(element := element_type(t))
    if dtype is None:
        raise ExecutionError(f"no storage for elements of type {element}")
    return dtype


def numpy_dtype(t: Attribute) -> np.dtype[Any]:
    """Returns the NumPy type that stores an element of `t`.

    Raises:
        ExecutionError: if the element type is not in the table, or its package is not installed.
    """
    return dtype_of(t).numpy
