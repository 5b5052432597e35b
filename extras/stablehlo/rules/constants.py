"""Rules of constants and iota.

A constant with equal elements is a `payload.constant`. Other constants are arguments of `@main`, whose values the
compiled program keeps.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import ml_dtypes
import numpy as np
from jaxlib.mlir import ir
from xdsl.dialects.builtin import i1, i64
from xdsl.ir import SSAValue

from ....backend.dtypes import numpy_dtype
from ....dialects.payload import is_float
from ....dialects.shapes.extents import Extent
from ..registry import Builder, HloOperation, rule


def array_of(op: HloOperation) -> np.ndarray:
    """Returns the value of a `stablehlo.constant` as an array of the signless type."""
    attribute, type = op.attribute("value"), op.results[0]
    dtype = numpy_dtype(type.element)
    if isinstance(attribute, ir.DenseElementsAttr) and attribute.is_splat:
        return np.broadcast_to(_scalar(str(attribute.get_splat_value()), dtype), type.shape)
    if not isinstance(attribute, ir.DenseElementsAttr):
        raise op.refuse(f"expected a dense constant, but got {str(attribute)[:40]}")
    if dtype == ml_dtypes.bfloat16:
        # NumPy does not have the type, so the bindings have no buffer of it.
        elements = [_scalar(str(attribute[i]), dtype) for i in range(len(attribute))]  # pyright: ignore
        return np.array(elements, dtype).reshape(type.shape)
    return np.array(attribute).reshape(type.shape).view(dtype)


def _scalar(text: str, dtype: np.dtype) -> np.ndarray:
    """Returns the number in the text of an attribute: `7.0e+00 : f32`, `0xFF80 : bf16`, `255 : ui8` or `true`."""
    number = text.split(":")[0].strip()
    if number in ("true", "false"):
        return np.array(number == "true", dtype)
    if dtype.kind in "iub":
        return np.array(int(number), np.int64 if int(number) < 1 << 63 else np.uint64).astype(dtype)
    if re.fullmatch(r"0x[0-9A-Fa-f]+", number):
        return np.array(int(number, 16), f"u{dtype.itemsize}").view(dtype)
    return np.array(float(number), np.float64).astype(dtype)


@rule("stablehlo.constant")
def constant(b: Builder, op: HloOperation) -> SSAValue:
    attribute = op.attribute("value")
    if isinstance(attribute, ir.DenseElementsAttr) and attribute.is_splat:
        number = _scalar(str(attribute.get_splat_value()), numpy_dtype(op.element))
        return b.constant(number.item(), op.shape, op.element)
    array = array_of(op)
    bits = array.reshape(-1).view(f"u{array.itemsize}")
    if (bits == bits[:1]).all():
        return b.constant(array.reshape(-1)[0].item() if array.size else 0, op.shape, op.element)
    if len(op.shape) == 1 and array.dtype.kind == "i" and len(set(np.diff(array.astype(np.int64)).tolist())) == 1:
        start, step = int(array[0]), int(array[1]) - int(array[0])
        return b.cast(b.plus(b.scaled(b.iota(0, op.shape, i64), step), start), op.element)
    return op.scope.table(array, op.results[0])


@rule("stablehlo.iota")
def iota(b: Builder, op: HloOperation) -> SSAValue:
    return numbers_along(b, op, op.shape)


def numbers_along(b: Builder, op: HloOperation, shape: Sequence[Extent]) -> SSAValue:
    """Returns the index along the dimension of an iota.

    Args:
        b: builder of the operation.
        op: the iota.
        shape: shape of the result.
    """
    integers = i64 if is_float(op.element) or op.element == i1 else op.element
    return b.cast(b.iota(op.int("iota_dimension"), shape, integers), op.element)
