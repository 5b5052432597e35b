"""Writing Python functions of tensors into an exported graph."""

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
    """What the values of a graph are traced in; None where there are only tensors with contents."""
    values = (v for n in graph.nodes for v in pytree.tree_leaves(n.meta.get("val")))
    return next((v.fake_mode for v in values if isinstance(v, FakeTensor)), None)


class Emitter:
    """Traces functions into a graph, in front of the node that they take the place of."""

    def __init__(self, graph: Graph) -> None:
        self.constants: list[tuple[str, Node, torch.Tensor]] = []
        self._graph = graph
        self._known: dict[object, Node] = {}
        self.mode = fake_mode(graph)
        self.body = next(n for n in graph.nodes if n.op != "placeholder")
        values = (v for n in graph.nodes for v in pytree.tree_leaves(n.meta.get("val")) if isinstance(v, torch.Tensor))
        self._device = next((v.device for v in values if v.device.type != "cpu"), torch.device("cpu"))

    def inline(self, before: Node, function: Callable[[Any], Any], given: Any, source: Node | None = None) -> Any:
        """What `function` gives for `given`, in which nodes stand for their values; its operators are inserted `before`
        a node, and have the place in the source of that, or of `source`."""
        leaves, spec = pytree.tree_flatten(given)
        nodes = [v for v in leaves if isinstance(v, Node)]
        returned: list[pytree.TreeSpec] = []

        def flat(*tensors: Any) -> list[Any]:
            rest = iter(tensors)
            values = [next(rest) if isinstance(v, Node) else v for v in leaves]
            results, out_spec = pytree.tree_flatten(function(pytree.tree_unflatten(values, spec)))
            returned.append(out_spec)
            return results

        with self.mode, torch.no_grad():
            traced = make_fx(flat, pre_dispatch=True)(*(n.meta["val"] for n in nodes))
        kept = {id(n.meta["val"]): n for n in self._known.values()}
        inputs, made, results = iter(nodes), dict[Node, Node](), list[Any]()
        for node in traced.graph.nodes:
            if node.op == "placeholder":
                made[node] = next(inputs)
            elif node.op == "get_attr":
                made[node] = kept[id(getattr(traced, str(node.target)))]
            elif node.op == "output":
                results = pytree.tree_map(lambda v: made.get(v, v) if isinstance(v, Node) else v, node.args[0])
            else:
                with self._graph.inserting_before(before):
                    made[node] = self._graph.node_copy(node, made.__getitem__)
                meta = (source or before).meta
                made[node].meta = {"val": node.meta.get("val")} | {k: meta[k] for k in _PLACE if k in meta}
        return pytree.tree_unflatten(list(results), returned[-1])

    def constant(self, key: tuple[Any, ...], value: torch.Tensor) -> torch.Tensor:
        """A tensor that the program has as a constant argument; equal keys are one."""
        if key not in self._known:
            with self._graph.inserting_before(self.body):
                node = self._graph.placeholder("_".join(map(str, key)))
            node.meta["val"], value = self._placed(value)
            self.constants.append((node.name, node, value))
            self._known[key] = node
        return self._known[key].meta["val"]

    def _placed(self, value: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Returns a constant as it is traced and as it is stored, both on the device of the program. A program of fake
        tensors can be captured without that device: then the constant is stored on the host."""
        if self._device.type == "cpu":
            return self.mode.from_tensor(value, static_shapes=True), value
        with _disable_current_modes(), self.mode:
            traced = torch.empty(value.shape, dtype=value.dtype, device=self._device)
        return traced, value.to(self._device) if torch.accelerator.is_available() else value


_PLACE = ("stack_trace", "nn_module_stack")
"""What is known of a node's place in the source."""
