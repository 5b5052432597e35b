"""Values of an ONNX graph during a call: tensors, and host values.

A *host value* is a NumPy array that is computed on the host: the shape of a tensor and arithmetic on it. The elements
of a host value of type `object` are PyTorch's symbolic sizes. Rules take host values for axes, shapes and other
arguments that PyTorch wants as numbers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

import ml_dtypes
import numpy as np
import torch
from onnx import TensorProto, helper, numpy_helper

from ...errors import CompileError

HostArray: TypeAlias = "np.ndarray[Any, np.dtype[Any]]"


class OnnxError(CompileError):
    """An ONNX model cannot be read, or it has an operator, an attribute or a type that is not supported."""


DTYPES: dict[int, torch.dtype] = {
    TensorProto.FLOAT: torch.float32,
    TensorProto.UINT8: torch.uint8,
    TensorProto.INT8: torch.int8,
    TensorProto.UINT16: torch.uint16,
    TensorProto.INT16: torch.int16,
    TensorProto.INT32: torch.int32,
    TensorProto.INT64: torch.int64,
    TensorProto.BOOL: torch.bool,
    TensorProto.FLOAT16: torch.float16,
    TensorProto.DOUBLE: torch.float64,
    TensorProto.UINT32: torch.uint32,
    TensorProto.UINT64: torch.uint64,
    TensorProto.BFLOAT16: torch.bfloat16,
    TensorProto.FLOAT8E4M3FN: torch.float8_e4m3fn,
    TensorProto.FLOAT8E5M2: torch.float8_e5m2,
    TensorProto.COMPLEX64: torch.complex64,
    TensorProto.COMPLEX128: torch.complex128,
}
"""Number of an element type in ONNX -> the type of PyTorch."""

NUMBERS = {dtype: number for number, dtype in DTYPES.items()}
_BITS = {
    np.dtype(ml_dtypes.bfloat16): (np.int16, torch.bfloat16),
    np.dtype(ml_dtypes.float8_e4m3fn): (np.uint8, torch.float8_e4m3fn),
    np.dtype(ml_dtypes.float8_e5m2): (np.uint8, torch.float8_e5m2),
}
"""Element types that NumPy has by an extension -> the type of their bits, and the type of PyTorch."""


def dtype_of(number: int) -> torch.dtype:
    """Returns the type of PyTorch for the number of an element type in ONNX. Raises OnnxError if there is none."""
    if number not in DTYPES:
        name = TensorProto.DataType.Name(number) if number in TensorProto.DataType.values() else str(number)
        raise OnnxError(f"expected numbers of 8 bits or more, but got the element type {name}")
    return DTYPES[number]


@dataclass(frozen=True)
class Stored:
    """A constant of the graph: an array, and the name of the module's buffer with the same elements."""

    array: HostArray
    buffer: str


Value: TypeAlias = "torch.Tensor | HostArray | Stored | None"
"""A value of the graph; None for an optional input that is left out."""

Env: TypeAlias = dict[str, Value]
"""Name -> value, inside of one graph or function."""


def array_of(tensor: TensorProto, folder: str = "") -> HostArray:
    """Returns the elements of a tensor of a model.

    Args:
        tensor: the tensor.
        folder: folder of files with external data.

    Raises:
        OnnxError: if the bytes do not fit the type and shape.
    """
    dtype_of(tensor.data_type)
    try:
        return np.array(numpy_helper.to_array(tensor, folder))
    except Exception as error:  # onnx raises errors of many kinds for damaged files
        raise OnnxError(f"the constant {tensor.name!r} cannot be read: {' '.join(str(error).split())[:150]}") from None


def to_tensor(array: HostArray) -> torch.Tensor:
    """Returns a host value as a tensor. Symbolic sizes become int64."""
    if array.dtype == object:
        flat = [torch.scalar_tensor(size, dtype=torch.int64) for size in array.reshape(-1)]
        return torch.stack(flat).reshape(array.shape) if flat else torch.zeros(array.shape, dtype=torch.int64)
    if array.dtype in _BITS:
        bits, dtype = _BITS[array.dtype]
        return torch.from_numpy(np.array(array).view(bits)).view(dtype)
    return torch.from_numpy(np.array(array))


def to_array(tensor: torch.Tensor) -> HostArray:
    """Returns the elements of a tensor as a NumPy array. The tensor must not be a fake tensor of tracing."""
    for stored, (bits, dtype) in _BITS.items():
        if tensor.dtype == dtype:
            return tensor.view(DTYPES[helper.np_dtype_to_tensor_dtype(np.dtype(bits))]).numpy().view(stored)
    return tensor.numpy()


def numbers(value: HostArray) -> list[Any]:
    """Returns the elements of a host value, which may be symbolic sizes, as Python numbers."""
    return [e if value.dtype == object else e.item() for e in np.asarray(value).reshape(-1)]


def number(value: HostArray) -> Any:
    """Returns the only element of a host value."""
    (only,) = numbers(value)
    return only
