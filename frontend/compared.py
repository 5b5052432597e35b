"""What a backward graph must not compute again: decisions, and sums that are compared with themselves.

PyTorch's partitioner lets the backward graph recompute what is cheap, or what a checkpoint says. A sum that is computed
in two graphs may be added in two orders, and the last bits differ. Then no element equals the maximum that the forward
graph has saved, so the gradient of the maximum is 0 / 0; and an `argmax` may decide otherwise than the forward graph
did. `passes/tensor/fusion/compared.py` has the same rule for the kernels of one graph.
"""

from __future__ import annotations

import operator
from typing import Any

import torch
from torch.fx import Graph, Node
from torch.utils import _pytree as pytree
from torch.utils.checkpoint import CheckpointPolicy

aten: Any = torch.ops.aten

_COMPARISONS = {aten.eq.Tensor, aten.ne.Tensor, aten.lt.Tensor, aten.le.Tensor, aten.gt.Tensor, aten.ge.Tensor}

_CHOOSING = ("amax", "amin", "max", "min", "maximum", "minimum", "sort", "topk", "kthvalue", "median", "nanmedian")
_MOVING = ("cat", "clone", "gather", "index", "index_select", "flip", "roll", "repeat", "constant_pad_nd", "stack")
_EXACT = {*_CHOOSING, *_MOVING, "aminmax", "where", "masked_fill", "_to_copy", "cummax", "cummin", "mode", "take"}
"""Operators whose results have the same bits wherever they are computed, as those of elementwise ones have."""

_SUMS = ("sum", "mean", "prod", "var", "var_mean", "std", "mm", "bmm", "addmm", "baddbmm", "mv", "dot", "convolution")
_ROUNDED = {*_SUMS, "cumsum", "cumprod", "linalg_vector_norm", "native_layer_norm", "_softmax", "_log_softmax"}
"""Operators whose last bits depend on the order in which they add, or multiply."""


def save_compared(graph: Graph) -> None:
    """Mark in a graph of both directions what the forward graph has to save if the backward graph uses it."""
    sums: list[Node] = []
    nearest: dict[Node, int] = {}
    found = 0
    for node in graph.nodes:
        if not isinstance(target := node.target, torch._ops.OpOverload):
            nearest[node] = nearest[node.args[0]] if target is operator.getitem else 0
            continue
        name = target._schema.name.removeprefix("aten::")
        read = [nearest[n] for n in node.all_input_nodes]
        if target in _COMPARISONS and node.args[0] is not node.args[1]:
            found |= nearest[node.args[0]] & nearest[node.args[1]]  # pyright: ignore[reportArgumentType]
        elif _decides(node):
            _save(node)
        through = 0
        for one in read if name not in _ROUNDED else ():
            through |= one
        if name not in _EXACT and not _is_elementwise(target):
            through |= 1 << len(sums)
            sums.append(node)
        nearest[node] = through
    for i, node in enumerate(sums):
        if found >> i & 1:
            _save(node)


def _is_elementwise(target: torch._ops.OpOverload) -> bool:
    return torch.Tag.pointwise in target.tags or any(r.alias_info for r in target._schema.returns)


def _decides(node: Node) -> bool:
    """Whether an operator chooses among numbers, and tells places: an `argmax`, a `topk`."""
    if _is_elementwise(node.target):  # pyright: ignore[reportArgumentType]
        return False
    read = (n.meta.get("val") for n in node.all_input_nodes)
    made = pytree.tree_leaves(node.meta.get("val"))
    chosen = any(isinstance(v, torch.Tensor) and not v.dtype.is_floating_point for v in made)
    return chosen and any(isinstance(v, torch.Tensor) and v.dtype.is_floating_point for v in read)


def _save(node: Node) -> None:
    """Mark the tensors of a node."""
    parts = [u for u in node.users if u.target is operator.getitem]
    for part in parts or [node]:
        part.meta["recompute"] = CheckpointPolicy.MUST_SAVE
