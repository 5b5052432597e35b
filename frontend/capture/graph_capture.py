"""Capture of a graph of ATen operators that another tracer has produced, such as Dynamo."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

import torch
from torch.fx import Graph, GraphModule, Node
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
    """Captures a graph of ATen operators without changes in place, and with sizes that are fixed or depend on data.

    The program has the arguments of the graph, and returns a flat list. Results have the strides of the trace. An
    integer argument that depends on data is a tensor without dimensions (`integers_as_tensors`).

    Args:
        graph: the graph. It is changed.
        fallback: as for `capture`.
        updated: names of the arguments whose new values are the last results of the graph. The program does not return
            these results.

    Raises:
        UnsupportedError: the graph has an operator or a type that the torch dialect does not support.
    """
    integers_as_tensors(graph.graph)
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


def integers_as_tensors(graph: Graph) -> None:
    """Replaces the integer arguments of a graph that depend on data by i64 tensors without dimensions.

    AOTAutograd makes such graphs: the forward graph returns a size that the backward graph needs. An integer that is
    the size of a tensor argument need not be read from its tensor.
    """
    inputs = graph.find_nodes(op="placeholder")
    shapes = (n.meta["val"].shape for n in inputs if isinstance(n.meta.get("val"), torch.Tensor))
    sizes = {str(size) for shape in shapes for size in shape if isinstance(size, torch.SymInt)}
    first = next((n for n in graph.nodes if n.op != "placeholder"), None)
    for node in inputs:
        number = node.meta.get("val")
        if isinstance(number, torch.SymInt) and first is not None:
            with graph.inserting_before(first):
                target = operator.pos if str(number) in sizes else torch.ops.aten._local_scalar_dense.default
                read = graph.call_function(target, (node,))
            node.replace_all_uses_with(read, delete_user_cb=lambda user, read=read: user is not read)
            read.meta["val"] = number
            node.meta["val"] = _without_dimensions(graph)


def _without_dimensions(graph: Graph) -> torch.Tensor:
    mode = fake_mode(graph)
    with nullcontext() if mode is None else mode:
        return torch.empty((), dtype=torch.int64)


def _constants(graph: GraphModule) -> list[tuple[Node, torch.Tensor]]:
    """Turns the tensors that a graph holds into arguments of the graph, and returns both."""
    constants: list[tuple[Node, torch.Tensor]] = []
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
        constants.append((argument, tensor))
    return constants
