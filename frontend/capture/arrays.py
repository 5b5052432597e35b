"""Conversions: PyTorch tensors to NumPy arrays and back, and PyTorch data types to element types of the IR and back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import torch
from torch.fx import Node
from xdsl.dialects.builtin import Float8E4M3FNType, Float8E5M2Type, TensorType
from xdsl.ir import Attribute

from ...backend.dtypes import DTYPES
from ...dialects.shapes.extents import Extent, tensor_of
from ...errors import ExecutionError, UnsupportedError


def capturing() -> bool:
    """Returns true while a CUDA graph is captured. The host must not wait for the device then."""
    return torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()


_EXTENSIONS = {
    torch.bfloat16: (torch.int16, np.dtype(ml_dtypes.bfloat16)),
    torch.float8_e4m3fn: (torch.int8, np.dtype(ml_dtypes.float8_e4m3fn)),
    torch.float8_e5m2: (torch.int8, np.dtype(ml_dtypes.float8_e5m2)),
}
"""Types that NumPy has by an extension -> the integer type that their bits pass through, and the type of NumPy."""


def to_numpy(tensor: torch.Tensor) -> np.ndarray:
    """Returns `tensor` as a C-contiguous array on the host; bfloat16 and float8 become the types of `ml_dtypes`.

    Raises ExecutionError while a CUDA graph is captured, because the values are not available.
    """
    if capturing():
        raise ExecutionError("runs on the host, which cannot be part of a CUDA graph: compile it with executor='cuda'")
    tensor = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous()
    if tensor.dtype in _EXTENSIONS:
        bits, extension = _EXTENSIONS[tensor.dtype]
        return np.from_dlpack(tensor.view(bits)).view(extension)
    # `Tensor.numpy` would make the caller's memory fixed, but FSDP frees the memory of its parameters.
    return np.from_dlpack(tensor)


def to_torch(array: np.ndarray) -> torch.Tensor:
    """Returns a contiguous tensor with a copy of the array's elements."""
    array = np.array(array, order="C", copy=True)
    dtype = next((d for d, (_, extension) in _EXTENSIONS.items() if array.dtype == extension), None)
    tensor = torch.from_numpy(array if dtype is None else array.view(f"i{array.itemsize}"))
    tensor = tensor if dtype is None else tensor.view(dtype)
    # An empty array has strides of 0 in NumPy.
    return tensor if array.size else torch.empty(tensor.shape, dtype=tensor.dtype)


FLOAT8 = (torch.float8_e4m3fn, torch.float8_e5m2)
"""Data types of eight-bit floats that are supported."""

_ELEMENTS: dict[torch.dtype, Attribute] = {
    **{getattr(torch, d.torch): d.element for d in DTYPES.values() if d.torch and d.c and d.name != "index"},
    **dict(zip(FLOAT8, (Float8E4M3FNType(), Float8E5M2Type()), strict=True)),
}
_DTYPES = {element: dtype for dtype, element in _ELEMENTS.items()}


def named_arguments(node: Node) -> dict[str, Any]:
    """Returns the arguments of a call of an operator, by name. Defaults are left out."""
    names = (a.name for a in node.target._schema.arguments)  # pyright: ignore
    return dict(zip(names, node.args, strict=False)) | node.kwargs


def dtype_name(dtype: torch.dtype) -> str:
    """Returns PyTorch's name of a data type without the prefix: `bfloat16`."""
    return str(dtype).removeprefix("torch.")


def describe_tensor(tensor: torch.Tensor) -> str:
    """Returns data type and shape of a tensor in the form `float32[16, 64]`."""
    return f"{dtype_name(tensor.dtype)}[{', '.join(map(str, tensor.shape))}]"


def kind_of(tensor: torch.Tensor) -> str | None:
    """Returns the kind of a tensor that is not dense, such as `sparse_coo` or `MaskedTensor`, or None for a dense
    tensor."""
    if tensor.layout is not torch.strided or tensor.is_nested:
        return "nested" if tensor.is_nested else str(tensor.layout).removeprefix("torch.")
    if tensor.is_quantized:
        return "quantized"
    dispatch, default_dispatch = (getattr(t, "__torch_dispatch__", None) for t in (type(tensor), torch.Tensor))
    return None if dispatch is default_dispatch else type(tensor).__name__


def may_require_grad(node: Node) -> bool:
    """Returns true if the value of a node is a tensor of floats or complex numbers."""
    value = node.meta.get("val")
    return isinstance(value, torch.Tensor) and (value.dtype.is_floating_point or value.dtype.is_complex)


def element_of(dtype: torch.dtype) -> Attribute:
    """Returns the element type for a data type. Raises UnsupportedError if there is none (complex, float8_e8m0fnu,
    ...)."""
    if dtype not in _ELEMENTS:
        raise UnsupportedError(f"the data type {dtype_name(dtype)} is not supported")
    return _ELEMENTS[dtype]


def dtype_of(element: Attribute) -> torch.dtype:
    """Returns PyTorch's data type for an element type. Raises UnsupportedError if there is none."""
    if element not in _DTYPES:
        raise UnsupportedError(f"PyTorch has no data type for {element}")
    return _DTYPES[element]


def tensor_type(tensor: torch.Tensor, extent: Callable[[torch.SymInt], Extent] | None = None) -> TensorType[Attribute]:
    """Returns the IR type of a tensor. `extent` converts symbolic sizes; None permits fixed sizes only.

    Raises UnsupportedError for a sparse tensor, an unsupported data type, or a symbolic size without `extent`.
    """
    if tensor.layout is not torch.strided:
        raise UnsupportedError(f"a tensor of layout {str(tensor.layout).removeprefix('torch.')} is not supported")
    if extent is None and not all(type(n) is int for n in tensor.shape):
        raise UnsupportedError("a tensor of a size that varies is not supported here")
    shape = [extent(n) if extent is not None and isinstance(n, torch.SymInt) else n for n in tensor.shape]
    return tensor_of(element_of(tensor.dtype), shape)


def dtype_named(name: str) -> torch.dtype:
    """Returns the data type called `name`. Raises UnsupportedError if there is none."""
    dtype = {dtype_name(d): d for d in _ELEMENTS}.get(name)
    if dtype is None:
        raise UnsupportedError(f"{name[:40]!r} is no data type")
    return dtype
