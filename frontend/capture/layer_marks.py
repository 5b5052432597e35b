"""Which ops belong to which layer of a model, told by the modules they were called from."""

from __future__ import annotations

import re
from collections import Counter

from torch.fx import Node
from xdsl.dialects.builtin import StringAttr
from xdsl.ir import Block, Operation

from ...passes.torch.outline_layers import LAYER, MIN_OPS

_NUMBERED = re.compile(r"(?:^|.*\.)\d+$")


def layer_of(node: Node) -> str | None:
    """The path of the outermost module in a numbered list that `node` was called from: `model.layers.3`."""
    stack = node.meta.get("nn_module_stack") or {}
    for path, _ in stack.values():
        if _NUMBERED.match(path):
            return path
    return None


def mark(op: Operation, node: Node) -> None:
    """Write the layer of `node` on the op that it became."""
    if (layer := layer_of(node)) is not None:
        op.attributes[LAYER] = StringAttr(layer)


def keep_large(block: Block) -> None:
    """Remove the marks of layers that are too small to be outlined, or the only one of their list."""
    sizes = Counter(op.attributes[LAYER] for op in block.ops if LAYER in op.attributes)
    large = [layer for layer, size in sizes.items() if size >= MIN_OPS]
    lists = Counter(_list_of(layer) for layer in large)
    kept = {layer for layer in large if lists[_list_of(layer)] > 1}
    for op in block.ops:
        if op.attributes.get(LAYER) not in kept:
            op.attributes.pop(LAYER, None)


def _list_of(layer: object) -> str:
    assert isinstance(layer, StringAttr)
    return layer.data.rpartition(".")[0]
