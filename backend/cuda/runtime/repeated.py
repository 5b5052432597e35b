"""Cache of calls on a GPU. A call that is similar to an earlier one only allocates results and launches kernels.

Two calls are similar if their arguments have equal types, shapes, strides, devices, dispatch keys and `requires_grad`,
and their constants also have equal addresses. The extension module of `backend/host/calls.cpp` compares these. If no
earlier call is similar, the cache returns NotImplemented. Python then makes the call and adds it to the cache.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .graphs import Moving, PreparedLaunches

if TYPE_CHECKING:
    from . import CudaProgram

KEPT_CALLS = 16
"""Largest number of remembered calls, the most recent first."""


@dataclass(frozen=True)
class RememberedCall:
    """Entry of the cache: a call, to which later calls are compared.

    Attributes:
        launches: prepared launches.
        inputs, constants: properties of the inputs and constants that are compared, recorded by the extension module.
        gradients: whether autograd would record the call.
        results: shape, strides and type of each result of `@main`.
        moving: inputs and results, whose addresses change between calls.
    """

    launches: PreparedLaunches
    inputs: Any
    constants: Any
    gradients: bool
    results: tuple[tuple[tuple[int, ...], tuple[int, ...], Any], ...]
    moving: Moving


class Calls:
    """Cache of calls of a program.

    Args:
        program: the program.
        extension: the extension module.
        sources: for each argument of `@main` the index of the caller's argument, or a tensor (a parameter or constant).
        leaves: results of the program that are leaves of the returned tree (as in PyTorch's pytree).
        result: the returned tree, with indices of leaves.
        build: function that builds the result, or None for tuples and lists.
        state: attributes of PyTorch modules that must not have changed.
    """

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
        self._remembered: tuple[RememberedCall, ...] = ()

    def call(self, *args: Any, **kwargs: Any) -> Any:
        """Returns the result of a call that is similar to a remembered one, or NotImplemented."""
        torch, compare = self._program.torch, self._extension.is_alike
        match = next((remembered for remembered in self._remembered if compare(remembered.inputs, args, False)), None)
        if (
            match is None
            or kwargs
            or not self._extension.holds(self._state)
            or not compare(match.constants, self._constants, True)
            or torch.cuda.is_current_stream_capturing()
            or match.gradients
            and torch.is_grad_enabled()
        ):
            return NotImplemented
        places = [args[leaf].data_ptr() for _, leaf in self._inputs]
        if any(place % 16 for place in places):
            return NotImplemented
        device, empty = self._program.device, torch.empty_strided
        results = [empty(shape, strides, dtype=dtype, device=device) for shape, strides, dtype in match.results]
        places += [r.data_ptr() for r in results]
        self._program.launch(match.launches, places, match.moving)
        if match is not self._remembered[0]:
            self._remembered = (match, *(k for k in self._remembered if k is not match))
        leaves = [
            results[n] if kind == 0 else args[self._leaf_of[n]] if kind == 1 else v for kind, n, v in self._leaves
        ]
        return _rebuilt(self._result, leaves) if self._build is None else self._build(leaves)

    def remember(
        self, launches: PreparedLaunches, tensors: Sequence[Any], ready: Sequence[bool], results: Sequence[Any]
    ) -> None:
        """Remembers a call, if all of its arguments were read in place.

        Args:
            launches: prepared launches.
            tensors: arguments of `@main`.
            ready: for each argument whether it was read in place.
            results: results, with the strides that the caller sees.
        """
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
            call = RememberedCall(launches, seen, constants, gradients, shapes, moving)
            self._remembered = (call, *self._remembered[: KEPT_CALLS - 1])


def make_calls(program: CudaProgram, extension: Any, described: Sequence[Any]) -> Calls | None:
    """Returns a cache of calls, or None if Python must make every call.

    Python must make every call of a program that

    - has keyword arguments or lists as arguments,
    - changes an argument, or
    - returns a parameter or a constant of its own.

    Args:
        program: the program.
        extension: the extension module.
        described: description of arguments and results (`frontend/repeated_calls.py`).
    """
    args, kwargs, examples, sources, changed, result, leaves, build, state = described
    numbers = [*range(len(examples))]
    inputs = sorted(s for s in sources if isinstance(s, int))
    plain = [*args] == numbers == inputs and not kwargs and not changed
    ours = all(isinstance(sources[n], int) for kind, n, _ in leaves if kind == 1)
    return Calls(program, extension, sources, leaves, result, build, state) if plain and ours else None


def _rebuilt(tree: Any, leaves: Sequence[Any]) -> Any:
    """Returns a tree of tuples and lists with leaves in place of their numbers."""
    return leaves[tree] if type(tree) is int else type(tree)(_rebuilt(part, leaves) for part in tree)
