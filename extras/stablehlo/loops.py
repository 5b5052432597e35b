"""Counted loops: `stablehlo.while` as repeated code, or as `tensor.scan`.

JAX writes `lax.scan` and `lax.fori_loop` as a `while` with a counter. Step t reads row t of some tensors by
`dynamic_slice`, and writes row t of others by `dynamic_update_slice`. `counted` recognises counters: integers that
change by a constant in each step. So it knows the number of steps, and the rows as polynomials of t. If each
step reads a row of a tensor, the tensor is an `each` operand of the scan. If each step writes a row, the tensor is the
history of a carry.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from jaxlib.mlir import ir
from xdsl.dialects.builtin import i1, i32, i64
from xdsl.ir import Attribute, Operation, SSAValue

from ...dialects.payload import CastOp, element_type
from ...dialects.shapes.binding import Polynomial, constant, plus, times, variable
from ...dialects.shapes.extents import Extent, extents_of
from ...dialects.tensor.builder import Builder, dims
from ...dialects.tensor.folds import fold
from ...dialects.tensor.views import reshape_to, shifted
from .operation import Body, HloOperation
from .registry import number_of
from .sizes import coefficients

if TYPE_CHECKING:
    from .importer import Frame

UNROLLED = 2000
"""Operations of StableHLO of a loop that is repeated as code, if its steps only have elementwise operations."""

UNROLLED_STEPS = 3
"""Steps of a loop that is repeated as code although a step has matmuls, reductions or loops."""

UNROLLED_HEAVY = 60
"""Operations of such a loop, all steps together. Above these a loop of launches is shorter to compile."""

_HEAVY = frozenset(
    "dot_general convolution reduce reduce_window select_and_scatter gather scatter sort while case if"
    " rng_bit_generator top_k".split()
)


@dataclass(frozen=True)
class Counted:
    """A loop with a known number of steps.

    Attributes:
        steps: number of steps.
        counters: number of a state -> its first value, and its change in each step. Constant states have the change 0.
        variable: name of the number of a step in polynomials.
    """

    steps: int
    counters: dict[int, tuple[int, int]]
    variable: str

    def value(self, state: int, step: Polynomial) -> Polynomial:
        """Returns the value of a counter in a step."""
        first, change = self.counters[state]
        return plus(constant(first), times(constant(change), step))


def counted(op: HloOperation, frame: Frame) -> Counted:
    """Returns the counters of a loop and its number of steps.

    Raises:
        UnsupportedError: the number of steps depends on data.
    """
    body = op.body(1)
    first = {n: sizes[0].number for n, v in enumerate(op.ir.operands) if (sizes := frame.sizes(v)) and len(sizes) == 1}
    importer = frame.importer
    names = {n: importer.fresh("state", None) for n, number in first.items() if number is not None}
    inner = frame.region({body.arguments[n]: [variable(name)] for n, name in names.items()})
    results = list(body.block.operations)[-1].operation.operands
    counters = dict[int, tuple[int, int]]()
    for n, name in names.items():
        after = inner.sizes(results[n])
        change = None if after is None else plus(after[0], variable(name), -1).number
        if change is not None:
            counters[n] = first[n] or 0, change
    loop = Counted(0, counters, importer.fresh("step", (0, 1 << 40)))
    steps = _steps(op, frame, loop)
    if steps is None:
        raise op.refuse(
            "the number of steps depends on data, which is not supported",
            remedy="use lax.scan or lax.fori_loop with a number of steps that is known, and a mask",
        )
    importer.sizes.ranges[loop.variable] = (0, max(steps - 1, 0))
    return Counted(steps, counters, loop.variable)


def _steps(op: HloOperation, frame: Frame, loop: Counted) -> int | None:
    """Returns the number of steps, or None if it is not known."""
    condition = op.body(0)
    step = variable(loop.variable)
    inner = frame.region({condition.arguments[n]: [loop.value(n, step)] for n in loop.counters})
    result = condition.operations[-1].ir.operands[0]
    if isinstance(result, ir.BlockArgument):
        return None
    test = HloOperation(result.owner.operation, inner)
    if test.name != "stablehlo.compare":
        value = inner.sizes(result)
        return 0 if value is not None and value[0].number == 0 else None
    sides = [inner.sizes(v) for v in test.ir.operands]
    if sides[0] is None or sides[1] is None:
        return None
    linear = coefficients(plus(sides[0][0], sides[1][0], -1), loop.variable)
    return None if linear is None else _first_failure(test.word("comparison_direction"), *linear)


def _first_failure(direction: str, a: int, c: int) -> int | None:
    """Returns the smallest t >= 0 for which `a * t + c` compared with 0 is false, or None if there is none."""
    if direction in ("GT", "GE"):
        direction, a, c = {"GT": "LT", "GE": "LE"}[direction], -a, -c
    if direction in ("LT", "LE"):
        last = c if direction == "LT" else c - 1
        if last >= 0:
            return 0
        return None if a <= 0 else -(last // a)
    if direction == "NE":
        return 0 if c == 0 else -c // a if a and -c % a == 0 and -c // a > 0 else None
    return 0 if c else None if a == 0 else 1


def is_short(op: HloOperation, steps: int, frame: Frame) -> bool:
    count, heavy = _work(op.body(1).block, frame, 0)
    return steps <= 1 or steps * count <= (
        UNROLLED_HEAVY if heavy and steps <= UNROLLED_STEPS else 0 if heavy else UNROLLED
    )


def _work(block: ir.Block, frame: Frame, depth: int) -> tuple[int, bool]:
    """Returns the number of operations of a block, called functions included, and whether it has heavy ones."""
    count, heavy = 0, False
    for operation in block.operations:
        op = operation.operation
        count += 1
        heavy = heavy or op.name.split(".")[-1] in _HEAVY
        if op.name == "func.call" and depth < 20:
            name = ir.FlatSymbolRefAttr(op.attributes["callee"]).value
            inner = frame.importer.functions.get(name)
            if inner is not None and len(inner.regions[0].blocks) == 1:
                more, also = _work(inner.regions[0].blocks[0], frame, depth + 1)
                count, heavy = count + more, heavy or also
    return count, heavy


def unrolled(b: Builder, op: HloOperation, frame: Frame, loop: Counted, values: Sequence[SSAValue]) -> list[SSAValue]:
    """Returns the final states of a loop whose steps are repeated as code.

    Args:
        b: builder of the loop.
        op: the loop.
        frame: frame of the loop.
        loop: its counters.
        values: initial states.
    """
    body, states = op.body(1), list(values)
    types = op.operands
    elements = [frame.sizes(v) for v in op.ir.operands]
    for step in range(loop.steps):
        for n in loop.counters:
            value = loop.value(n, constant(step))
            assert value.number is not None
            states[n], elements[n] = b.constant(value.number, (), types[n].element), [value]
        inner = frame.region({a: e for a, e in zip(body.arguments, elements, strict=True) if e is not None})
        states = inner.run(b, body.block, states)
        elements = [inner.sizes(v) for v in body.operations[-1].ir.operands]
    return states


Row = tuple[int, int]
"""Number of a row in the first step, and its change in each step: 1 or -1."""


@dataclass(eq=False)
class Steps:
    """Tensors of one step of a loop, while its body is imported.

    A read of a row is recorded in `reads`, and a write in `writes`. Results that are not in `reads` are placeholders.

    Attributes:
        loop: counters of the loop.
        outside: tensor of the step -> the tensor outside of the loop that it is.
        states: tensor of the step -> number of the state that it is.
        reads: (tensor outside or number of a state, row) -> the placeholder, or the slice of the scan.
        writes: result of a write -> (number of a state, row, value of the row).
        counters: number of a counter -> its tensor.
        stacked: numbers of the states whose rows may be read or written; None for all.
    """

    loop: Counted
    outside: dict[SSAValue, SSAValue] = field(default_factory=dict[SSAValue, SSAValue])
    states: dict[SSAValue, int] = field(default_factory=dict[SSAValue, int])
    reads: dict[tuple[SSAValue | int, Row], SSAValue] = field(default_factory=dict[Any, SSAValue])
    writes: dict[SSAValue, tuple[int, Row, SSAValue]] = field(default_factory=dict[Any, Any])
    counters: dict[int, SSAValue] = field(default_factory=dict[int, SSAValue])
    stacked: set[int] | None = None

    def _row(self, x: SSAValue, sizes: Sequence[Extent], start: Polynomial | None) -> Row | None:
        """Returns the row that a slice at computed positions is, or None.

        Args:
            x: the tensor.
            sizes: shape of the slice.
            start: its first index along the first dimension, if it is known.
        """
        shape = extents_of(x.type)
        if not shape or sizes[0] != 1 or tuple(sizes[1:]) != shape[1:] or not isinstance(shape[0], int):
            return None
        linear = None if start is None else coefficients(start, self.loop.variable)
        if linear is None or linear[0] not in (1, -1):
            return None
        change, number = linear
        last = number + change * (self.loop.steps - 1)
        return (number, change) if 0 <= min(number, last) and max(number, last) < shape[0] else None

    def read(self, b: Builder, x: SSAValue, sizes: Sequence[Extent], start: Polynomial | None) -> SSAValue | None:
        """Returns the slice of an operation that reads one row in each step, or None for another slice.

        Args:
            b: builder of the operation.
            x: the tensor.
            sizes: shape of the slice.
            start: its first index along the first dimension, if it is known.
        """
        source = self.states.get(x, self.outside.get(x))
        row = None if source is None else self._row(x, sizes, start)
        if row is None or source is None or isinstance(source, int) and not self._is_stacked(source):
            return None
        if (source, row) not in self.reads:
            self.reads[source, row] = _placeholder(b, extents_of(x.type)[1:], element_type(x.type))
        return reshape_to(b, self.reads[source, row], sizes)

    def write(self, b: Builder, x: SSAValue, row: SSAValue, start: Polynomial | None) -> SSAValue | None:
        """Returns the result of an operation that writes one row of a state in each step, or None for another one.

        Args:
            b: builder of the operation.
            x: the state.
            row: the row, with a leading dimension of 1.
            start: its index along the first dimension, if it is known.
        """
        state = self.states.get(x)
        place = None if state is None else self._row(x, extents_of(row.type), start)
        if state is None or place is None or not self._is_stacked(state):
            return None
        result = _placeholder(b, extents_of(x.type), element_type(x.type))
        self.writes[result] = state, place, reshape_to(b, row, extents_of(x.type)[1:])
        return result

    def _is_stacked(self, state: int) -> bool:
        return self.stacked is None or state in self.stacked


def _placeholder(b: Builder, shape: Sequence[Extent], element: Attribute) -> SSAValue:
    """Returns a tensor in place of another one. It is a conversion, so that no rule takes it for a constant."""
    other = i32 if element == i64 else i64
    return b.insert(CastOp(b.constant(0, shape, other), element))


@dataclass
class Plan:
    """Operands of a scan.

    Attributes:
        carries: numbers of the states that are carried.
        stacked: state -> the row that each step writes: the state is the history of a carry.
        counters: numbers of the counters whose value a step uses.
        reads: rows that steps read.
        captured: tensors outside of the loop that steps use.
    """

    carries: list[int]
    stacked: dict[int, Row]
    counters: list[int]
    reads: list[tuple[SSAValue | int, Row]]
    captured: list[SSAValue]


def scanned(b: Builder, op: HloOperation, frame: Frame, loop: Counted, values: Sequence[SSAValue]) -> list[SSAValue]:
    """Returns the final states of a loop as results of a `tensor.scan`.

    The body is imported twice: first to find the rows that its steps read and write, then as the step function.

    Args:
        b: builder of the loop.
        op: the loop.
        frame: frame of the loop.
        loop: its counters.
        values: initial states.
    """
    plan = _planned(b, op, frame, loop, values)
    shapes = [extents_of(v.type) for v in values]
    elements = [element_type(v.type) for v in values]
    carries = [b.constant(0, shapes[n][1:], elements[n]) if n in plan.stacked else values[n] for n in plan.carries]
    inputs = [_counter(b, loop, n, elements[n]) for n in plan.counters]
    inputs += [
        _rows(b, values[source] if isinstance(source, int) else source, row, loop.steps) for source, row in plan.reads
    ]

    def step(inner: Builder, states: list[SSAValue], slices: list[SSAValue], shared: list[SSAValue]) -> list[SSAValue]:
        steps = Steps(loop, stacked=set(plan.stacked))
        tensors = dict(zip(plan.captured, shared, strict=True))
        rows = slices[len(plan.counters) :]
        steps.reads.update(zip(plan.reads, rows, strict=True))
        arguments = dict(zip(plan.carries, states, strict=True)) | dict(zip(plan.counters, slices, strict=False))
        arguments = {n: v for n, v in arguments.items() if n not in plan.stacked}

        def captured(value: SSAValue) -> SSAValue:
            number = number_of(value)
            if value not in tensors:
                # A tensor that no result depends on is not captured by the plan.
                shape, element = extents_of(value.type), element_type(value.type)
                tensors[value] = (
                    _placeholder(inner, shape, element) if number is None else inner.constant(number, shape, element)
                )
            steps.outside[tensors[value]] = value
            return tensors[value]

        results = _body(inner, op, frame, loop, steps, captured, arguments, values)
        return [steps.writes[results[n]][2] if n in plan.stacked else results[n] for n in plan.carries]

    history = [i for i, n in enumerate(plan.carries) if n in plan.stacked]
    finals = dict(zip(plan.carries, fold(b, step, loop.steps, carries, inputs, plan.captured, history), strict=True))
    results = list[SSAValue]()
    for n, value in enumerate(values):
        if n in plan.stacked:
            results.append(_stacked(b, value, finals[n], plan.stacked[n], loop.steps))
        elif n in finals:
            results.append(finals[n])
        elif n in loop.counters:
            number = loop.value(n, constant(loop.steps)).number
            assert number is not None
            results.append(b.constant(number, (), elements[n]))
        else:
            results.append(value)
    return results


def _body(
    b: Builder,
    op: HloOperation,
    frame: Frame,
    loop: Counted,
    steps: Steps,
    captured: Callable[[SSAValue], SSAValue],
    tensors: Mapping[int, SSAValue],
    values: Sequence[SSAValue],
) -> list[SSAValue]:
    """Imports the body of a loop, and returns the next states.

    Args:
        b: builder of the step function.
        op: the loop.
        frame: frame of the loop.
        loop: its counters.
        steps: tensors of the step.
        captured: function that returns the tensor of the step for one outside of the loop.
        tensors: number of a state -> its tensor in the step. Constant states are those outside of the loop.
        values: initial states.
    """
    body = op.body(1)
    invariant = _invariant(body)
    inner = frame.region({body.arguments[n]: [loop.value(n, variable(loop.variable))] for n in loop.counters})
    inner.captured = captured
    states = list[SSAValue]()
    for n, value in enumerate(values):
        first, change = loop.counters.get(n, (0, 1))
        if n in tensors:
            state = tensors[n]
        elif not change:
            state = b.constant(first, (), element_type(value.type))
        elif n in invariant:
            state = captured(value)
        else:
            state = _placeholder(b, extents_of(value.type), element_type(value.type))
        if n in loop.counters and change:
            steps.counters[n] = state
        elif n not in invariant and change:
            steps.states[state] = n
        states.append(state)
    frame.importer.loops.append(steps)
    try:
        return inner.run(b, body.block, states)
    finally:
        frame.importer.loops.pop()


def _invariant(body: Body) -> set[int]:
    """Returns the numbers of the states that a body returns unchanged."""
    results = body.operations[-1].ir.operands
    return {n for n, (a, r) in enumerate(zip(body.arguments, results, strict=True)) if a == r}


def _planned(b: Builder, op: HloOperation, frame: Frame, loop: Counted, values: Sequence[SSAValue]) -> Plan:
    """Returns the operands of the scan for a loop."""
    stacked: set[int] | None = None
    while True:
        plan, candidates = _attempted(b, op, frame, loop, values, stacked)
        if candidates <= plan.stacked.keys():
            return plan
        stacked = set(plan.stacked)


def _attempted(
    b: Builder, op: HloOperation, frame: Frame, loop: Counted, values: Sequence[SSAValue], stacked: set[int] | None
) -> tuple[Plan, set[int]]:
    """Imports the body of a loop into a builder that is dropped.

    Args:
        b: builder of the loop.
        op: the loop.
        frame: frame of the loop.
        loop: its counters.
        values: initial states.
        stacked: states whose rows may be read and written as slices; None for all.

    Returns:
        the plan, and the states that were read or written by rows. If one of them is not stacked, the plan is wrong.
    """
    scratch, steps = Builder(algebra=b.algebra, location=b.location), Steps(loop, stacked=stacked)
    tensors = dict[SSAValue, SSAValue]()

    def captured(value: SSAValue) -> SSAValue:
        if value not in tensors:
            tensors[value] = _placeholder(scratch, extents_of(value.type), element_type(value.type))
            steps.outside[tensors[value]] = value
        return tensors[value]

    results = _body(scratch, op, frame, loop, steps, captured, {}, values)
    carries = sorted(steps.states.values())
    written = {n: steps.writes[results[n]] for n in carries if results[n] in steps.writes}
    rows = {n: row for n, (state, row, _) in written.items() if state == n}
    live = _live([written[n][2] if n in rows else results[n] for n in carries])
    arguments = {n: v for v, n in steps.states.items()}
    whole = {n for n in rows if arguments[n] in live or results[n] in live}
    reads = [key for key, v in steps.reads.items() if v in live]
    whole |= {source for source, row in reads if isinstance(source, int) and rows.get(source) != row}
    candidates = {s for result, (s, _, _) in steps.writes.items() if result in live or result in results}
    candidates |= {source for source, _ in reads if isinstance(source, int)}
    plan = Plan(
        carries,
        {n: row for n, row in rows.items() if n not in whole},
        [n for n, v in steps.counters.items() if v in live],
        reads,
        [value for value, v in tensors.items() if v in live and number_of(value) is None],
    )
    return plan, candidates


def _live(roots: Iterable[SSAValue]) -> set[SSAValue]:
    """Returns the values from which `roots` are computed, themselves included."""
    live, stack = set[SSAValue](), list(roots)
    while stack:
        value = stack.pop()
        if value not in live:
            live.add(value)
            stack += value.owner.operands if isinstance(value.owner, Operation) else ()
    return live


def _counter(b: Builder, loop: Counted, state: int, element: Attribute) -> SSAValue:
    first, change = loop.counters[state]
    return b.cast(b.plus(b.scaled(b.iota(0, [loop.steps], i64), change), first), element)


def _rows(b: Builder, x: SSAValue, row: Row, steps: int) -> SSAValue:
    """Returns the rows of a tensor in the order in which steps read them.

    Args:
        b: builder of the loop.
        x: the tensor.
        row: number of a row in each step.
        steps: number of steps.
    """
    first, change = row
    shape = [steps, *extents_of(x.type)[1:]]
    exprs = dims(len(shape))
    exprs[0] = shifted(exprs[0] if change == 1 else exprs[0] * change, first)
    return b.map(x, exprs, shape)


def _stacked(b: Builder, x: SSAValue, history: SSAValue, row: Row, steps: int) -> SSAValue:
    """Returns a tensor after the steps of a loop have written rows.

    Args:
        b: builder of the loop.
        x: the tensor before.
        history: the rows in the order of the steps.
        row: number of the row of each step.
        steps: number of steps.
    """
    first, change = row
    shape = extents_of(x.type)
    exprs = dims(len(shape))
    exprs[0] = shifted(exprs[0], -first) if change == 1 else shifted(exprs[0] * -1, first)
    if shape[0] == steps:
        return b.map(history, exprs, shape)
    bounds = [(exprs[0], 0, steps)]
    inside = b.map(b.constant(True, shape, i1), dims(len(shape)), shape, bounds, False)
    return b.select(inside, b.map(history, exprs, shape, bounds), x)
