"""Memory of the results of a program: the argument that a result is a view of, or the result whose memory it shares.

A compiled program writes dense, contiguous tensors. `Place` describes how to get from such a tensor to a result with
the strides that it has in eager PyTorch. For example, the result of `y.t()` is written as `y`, with the dimensions in
the order (1, 0), and `restored` returns its transposed view.

Strides and shared storages are read from the traced program, before changes in place are rewritten.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch.fx import Graph, Node
from torch.utils import _pytree as pytree

from ...dialects.shapes.extents import Extent, SymbolAttr
from .eager_fallback import Operand


@dataclass(frozen=True)
class Step:
    """Operator that creates a view of a tensor.

    Attributes:
        operator: the operator.
        args: all positional arguments, with `Operand(0)` for the tensor.
        part: index of the view among several results (as of `split`), or None for a single result.
    """

    operator: torch._ops.OpOverload
    args: tuple[Any, ...]
    part: int | None = None

    def sized(self, extent_of: Callable[[torch.SymInt], Extent]) -> Step:
        """Returns the step with PyTorch's symbolic sizes replaced by sizes of the IR."""

        def replaced(value: Any) -> Any:
            return extent_of(value) if isinstance(value, torch.SymInt) else value

        return replace(self, args=pytree.tree_map(replaced, self.args))

    def __call__(self, tensor: torch.Tensor, sizes: Mapping[str, int]) -> torch.Tensor:
        """Returns the view of `tensor`. `sizes` has the values of symbolic sizes in this call, by name."""

        def in_this_call(value: Any) -> Any:
            if isinstance(value, SymbolAttr):
                return sizes[value.hint]
            return tensor if isinstance(value, Operand) else value

        viewed = self.operator(*pytree.tree_map(in_this_call, self.args))
        return viewed if self.part is None else viewed[self.part]


A_COPY = Step(torch.ops.aten.clone.default, (Operand(0),))
"""Step that copies a tensor instead of creating a view."""


@dataclass(frozen=True)
class Place:
    """Position of a result's elements in the dense tensor that the program writes for it.

    Attributes:
        order: dimensions of the result, from the outermost to the innermost dimension of the dense tensor. Empty for a
            result that is a part of another result's memory.
        once: expanded dimensions (stride 0). The dense tensor has one element along each of them.
        strided: size, stride and offset of the result, for `as_strided` of the dense tensor; offset in elements. None
            if sizes vary: then the result is the dense tensor with its dimensions permuted.
        gaps: whether the result has gaps between its elements. `restored` then copies the elements to new memory.
    """

    order: tuple[int, ...]
    once: tuple[int, ...] = ()
    strided: tuple[tuple[int, ...], tuple[int, ...], int] | None = None
    gaps: bool = False

    def of(self, tensor: torch.Tensor) -> torch.Tensor:
        """Returns the dense tensor for a result, the inverse of `restored`."""
        for step, args in self._steps(tensor.dim()):
            tensor = step(tensor, *args)
        return tensor

    def _steps(self, rank: int) -> list[tuple[torch._ops.OpOverload, tuple[Any, ...]]]:
        """Returns the views that lead from a result to its dense tensor, each as an operator with arguments.

        `rank` is larger than the rank of the result for complex numbers, which are stored as pairs in a last dimension.
        """
        steps: list[tuple[Any, tuple[Any, ...]]] = [(torch.ops.aten.slice.Tensor, (d, 0, 1)) for d in self.once]
        moved = self.order != tuple(sorted(self.order))
        order = [*self.order, *range(len(self.order), rank)]
        return [*steps, (torch.ops.aten.permute.default, (order,))] if moved else steps

    def written(self, graph: Graph, node: Node) -> Node:
        """Inserts the views that lead to the dense tensor before the output of `graph`, and returns the last node."""
        for step, args in self._steps(node.meta["val"].dim()):
            with graph.inserting_before(graph.output_node()):
                view = graph.call_function(step, (node, *args))
            view.meta = {k: node.meta[k] for k in ("stack_trace", "viewed") if k in node.meta}
            view.meta["val"] = step(node.meta["val"], *args)
            node = view
        return node

    def restored(self, written: torch.Tensor) -> torch.Tensor:
        """Returns the result with its strides, from the dense tensor that the program wrote."""
        written = written.contiguous()
        if self.strided is None:
            return written.permute([self.order.index(d) for d in range(len(self.order))])
        size, stride, offset = self.strided
        if self.gaps:
            small = [1 if d in self.once else n for d, n in enumerate(size)]
            with_gaps = torch.empty_strided(small, stride, dtype=written.dtype, device=written.device)
            with_gaps.copy_(written.permute([self.order.index(d) for d in range(len(self.order))]))
            written = with_gaps
        return written.as_strided(size, stride, written.storage_offset() + offset)


@dataclass(frozen=True)
class ResultMemory:
    """Memory of one result.

    Attributes:
        source: name of the argument that the result is a view of, or None.
        steps: operators of that view, from the argument on.
        shares: number of the result whose memory contains this result; its own number if it owns its memory.
        place: position in that memory, or None if the result is the dense tensor itself.
    """

    source: str | None = None
    steps: tuple[Step, ...] = ()
    shares: int = -1
    place: Place | None = None


def share(a: torch.Tensor | None, b: torch.Tensor | None) -> bool:
    """Returns true if two traced tensors have one storage."""
    return a is not None and b is not None and torch._C._is_alias_of(a, b)  # pyright: ignore[reportAttributeAccessIssue]


def place_of(value: torch.Tensor) -> Place | None:
    """Returns the position of a traced tensor's elements in a dense tensor.

    Returns None if the tensor is contiguous, is empty, has overlapping elements, or is sparse. A sparse tensor is
    refused later.
    """
    if value.layout is not torch.strided:
        return None
    if any(isinstance(n, torch.SymInt) for n in (*value.shape, *value.stride(), value.storage_offset())):
        return _varying_place(value)
    size, stride = tuple(value.shape), tuple(value.stride())
    once = tuple(d for d, (n, s) in enumerate(zip(size, stride, strict=True)) if n > 1 and s == 0)
    order = tuple(sorted(range(len(size)), key=lambda d: -stride[d] if size[d] > 1 else -max(stride, default=0) - 1))
    dense, reached = 1, 0
    gaps = False
    for d in reversed([d for d in order if size[d] > 1 and d not in once]):
        if stride[d] <= reached:
            return None  # elements overlap
        gaps |= stride[d] != dense
        dense, reached = dense * size[d], reached + stride[d] * (size[d] - 1)
    if value.is_contiguous() and stride == torch.empty(size, device="meta").stride() or not value.numel():
        return None
    return Place(order, once, (size, stride, 0), gaps)


def _varying_place(value: torch.Tensor) -> Place | None:
    """Returns the order of dimensions of a tensor with symbolic sizes, or None if it is contiguous or not known to be
    dense."""

    def text(number: Any) -> Any:
        return number.node.expr if isinstance(number, torch.SymInt) else number

    remaining, order, expected = set(range(value.dim())), [], 1
    while remaining:
        candidates = [d for d in sorted(remaining, reverse=True) if text(value.stride(d)) == expected]
        if not candidates:
            return None
        order.insert(0, candidates[0])
        remaining.discard(candidates[0])
        expected = expected * text(value.shape[candidates[0]])
    return None if order == list(range(value.dim())) else Place(tuple(order))
