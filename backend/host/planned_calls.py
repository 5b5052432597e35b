"""What the runtimes of GPU and CPU have in common at a call of a program: which plan it needs, tensors for its results,
and the steps that PyTorch computes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ...dialects.shapes.extents import static
from ...errors import ExecutionError
from ..dtypes import DTYPES
from .launch_plan import EagerStep, LaunchPlan

KEPT_PLANS = 256
"""So many plans of a program are kept, one for each set of shapes that it was called with."""

Key = tuple[tuple[Any, Any], ...]
"""The shapes and types of the tensors that a program is called with."""


def key_of(tensors: Sequence[Any]) -> Key:
    """What a plan is kept for."""
    return tuple([(t.shape, t.dtype) for t in tensors])


def new_results(plan: LaunchPlan, inputs: Sequence[Any], empty: Callable[[Sequence[int], str], Any]) -> list[Any]:
    """Tensors for the results of a call: an argument where it is changed in place, else what `empty` makes of shape and
    type."""
    places, buffers = dict(plan.in_place), enumerate(plan.output_buffers, plan.inputs)
    return [inputs[places[i]].detach() if i in places else empty(static(b.shape), b.dtype) for i, b in buffers]


def compute_eagerly(
    step: EagerStep,
    eager: Mapping[str, Callable[[Sequence[Any]], Sequence[Any]]],
    plan: LaunchPlan,
    arguments: Sequence[Any],
    scratch: Any,
    torch: Any,
) -> None:
    """Let PyTorch compute a step: `arguments` are the tensors of the program's arguments, the other buffers lie in the
    tensor `scratch` of bytes, which is the arena. Raises ExecutionError."""

    def tensor(number: int) -> Any:
        if number < len(arguments):
            return arguments[number]
        buffer = plan.buffers[number]
        memory = scratch[buffer.offset : buffer.offset + buffer.bytes]
        return memory.view(getattr(torch, DTYPES[buffer.dtype].torch)).view(buffer.shape)

    if step.function not in eager:
        raise ExecutionError("left to PyTorch, which is not here", operator=step.function)
    results = eager[step.function]([tensor(i) for i in step.inputs])
    for i, result in zip(step.outputs, results, strict=True):
        buffer = tensor(i)
        if result.shape != buffer.shape or result.dtype != buffer.dtype:
            raise ExecutionError(f"PyTorch gives {result.dtype}{list(result.shape)}", operator=step.function)
        buffer.copy_(result)
