"""How much memory eager PyTorch takes for a program, beside which what ours takes is told."""

from __future__ import annotations

from typing import Any

import torch
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    FakeTensorMode,
)
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from .bench import Subject


def eager_peak(subject: Subject) -> int | None:
    """The most bytes that a call takes at once beside its arguments and parameters, without gradients; None where that
    depends on data. Nothing is computed. What cuBLAS and cuDNN take for themselves is not counted."""
    try:
        with torch.no_grad(), LivePeak() as live:
            subject()
    except (DataDependentOutputException, DynamicOutputShapeException):
        return None
    return live.peak


class LivePeak(TorchDispatchMode):
    """The most bytes that are alive at once of the tensors that are made under it. Nothing is computed: every tensor is
    a fake one on the CPU, where attention is one operator as it is on a GPU."""

    def __init__(self) -> None:
        super().__init__()
        self.peak = 0
        self._fakes = FakeTensorMode()
        self._given: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        self._live: dict[int, tuple[StorageWeakRef, int]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        args, kwargs = pytree.tree_map_only(torch.Tensor, self._fake, (args, kwargs or {}))
        with self._fakes:
            result = func(*args, **kwargs | ({"device": "cpu"} if "device" in kwargs else {}))
        known = {t.untyped_storage()._cdata for t in pytree.tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor)}
        for t in pytree.tree_leaves(result):
            if isinstance(t, torch.Tensor) and t.untyped_storage()._cdata not in known:
                storage = t.untyped_storage()
                self._live[storage._cdata] = StorageWeakRef(storage), storage.nbytes()
        self._live = {n: kept for n, kept in self._live.items() if not kept[0].expired()}
        self.peak = max(self.peak, sum(size for _, size in self._live.values()))
        return result

    def _fake(self, tensor: torch.Tensor) -> torch.Tensor:
        if isinstance(tensor, FakeTensor):
            return tensor
        if id(tensor) not in self._given:
            with self._fakes:
                self._given[id(tensor)] = tensor, torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype)
        return self._given[id(tensor)][1]
