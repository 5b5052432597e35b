"""Operators that address memory, such as `as_strided`, rewritten as operators on the elements of their tensors.

In the IR a tensor has no strides, but in a traced graph it has. So `as_strided(x, size, stride, offset)` becomes the
same operator on a one-dimensional tensor, the memory of `x`:

x.permute(...).reshape(-1)          # the elements of x in the order of their addresses, with zeros in gaps
 .as_strided(size, stride, offset)  # on a contiguous tensor an index map, which the IR has
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
"""Operators with addresses (strides, offset) as arguments."""

_FRESH = {"new_zeros", "new_ones", "new_full", "new_empty", "new_empty_strided"}
"""Operators that create tensors whose strides do not depend on the strides of an argument."""


def rewritten(traced: TracedGraph, features: Features) -> dict[str, Layout]:
    """Rewrites the operators of a graph that address memory.

    Returns the layouts, in the trace, of the arguments whose strides determine an address, by the argument's name.
    Raises UnsupportedError for an address at which the tensor has no element.
    """
    graph, bases = traced.graph, dict[Node, Node]()
    for node in [n for n in graph.nodes if n.target in _ADDRESSING]:
        with at_node(node):
            _rewrite(graph, node, bases)
    arguments = dict.fromkeys(source for base in bases.values() for source in _sources_of_strides(base, bases))
    return {n.name: (tuple(n.meta["val"].stride()), n.meta["val"].storage_offset()) for n in arguments}


def captured(program: CapturedProgram, features: Features) -> None:
    """Adds to the captured program the layouts that arguments must have in each call."""
    layouts = features.facts["addresses"]
    program.layouts = {i: layouts[name] for i, name in enumerate(features.names) if name in layouts}


def _rewrite(graph: Graph, node: Node, bases: dict[Node, Node]) -> None:
    """Rewrites one operator.

    `bases` maps each rewritten result to the node whose memory it addresses; the new result is added.
    """
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
    # The trace has the strides that the tensor has in eager PyTorch; the rewritten operators may give others.
    result.meta["val"] = node.meta["val"]
    bases[result] = base
    node.replace_all_uses_with(result)
    graph.erase_node(node)


def _numbers(value: Tensor) -> tuple[Any, ...]:
    return *value.shape, *value.stride(), value.storage_offset()


def _owner(node: Node, bases: Mapping[Node, Node]) -> Node:
    """Returns the node that `node` is a view of, through all views in between; `node` itself if it is no view."""
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
    """Yields the arguments whose strides may determine the strides of `node`."""
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
