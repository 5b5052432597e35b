"""Operators that address memory (`as_strided` and its relatives), written on the elements of their tensors.

In the IR a tensor has no strides. The tensors of a traced graph have: there each such operator is rewritten to address
the memory of its tensor as a tensor of one dimension, which the IR can express.
"""

from __future__ import annotations

import operator
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch.fx import Graph, Node
from torch.utils._python_dispatch import _disable_current_modes  # pyright: ignore[reportPrivateUsage]

from ...errors import UnsupportedError
from .aliasing import share
from .complex.pairs import Emitter
from .source_locations import at_node

Tensor = torch.Tensor

Layout = tuple[tuple[int, ...], int]
"""Strides and storage offset of a tensor, in elements."""

aten: Any = torch.ops.aten

_WRITE = aten.as_strided_scatter.default
_ADDRESSING = {aten.as_strided.default, aten.as_strided_copy.default, aten.resize.default, _WRITE}
"""Operators whose arguments are addresses."""

ADDRESSING = frozenset(map(str, _ADDRESSING))
"""Their names."""

_FRESH = {"new_zeros", "new_ones", "new_full", "new_empty", "new_empty_strided"}
"""Operators whose results have the same strides, whatever the strides of their argument are."""


def address_elements(graph: Graph) -> dict[Node, Layout]:
    """Rewrites the operators of `graph` that address memory.

    Returns the arguments from whose strides the addresses follow, with the layouts that they were traced with. Raises
    UnsupportedError for an address at which the tensor has no element.
    """
    bases: dict[Node, Node] = {}
    for node in [n for n in graph.nodes if n.target in _ADDRESSING]:
        with at_node(node):
            _rewrite(graph, node, bases)
    arguments = dict.fromkeys(source for base in bases.values() for source in _sources_of_strides(base, bases))
    return {n: (tuple(n.meta["val"].stride()), n.meta["val"].storage_offset()) for n in arguments}


def _rewrite(graph: Graph, node: Node, bases: dict[Node, Node]) -> None:
    """Rewrites one operator, and enters its result into `bases` with the node whose memory it addresses."""
    names = [a.name for a in node.target._schema.arguments]  # pyright: ignore
    arguments: dict[str, Any] = {**dict(zip(names, node.args, strict=False)), **node.kwargs}
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


class Memory:
    """The memory between the first and the last element of a tensor.

    Args:
        shape: Extents of the tensor.
        stride: Strides of the tensor, in elements.

    Raises:
        UnsupportedError: Different elements have one address.
    """

    def __init__(self, shape: Sequence[int], stride: Sequence[int]) -> None:
        self._shape = tuple(shape)
        self._repeated = [d for d, (n, s) in enumerate(zip(shape, stride, strict=True)) if n > 1 and s == 0]
        alone = {d for d, n in enumerate(shape) if n == 1 or d in self._repeated}
        inner = sorted((d for d in range(len(shape)) if d not in alone), key=lambda d: stride[d])
        self._order = [*alone, *reversed(inner)]
        self._runs: list[tuple[int, int, int]] = []  # extent, stride and length of an element, innermost first
        length = 1
        for d in inner:
            if stride[d] < length:
                raise UnsupportedError("the elements of the tensor overlap in memory; use a contiguous copy of it")
            self._runs.append((shape[d], stride[d], length))
            length = shape[d] * stride[d]
        self._length = length

    def flat(self, x: Tensor) -> Tensor:
        """Returns this memory of the tensor `x` as one dimension, with zeros in its gaps."""
        for d in self._repeated:
            x = aten.slice(x, d, 0, 1)
        x = x.permute(self._order).reshape([*(n for n, _, _ in reversed(self._runs)), 1])
        for _, stride, length in self._runs:
            x = aten.constant_pad_nd(x, (0, stride - length)) if stride > length else x
            x = x.reshape([*x.shape[:-2], x.shape[-2] * stride])
        return x

    def written(self, x: Tensor, source: Tensor, size: Sequence[int], stride: Sequence[int], start: int) -> Tensor:
        """Returns the tensor `x` after `source` was written to the addresses of a view of this memory.

        Args:
            x: The tensor.
            source: Elements of the view.
            size: Extents of the view.
            stride: Strides of the view, in elements.
            start: Address of the first element of the view, from the first one of `x`.
        """
        y = torch.as_strided_scatter(self.flat(x), source, size, stride, start)
        for extent, stride_of_element, length in reversed(self._runs):
            y = y.reshape([*y.shape[:-1], extent, stride_of_element])
            y = aten.slice(y, -1, 0, length) if stride_of_element > length else y
        y = y.reshape([self._shape[d] for d in self._order])
        return y.permute([self._order.index(d) for d in range(len(self._order))])

    def check(self, size: Sequence[int], stride: Sequence[int], start: int, written: bool) -> None:
        """Raises UnsupportedError unless the tensor has an element at each address of a view."""
        if 0 in size:
            return
        last = start + sum((n - 1) * s for n, s in zip(size, stride, strict=True))
        inside = 0 not in self._shape and 0 <= start <= last < self._length
        if inside and any(s > length for _, s, length in self._runs):
            with _disable_current_modes():
                mask = self.flat(torch.ones(self._shape, dtype=torch.bool))
                inside = bool(mask.as_strided(size, stride, start).all())
        if not inside:
            raise UnsupportedError(
                "addresses memory outside of the elements of its tensor",
                kind="mutation-and-aliasing",
                remedy="apply as_strided to the tensor that has all elements",
            )
        if written and self._repeated:
            raise UnsupportedError("writes to a tensor of which several elements have one address; use a copy of it")
