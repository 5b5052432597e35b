"""Section "Launches": the launch plan of a call, its buffers over the steps, and the graph of launches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from xdsl.dialects.builtin import ModuleOp

from ...backend.host.launch_plan import BindStep, Buffer, HostProgram, Launch, LaunchPlan, Step, make_plan
from ...dialects.shapes.extents import ExtentError, extents_text, typical
from ...dialects.support.printing import quantity
from ...errors import ExecutionError, ShapeError
from ...tools.tables import seconds, si
from .drawing import CHARACTER, coordinate, drawing, edge_labels, label, path, shape, shortened
from .graph import arrange
from .html import Html, element, joined, table
from .program import ReportedProgram
from .sections import Section

MOST_PERIOD, MOST_ROWS, MOST_NODES, MOST_BUFFERS = 64, 200, 80, 400
"""Largest number of steps of a repeated sequence, of rows of the table, of nodes of the graph, and of drawn buffers."""

MAP_WIDTH, MAP_HEIGHT, MARGIN, TOP, BOTTOM = 860.0, 260.0, 72.0, 14.0, 44.0
"""Pixels of the picture of the arena: the area of the plot, and its margins."""

NODE_HEIGHT, PAD = 40.0, 8.0


@dataclass(frozen=True)
class Row:
    """Steps of a plan that are one row: a step, or the same step of each repetition of a sequence.

    Attributes:
        step: the first of them.
        numbers: their numbers.
        first, last: whether the row begins, or ends, a repeated sequence.
    """

    step: Step
    numbers: tuple[int, ...]
    first: bool = False
    last: bool = False

    @property
    def name(self) -> str:
        """The kernel, the function that PyTorch computes, or the size that is read."""
        return _name(self.step)


@dataclass(frozen=True)
class Memory:
    """Bytes of a call.

    Attributes:
        arguments, results: bytes of the arguments, and of results that are not arguments.
        arena: bytes of the intermediate buffers of a call.
        constants: bytes of buffers that are computed once.
    """

    arguments: int
    results: int
    arena: int
    constants: int


def section(program: ReportedProgram) -> Section | None:
    """Returns the section, or None for programs that do not reach the kernel level."""
    if not program.is_complete:
        return None
    module = program.compilation.at("kernel")
    plan, sizes = static_plan(module)
    if not plan.steps:
        return None
    memory, rows = memory_of(plan), folded([_name(s) for s in plan.steps], plan.steps)
    times = {k.name: k.predicted for k in program.kernels}
    parts = [element("p", _sentence(plan, memory, sizes), class_="note")]
    if len(plan.steps) > 1:
        parts += [element("h3", "Graph"), graph(plan, rows, written_by(module), times)]
        if memory is not None:
            parts += [element("h3", "Memory over the steps"), arena(plan)]
    parts += [element("h3", "Steps"), _table(plan, rows, written_by(module), times)]
    return Section("launches", "Launches", joined(parts), data_of(plan, rows, memory))


def data_of(plan: LaunchPlan, rows: Sequence[Row], memory: Memory | None) -> dict[str, Any]:
    """Returns the plan as data.

    Args:
        plan: the launch plan.
        rows: its steps, with repeated sequences folded.
        memory: bytes of a call, or None.
    """
    steps = [{"name": row.name, "steps": [*row.numbers]} for row in rows]
    return {"steps": len(plan.steps), "rows": steps, "memory": None if memory is None else vars(memory)}


def static_plan(module: ModuleOp) -> tuple[LaunchPlan, str]:
    """Returns the launch plan of a program, and the sizes that it assumes as text.

    Dynamic sizes have their typical value. If sizes depend on data, the plan stays dynamic.
    """
    plan = make_plan(module)
    if plan.program is None:
        return plan, ""
    symbols = {n for b in plan.input_buffers for n in b.shape if not isinstance(n, int)}
    with suppress(ShapeError, ExecutionError, ExtentError):
        assumed = plan.at([tuple(map(typical, b.shape)) for b in plan.input_buffers])
        if assumed.program is None:
            return assumed, ", ".join(sorted(f"{s} = {typical(s)}" for s in symbols))
    return plan, ""


def memory_of(plan: LaunchPlan) -> Memory | None:
    """Returns the bytes of a call, or None if they depend on data."""
    if plan.program is not None:
        return None
    arguments = sum(b.bytes for b in plan.input_buffers)
    return Memory(arguments, plan.peak_bytes - plan.call_bytes, plan.call_bytes, plan.constant_bytes)


def written_by(module: ModuleOp) -> Mapping[str, frozenset[int]]:
    """Returns the name of each kernel -> numbers of the arguments that it writes."""
    return {k.launch.kernel: k.written for k in HostProgram(module).kernels.values()}


def _name(step: Step) -> str:
    if isinstance(step, Launch):
        return step.kernel
    return f"read {step.symbol}" if isinstance(step, BindStep) else f"PyTorch: {step.function}"


def folded(names: Sequence[str], steps: Sequence[Step]) -> list[Row]:
    """Returns the rows of a plan: of sequences that follow each other and are equal, only the first has rows.

    Args:
        names: names of the steps.
        steps: the steps.
    """
    rows, at = list[Row](), 0
    while at < len(names):
        period, count = _repetition(names, at)
        for i in range(period):
            numbers = tuple(at + i + period * k for k in range(count))
            rows.append(Row(steps[at + i], numbers, count > 1 and i == 0, count > 1 and i == period - 1))
        at += period * count
    return rows


def _repetition(names: Sequence[str], at: int) -> tuple[int, int]:
    """Returns the length and the number of equal sequences from a position on that leave out the most rows."""
    best, saved = (1, 1), 0
    for period in range(1, min(MOST_PERIOD, (len(names) - at) // 2) + 1):
        sequence, count = names[at : at + period], 1
        while names[at + count * period : at + (count + 1) * period] == sequence:
            count += 1
        if period * (count - 1) > saved:
            best, saved = (period, count), period * (count - 1)
    return best


def _sentence(plan: LaunchPlan, memory: Memory | None, sizes: str) -> str:
    text = f"A call launches {quantity(len(plan.launches), 'kernel')}"
    others = len(plan.steps) - len(plan.launches)
    text += f" and has {quantity(others, 'other step')}." if others else "."
    if memory is None:
        return f"{text} Its sizes depend on data, so bytes are known when it runs."
    text += f" Memory: {si(memory.arguments)}B of arguments, {si(memory.results)}B of results,"
    text += f" {si(memory.arena)}B in between"
    text += f", {si(memory.constants)}B computed once" if memory.constants else ""
    return text + (f", at {sizes}." if sizes else ".")


def _uses(step: Step, written: Mapping[str, frozenset[int]]) -> tuple[list[int], list[int]]:
    """Returns the buffers that a step reads, and those that it writes. `written`: as `written_by` returns it."""
    if isinstance(step, Launch):
        writes = [step.buffers[i] for i in sorted(written[step.kernel])]
        return [b for i, b in enumerate(step.buffers) if i not in written[step.kernel]], writes
    return ([step.buffer], []) if isinstance(step, BindStep) else ([*step.inputs], [*step.outputs])


def _bytes(buffer: Buffer) -> str:
    try:
        return f"{si(buffer.bytes)}B"
    except ExtentError:
        return extents_text(buffer.shape)


def _table(
    plan: LaunchPlan, rows: Sequence[Row], written: Mapping[str, frozenset[int]], times: Mapping[str, float]
) -> Html:
    """Returns a table of the steps. Arguments as for `graph`."""
    cells: list[list[object]] = []
    for row in rows[:MOST_ROWS]:
        step = row.step
        reads, writes = _uses(step, written)
        named = [", ".join(f"{plan.buffers[b].name} ({_bytes(plan.buffers[b])})" for b in bs) for bs in (reads, writes)]
        size = ""
        if isinstance(step, Launch):
            size = f"{' * '.join(map(str, step.grid))} × {' * '.join(map(str, step.threads))}"
            size += f", {si(step.shared)}B shared" if step.shared else ""
            size += ", once" if step.constant else ""
        mark = "┌ " if row.first else "└ " if row.last else "│ " if len(row.numbers) > 1 else ""
        count = f" ×{len(row.numbers)}" if len(row.numbers) > 1 else ""
        time = seconds(times[row.name]) if row.name in times else ""
        cells.append([f"{mark}{_numbers(row.numbers)}", element("code", row.name), size, *named, f"{time}{count}"])
    note = f"{len(rows) - MOST_ROWS} more rows are left out. " if len(rows) > MOST_ROWS else ""
    note += (
        "Rows with ┌ │ └ are a sequence that repeats; they list the buffers of its first turn."
        if any(len(r.numbers) > 1 for r in rows)
        else ""
    )
    heads = ["step", "kernel", "blocks × threads", "reads", "writes", "predicted"]
    return joined([table(heads, cells, 5, class_="launches"), element("p", note, class_="note") if note else ""])


def _numbers(numbers: Sequence[int]) -> str:
    shown = ", ".join(map(str, numbers[:3]))
    return shown + (f", … {numbers[-1]}" if len(numbers) > 3 else "")


def edges_of(
    plan: LaunchPlan, rows: Sequence[Row], written: Mapping[str, frozenset[int]]
) -> dict[tuple[int, int], list[int]]:
    """Returns (row that writes, row that reads) -> the buffers, for rows in this order.

    Args:
        plan: the launch plan.
        rows: its steps, with repeated sequences folded.
        written: as `written_by` returns it.
    """
    row_of = {number: i for i, row in enumerate(rows) for number in row.numbers}
    writer, edges = dict[int, int](), dict[tuple[int, int], list[int]]()
    for number, step in enumerate(plan.steps):
        reads, writes = _uses(step, written)
        for buffer in (*reads, *writes):
            if buffer in writer and (source := row_of[writer[buffer]]) < row_of[number]:
                buffers = edges.setdefault((source, row_of[number]), [])
                if all(plan.buffers[b].shape != plan.buffers[buffer].shape for b in buffers):
                    buffers.append(buffer)
        writer |= dict.fromkeys(writes, number)
    return edges


def graph(
    plan: LaunchPlan, rows: Sequence[Row], written: Mapping[str, frozenset[int]], times: Mapping[str, float]
) -> Html:
    """Returns the launches as a graph, whose edges are intermediate buffers.

    Args:
        plan: the launch plan.
        rows: its steps, with repeated sequences folded.
        written: as `written_by` returns it.
        times: predicted seconds of each kernel.
    """
    shown = rows[:MOST_NODES]
    edges = {e: buffers for e, buffers in edges_of(plan, rows, written).items() if max(e) < len(shown)}
    texts = {i: _node_texts(row, times) for i, row in enumerate(shown)}
    sizes = {i: (CHARACTER * max(map(len, lines)) + 2 * PAD, NODE_HEIGHT) for i, lines in texts.items()}
    layout = arrange(sizes, [*edges])
    routes = [[(x + PAD, y + PAD) for x, y in route] for route in layout.routes]
    parts = [path(route, "edge") for route in routes]
    texts_of_edges = [" + ".join(_bytes(plan.buffers[b]) for b in buffers[:2]) for buffers in edges.values()]
    parts += edge_labels([route[-1] for route in routes], texts_of_edges)
    for i, row in enumerate(shown):
        x, y = layout.corners[i]
        width, height = sizes[i]
        box = shape("rect", x=x + PAD, y=y + PAD, width=width, height=height, rx=3)
        kind = "kernel" if isinstance(row.step, Launch) else "call"
        middle = x + PAD + width / 2
        lines = [
            label(middle, y + PAD + 16 + 15 * n, t, "muted" if n else "head", "middle") for n, t in enumerate(texts[i])
        ]
        parts.append(element("g", box, *lines, class_=kind + (" repeated" if len(row.numbers) > 1 else "")))
    title = f"graph of {quantity(len(shown), 'row')} of launches"
    note = "Edges are intermediate tensors; arguments are not drawn."
    if any(len(row.numbers) > 1 for row in shown):
        note += " A double frame is a launch that repeats; edges from one repetition to the next are not drawn."
    if len(rows) > len(shown):
        note += f" {len(rows) - len(shown)} later rows are left out."
    svg = drawing(layout.width + 2 * PAD, layout.height + 2 * PAD, title, parts, "launch-graph")
    return joined([element("p", note, class_="note"), svg])


def _node_texts(row: Row, times: Mapping[str, float]) -> tuple[str, str]:
    count = f" × {len(row.numbers)}" if len(row.numbers) > 1 else ""
    time = f" · {seconds(times[row.name])}" if row.name in times else ""
    steps = "steps" if len(row.numbers) > 1 else "step"
    return f"{row.name}{count}", f"{steps} {_numbers(row.numbers)}{time}"


def arena(plan: LaunchPlan) -> Html:
    """Returns the buffers in the arena of a static plan. A box spans its steps and its bytes of the arena."""
    scratch = [b for b in plan.buffers[plan.arguments :] if b.first >= 0 and not b.constant]
    if not scratch or not plan.call_bytes:
        return element("p", "No buffer is needed in between.", class_="note")
    drawn = sorted(scratch, key=lambda b: -b.bytes)[:MOST_BUFFERS]
    count, bottom = len(plan.steps), TOP + MAP_HEIGHT
    step, unit = MAP_WIDTH / count, MAP_HEIGHT / plan.call_bytes
    parts = [shape("path", d=f"M{MARGIN:.0f} {TOP:.0f}V{bottom:.0f}h{MAP_WIDTH:.0f}", class_="axis")]
    for share in (0.0, 0.5, 1.0):
        y = coordinate(bottom - share * MAP_HEIGHT)
        parts.append(element("path", d=f"M{MARGIN:.0f} {y}h{MAP_WIDTH:.0f}", class_="grid"))
        parts.append(label(MARGIN - 6, float(y) + 4, f"{si(share * plan.call_bytes)}B", "muted", "end"))
    for number in range(0, count, max(1, -(-count // 20))):
        parts.append(label(MARGIN + (number + 0.5) * step, bottom + 15, str(number), "muted", "middle"))
    parts.append(label(MARGIN + MAP_WIDTH / 2, bottom + 32, "step", "muted", "middle"))
    for b in drawn:
        x, width = MARGIN + b.first * step, (b.last - b.first + 1) * step
        y, height = bottom - (b.offset + b.bytes) * unit, max(b.bytes * unit, 1.0)
        tip = f"{b.name}: {b.dtype}{[*b.shape]}, {_bytes(b)} at {b.offset}, steps {b.first} to {b.last}"
        box = shape(
            "rect", element("title", tip), x=x + 0.5, y=y, width=max(width - 1, 1.0), height=height, class_="buffer"
        )
        parts.append(box)
        if height >= 13 and width >= 5 * CHARACTER:
            text = shortened(f"{b.name} {_bytes(b)}", int(width / CHARACTER))
            parts.append(label(x + 4, y + min(height, 24) / 2 + 4, text))
    title = f"arena of {si(plan.call_bytes)}B over {quantity(count, 'step')}"
    note = f"The arena has {si(plan.call_bytes)}B for {quantity(len(scratch), 'buffer')}, which together have"
    note += f" {si(sum(b.bytes for b in scratch))}B: buffers that are not used at the same time share memory."
    note += f" The {len(scratch) - len(drawn)} smallest are not drawn." if len(drawn) < len(scratch) else ""
    svg = drawing(MARGIN + MAP_WIDTH + 10, bottom + BOTTOM, title, parts, "arena")
    return joined([svg, element("p", note, class_="note")])
