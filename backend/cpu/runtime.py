"""Run a program on the cores of this machine: compiled C++, called on the memory of torch's tensors."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from xdsl.dialects.builtin import ModuleOp

from ...errors import ExecutionError
from ..dtypes import DTYPES
from ..launch_plan import Buffer, EagerStep, Launch, LaunchPlan, compute_eagerly, make_plan, scratch_offsets
from .build import build

KEPT_PLANS = 256
"""So many plans of a program whose sizes are known only at a call are kept, one for each set of shapes."""


@dataclass(frozen=True)
class _Call:
    """A launch: the function of its grid, its argument array with the places that hold buffers, and its blocks."""

    function: Callable[[Any, int], None]
    arguments: Any
    buffers: tuple[tuple[int, int, int], ...]
    blocks: int
    sizes: tuple[Any, ...]


class CpuProgram:
    """A compiled program; `run` takes and gives torch tensors on the host.

    `module` is at the kernel level and `text` its C++, `march` the processor as g++ names it. `eager` computes the
    functions that are left to PyTorch. Raises ExecutionError where there is no compiler.
    """

    def __init__(
        self,
        module: ModuleOp,
        text: str,
        march: str = "native",
        eager: Mapping[str, Callable[[Sequence[Any]], Sequence[Any]]] | None = None,
    ) -> None:
        import torch

        self.torch, self.eager = torch, eager or {}
        self.plan = make_plan(module)
        self.library = ctypes.CDLL(str(build(text, march)))
        self.failure = ctypes.c_char.in_dll(self.library, "failure")
        self._plans: dict[tuple[tuple[int, ...], ...], tuple[LaunchPlan, list[_Call | EagerStep], list[int], int]] = {}

    def run(self, args: Sequence[Any]) -> list[Any]:
        """The results for the tensors `args`. Raises ExecutionError if the arguments do not fit, or the program stops
        at an assertion."""
        plan, steps, offsets, scratch_bytes = self._placed(args)
        checked = [(tuple(a.shape), str(a.dtype).removeprefix("torch.")) for a in args]
        plan.check_arguments(checked)
        inputs = [a.detach().contiguous() for a in args]
        places = dict(plan.in_place)
        numbers = range(plan.inputs, plan.arguments)
        outputs = [inputs[places[i]] if i in places else self._empty(plan.buffers[i]) for i in numbers]
        scratch = self.torch.empty(scratch_bytes, dtype=self.torch.uint8)
        pointers = [t.data_ptr() for t in (*inputs, *outputs)]
        pointers += [scratch.data_ptr() + offsets[max(b.slot, 0)] for b in plan.buffers[len(pointers) :]]
        for step in steps:
            if isinstance(step, EagerStep):
                compute_eagerly(step, self.eager, plan, [*inputs, *outputs], scratch, self.torch)
                continue
            for place, buffer, begin in step.buffers:
                step.arguments[place] = pointers[buffer] + begin
            step.function(step.arguments, step.blocks)
        if self.failure.value != b"\0":
            text = ctypes.string_at(ctypes.addressof(self.failure)).decode()
            ctypes.memset(ctypes.addressof(self.failure), 0, 1)
            raise ExecutionError(text, operator="cpu")
        return outputs

    def _placed(self, args: Sequence[Any]) -> tuple[LaunchPlan, list[_Call | EagerStep], list[int], int]:
        """The plan in numbers for these arguments, its calls, and where scratch buffers lie."""
        shapes = tuple(tuple(a.shape) for a in args)
        if (found := self._plans.get(shapes)) is None:
            if len(self._plans) >= KEPT_PLANS:
                self._plans.clear()
            plan = self.plan.with_inputs(len(args)).at(shapes)
            steps = [s if isinstance(s, EagerStep) else self._call(s) for s in plan.steps]
            found = self._plans[shapes] = (plan, steps, *scratch_offsets(plan))
        return found

    def _call(self, launch: Launch) -> _Call:
        function = self.library[f"{launch.kernel}_grid"]
        function.argtypes, function.restype = (ctypes.c_void_p, ctypes.c_int), None
        number = ctypes.c_int if launch.size_bytes == 4 else ctypes.c_longlong
        sizes = tuple(number(v) for v in launch.values)
        arguments = (ctypes.c_void_p * (len(launch.buffers) + len(sizes)))()
        for place, size in enumerate(sizes, len(launch.buffers)):
            arguments[place] = ctypes.addressof(size)
        buffers = tuple((n, b, begin) for n, (b, begin) in enumerate(zip(launch.buffers, launch.begins(), strict=True)))
        return _Call(function, arguments, buffers, prod(launch.blocks), sizes)

    def _empty(self, buffer: Buffer) -> Any:
        return self.torch.empty(buffer.shape, dtype=self._dtype(buffer))

    def _dtype(self, buffer: Buffer) -> Any:
        return getattr(self.torch, DTYPES[buffer.dtype].torch)
