"""Calls on a GPU that are like an earlier one, which only allocate results and launch.

The extension module of `backend/host/calls.cpp` compares types, shapes, strides, devices, dispatch keys and gradients
of the arguments, and addresses of constants. Every other call returns NotImplemented: Python makes it and notes it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .graphs import Moving, PreparedLaunches

if TYPE_CHECKING:
    from . import CudaProgram

KEPT_CALLS = 16
"""So many calls are known, those first that were made last."""


@dataclass(frozen=True)
class Known:
    """A call: snapshots of its inputs and constants, whether a gradient would be noted, and (shape, strides, type) of
    each result of `@main`. `moving` are inputs and results, the arguments of `@main` that may move."""

    launches: PreparedLaunches
    inputs: Any
    constants: Any
    gradients: bool
    results: tuple[tuple[tuple[int, ...], tuple[int, ...], Any], ...]
    moving: Moving


class Calls:
    """The calls of a program, described as for `Calls` of `calls.cpp`. `sources`: for each argument of `@main` a leaf
    of the caller's arguments or a tensor; `leaves`: the leaves of the result; `state`: the state of the program's
    modules."""

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
        """Returns the result for these arguments, or NotImplemented."""
        torch, alike = self._program.torch, self._extension.is_alike
        found = next((known for known in self._known if alike(known.inputs, args, False)), None)
        if (
            found is None
            or kwargs
            or not self._extension.holds(self._state)
            or not alike(found.constants, self._constants, True)
            or torch.cuda.is_current_stream_capturing()
            or found.gradients
            and torch.is_grad_enabled()
        ):
            return NotImplemented
        places = [args[leaf].data_ptr() for _, leaf in self._inputs]
        if any(place % 16 for place in places):
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
        """Notes a call of the arguments `tensors` of `@main`, of which the `ready` ones were read in place, with its
        results as the caller got them."""
        if not all(ready) or any(type(r) is not self._program.torch.Tensor for r in results):
            return
        inputs: dict[int, Any] = {leaf: tensors[argument] for argument, leaf in self._inputs}
        seen = self._extension.snapshot(tuple(inputs[leaf] for leaf in sorted(inputs)))
        constants = self._extension.snapshot(self._constants)
        if seen is not None and constants is not None:
            gradients = any(t.requires_grad for t in tensors)
            shapes = tuple((tuple(r.shape), r.stride(), r.dtype) for r in results)
            places = tuple(t.data_ptr() for t in (*tensors, *results))
            moving = Moving((*(argument for argument, _ in self._inputs), *range(len(tensors), len(places))), places)
            call = Known(launches, seen, constants, gradients, shapes, moving)
            self._known = (call, *self._known[: KEPT_CALLS - 1])


def make_calls(program: CudaProgram, extension: Any, described: Sequence[Any]) -> Calls | None:
    """Returns the calls of a program, `described` as in `frontend/repeated_calls.py`; None where Python must make every
    call: for named arguments, lists, and arguments that are changed or returned without being the caller's."""
    args, kwargs, examples, sources, changed, result, leaves, build, state = described
    numbers = [*range(len(examples))]
    inputs = sorted(s for s in sources if isinstance(s, int))
    plain = [*args] == numbers == inputs and not kwargs and not changed
    ours = all(isinstance(sources[n], int) for kind, n, _ in leaves if kind == 1)
    return Calls(program, extension, sources, leaves, result, build, state) if plain and ours else None


def _rebuilt(tree: Any, leaves: Sequence[Any]) -> Any:
    """Returns leaves in the tuples and lists of a tree of their numbers."""
    return leaves[tree] if type(tree) is int else type(tree)(_rebuilt(part, leaves) for part in tree)
