"""Values of an ONNX graph during a call: tensors, and host values.

A *host value* is a NumPy array that is computed on the host: the shape of a tensor and arithmetic on it. The elements
of a host value of type `object` are PyTorch's symbolic sizes. Rules take host values for axes, shapes and other
arguments that PyTorch wants as numbers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import torch
from onnx import TensorProto, helper, numpy_helper

from ...backend.dtypes import DTYPES as ROWS
from ...errors import CompileError
from ...frontend.capture.arrays import to_torch

HostArray: TypeAlias = np.ndarray[Any, np.dtype[Any]]

LARGEST_KNOWN = 64
"""Largest number of elements of a host value that arithmetic on the host yields or takes."""


MOST_DIMENSIONS = 64
"""Dimensions of a tensor, as in PyTorch and NumPy."""


class OnnxError(CompileError):
    """An ONNX model cannot be read, or it has an operator, an attribute or a type that is not supported."""


DTYPES: dict[int, torch.dtype] = {
    int(helper.np_dtype_to_tensor_dtype(row.numpy)): getattr(torch, row.torch) for row in ROWS.values() if row.torch
} | {TensorProto.FLOAT8E4M3FN: torch.float8_e4m3fn, TensorProto.FLOAT8E5M2: torch.float8_e5m2}
"""Number of an element type in ONNX -> the type of PyTorch."""

NUMBERS = {dtype: number for number, dtype in DTYPES.items()}


def dtype_of(number: int) -> torch.dtype:
    """Returns the type of PyTorch for the number of an element type in ONNX. Raises OnnxError if there is none."""
    if number not in DTYPES:
        name = TensorProto.DataType.Name(number) if number in TensorProto.DataType.values() else str(number)
        remedy = "convert the model to another type"
        raise OnnxError(f"expected numbers of 8 bits or more, but got the element type {name}", remedy=remedy)
    return DTYPES[number]


@dataclass(frozen=True)
class Stored:
    """A constant of the graph: an array, and the name of the module's buffer with the same elements."""

    array: HostArray
    buffer: str


Value: TypeAlias = torch.Tensor | HostArray | Stored | None
"""A value of the graph; None for an optional input that is left out."""

Env: TypeAlias = dict[str, Value]
"""Name -> value, inside of one graph or function."""


def array_of(tensor: TensorProto) -> HostArray:
    """Returns the elements of a tensor of a model.

    Raises:
        OnnxError: if the bytes do not fit the type and shape, or are in another file.
    """
    dtype_of(tensor.data_type)
    if tensor.data_location == TensorProto.EXTERNAL:
        raise OnnxError(f"the elements of {tensor.name!r} are in another file; pass the path of the model instead")
    try:
        return np.array(numpy_helper.to_array(tensor))
    except Exception as error:  # onnx raises errors of many kinds for damaged files
        raise OnnxError(f"the constant {tensor.name!r} cannot be read: {reason_of(error)}") from None


def shown(name: str) -> str:
    """Returns a name of a file in one line of at most 80 characters, with unprintable characters escaped."""
    return repr(name)[1:-1][:80]


def reason_of(error: BaseException) -> str:
    """Returns the text of an error in one line, or its type if it has none. Unprintable characters are escaped."""
    words = " ".join(str(error).split())[:200]
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in words) or type(error).__name__


def to_tensor(array: HostArray) -> torch.Tensor:
    """Returns a host value as a tensor. Symbolic sizes become int64."""
    if array.dtype == object:
        flat = [torch.scalar_tensor(size, dtype=torch.int64) for size in array.reshape(-1)]
        return torch.stack(flat).reshape(array.shape) if flat else torch.zeros(array.shape, dtype=torch.int64)
    return to_torch(array)


def axis_of(axis: int, rank: int) -> int:
    """Returns an axis counted from the first one. Raises OnnxError if a tensor of that rank does not have it."""
    if not -rank <= axis < rank:
        raise OnnxError(f"expected an axis from {-rank} to {rank - 1}, but got {axis}")
    return int(axis) % rank


def numbers(value: HostArray) -> list[Any]:
    """Returns the elements of a host value, which may be symbolic sizes, as Python numbers."""
    return [e if value.dtype == object else e.item() for e in np.asarray(value).reshape(-1)]


def sizes_of(value: HostArray) -> list[Any]:
    """Returns the elements of a host value that has one for each dimension. Raises OnnxError if there are too many."""
    if value.size > MOST_DIMENSIONS:
        raise OnnxError(f"expected tensors of at most {MOST_DIMENSIONS} dimensions, but got {value.size}")
    return numbers(value)


def number(value: HostArray) -> Any:
    """Returns the only element of a host value."""
    (only,) = numbers(value)
    return only
