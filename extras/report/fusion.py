"""Section "Fusion": each function as a graph of kernels, the bytes between them, and the price of each cut."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import FuncOp
from xdsl.ir import Block, Operation, SSAValue

from ...dialects.loop import NestOp
from ...dialects.payload import ConstantOp, tensor_bytes
from ...dialects.shapes.extents import extents_of
from ...dialects.support.calls import Call, main_function
from ...dialects.support.locations import line_text
from ...dialects.support.printing import quantity, value_names
from ...dialects.tensor import ROOT, IndexMapOp
from ...frontend.compilation import Compilation
from ...frontend.tuning.fusion_space import FusedKernel, FusionCut, FusionPrices, fusion_prices
from ...passes.pass_manager import collect_remarks, run_passes
from ...passes.tensor.plan_fusion import PlanFusionPass
from ...tools.tables import si
from .drawing import CHARACTER, ROW, coordinate, drawing, edge_labels, label, path, shape, shortened
from .graph import arrange
from .html import Html, element, joined, table, to_paste
from .program import ReportedProgram
from .sections import Section

MOST_PRICED = 24
"""Largest number of values whose price is computed, as for `--explain`."""

MOST_FRAMES, MOST_ROWS, MOST_ARGUMENTS = 60, 26, 6
"""Largest number of nodes of a graph, of values that are listed in one kernel, and of arguments that all have a node.

If there are more arguments, those with one reader are listed in it."""

FASTER = 0.999
"""Share of the plan's predicted time below which the other decision about a value is marked as faster."""

FRAME_WIDTH, HEAD, GUTTER, PAD = 330.0, 24.0, 30.0, 8.0
"""Pixels: width of a kernel, height of its head, width of the lines between its values, margin."""


@dataclass(frozen=True)
class Node:
    """Node of a fusion graph: a kernel, an argument, a call of a function, or the results.

    Attributes:
        kind: `kernel`, `argument`, `call` or `return`.
        title: text of its head.
        values: tensors that it defines, the stored one last.
        left_out: number of tensors of the kernel that are not listed.
        reads: name of each tensor that it reads from memory -> bytes.
        stored: names of the tensors that it writes to memory.
        loads: arguments that no other node reads, and that have no node of their own -> bytes.
    """

    kind: str
    title: str
    values: tuple[str, ...] = ()
    left_out: int = 0
    reads: Mapping[str, int] = field(default_factory=dict[str, int])
    stored: tuple[str, ...] = ()
    loads: Mapping[str, int] = field(default_factory=dict[str, int])


def section(program: ReportedProgram) -> Section | None:
    """Returns the section, or None for programs that start below the tensor level."""
    compilation = program.compilation
    if "loop" not in program.levels or "tensor" not in program.levels:
        return None
    prices = fusion_prices(compilation, MOST_PRICED, partly=True)
    if prices is None:
        return None
    tensors = compilation.at("tensor")
    main, names, parts = main_function(tensors), nest_names(compilation), [_introduction(prices)]
    for function in (main, *(f for f in functions_of(tensors) if f is not main)):
        cuts = {cut.name: cut for cut in prices.cuts} if function is main else {}
        kernels = prices.kernels if function is main else prices.functions[function.sym_name.data]
        parts.append(_function(function, graph_of(function, kernels, names), cuts, prices))
    return Section("fusion", "Fusion", joined(parts), data_of(prices))


def data_of(prices: FusionPrices) -> dict[str, Any]:
    """Returns the prices as data: seconds of the plan, and of each plan that differs in one value."""
    cuts = [
        {"name": c.name, "materialized": c.materialized, "seconds": c.seconds, "schedule": c.schedule}
        for c in prices.cuts
    ]
    return {"seconds": prices.seconds, "schedule": prices.schedule, "cuts": cuts}


def functions_of(module: ModuleOp) -> Iterator[FuncOp]:
    """Yields the functions of a module that have a body."""
    return (op for op in module.ops if isinstance(op, FuncOp) and not op.is_declaration)


def nest_names(compilation: Compilation) -> dict[tuple[str, str], str]:
    """Returns (function, name of a materialised tensor) -> name of its nest at the loop level, such as `k0`.

    Nests of several tensors have been fused with each other. The tensors are followed by name hints, which passes keep.
    """
    below = compilation.passes_to("loop")[len(compilation.passes_to("tensor")) :]
    planner = next((i for i, p in enumerate(below) if isinstance(p, PlanFusionPass)), None)
    if planner is None:
        return {}
    module, tensors = compilation.at("tensor").clone(), dict[str, tuple[str, str]]()
    with collect_remarks():
        run_passes(compilation.ctx, module, below[: planner + 1], verify=False)
        for function in functions_of(module):
            for name, value in value_names(function).items():
                if isinstance(value.owner, Operation):
                    # A digit at the end would be taken for the number of a value.
                    value.name_hint = f"tensor{len(tensors)}x"
                    tensors[value.name_hint] = function.sym_name.data, name
        run_passes(compilation.ctx, module, below[planner + 1 :], verify=False)
    nests = (op for op in module.walk() if isinstance(op, NestOp))
    hints = {r.name_hint: f"k{i}" for i, nest in enumerate(nests) for r in nest.res}
    return {tensors[hint]: nest for hint, nest in hints.items() if hint in tensors}


def graph_of(function: FuncOp, kernels: Sequence[FusedKernel], names: Mapping[tuple[str, str], str]) -> list[Node]:
    """Returns the nodes of a function, each after the nodes whose tensors it reads.

    Args:
        function: the function at the tensor level.
        kernels: its kernels.
        names: names of nests, as `nest_names` returns them.
    """
    values = value_names(function)
    name_of = {value: name for name, value in values.items()}
    arguments = [
        Node("argument", name, (name,), stored=(name,))
        for name, value in values.items()
        if isinstance(value.owner, Block)
    ]
    nodes = dict[int, Node]()
    order = {op: i for i, op in enumerate(function.body.block.ops)}
    for kernel in kernels:
        nest = names.get((function.sym_name.data, kernel.root), "")
        visible = [
            n for n in (*kernel.computed, kernel.root) if n in values and (n == kernel.root or _is_listed(values[n]))
        ]
        shown = _most_important(visible, values)
        title = " · ".join(
            filter(None, (nest, f"stores {kernel.root} ({si(kernel.written)}B)" if kernel.root else "copies"))
        )
        node = Node("kernel", title, tuple(shown), len(visible) - len(shown), kernel.reads, (kernel.root,))
        owner = values[kernel.root].owner if kernel.root in values else None
        nodes[2 * (order[owner] if isinstance(owner, Operation) else len(order)) + 1] = node
    for op, number in order.items():
        if isinstance(op, Call):
            callee = getattr(op, "callee", None)
            title = f"call @{callee.string_value()}" if callee is not None else op.name
            read = {name_of[v]: tensor_bytes(v.type) for v in op.operands if v in name_of and _is_tensor(v)}
            nodes.setdefault(2 * number, Node("call", title, (), 0, read, tuple(name_of[r] for r in op.results)))
    end = function.body.block.last_op
    read = {name_of[v]: tensor_bytes(v.type) for v in (() if end is None else end.operands) if _is_tensor(v)}
    graph = [*(nodes[i] for i in sorted(nodes)), Node("return", "results", (), 0, read)]
    readers = Counter(name for node in graph for name in node.reads)
    inputs = [a for a in arguments if readers[a.title]]
    if len(inputs) > MOST_ARGUMENTS:
        single = {a.title for a in inputs if readers[a.title] == 1}
        inputs = [a for a in inputs if a.title not in single]
        graph = [_with_loads(node, single) for node in graph]
    return [*inputs, *graph]


def _with_loads(node: Node, single: Container[str]) -> Node:
    """Returns a node in which the tensors of `single` are rows."""
    loads = {name: size for name, size in node.reads.items() if name in single}
    reads = {name: size for name, size in node.reads.items() if name not in single}
    return replace(node, reads=reads, loads=loads)


def _is_tensor(value: SSAValue) -> bool:
    return not isinstance(value.owner, Operation) or not isinstance(value.owner, ConstantOp)


def _is_listed(value: SSAValue) -> bool:
    """Returns true for tensors that are computed: constants and views are parts of their users."""
    return not isinstance(value.owner, ConstantOp | IndexMapOp)


def _most_important(names: Sequence[str], values: Mapping[str, SSAValue]) -> list[str]:
    """Returns at most `MOST_ROWS` of the names: reductions and the last one first, in their order."""
    if len(names) <= MOST_ROWS:
        return [*names]
    rank = {
        n: (n != names[-1], not str(getattr(values[n].owner, "name", "")).startswith("tensor."), i)
        for i, n in enumerate(names)
    }
    chosen = {*sorted(names, key=rank.__getitem__)[:MOST_ROWS]}
    return [n for n in names if n in chosen]


def _introduction(prices: FusionPrices) -> Html:
    unpriced = sum(not cut.required and cut.seconds is None for cut in prices.cuts)
    text = (
        f"The plan: {quantity(prices.launches, 'kernel')}, {prices.seconds * 1e6:.2f} us predicted. A frame is a"
        " kernel. Its lines are the values that it computes, in the names of --ir tensor; the last one is stored, and"
        " its readers load it. Views and constants are not listed. A price is the change of the plan's predicted time"
        " if this one value were stored (keep) or recomputed by its readers (cut); ▼: faster."
    )
    if unpriced:
        text += (
            f" {quantity(unpriced, 'other value')} may be stored, too; deplodock compile --explain fusion prices all."
        )
    return joined(
        [element("p", text, class_="note"), element("p", "this plan: ", to_paste(f"--schedule '{prices.schedule}'"))]
    )


def _function(function: FuncOp, graph: Sequence[Node], cuts: Mapping[str, FusionCut], prices: FusionPrices) -> Html:
    """Returns the graph of a function, and a table of its cuts.

    Args:
        function: the function at the tensor level.
        graph: its nodes.
        cuts: cuts by the name of the value.
        prices: the prices of the plan.
    """
    kernels = sum(node.kind == "kernel" for node in graph)
    name = function.sym_name.data
    parts: list[Html] = [element("h3", f"@{name}: {quantity(kernels, 'kernel')}")]
    if len(graph) > MOST_FRAMES:
        note = f"{len(graph) - MOST_FRAMES} of {len(graph)} nodes are left out of the drawing, the last ones."
        parts.append(element("p", note, class_="note"))
        graph = graph[:MOST_FRAMES]
    parts.append(draw(graph, value_names(function), cuts, prices.seconds))
    if cuts:
        parts.append(_cuts(cuts.values(), prices))
    return joined(parts)


def price_text(cut: FusionCut, seconds: float) -> str:
    """Returns the price of the opposite decision about a value, as text.

    Args:
        cut: the value.
        seconds: predicted seconds of the plan.
    """
    if cut.required:
        return "always stored"
    if cut.seconds is None:
        return ""
    change = f"{'cut' if cut.materialized else 'keep'} {(cut.seconds - seconds) * 1e6:+.2f} us"
    return f"{change} ▼" if cut.seconds < FASTER * seconds else change


def _cuts(cuts: Iterable[FusionCut], prices: FusionPrices) -> Html:
    """Returns a table of the values that may be stored or not."""
    rows: list[list[object]] = []
    for cut in cuts:
        state = "stored" if cut.materialized else "recomputed"
        change = price_text(cut, prices.seconds) or cut.refusal
        schedule: object = to_paste(f"--schedule '{cut.schedule}'") if cut.schedule else ""
        name = element("span", element("code", cut.name), id=_anchor(cut.name))
        place = (cut.location or "").replace("\\", "/").rsplit("/", 1)[-1]
        rows.append([name, cut.operation, place, state, change, schedule, f"{si(cut.written)}B", cut.readers or ""])
    heads = ["value", "operation", "line", "now", "the other way", "to paste", "bytes", "readers"]
    return table(heads, rows, 6, class_="cuts")


def _anchor(name: str) -> str:
    return f"fusion:{name.removeprefix('%')}"


def draw(graph: Sequence[Node], values: Mapping[str, SSAValue], cuts: Mapping[str, FusionCut], seconds: float) -> Html:
    """Returns a fusion graph as SVG.

    Args:
        graph: the nodes, each after the nodes whose tensors it reads.
        values: the values of the function by name.
        cuts: the cuts by the name of the value.
        seconds: predicted seconds of the plan.
    """
    owner_of = {name: i for i, node in enumerate(graph) for name in node.stored}
    edges, sizes_of_edges = list[tuple[int, int]](), list[int]()
    for i, node in enumerate(graph):
        for name, size in node.reads.items():
            if name in owner_of and owner_of[name] < i:
                edges.append((owner_of[name], i))
                sizes_of_edges.append(size)
    layout = arrange({i: _size(node, values) for i, node in enumerate(graph)}, edges)
    routes = [[(x + PAD, y + PAD) for x, y in route] for route in layout.routes]
    parts = [path(points, "edge") for points in routes]
    parts += edge_labels([points[-1] for points in routes], [f"{si(size)}B" for size in sizes_of_edges])
    for i, node in enumerate(graph):
        x, y = layout.corners[i]
        parts.append(_node(node, x + PAD, y + PAD, values, cuts, seconds))
    title = f"fusion graph of {quantity(len(graph), 'node')}"
    return drawing(layout.width + 2 * PAD, layout.height + 2 * PAD, title, parts, "fusion")


def _size(node: Node, values: Mapping[str, SSAValue]) -> tuple[float, float]:
    """Returns the width and height of a node in pixels. `values`: the values of the function by name."""
    rows = len(node.values) + min(len(node.loads), MOST_ROWS) + (node.left_out > 0)
    if node.kind == "argument":
        longest = max(len(node.title), len(type_text(values[node.title])))
        return CHARACTER * longest + 2 * PAD, HEAD + ROW
    if node.kind == "kernel" or node.loads:
        return FRAME_WIDTH, HEAD + ROW * rows + PAD
    return CHARACTER * len(node.title) + 2 * PAD, HEAD + 4.0


def _node(
    node: Node,
    x: float,
    y: float,
    values: Mapping[str, SSAValue],
    cuts: Mapping[str, FusionCut],
    seconds: float,
) -> Html:
    """Returns a node as SVG, with its left and top corner at `x`, `y`. Other arguments as for `draw`."""
    width, height = _size(node, values)
    parts = [shape("rect", x=x, y=y, width=width, height=height, rx=3 if node.kind == "kernel" else 10)]
    if node.kind == "argument":
        middle = x + width / 2
        parts.append(label(middle, y + 16, node.title, None, "middle"))
        parts.append(label(middle, y + 16 + ROW, type_text(values[node.title]), "muted", "middle"))
        return element("g", *parts, class_=node.kind)
    parts.append(label(x + PAD, y + 16, node.title, "head"))
    base = y + HEAD + 0.7 * ROW
    for name, size in [*node.loads.items()][:MOST_ROWS]:
        parts.append(label(x + PAD, base, f"↓ {shortened(name, 30)}", "muted"))
        parts.append(label(x + FRAME_WIDTH - PAD, base, f"{si(size)}B", "muted", "end"))
        base += ROW
    rows = {name: base + ROW * i for i, name in enumerate(node.values)}
    parts += _arcs(node.values, rows, values, x + GUTTER)
    for name, row in rows.items():
        parts.append(_value(name, x, row, values[name], cuts.get(name), seconds, name in node.stored))
    if node.left_out:
        parts.append(label(x + GUTTER + 8, base + ROW * len(rows), f"and {node.left_out} more", "muted"))
    return element("g", *parts, class_=node.kind)


def _value(name: str, x: float, y: float, value: SSAValue, cut: FusionCut | None, seconds: float, stored: bool) -> Html:
    """Returns the line of a value in a kernel.

    Args:
        name: name of the value.
        x, y: left end of the kernel, base line of the text.
        value: the value.
        cut: its cut, or None if it has none.
        seconds: predicted seconds of the plan.
        stored: whether the kernel stores it.
    """
    price = price_text(cut, seconds) if cut is not None else ""
    at_right = price or shortened(type_text(value), 18)
    parts = [
        element("title", f"{name}: {operation_text(value)} {type_text(value)}{_line_of(value)}"),
        shape("circle", cx=x + GUTTER, cy=y - 4, r=3.5 if stored else 2.5, class_="stored" if stored else None),
        label(x + GUTTER + 8, y, shortened(f"{name} {operation_text(value)}", 24), "root" if stored else None),
        label(x + FRAME_WIDTH - PAD, y, at_right, "price" if price else "muted", "end"),
    ]
    return element("a", *parts, href=f"#{_anchor(name)}") if price else element("g", *parts)


def _arcs(names: Sequence[str], rows: Mapping[str, float], values: Mapping[str, SSAValue], x: float) -> list[Html]:
    """Returns a line from each value of a kernel to each value that uses it: an arc to the left of the values."""
    shown, arcs = {values[name]: name for name in names}, list[Html]()
    for name in names:
        for source in dict.fromkeys(_shown_sources(values[name], shown)):
            top, bottom = rows[shown[source]] - 4, rows[name] - 4
            bend = min(GUTTER - 4, 3 + (bottom - top) / ROW * 4) if bottom - top > 1.5 * ROW else 0.0
            text = f"M{coordinate(x)} {coordinate(top)}C{coordinate(x - bend * 1.3)} {coordinate(top)}"
            text += f" {coordinate(x - bend * 1.3)} {coordinate(bottom)} {coordinate(x)} {coordinate(bottom)}"
            arcs.append(element("path", d=text, class_="edge"))
    return arcs


def _shown_sources(value: SSAValue, shown: Mapping[SSAValue, str]) -> Iterator[SSAValue]:
    """Yields the nearest shown tensors from which a value is computed."""
    todo, seen = [value], {value}
    while todo:
        owner = todo.pop().owner
        for source in owner.operands if isinstance(owner, Operation) else ():
            if source in seen:
                continue
            seen.add(source)
            if source in shown:
                yield source
            elif not _is_boundary(source):
                todo.append(source)


def _is_boundary(value: SSAValue) -> bool:
    return not isinstance(value.owner, Operation) or ROOT in value.owner.attributes or isinstance(value.owner, Call)


def operation_text(value: SSAValue) -> str:
    """Returns the operation that defines a tensor, for people: `reduce add`, `mulf`."""
    op = value.owner
    if not isinstance(op, Operation):
        return "argument"
    kind = op.properties.get("kind")
    data = getattr(kind, "data", None)
    return " ".join(filter(None, (op.name.rpartition(".")[2], str(getattr(data, "value", data)) if data else "")))


def type_text(value: SSAValue) -> str:
    """Returns the type of a tensor for people: `32x2048 f32`."""
    extents = "x".join(map(str, extents_of(value.type)))
    return f"{extents} {value.type.element_type}".strip()  # pyright: ignore


def _line_of(value: SSAValue) -> str:
    line = line_text(value.owner.location) if isinstance(value.owner, Operation) else None
    return f", {line}" if line else ""
