"""Calls that are like an earlier one, made without what an unknown one is checked for: what `Calls` has to know of a
program and of its calls, that of `backend/host/calls.cpp` and that of `backend/cuda/runtime/repeated.py`."""

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
    """The calls of a program that Python has made, for those that come after them.

    `call` takes the arguments of the program and gives its result, or NotImplemented for a call that is unlike those
    before, and for every one of a program that does more in a call than to run kernels: it draws random numbers, leaves
    something to PyTorch, looks at data, gives views of arguments.
    """

    def __init__(
        self, captured: CapturedProgram, program: CpuProgram | CudaProgram, state: tuple[Any, ...] = ()
    ) -> None:
        """`state` are the entries of modules that a call compares (`ModuleState`)."""
        self._captured, self._program = captured, program
        described = _described(captured) if _only_kernels(captured) else None
        self._calls = None if described is None else program.repeated_calls(*described, state)
        self.call = unlike if self._calls is None else self._calls.call

    def remember(self, tensors: Sequence[torch.Tensor], results: Sequence[torch.Tensor], result: Any) -> None:
        """Keep a call: the arguments and results of `@main`, and what the caller got."""
        if self._calls is None:
            return
        examples = list(results)
        for leaf, output in zip(pytree.tree_leaves(result), self._captured.outputs, strict=True):
            if output.kind == "result":
                examples[output.index] = leaf  # whose strides may be others
        self._program.remember(self._calls, tensors, examples, self._captured.updates)


def unlike(*args: Any, **kwargs: Any) -> Any:
    """What `call` is before any call."""
    return NotImplemented


def _only_kernels(captured: CapturedProgram) -> bool:
    """Whether a call is nothing but checks of its arguments and the kernels."""
    special = captured.draws or captured.eager or captured.checks or captured.layouts or any(captured.viewed)
    special = special or any(map(any, captured.needs[:1]))  # which are noted where gradients are disabled, too
    return not special and all(_is_simple(o, captured.outputs) for o in captured.outputs)


def _is_simple(output: Output, outputs: Sequence[Output]) -> bool:
    """Whether a result is memory that the program has written as a whole, an argument as it is, or a constant."""
    place = output.place
    if place is None:
        return not output.steps
    alone = [o.index for o in outputs if o.kind == "result"].count(output.index) == 1
    offset = 0 if place.strided is None else place.strided[2]
    return not output.steps and alone and not place.once and not place.gaps and not offset


def _described(captured: CapturedProgram) -> tuple[Any, ...] | None:
    """The program as `Calls` takes it; None for arguments that are other trees than of tuples and lists."""
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
    """Whether it has nothing but tuples and lists around its leaves."""
    return type(value) is int or type(value) in (tuple, list) and all(map(_is_tree, value))
