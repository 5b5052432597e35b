"""From a graph of ATen operators, which something else has traced, to a module of the torch dialect."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch._subclasses import FakeTensor
from torch.fx import Graph, GraphModule, Node
from torch.utils import _pytree as pytree

from ...errors import UnsupportedError
from .aliasing import Place, place_of
from .captured_program import Binding, CapturedProgram, Output
from .complex import Rewritten, without_complex, without_rule
from .eager_fallback import Fallback
from .export import finish
from .importer import GraphImporter


def capture_graph(graph: GraphModule, fallback: Fallback = None, updated: Sequence[str] = ()) -> CapturedProgram:
    """Capture a graph of ATen operators that change nothing in place, with fixed sizes.

    Its arguments are those of the program, a flat list its result. `updated` are the names of arguments that the last
    results replace, which are nothing that the program returns. Results lie in memory as they were traced. `graph` is
    rewritten on the way. Raises UnsupportedError.
    """
    inputs = [n for n in graph.graph.nodes if n.op == "placeholder"]
    examples = [n.meta.get("val") for n in inputs]
    bindings = [Binding(n.name, "input", i) for i, n in enumerate(inputs) if isinstance(examples[i], torch.Tensor)]
    given = [inputs[b.leaf] for b in bindings]
    for node, tensor in _constants(graph):
        bindings.append(Binding(node.name, "constant", tensor=tensor))
        given.append(node)
    rewritten = Rewritten() if fallback and without_rule(graph.graph) else without_complex(graph.graph)
    leaves: Sequence[Any] = graph.graph.output_node().args[0]  # pyright: ignore[reportAssignmentType]
    first = len(leaves) - len(updated)
    places = {n: place_of(n.meta["val"]) for n in leaves[:first] if _is_computed(n) and n.name not in rewritten.results}
    written = {n: place.written(graph.graph, n) for n, place in places.items() if place is not None}
    bindings += [Binding(name, "constant", tensor=tensor) for name, _, tensor in rewritten.constants]
    given += [node for _, node, _ in rewritten.constants]
    nodes = list(graph.graph.nodes)
    importer = GraphImporter(None, fallback, (), nodes)
    importer.declare([(b.name, node) for b, node in zip(bindings, given, strict=True)])
    importer.run(node for node in nodes if node not in given)
    updates = tuple(
        (importer.result_index(leaf.name), importer.argument_index(name) or 0)
        for leaf, name in zip(leaves[first:], updated, strict=True)
    )
    outputs = tuple(_output(importer, leaf, places.get(leaf), written.get(leaf)) for leaf in leaves[:first])
    specs = pytree.tree_flatten((tuple(examples), {}))[1], pytree.tree_flatten(list(leaves[:first]))[1]
    return finish(importer, bindings, outputs, updates, examples, specs, rewritten)


def _constants(graph: GraphModule) -> list[tuple[Node, torch.Tensor]]:
    """The tensors that a graph holds, which become arguments of it."""
    found: list[tuple[Node, torch.Tensor]] = []
    mode = _mode(graph.graph)
    for node in [n for n in graph.graph.nodes if n.op == "get_attr"]:
        tensor = getattr(graph, str(node.target), None)
        if not isinstance(tensor, torch.Tensor):
            continue
        with graph.graph.inserting_before(next(iter(graph.graph.nodes))):
            argument = graph.graph.placeholder(node.name)
        argument.meta = {**node.meta, "val": tensor if mode is None else mode.from_tensor(tensor, static_shapes=True)}
        node.replace_all_uses_with(argument)
        graph.graph.erase_node(node)
        found.append((argument, tensor))
    return found


def _mode(graph: Graph) -> Any:
    """What the values of a graph are traced in; None where there are only tensors with contents."""
    values = (v for n in graph.nodes for v in pytree.tree_leaves(n.meta.get("val")))
    return next((v.fake_mode for v in values if isinstance(v, FakeTensor)), None)


def _is_computed(leaf: Any) -> bool:
    return isinstance(leaf, Node) and leaf.op != "placeholder" and isinstance(leaf.meta.get("val"), torch.Tensor)


def _output(importer: GraphImporter, leaf: Any, place: Place | None, written: Node | None) -> Output:
    if not isinstance(leaf, Node):
        return Output("constant", value=leaf)
    if not isinstance(leaf.meta.get("val"), torch.Tensor):
        raise UnsupportedError("a result that is a number and varies is not supported", argument=leaf.name)
    argument = importer.argument_index(leaf.name)
    if argument is not None:
        return Output("argument", argument)
    return Output("result", importer.result_index((written or leaf).name), place=place)
