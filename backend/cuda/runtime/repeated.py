"""Calls on a GPU that are like an earlier one: what is left to do is to allocate results and to launch.

Whether a call is alike is decided by the extension module of `backend/host/calls.cpp`, which compares types, shapes,
strides, devices, dispatch keys and gradients of the arguments, and of constants also where they lie. Every other call
gives NotImplemented: then Python makes it, finds out what is wrong with it, if anything is, and has it remembered.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .graphs import Moving
from .prepared import PreparedLaunches

if TYPE_CHECKING:
    from . import CudaProgram

KEPT_CALLS = 16
"""So many calls are known, those first that were made last."""


@dataclass(frozen=True)
class Known:
    """A call: snapshots of its inputs and of the constants, what has a gradient to be noted, and for each result of
    `@main` its shape, strides and type. `moving` are inputs and results, the arguments of `@main` that may lie
    elsewhere."""

    launches: PreparedLaunches
    inputs: Any
    constants: Any
    gradients: bool
    results: tuple[tuple[tuple[int, ...], tuple[int, ...], Any], ...]
    moving: Moving


class Calls:
    """The calls of a program, described as for `Calls` of `calls.cpp`: `sources` are, for each argument of `@main`, a
    leaf of the caller's arguments or a tensor, `leaves` what the leaves of the result are, and `state` what the modules
    of the program had."""

    def __init__(
        self,
        program: CudaProgram,
        extension: Any,
        sources: Sequence[Any],
        leaves: Sequence[Any],
        result: Any,
        build: Any,
        state: tuple[Any, ...],
    ) -> None:
        self._program, self._extension, self._state = program, extension, state
        self._inputs = [(i, s) for i, s in enumerate(sources) if isinstance(s, int)]
        self._leaf_of = dict(self._inputs)
        self._constants = tuple(s for s in sources if not isinstance(s, int))
        self._leaves, self._result, self._build = tuple(leaves), result, build
        self._known: tuple[Known, ...] = ()

    def call(self, *args: Any, **kwargs: Any) -> Any:
        """The result for these arguments, or NotImplemented."""
        torch, alike = self._program.torch, self._extension.is_alike
        for found in self._known:
            if alike(found.inputs, args, False):
                break
        else:
            return NotImplemented
        if not self._extension.holds(self._state):
            return NotImplemented
        if kwargs or not alike(found.constants, self._constants, True) or torch.cuda.is_current_stream_capturing():
            return NotImplemented
        if found.gradients and torch.is_grad_enabled():
            return NotImplemented
        places = [args[leaf].data_ptr() for _, leaf in self._inputs]
        for place in places:
            if place % 16:
                return NotImplemented
        device, empty = self._program.device, torch.empty_strided
        results = [empty(shape, strides, dtype=dtype, device=device) for shape, strides, dtype in found.results]
        places += [r.data_ptr() for r in results]
        self._program.launch(found.launches, places, found.moving)
        if found is not self._known[0]:
            self._known = (found, *(k for k in self._known if k is not found))
        leaves = [
            results[n] if kind == 0 else args[self._leaf_of[n]] if kind == 1 else v for kind, n, v in self._leaves
        ]
        return _rebuilt(self._result, leaves) if self._build is None else self._build(leaves)

    def remember(
        self, launches: PreparedLaunches, tensors: Sequence[Any], ready: Sequence[bool], results: Sequence[Any]
    ) -> None:
        """Keep a call of these tensors, the arguments of `@main`, of which those that are `ready` were read as they
        are, with its results as the caller got them."""
        if not all(ready) or any(type(r) is not self._program.torch.Tensor for r in results):
            return
        inputs: dict[int, Any] = {leaf: tensors[argument] for argument, leaf in self._inputs}
        seen = self._extension.snapshot(tuple(inputs[leaf] for leaf in sorted(inputs)))
        constants = self._extension.snapshot(self._constants)
        if seen is None or constants is None:
            return
        gradients = any(t.requires_grad for t in tensors)
        shapes = tuple((tuple(r.shape), r.stride(), r.dtype) for r in results)
        places = tuple(t.data_ptr() for t in (*tensors, *results))
        moving = (*(argument for argument, _ in self._inputs), *range(len(tensors), len(places)))
        found = Known(launches, seen, constants, gradients, shapes, Moving(moving, places))
        self._known = (found, *self._known[: KEPT_CALLS - 1])


def make_calls(program: CudaProgram, extension: Any, described: Sequence[Any]) -> Calls | None:
    """The calls of a program, `described` as `frontend/repeated_calls.py` says; None where every call has to be made by
    Python: arguments with names or in lists, or that are changed, or are returned without being the caller's."""
    args, kwargs, examples, sources, changed, result, leaves, build, state = described
    plain = tuple(args) == tuple(range(len(examples))) and not kwargs and not changed
    inputs = [s for s in sources if isinstance(s, int)]
    returned = [n for kind, n, _ in leaves if kind == 1]
    if (
        not plain
        or sorted(inputs) != list(range(len(examples)))
        or any(not isinstance(sources[n], int) for n in returned)
    ):
        return None
    return Calls(program, extension, sources, leaves, result, build, state)


def _rebuilt(tree: Any, leaves: Sequence[Any]) -> Any:
    """Leaves in the tuples and lists of a tree of their numbers."""
    return leaves[tree] if type(tree) is int else type(tree)(_rebuilt(part, leaves) for part in tree)
