"""Insertion of Python functions on tensors into an exported graph, by tracing them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch._subclasses import FakeTensor
from torch.fx import Graph, Node
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import _disable_current_modes  # pyright: ignore[reportPrivateUsage]


def fake_mode(graph: Graph) -> Any:
    """Returns the mode of a graph's fake tensors, or None if its tensors have contents."""
    values = (v for n in graph.nodes for v in pytree.tree_leaves(n.meta.get("val")))
    return next((v.fake_mode for v in values if isinstance(v, FakeTensor)), None)


class Emitter:
    """Traces functions on tensors, and inserts their operators into a graph.

    Attributes:
        constants: constants that were added: name, node, tensor.
        mode: mode of the graph's fake tensors.
        body: first node after the arguments.
    """

    def __init__(self, graph: Graph) -> None:
        self.constants: list[tuple[str, Node, torch.Tensor]] = []
        self._graph = graph
        self._constant_nodes: dict[object, Node] = {}
        self.mode = fake_mode(graph)
        self.body = next(n for n in graph.nodes if n.op != "placeholder")
        values = (v for n in graph.nodes for v in pytree.tree_leaves(n.meta.get("val")) if isinstance(v, torch.Tensor))
        self._device = next((v.device for v in values if v.device.type != "cpu"), torch.device("cpu"))

    def inline(self, before: Node, function: Callable[[Any], Any], operands: Any, source: Node | None = None) -> Any:
        """Traces a function, and inserts its operators into the graph.

        Args:
            before: node before which the operators are inserted.
            function: the function. It gets tensors in place of nodes.
            operands: its argument, a structure with nodes of the graph as leaves.
            source: node whose location in the source the operators get; `before` by default.

        Returns:
            The result of the function, with nodes in place of tensors.
        """
        leaves, spec = pytree.tree_flatten(operands)
        nodes = [v for v in leaves if isinstance(v, Node)]
        returned: list[pytree.TreeSpec] = []

        def flat(*tensors: Any) -> list[Any]:
            remaining = iter(tensors)
            values = [next(remaining) if isinstance(v, Node) else v for v in leaves]
            results, out_spec = pytree.tree_flatten(function(pytree.tree_unflatten(values, spec)))
            returned.append(out_spec)
            return results

        with self.mode, torch.no_grad():
            traced = make_fx(flat, pre_dispatch=True)(*(n.meta["val"] for n in nodes))
        constants = {id(n.meta["val"]): n for n in self._constant_nodes.values()}
        inputs, copies, results = iter(nodes), dict[Node, Node](), list[Any]()
        for node in traced.graph.nodes:
            if node.op == "placeholder":
                copies[node] = next(inputs)
            elif node.op == "get_attr":
                copies[node] = constants[id(getattr(traced, str(node.target)))]
            elif node.op == "output":
                results = pytree.tree_map(lambda v: copies.get(v, v) if isinstance(v, Node) else v, node.args[0])
            else:
                with self._graph.inserting_before(before):
                    copies[node] = self._graph.node_copy(node, copies.__getitem__)
                meta = (source or before).meta
                copies[node].meta = {"val": node.meta.get("val")} | {k: meta[k] for k in _LOCATION if k in meta}
        return pytree.tree_unflatten(list(results), returned[-1])

    def constant(self, key: tuple[Any, ...], value: torch.Tensor) -> torch.Tensor:
        """Adds a constant argument to the program, and returns it as a traced tensor. Equal keys share one argument."""
        if key not in self._constant_nodes:
            with self._graph.inserting_before(self.body):
                node = self._graph.placeholder("_".join(map(str, key)))
            node.meta["val"], value = self._placed(value)
            self.constants.append((node.name, node, value))
            self._constant_nodes[key] = node
        return self._constant_nodes[key].meta["val"]

    def _placed(self, value: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns a constant as it is traced, and as it is stored, both on the device of the program.

        A program of fake tensors can be captured without its device. Then the constant is stored on the host.
        """
        if self._device.type == "cpu":
            return self.mode.from_tensor(value, static_shapes=True), value
        with _disable_current_modes(), self.mode:
            traced = torch.empty(value.shape, dtype=value.dtype, device=self._device)
        return traced, value.to(self._device) if torch.accelerator.is_available() else value


_LOCATION = ("stack_trace", "nn_module_stack")
"""Entries of `node.meta` that describe the location of a node in the source."""
