"""Operators that address memory (`as_strided` and its relatives), written on the elements of their tensors.

In the IR a tensor has no strides. The tensors of a traced graph have: there each such operator is rewritten to address
the memory of its tensor as a tensor of one dimension, which the IR can express.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch.fx import Graph, Node

from ....errors import UnsupportedError
from ..addressed_views import Memory
from ..aliasing import share
from ..arrays import named_arguments
from ..captured_program import CapturedProgram, Layout
from ..emitter import Emitter
from ..importer import TracedGraph
from ..source_locations import at_node
from . import Features

Tensor = torch.Tensor

aten: Any = torch.ops.aten

_WRITE = aten.as_strided_scatter.default
_ADDRESSING = {aten.as_strided.default, aten.as_strided_copy.default, aten.resize.default, _WRITE}
"""Operators whose arguments are addresses."""

_FRESH = {"new_zeros", "new_ones", "new_full", "new_empty", "new_empty_strided"}
"""Operators whose results have the same strides, whatever the strides of their argument are."""


def rewritten(traced: TracedGraph, features: Features) -> dict[str, Layout]:
    """Rewrites the operators of a graph that address memory.

    Returns the names of the arguments from whose strides the addresses follow, with the layouts that they were traced
    with. Raises UnsupportedError for an address at which the tensor has no element.
    """
    graph, bases = traced.graph, dict[Node, Node]()
    for node in [n for n in graph.nodes if n.target in _ADDRESSING]:
        with at_node(node):
            _rewrite(graph, node, bases)
    arguments = dict.fromkeys(source for base in bases.values() for source in _sources_of_strides(base, bases))
    return {n.name: (tuple(n.meta["val"].stride()), n.meta["val"].storage_offset()) for n in arguments}


def captured(program: CapturedProgram, features: Features) -> None:
    """Enters the layouts of arguments that each call must have."""
    layouts = features.facts["addresses"]
    program.layouts = {i: layouts[name] for i, name in enumerate(features.names) if name in layouts}


def _rewrite(graph: Graph, node: Node, bases: dict[Node, Node]) -> None:
    """Rewrites one operator, and enters its result into `bases` with the node whose memory it addresses."""
    arguments = named_arguments(node)
    viewed, offset = arguments["self"], arguments.get("storage_offset")
    base = viewed if node.target is _WRITE else _owner(viewed, bases)
    value, size = base.meta["val"], tuple(arguments["size"])
    stride = tuple(arguments.get("stride") or torch.empty(size, device="meta").stride())
    upstream = [n for source in _sources_of_strides(base, bases) for n in _numbers(source.meta["val"])]
    if not all(isinstance(n, int) for n in (*size, *stride, offset or 0, *_numbers(value), *upstream)):
        raise UnsupportedError(
            "addresses that depend on a size that varies are not supported; index the tensor instead"
        )
    memory = Memory(value.shape, value.stride())
    start = (viewed.meta["val"].storage_offset() if offset is None else offset) - value.storage_offset()
    memory.check(size, stride, start, written=node.target is _WRITE)
    emitter = Emitter(graph)
    if node.target is _WRITE:
        both = base, arguments["src"]
        result = emitter.inline(node, lambda both: memory.written(both[0], both[1], size, stride, start), both)
    else:
        result = emitter.inline(node, lambda x: memory.flat(x).as_strided(size, stride, start), base)
    result.meta["val"] = node.meta["val"]  # with the strides that PyTorch knows
    bases[result] = base
    node.replace_all_uses_with(result)
    graph.erase_node(node)


def _numbers(value: Tensor) -> tuple[Any, ...]:
    return *value.shape, *value.stride(), value.storage_offset()


def _owner(node: Node, bases: Mapping[Node, Node]) -> Node:
    """Returns the node whose elements `node` is a view of."""
    while True:
        view = node.args[0] if node.target is operator.getitem else node
        assert isinstance(view, Node)
        is_view = isinstance(view.target, torch._ops.OpOverload) and view.target.is_view
        source = bases.get(node) or (view.args[0] if is_view else None)
        value = source.meta.get("val") if isinstance(source, Node) else None
        if not isinstance(value, Tensor) or not share(value, node.meta["val"]) or value.dtype != node.meta["val"].dtype:
            return node
        assert isinstance(source, Node)
        node = source


def _sources_of_strides(node: Node, bases: Mapping[Node, Node]) -> Iterator[Node]:
    """Yields the arguments from whose strides those of `node` may follow."""
    waiting, visited = [node], {node}
    while waiting:
        node = waiting.pop()
        if node.op == "placeholder":
            yield node
        sources = node.all_input_nodes
        if node in bases:
            sources = [bases[node]]
        elif isinstance(node.target, torch._ops.OpOverload):
            name = node.target._schema.name.removeprefix("aten::")
            sources = [] if name in _FRESH else sources[:1] if name == "copy" else sources
        waiting += [s for s in sources if s not in visited]
        visited |= {*sources}
