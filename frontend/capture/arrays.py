"""PyTorch tensors and NumPy arrays of the same bits."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import torch

from ...errors import ExecutionError


def capturing() -> bool:
    """Whether a CUDA graph is being captured: then nothing may wait for the device."""
    return torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()


def to_numpy(tensor: torch.Tensor) -> np.ndarray:
    """`tensor` as a C-contiguous array on the host; bfloat16 as ml_dtypes' type.

    Raises ExecutionError while a CUDA graph is captured, which cannot wait for the values.
    """
    if capturing():
        raise ExecutionError("runs on the host, which cannot be part of a CUDA graph: compile it with executor='cuda'")
    tensor = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous()
    if tensor.dtype == torch.bfloat16:  # which NumPy does not have: an integer type carries its bits
        return tensor.view(torch.int16).numpy().view(ml_dtypes.bfloat16)
    return tensor.numpy()


def to_torch(array: np.ndarray) -> torch.Tensor:
    """`array` as a tensor that owns its memory, and lies there in order."""
    array = np.array(array, order="C", copy=True)
    if array.dtype == ml_dtypes.bfloat16:
        tensor = torch.from_numpy(array.view(np.int16)).view(torch.bfloat16)
    else:
        tensor = torch.from_numpy(array)
    return tensor if array.size else torch.empty(tensor.shape, dtype=tensor.dtype)  # NumPy's strides are 0 there
