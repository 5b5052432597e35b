"""Sizes that depend on data: decomposition of the operators that have such a size into operators that read it.

After `x[mask]` and similar operators are decomposed, only `Tensor.item` reads data, which the importer supports.

A *masked update* is a write of elements to the places of a mask, if the elements are computed elementwise from elements
at the places of the same mask: `y[m] *= c`, or `y[m] = f(h[m])`. It becomes a select between `f(h)` and `y`, which
needs no size.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.export import ExportedProgram
from torch.fx import Graph, Node

from ..arrays import named_arguments
from ..decompositions import table
from ..decompositions.data_sizes import DATA_SIZES
from ..decompositions.operators import by_operator
from ..emitter import Emitter
from ..symbolic_shapes import depends_on_data
from . import Features

aten: Any = torch.ops.aten

_KEEPS_PLACES = {aten._to_copy.default, aten.clone.default, aten.alias.default, aten.detach.default}
"""Operators that compute each element from one element, in addition to those that PyTorch calls pointwise."""


def expanded(program: ExportedProgram, features: Features) -> ExportedProgram:
    """Returns the program in which only `Tensor.item` reads a size from data."""
    more = by_operator(DATA_SIZES)
    if all(node.target not in more for node in program.graph.nodes):
        return program
    select_masked_updates(program.graph)
    return table.decomposed(program, features.split, False, more)


def select_masked_updates(graph: Graph) -> None:
    """Replaces each masked update in a graph by a select."""
    updates = graph.find_nodes(op="call_function", target=aten.index_put.default)
    for node in updates:
        named = named_arguments(node)
        y, indices, values = named["self"], named["indices"], named["values"]
        mask = indices[0] if len(indices) == 1 else None
        if mask is None or mask.meta["val"].dtype != torch.bool or not _has_data_size(values):
            continue
        update = _Update(mask)
        if not update.lifts(values):
            continue
        emitter = Emitter(graph)

        def select(operands: Any, update: _Update = update, values: Node = values, named: Any = named) -> Any:
            at, old, leaves = operands
            new = update.lifted(values, dict(zip(update.leaves, leaves, strict=True)))
            new = old + new if named.get("accumulate") else new
            return torch.where(at.reshape([*at.shape, *[1] * (old.dim() - at.dim())]), new, old)

        node.replace_all_uses_with(emitter.inline(node, select, (mask, y, list(update.leaves))))
        graph.erase_node(node)
    if updates:
        _remove_unused(graph)


def _has_data_size(node: Any) -> bool:
    value = node.meta.get("val") if isinstance(node, Node) else None
    sizes = value.shape if isinstance(value, torch.Tensor) else ()
    return any(map(depends_on_data, sizes))


class _Update:
    """Computation of the values of a masked update, on whole tensors instead of the elements at the mask.

    Attributes:
        leaves: nodes from which the values are computed; their number while the computation is traced.
    """

    def __init__(self, mask: Node) -> None:
        self._mask, self._rank = mask, mask.meta["val"].dim()
        self.leaves: dict[Node, int] = {}
        self._verdicts: dict[Node, bool] = {}

    def lifts(self, node: Node) -> bool:
        """Returns true if a value is computed elementwise from elements at the mask, and from smaller tensors."""
        if node not in self._verdicts:
            self._verdicts[node] = self._lifts(node)
        return self._verdicts[node]

    def _lifts(self, node: Node) -> bool:
        target = node.target
        if target is aten.index.Tensor and [*node.args[1]] == [self._mask]:  # pyright: ignore
            source = node.args[0]
            assert isinstance(source, Node)
            self.leaves.setdefault(source, len(self.leaves))
            return True
        pointwise = isinstance(target, torch._ops.OpOverload) and torch.Tag.pointwise in target.tags
        if not pointwise and target not in _KEEPS_PLACES or node.kwargs.get("out") is not None:
            return False
        rank = node.meta["val"].dim()
        for operand in node.all_input_nodes:
            value = operand.meta.get("val")
            if _has_data_size(operand):
                if value.dim() != rank or not self.lifts(operand):
                    return False
            elif not isinstance(value, torch.Tensor) or value.dim() >= rank:
                return False
            else:
                self.leaves.setdefault(operand, len(self.leaves))
        return True

    def lifted(self, node: Node, values: dict[Node, Any]) -> Any:
        """Returns a value computed on whole tensors. `values`: tensors of the leaves, and results so far."""
        if node in values:
            return values[node]
        if node.target is aten.index.Tensor:
            values[node] = values[node.args[0]]  # pyright: ignore[reportArgumentType]
        else:
            args, kwargs = torch.fx.map_arg((node.args, node.kwargs), lambda n: self.lifted(n, values))  # pyright: ignore
            values[node] = node.target(*args, **kwargs)  # pyright: ignore[reportCallIssue]
        return values[node]


def _remove_unused(graph: Graph) -> None:
    """Removes values that only assertions on their sizes use.

    The size of an index with a mask is always legal, so that such an assertion holds.
    """
    graph.eliminate_dead_code()
    for size in graph.find_nodes(op="call_function", target=aten.sym_size.int):
        source = size.args[0]
        assert isinstance(source, Node)
        conditions = list(size.users)
        asserts = [a for c in conditions for a in c.users]
        plain = all(len(c.all_input_nodes) == 1 for c in conditions) and all(
            a.target is aten._assert_scalar.default for a in asserts
        )
        if source.target is aten.index.Tensor and len(source.users) == 1 and plain:
            for unused in (*asserts, *conditions, size):
                graph.erase_node(unused)
    graph.eliminate_dead_code()
