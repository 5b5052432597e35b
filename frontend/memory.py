"""How much memory eager PyTorch takes for a program, which is the limit of what ours may take."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.export import ExportedProgram
from torch.fx import Interpreter
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from ..backend.launch_plan import Buffer, LaunchPlan

BLOCK = 512
"""Bytes of which PyTorch's allocator for GPUs gives multiples."""


def traced_peak(exported: ExportedProgram) -> int | None:
    """The most bytes that a traced program takes at once beside its arguments and parameters, without gradients; None
    where that cannot be told without data. What cuBLAS and cuDNN take for themselves is not counted. No value outlives
    its last use: a person's may keep some for longer, but is not called again."""
    live = LivePeak()
    values = [node.meta["val"] for node in exported.graph.find_nodes(op="placeholder")]
    inputs = [live.fake(v) if isinstance(v, torch.Tensor) else v for v in values]
    return live.of(lambda: Interpreter(exported.graph_module).run(*inputs, enable_io_processing=False))


def beyond(plan: LaunchPlan, most: int) -> str:
    """Where a plan takes more than `most` bytes beside its arguments: the step that has most between arguments and
    results, and the largest of that; empty if it does not."""
    if plan.program is not None or plan.peak_bytes <= most:
        return ""
    text = f"{plan.peak_bytes} bytes of results and in between, where {most} are allowed"
    step, largest = fullest_step(plan)
    if largest is None:
        return text
    shown = f"{largest.name}, {largest.dtype}{list(largest.shape)} of {largest.bytes} bytes"
    return f"{text}: most of it in step {step}, with {shown}"


def fullest_step(plan: LaunchPlan) -> tuple[int, Buffer | None]:
    """The step that has most between arguments and results, and the largest of that; -1 where there is nothing."""
    scratch = [b for b in plan.buffers[plan.arguments :] if b.first >= 0]
    held = [[b for b in scratch if b.first <= n <= b.last] for n in range(len(plan.steps))]
    step = max(range(len(held)), key=lambda n: sum(b.bytes for b in held[n]), default=-1)
    return (step, max(held[step], key=lambda b: b.bytes)) if scratch else (-1, None)


class LivePeak(TorchDispatchMode):
    """The most bytes that are alive at once of the tensors that are made under it. Nothing is computed: every tensor is
    a fake one on the CPU, where attention is one operator as it is on a GPU."""

    def __init__(self) -> None:
        super().__init__()
        self.peak = 0
        self._fakes = FakeTensorMode()
        self._given: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        self._live: dict[int, tuple[StorageWeakRef, int]] = {}

    def of(self, call: Callable[[], Any]) -> int | None:
        """Those of a call; None where it cannot be made without data."""
        try:
            with torch.no_grad(), self:
                call()
        except Exception:  # whatever PyTorch or a person's code raises there
            return None
        return self.peak

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        args, kwargs = pytree.tree_map_only(torch.Tensor, self.fake, (args, kwargs or {}))
        with self._fakes:
            result = func(*args, **kwargs | ({"device": "cpu"} if "device" in kwargs else {}))
        known = {t.untyped_storage()._cdata for t in pytree.tree_leaves((args, kwargs)) if isinstance(t, torch.Tensor)}
        for t in pytree.tree_leaves(result):
            if isinstance(t, torch.Tensor) and t.untyped_storage()._cdata not in known:
                storage = t.untyped_storage()
                self._live[storage._cdata] = StorageWeakRef(storage), -(-storage.nbytes() // BLOCK) * BLOCK
        self._live = {n: kept for n, kept in self._live.items() if not kept[0].expired()}
        self.peak = max(self.peak, sum(size for _, size in self._live.values()))
        return result

    def fake(self, tensor: torch.Tensor) -> torch.Tensor:
        """A tensor like this one, which is an argument."""
        if isinstance(tensor, FakeTensor) and tensor.fake_mode is self._fakes:
            return tensor
        if id(tensor) not in self._given:
            with self._fakes:
                self._given[id(tensor)] = tensor, torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype)
        return self._given[id(tensor)][1]
