"""Fast path for calls with arguments like those of an earlier call.

A cache of calls (`Calls` of `backend/host/calls.cpp` on the CPU, of `backend/cuda/runtime/repeated.py` on a GPU) runs
such a call without the checks in Python. This module describes a program to the cache and registers calls there.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch.utils import _pytree as pytree

from .capture.captured_program import CapturedProgram, Output

if TYPE_CHECKING:
    from ..backend.cpu.runtime import CpuProgram
    from ..backend.cuda.runtime import CudaProgram

_KINDS = {"result": 0, "argument": 1, "constant": 2}


class RepeatedCalls:
    """Cache of the calls of one program.

    `call` takes the arguments of the program and returns its result, or NotImplemented if the call differs from all
    registered calls. It always returns NotImplemented for a program that does more than run kernels: one that draws
    random numbers, has operators that PyTorch computes, checks data, or returns views of arguments.
    """

    def __init__(
        self, captured: CapturedProgram, program: CpuProgram | CudaProgram, state: tuple[Any, ...] = ()
    ) -> None:
        """Describes the program to the cache. `state`: entries of modules that every call compares
        (`ModuleState.entries`)."""
        self._captured, self._program = captured, program
        described = _described(captured) if _only_kernels(captured) else None
        self._calls = None if described is None else program.repeated_calls(*described, state)
        self.call = never_matches if self._calls is None else self._calls.call

    def remember(self, tensors: Sequence[torch.Tensor], results: Sequence[torch.Tensor], result: Any) -> None:
        """Registers a call.

        Args:
            tensors: the arguments of `@main`.
            results: the results of `@main`.
            result: the result that the caller received.
        """
        if self._calls is None:
            return
        examples = list(results)
        for leaf, output in zip(pytree.tree_leaves(result), self._captured.outputs, strict=True):
            if output.kind == "result":
                # The caller receives `leaf`, whose strides may differ from those of the result of `@main`.
                examples[output.index] = leaf
        self._program.remember(self._calls, tensors, examples, self._captured.updates)


def never_matches(*args: Any, **kwargs: Any) -> Any:
    """Returns NotImplemented. Programs without a cache have this function as `RepeatedCalls.call`."""
    return NotImplemented


def _only_kernels(captured: CapturedProgram) -> bool:
    """Returns true if a call does nothing except check its arguments and run the kernels."""
    special = captured.draws or captured.eager or captured.checks or captured.layouts or any(captured.viewed)
    # `needs` is recorded even while gradients are disabled.
    special = special or any(map(any, captured.needs[:1]))
    return not special and all(_is_simple(o, captured.outputs) for o in captured.outputs)


def _is_simple(output: Output, outputs: Sequence[Output]) -> bool:
    """Returns true if a result is an unchanged argument, a constant, or a contiguous buffer that the program fills."""
    place = output.place
    if place is None:
        return not output.steps and output.kind != "number"
    alone = [o.index for o in outputs if o.kind == "result"].count(output.index) == 1
    offset = 0 if place.strided is None else place.strided[2]
    return not output.steps and alone and not place.once and not place.gaps and not offset


def _described(captured: CapturedProgram) -> tuple[Any, ...] | None:
    """Returns the arguments of `Calls` for a program, or None if its arguments are not nested tuples and lists."""
    args, kwargs = pytree.tree_unflatten(list(range(captured.in_spec.num_leaves)), captured.in_spec)
    tensors = {i for i, example in enumerate(captured.examples) if isinstance(example, torch.Tensor)}
    if not _is_tree([args, *kwargs.values()]) or tensors - {b.leaf for b in captured.bindings if b.tensor is None}:
        return None
    places = list(range(captured.out_spec.num_leaves))
    result, build = pytree.tree_unflatten(places, captured.out_spec), None
    if not _is_tree(result):
        result, build = places, partial(pytree.tree_unflatten, treespec=captured.out_spec)
    sources = tuple(b.leaf if b.tensor is None else b.tensor for b in captured.bindings)
    changed = tuple(argument for _, argument in captured.updates)
    leaves = tuple((_KINDS[o.kind], o.index, o.value) for o in captured.outputs)
    return args, tuple(kwargs.items()), tuple(captured.examples), sources, changed, result, leaves, build


def _is_tree(value: Any) -> bool:
    """Returns true if a nested structure of leaf indices consists of tuples and lists only."""
    return type(value) is int or type(value) in (tuple, list) and all(map(_is_tree, value))
