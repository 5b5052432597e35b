"""Capture of a graph of ATen operators that something else has traced."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.fx import GraphModule, Node
from torch.utils import _pytree as pytree

from ...errors import CompileError
from .aliasing import ResultMemory, place_of
from .captured_program import Binding, CapturedProgram
from .eager_fallback import Fallback
from .emitter import fake_mode
from .features import Features, words_of
from .importer import TracedGraph, import_graph, is_computed
from .refusals import UserCalls
from .tracing import Request


def capture_graph(graph: GraphModule, fallback: Fallback = None, updated: Sequence[str] = ()) -> CapturedProgram:
    """Captures a graph of ATen operators that change nothing in place, with fixed sizes.

    Its arguments are those of the program, a flat list its result. Results lie in memory as they were traced.

    Args:
        graph: the graph, which is rewritten on the way.
        fallback: as for `capture`.
        updated: names of arguments that the last results replace, which are nothing that the program returns.

    Raises:
        UnsupportedError: the graph has something that the torch dialect does not have.
    """
    inputs = [n for n in graph.graph.nodes if n.op == "placeholder"]
    examples = [n.meta.get("val") for n in inputs]
    arguments = [
        *((Binding(n.name, "input", i), n) for i, n in enumerate(inputs) if isinstance(examples[i], torch.Tensor)),
        *((Binding(n.name, "constant", tensor=tensor), n) for n, tensor in _constants(graph)),
    ]
    leaves: Sequence[Any] = graph.graph.output_node().args[0]  # pyright: ignore[reportAssignmentType]
    first = len(leaves) - len(updated)
    memories = [
        ResultMemory(shares=i, place=place_of(n.meta["val"])) if is_computed(n) else None for i, n in enumerate(leaves)
    ]
    features = Features(words_of(graph), Request(graph, fallback=fallback), {"aliasing": memories[:first]})
    specs = pytree.tree_flatten((tuple(examples), {}))[1], pytree.tree_flatten(list(leaves[:first]))[1]
    calls = UserCalls(fallback=fallback)
    returned = list(enumerate(updated, first)), range(first)
    try:
        return import_graph(TracedGraph(graph.graph, arguments, *returned, examples, specs, features, calls))
    except CompileError as error:
        raise calls.complete(error) from error.__cause__


def _constants(graph: GraphModule) -> list[tuple[Node, torch.Tensor]]:
    """The tensors that a graph holds, which become arguments of it."""
    found: list[tuple[Node, torch.Tensor]] = []
    mode = fake_mode(graph.graph)
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
