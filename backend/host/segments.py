"""Programs whose sizes depend on data: division into segments, and the driver that runs them for all executors.

A *segment* is the part of a host program between two steps that read a size. For the sizes that are known before it,
each segment has an ordinary launch plan with static sizes. Its inputs are the buffers of the program that earlier
segments have filled. Its results are the buffers that later segments or the caller need. So all memory is allocated for
the actual sizes, when they are known.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

from ...dialects.shapes.binding import Sizes, bind_sizes
from .launch_plan import BindStep, EagerStep, HostInterpreter, Launch, LaunchPlan, Step, place_scratch

KEPT_SEGMENTS = 256
"""Largest number of plans of segments that a program keeps, one for each segment and set of sizes."""

P = TypeVar("P")


@dataclass(frozen=True)
class Segment:
    """Part of a host program up to the next step that reads a size. Buffers are positions in the plan of the program.

    Attributes:
        inputs: buffers that the segment uses and that exist before it.
        outputs: buffers that it allocates and that are used after it, then the `inputs` that it writes.
        read: step that ends the segment, or None for the last one.
        released: buffers that no later segment uses.
    """

    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    read: BindStep | None
    released: tuple[int, ...]


def divide(plan: LaunchPlan) -> tuple[Segment, ...]:
    """Returns the segments of a plan with dynamic sizes."""
    assert plan.program is not None
    ends = [i for i, step in enumerate(plan.steps) if isinstance(step, BindStep)] + [len(plan.steps)]
    in_place, results = dict(plan.in_place), range(plan.inputs, plan.arguments)
    segments, begin = list[Segment](), 0
    for end in ends:
        steps = plan.steps[begin:end]
        used = {b for step in steps for b in _buffers(step)}
        written = {b for step in steps for b in plan.program.written(step)}
        earlier = {b for b in used if b < plan.inputs or plan.buffers[b].first < begin}
        new = {b for b in used - earlier if b in results or plan.buffers[b].last >= end}
        if end == len(plan.steps):
            new |= {b for b in results if plan.buffers[b].first < 0 and b not in in_place}
        outputs = (*sorted(new), *sorted(earlier & written))
        returned = {*results, *in_place.values()}
        released = tuple(b for b in sorted(earlier | new) if b not in returned and plan.buffers[b].last <= end)
        read = plan.steps[end] if end < len(plan.steps) else None
        assert read is None or isinstance(read, BindStep)
        segments.append(Segment(tuple(sorted(earlier)), outputs, read, released))
        begin = end + 1
    return tuple(segments)


def _buffers(step: Step) -> tuple[int, ...]:
    if isinstance(step, Launch):
        return step.buffers
    return (*step.inputs, *step.outputs) if isinstance(step, EagerStep) else (step.buffer,)


class Segments(Generic[P]):
    """Driver of a program whose sizes depend on data.

    An executor prepares the plan of a segment once for a set of sizes, and then runs it on memory of its own kind.

    Args:
        plan: the plan of the program, with dynamic sizes.
        prepare: function that prepares the static plan of a segment for `execute`. It also gets the sizes.
        execute: function that runs a prepared segment on its inputs, and returns its results. It also gets the further
            arguments of `run`.
        read: function that returns the integer in a result without dimensions.
        check: function that raises ExecutionError for illegal arguments. It is called once for each set of shapes.
    """

    def __init__(
        self,
        plan: LaunchPlan,
        prepare: Callable[[LaunchPlan, Sizes], P],
        execute: Callable[..., Sequence[Any]],
        read: Callable[[Any], int] = int,
        check: Callable[[Sequence[Any]], object] = len,
    ) -> None:
        self._plan, self._prepare, self._execute, self._read, self._check = plan, prepare, execute, read, check
        self._segments = divide(plan)
        self._prepared: dict[tuple[Any, ...], P] = {}
        self._sizes: dict[tuple[Any, ...], Sizes] = {}

    def run(self, args: Sequence[Any], *context: Any) -> list[Any]:
        """Runs the program.

        Args:
            args: arguments.
            context: further arguments of `execute`.

        Returns:
            The results of the program.

        Raises:
            ShapeError: a size from data is outside of its range, or a condition on sizes does not hold.
            ExecutionError: any error of the executor.
        """
        plan, sizes = self._plan, self._first_sizes(args).copy()
        memory: dict[int, Any] = dict(enumerate(args))
        for number, segment in enumerate(self._segments):
            results = self._execute(self._at(number, sizes), [memory[i] for i in segment.inputs], *context)
            memory.update(zip(segment.outputs, results, strict=True))
            if segment.read is not None:
                sizes.bind(segment.read.symbol, self._read(memory[segment.read.buffer]), segment.read.location)
            for i in segment.released:
                del memory[i]
        in_place = dict(plan.in_place)
        return [memory[in_place.get(i, i)] for i in range(plan.inputs, plan.arguments)]

    def _first_sizes(self, args: Sequence[Any]) -> Sizes:
        """Returns the sizes that the shapes of the arguments determine."""
        key = tuple([(tuple(a.shape), getattr(a, "dtype", None)) for a in args])
        if (sizes := self._sizes.get(key)) is None:
            self._check(args)
            if len(self._sizes) >= KEPT_SEGMENTS:
                self._sizes.clear()
            assert self._plan.program is not None
            shapes, names = [shape for shape, _ in key], [b.name for b in self._plan.buffers]
            sizes = self._sizes[key] = bind_sizes(self._plan.program.main, shapes, names)
        return sizes

    def _at(self, number: int, sizes: Sizes) -> P:
        """Returns a segment, prepared for the values of the symbols that are bound before it."""
        key = number, *sizes.values.values()
        if key not in self._prepared:
            if len(self._prepared) >= KEPT_SEGMENTS:
                self._prepared.clear()
            fixed = sizes.copy()
            self._prepared[key] = self._prepare(self._segment_plan(number, fixed), fixed)
        return self._prepared[key]

    def _segment_plan(self, number: int, sizes: Sizes) -> LaunchPlan:
        """Returns the launch plan of a segment, whose arguments are the inputs and outputs of the segment."""
        program, segment = self._plan.program, self._segments[number]
        assert program is not None
        host = HostInterpreter(program, sizes, number)
        buffers = host.run_main()
        arguments = (*segment.inputs, *segment.outputs)
        used = dict.fromkeys(b for step in host.steps for b in _buffers(step))
        order = [*arguments, *(b for b in used if b not in arguments)]
        # A buffer that is also an input has two positions. Steps use the first one.
        position = {b: i for i, b in reversed([*enumerate(order)])}
        first = len(segment.inputs)
        pairs = tuple((i, position[b]) for i, b in enumerate(segment.outputs, first) if position[b] < first)
        local = [replace(buffers[b], constant=False) for b in order]
        call_bytes, _ = place_scratch(local, len(arguments))
        steps = tuple(_moved(step, position) for step in host.steps)
        return LaunchPlan(tuple(local), steps, len(arguments), first, call_bytes, pairs)


def _moved(step: Step, position: Mapping[int, int]) -> Step:
    """Returns a step with other positions of its buffers. No launch is constant: every call runs all of them."""
    if isinstance(step, Launch):
        return replace(step, buffers=tuple(position[b] for b in step.buffers), constant=False)
    assert isinstance(step, EagerStep)
    inputs, outputs = (tuple(position[b] for b in buffers) for buffers in (step.inputs, step.outputs))
    return EagerStep(step.function, inputs, outputs)
