"""Limits of the memory and work that a model asks for.

A file of a few bytes can name sizes that no memory holds, or endless work.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import torch
from onnx import AttributeProto, GraphProto, ModelProto, NodeProto
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode

from .values import OnnxError

MEMORY_BYTES = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
"""Memory of the host."""

FOLDED_BYTES = 1 << 28
"""Memory for the results of nodes that are computed when a model is read. Nodes that need more stay in the program."""

MOST_NODES = 50_000
"""Nodes that one call evaluates. Nodes of unrolled loops and of functions count each time."""

MOST_ITERATIONS = 4096
"""Iterations of all loops in one call, which are unrolled."""

DEEPEST_NESTING = 64
"""Functions and subgraphs inside each other."""


def check_memory(shape: Sequence[Any], item_bytes: int, name: str) -> None:
    """Raises OnnxError if a tensor is larger than the memory of the host. Symbolic sizes count as 1.

    Args:
        shape: sizes of the tensor.
        item_bytes: bytes of an element.
        name: description of the tensor for the message.
    """
    needed = prod(s for s in shape if isinstance(s, int)) * item_bytes
    if needed > MEMORY_BYTES:
        sizes = ", ".join(map(str, shape))
        raise OnnxError(
            f"expected tensors of at most {MEMORY_BYTES >> 20} MiB, the memory of this host, but {name} of the sizes"
            f" [{sizes}] takes {needed >> 20} MiB"
        )


def check_table(*sizes: int) -> None:
    """Raises OnnxError if a table of numbers that is computed while a model is traced takes too much memory."""
    if (needed := prod(sizes) * 8) > FOLDED_BYTES:
        shape = ", ".join(map(str, sizes))
        raise OnnxError(
            f"expected a table of at most {FOLDED_BYTES >> 20} MiB, but one of the sizes [{shape}] takes"
            f" {needed >> 20} MiB"
        )


class TooLargeError(Exception):
    """A node needs more memory than `FoldingLimit` allows."""


class FoldingLimit(TorchDispatchMode):
    """Raises TooLargeError before an operator allocates more than `remaining` bytes.

    The size of a result is inferred on tensors without memory. Operators whose sizes depend on data are executed: their
    results are not larger than their arguments.
    """

    def __init__(self, remaining: int) -> None:
        super().__init__()
        self.remaining = remaining

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if not func.is_view:
            try:
                results = func(*_without_memory(args), **_without_memory(kwargs | self._device(args, kwargs)))
            except Exception:  # the operator itself raises the error that describes the fault
                results = None
            tensors = [t for t in pytree.tree_leaves(results) if isinstance(t, torch.Tensor)]
            if (needed := sum(t.untyped_storage().nbytes() for t in tensors)) > self.remaining:
                raise TooLargeError(f"{func}: {needed} bytes")
        return func(*args, **kwargs)

    @staticmethod
    def _device(*values: Any) -> dict[str, Any]:
        """Returns the device as an argument for operators that create a tensor from numbers."""
        tensors = any(isinstance(t, torch.Tensor) for t in pytree.tree_leaves(values))
        return {} if tensors else {"device": "meta"}


def _without_memory(values: Any) -> Any:
    def replaced(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device="meta")

    return pytree.tree_map(replaced, values)


@dataclass
class Budget:
    """Nodes and iterations of loops that a call may still evaluate."""

    nodes: int = MOST_NODES
    iterations: int = MOST_ITERATIONS

    def take(self) -> None:
        """Counts a node. Raises OnnxError if it is one too many."""
        self.nodes -= 1
        if self.nodes < 0:
            raise OnnxError(f"expected at most {MOST_NODES} nodes, with those of unrolled loops and of functions")

    def take_iteration(self) -> None:
        """Counts an iteration of a loop. Raises OnnxError if it is one too many."""
        self.iterations -= 1
        if self.iterations < 0:
            raise OnnxError(f"expected loops with at most {MOST_ITERATIONS} iterations together, which are unrolled")


def graphs_of(attribute: AttributeProto) -> Iterable[GraphProto]:
    """Returns the subgraphs in an attribute."""
    return [attribute.g] if attribute.HasField("g") else attribute.graphs


def check_nodes(model: ModelProto) -> None:
    """Raises OnnxError if a model has too many nodes. Nodes of functions count for each call."""
    functions = {(f.domain, f.name): f for f in model.functions}
    counts: dict[tuple[str, str], int] = {}

    def count(nodes: Iterable[NodeProto], callers: frozenset[tuple[str, str]]) -> int:
        total = 0
        for node in nodes:
            key = node.domain, node.op_type
            if key in functions and key not in counts:
                if key in callers:
                    raise OnnxError(f"the function {node.op_type!r} calls itself")
                counts[key] = count(functions[key].node, callers | {key})
            inner = (count(g.node, callers) for a in node.attribute for g in graphs_of(a))
            total += 1 + counts.get(key, 0) + sum(inner)
        return total

    if (total := count(model.graph.node, frozenset())) > MOST_NODES:
        raise OnnxError(f"expected at most {MOST_NODES} nodes, with those of functions, but got {total}")
