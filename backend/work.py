"""What a program's kernels have to do at least: bytes to move and operations to compute, counted on the loop level.

Bytes are every operand and result of a nest once. Operations are the floating-point payload, each as often as the
values it depends on differ: what does not depend on an index is not counted once more for it, as a compiler would hoist it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import BlockArgument, Operation, SSAValue

from ..dialects.loop import LoadOp, NestOp, ReduceOp
from ..dialects.payload import element_type, is_float, is_payload

_FREE = ("payload.constant", "payload.cast", "payload.select", "payload.cmp")


@dataclass(frozen=True)
class Work:
    """The work of one nest, in the order of the program: bytes read and written, and floating-point operations."""

    read: int
    written: int
    flops: int

    @property
    def bytes(self) -> int:
        """Bytes moved in both directions."""
        return self.read + self.written


def count_work(module: ModuleOp) -> list[Work]:
    """The work of every `loop.nest` of a module, in order."""
    return [_nest_work(op) for op in module.walk() if isinstance(op, NestOp)]


def storage_bytes(value: SSAValue) -> int:
    """Bytes that a tensor or memref value occupies; a bool takes one."""
    t = value.type
    shape = t.get_shape() if hasattr(t, "get_shape") else ()  # pyright: ignore
    element = element_type(t) if not hasattr(t, "element_type") else t.element_type  # pyright: ignore
    return math.prod(shape) * max(1, getattr(element, "bitwidth", 64) // 8)


def _nest_work(nest: NestOp) -> Work:
    loads = [op for op in nest.walk() if isinstance(op, LoadOp)]
    sources = list(dict.fromkeys(op.source for op in loads))
    written = sum(storage_bytes(r) for r in nest.res)
    return Work(sum(map(storage_bytes, sources)), written, sum(_operations(nest)))


def _operations(nest: NestOp) -> Iterator[int]:
    """For every floating-point operation in a nest, how often it is computed."""
    extents: dict[SSAValue, int] = dict(zip(nest.body.block.args, nest.shape, strict=True))
    indices: dict[SSAValue, frozenset[BlockArgument]] = {}

    def needs(op: Operation) -> frozenset[BlockArgument]:
        """The indices that an operation's value depends on, outside of its own regions."""
        found: set[BlockArgument] = set()
        own: set[SSAValue] = set()
        for inner in op.walk():
            own |= {a for r in inner.regions for b in r.blocks for a in b.args}
            for v in inner.operands:
                found |= {v} if isinstance(v, BlockArgument) and v in extents else indices.get(v, frozenset())
        return frozenset(found - own)

    for op in nest.body.walk():
        if isinstance(op, ReduceOp):
            extents |= dict(zip(op.body.block.args, op.shape, strict=True))
    for op in nest.body.walk(region_first=True):
        needed = needs(op)
        for r in op.results:
            indices[r] = needed
        if isinstance(op, ReduceOp):
            inner = op.body.block.last_op
            assert inner is not None
            over = needs(inner) | needed
            yield math.prod(extents[a] for a in over)
        elif is_payload(op) and op.name not in _FREE and op.results and is_float(op.results[0].type):
            yield math.prod(extents[a] for a in needed)
