"""How much memory eager PyTorch takes for a program, which is the limit of what ours may take."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode
from xdsl.dialects.builtin import ModuleOp

from ..backend.interpreter.running import main_function
from ..backend.launch_plan import LaunchPlan
from ..passes.analysis.host_memory import MEMORY_LIMIT, set_limit

BLOCK = 512
"""Bytes of which PyTorch's allocator for GPUs gives multiples."""


def limit_memory(program: ModuleOp, module: torch.nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
    """Let `@main` of a program take no more than eager PyTorch for a call of `module`, if that can be told."""
    args, kwargs = pytree.tree_map(lambda leaf: leaf, (tuple(args), dict(kwargs)))  # lists of its own
    with _as_it_is(module):
        peak = eager_peak(lambda: module(*args, **kwargs))
    if peak is not None:
        set_limit(main_function(program), MEMORY_LIMIT, peak)


@contextmanager
def _as_it_is(module: torch.nn.Module) -> Generator[None]:
    """In the end attributes of a module, and of those in it, are what they were: what a call puts there is fake."""
    states = [d for m in module.modules() for d in (vars(m), *(v for v in vars(m).values() if isinstance(v, dict)))]
    before = [dict(state) for state in states]
    try:
        yield
    finally:
        for state, old in zip(states, before, strict=True):
            state.clear()
            state.update(old)


def eager_peak(call: Callable[[], Any]) -> int | None:
    """The most bytes that a call takes at once beside its arguments and parameters, without gradients; None where that
    cannot be told without data. Nothing is computed. What cuBLAS and cuDNN take for themselves is not counted."""
    try:
        with torch.no_grad(), LivePeak() as live:
            call()
    except Exception:  # whatever the user's code raises where there are no data
        return None
    return live.peak


def beyond(plan: LaunchPlan, most: int) -> str:
    """Where a plan takes more than `most` bytes beside its arguments: the step that has most between arguments and
    results, and the largest of that; empty if it does not."""
    if plan.program is not None or plan.peak_bytes <= most:
        return ""
    scratch = [b for b in plan.buffers[plan.arguments :] if b.first >= 0]
    text = f"{plan.peak_bytes} bytes of results and in between, where {most} are allowed"
    if not scratch:
        return text
    steps = range(len(plan.steps))
    step = max(steps, key=lambda n: sum(b.bytes for b in scratch if b.first <= n <= b.last))
    largest = max((b for b in scratch if b.first <= step <= b.last), key=lambda b: b.bytes)
    shown = f"{largest.name}, {largest.dtype}{list(largest.shape)} of {largest.bytes} bytes"
    return f"{text}: most of it in step {step}, with {shown}"


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
                self._live[storage._cdata] = StorageWeakRef(storage), -(-storage.nbytes() // BLOCK) * BLOCK
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
