"""Memory limit of a program: the most bytes that eager PyTorch has allocated at one time during a call."""

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
from xdsl.dialects.builtin import IntegerAttr, i64
from xdsl.traits import SymbolTable

from ....passes.analysis.host_memory import MEMORY_LIMIT
from ..captured_program import CapturedProgram
from . import Features

BLOCK = 512
"""Granularity of PyTorch's GPU allocator, in bytes."""


def traced(exported: ExportedProgram, features: Features) -> int | None:
    """Returns the peak memory of eager PyTorch for the program, in bytes, or None if it is not known.

    Arguments and parameters are not counted, nor workspaces of cuBLAS and cuDNN. Values are freed after their last use,
    and gradients are disabled. The peak is not known if sizes vary, or if the execution depends on values of tensors.
    """
    values = [node.meta["val"] for node in exported.graph.find_nodes(op="placeholder")]
    if any(isinstance(n, torch.SymInt) for v in values if isinstance(v, torch.Tensor) for n in v.shape):
        return None
    live = LivePeak()
    inputs = [live.fake(v) if isinstance(v, torch.Tensor) else v for v in values]
    return live.of(lambda: Interpreter(exported.graph_module).run(*inputs, enable_io_processing=False))


class LivePeak(TorchDispatchMode):
    """Dispatch mode that measures the peak memory of the tensors created under it, in bytes.

    Nothing is computed: all tensors become fake tensors on the CPU. There, attention is one operator, as on a GPU.
    """

    def __init__(self) -> None:
        super().__init__()
        self.peak = 0
        self._fakes = FakeTensorMode()
        self._arguments: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        self._live: dict[StorageWeakRef, int] = {}

    def of(self, call: Callable[[], Any]) -> int | None:
        """Returns the peak of a call in bytes, or None if the call cannot run without the values of tensors."""
        try:
            with torch.no_grad(), self:
                call()
        # PyTorch and the user's code may raise anything on fake tensors.
        except Exception:
            return None
        return self.peak

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        args, kwargs = pytree.tree_map_only(torch.Tensor, self.fake, (args, kwargs or {}))
        with self._fakes:
            result = func(*args, **kwargs | ({"device": "cpu"} if "device" in kwargs else {}))
        for storage in (t.untyped_storage() for t in pytree.tree_leaves(result) if isinstance(t, torch.Tensor)):
            self._live.setdefault(StorageWeakRef(storage), -(-storage.nbytes() // BLOCK) * BLOCK)
        self._live = {storage: size for storage, size in self._live.items() if not storage.expired()}
        self.peak = max(self.peak, sum(self._live.values()))
        return result

    def fake(self, tensor: torch.Tensor) -> torch.Tensor:
        """Returns a fake tensor like `tensor`. A new tensor is an argument, whose bytes do not count."""
        if isinstance(tensor, FakeTensor) and tensor.fake_mode is self._fakes:
            return tensor
        if id(tensor) not in self._arguments:
            with self._fakes:
                fake = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype)
            self._arguments[id(tensor)] = tensor, fake
            self._live[StorageWeakRef(fake.untyped_storage())] = 0
        return self._arguments[id(tensor)][1]


def captured(program: CapturedProgram, features: Features) -> None:
    """Sets the attribute of `@main` that holds the limit."""
    if "memory_limit" in features.facts:
        main = SymbolTable.lookup_symbol(program.module, "main")
        assert main is not None
        main.attributes[MEMORY_LIMIT] = IntegerAttr(features.facts["memory_limit"], i64)
