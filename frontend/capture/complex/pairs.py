"""Writing operators into an exported graph, with complex values as pairs of nodes."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch.fx import Graph, Node
from torch.utils import _pytree as pytree

Scalar = bool | int | float | complex
Value = Node | int | float
"""A real tensor, or a number."""

_REAL = {torch.complex32: torch.float16, torch.complex64: torch.float32, torch.complex128: torch.float64}


class Pair(NamedTuple):
    """A complex tensor, or number, as its two parts."""

    re: Any
    im: Any


def is_complex(node: Node) -> bool:
    """Whether a value of `node` is a complex tensor."""
    values = pytree.tree_leaves(node.meta.get("val"))
    return any(isinstance(v, torch.Tensor) and v.is_complex() for v in values)


def real_dtype(node: Node) -> torch.dtype | None:
    """The data type of the parts of a complex result; None for a real one."""
    value = pytree.tree_leaves(node.meta["val"])[0]
    return _REAL.get(value.dtype)


class Emitter:
    """Inserts nodes into a graph, in front of the node that they take the place of."""

    def __init__(self, graph: Graph) -> None:
        self.constants: list[tuple[str, Node, torch.Tensor]] = []
        self._graph = graph
        self._known: dict[object, Node] = {}
        self._inputs = [n for n in graph.nodes if n.op == "placeholder"]
        values = [v for n in graph.nodes for v in pytree.tree_leaves(n.meta.get("val"))]
        self._mode = next(v.fake_mode for v in values if isinstance(v, torch._subclasses.FakeTensor))
        self.at(self._inputs[-1] if self._inputs else next(iter(graph.nodes)))

    def at(self, node: Node) -> None:
        """Let the next nodes stand in front of `node`, and have its place in the source."""
        self._before = node
        self._source = node

    def after_placeholders(self) -> None:
        """Let the next nodes stand behind all arguments of the graph."""
        self._before = next(n for n in self._graph.nodes if n.op != "placeholder")

    def fake(self, function: Any, /, *args: Any, **kwargs: Any) -> Any:
        """What `function` gives in terms of types and shapes."""
        with self._mode, torch.no_grad():
            return function(*args, **kwargs)

    def call(self, target: Any, /, *args: Any, **kwargs: Any) -> Node:
        """A node that calls `target`."""
        with self._graph.inserting_before(self._before):
            node = self._graph.create_node("call_function", target, args, kwargs, "part")
        given = pytree.tree_map(lambda v: v.meta["val"] if isinstance(v, Node) else v, (args, kwargs))
        node.meta["val"] = self.fake(target, *given[0], **given[1])
        for key in ("stack_trace", "nn_module_stack"):
            if key in self._source.meta:
                node.meta[key] = self._source.meta[key]
        return node

    def cast(self, value: Any, dtype: torch.dtype | None) -> Any:
        """A tensor in another data type; a number as it is."""
        if not isinstance(value, Node) or dtype is None or value.meta["val"].dtype == dtype:
            return value
        return self.call(torch.ops.aten._to_copy.default, value, dtype=dtype)

    def broadcast(self, a: Node, b: Node) -> tuple[Node, Node]:
        """Two tensors in their common shape."""
        if a.meta["val"].shape == b.meta["val"].shape:
            return a, b
        shape = self.call(torch.ops.aten.add.Tensor, a, b)
        first, second = (self.call(torch.ops.aten.expand_as.default, v, shape) for v in (a, b))
        return first, second

    def constant(self, key: tuple[Any, ...], value: torch.Tensor) -> Node:
        """A tensor that the program has as a constant argument; equal keys are one."""
        if key not in self._known:
            first = next(n for n in self._graph.nodes if n.op != "placeholder")
            with self._graph.inserting_before(first):
                node = self._graph.placeholder("_".join(map(str, key)))
            node.meta["val"] = self._mode.from_tensor(value, static_shapes=True)
            self.constants.append((node.name, node, value))
            self._known[key] = node
        return self._known[key]
