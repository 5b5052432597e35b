"""How the results of a program lie in memory: of what they are views, and with which strides.

PyTorch knows it of the program as it was traced, before what changes tensors in place was rewritten: tensors that share
memory there share their storage, and have the strides that eager PyTorch gives.
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
    """An operator that makes a view of a tensor: all of its arguments, with `Operand(0)` for that tensor, and which of
    its results is meant if it has several."""

    operator: torch._ops.OpOverload
    args: tuple[Any, ...]
    part: int | None = None

    def sized(self, extent_of: Callable[[torch.SymInt], Extent]) -> Step:
        """The same with sizes of the IR in place of PyTorch's."""

        def known(value: Any) -> Any:
            return extent_of(value) if isinstance(value, torch.SymInt) else value

        return replace(self, args=pytree.tree_map(known, self.args))

    def __call__(self, tensor: torch.Tensor, sizes: Mapping[str, int]) -> torch.Tensor:
        """The view of `tensor`; `sizes` are those that are known at run time only, by their names."""

        def given(value: Any) -> Any:
            if isinstance(value, SymbolAttr):
                return sizes[value.hint]
            return tensor if isinstance(value, Operand) else value

        viewed = self.operator(*pytree.tree_map(given, self.args))
        return viewed if self.part is None else viewed[self.part]


A_COPY = Step(torch.ops.aten.clone.default, (Operand(0),))


@dataclass(frozen=True)
class Place:
    """Where the elements of a result lie in the memory that a program wrote it to, which is dense.

    `order` are its dimensions from the outermost to the innermost there; of those in `once` that memory has one element
    only, as after `expand`. `size`, `stride` and `offset` are None if they vary. With `gaps` the elements go to other
    memory, in which they do not lie side by side.
    """

    order: tuple[int, ...]
    once: tuple[int, ...] = ()
    strided: tuple[tuple[int, ...], tuple[int, ...], int] | None = None
    gaps: bool = False

    def of(self, tensor: torch.Tensor) -> torch.Tensor:
        """The tensor to write to dense memory: what `restored` takes."""
        for step, args in self._steps(tensor.dim()):
            tensor = step(tensor, *args)
        return tensor

    def _steps(self, rank: int) -> list[tuple[torch._ops.OpOverload, tuple[Any, ...]]]:
        """The views that lead to dense memory. Complex numbers that are stored as pairs have one dimension more."""
        steps: list[tuple[Any, tuple[Any, ...]]] = [(torch.ops.aten.slice.Tensor, (d, 0, 1)) for d in self.once]
        moved = self.order != tuple(sorted(self.order))
        order = [*self.order, *range(len(self.order), rank)]
        return [*steps, (torch.ops.aten.permute.default, (order,))] if moved else steps

    def written(self, graph: Graph, node: Node) -> Node:
        """What `graph` writes to dense memory for its result `node`."""
        for step, args in self._steps(node.meta["val"].dim()):
            with graph.inserting_before(graph.output_node()):
                made = graph.call_function(step, (node, *args))
            made.meta = {k: node.meta[k] for k in ("stack_trace", "viewed") if k in node.meta}
            made.meta["val"] = step(node.meta["val"], *args)
            node = made
        return node

    def restored(self, written: torch.Tensor) -> torch.Tensor:
        """The result, from what was written for it."""
        written = written.contiguous()
        if self.strided is None:
            return written.permute([self.order.index(d) for d in range(len(self.order))])
        size, stride, offset = self.strided
        if self.gaps:
            small = [1 if d in self.once else n for d, n in enumerate(size)]
            apart = torch.empty_strided(small, stride, dtype=written.dtype, device=written.device)
            apart.copy_(written.permute([self.order.index(d) for d in range(len(self.order))]))
            written = apart
        return written.as_strided(size, stride, written.storage_offset() + offset)


@dataclass(frozen=True)
class ResultMemory:
    """What is known of one result: the argument `source` that it is a view of, by `steps`; or its place in the memory
    of result `shares`, which is itself if no other one has a part of that memory."""

    source: str | None = None
    steps: tuple[Step, ...] = ()
    shares: int = -1
    place: Place | None = None


def share(a: torch.Tensor | None, b: torch.Tensor | None) -> bool:
    """Whether two traced tensors have one storage."""
    return a is not None and b is not None and torch._C._is_alias_of(a, b)  # pyright: ignore[reportAttributeAccessIssue]


def place_of(value: torch.Tensor) -> Place | None:
    """Where the elements of a traced tensor lie; None where that is nothing but in order, or several in one place, or
    where the tensor is sparse, which is refused where its type is asked for."""
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
    """The order of dimensions of a tensor with sizes that vary, where its strides show that it is dense."""

    def text(number: Any) -> Any:
        return number.node.expr if isinstance(number, torch.SymInt) else number

    left, order, expected = set(range(value.dim())), [], 1
    while left:
        found = [d for d in sorted(left, reverse=True) if text(value.stride(d)) == expected]
        if not found:
            return None
        order.insert(0, found[0])
        left.discard(found[0])
        expected = expected * text(value.shape[found[0]])
    return None if order == list(range(value.dim())) else Place(tuple(order))
