"""What a program's kernels have to do at least: bytes to move and operations to compute, counted on the loop level.

Bytes are every operand and result of a nest once. Operations are the floating-point payload, each as often as the
values it depends on differ: what does not depend on an index is not counted once more for it, as a compiler would
hoist it.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Block, Operation, SSAValue

from ...dialects.loop import LoadOp, NestOp, ReduceOp, StagedReduceOp
from ...dialects.payload import CastOp, is_float, is_payload, tensor_bytes
from ...dialects.shapes.extents import Extent, typical

_FREE = ("payload.constant", "payload.select", "payload.cmp")


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

    def __add__(self, other: Work) -> Work:
        """The work of two nests, each by itself."""
        return Work(self.read + other.read, self.written + other.written, self.flops + other.flops)


@dataclass(frozen=True)
class Counted:
    """A floating-point operation of a nest, and the indices that it is computed for: one of each set that runs over the
    same range, if several reductions share the operation."""

    op: Operation
    indices: tuple[SSAValue, ...]


def count_work(module: ModuleOp) -> list[Work]:
    """The work of every `loop.nest` of a module, in order."""
    return [nest_work(op) for op in module.walk() if isinstance(op, NestOp)]


def nest_work(nest: NestOp) -> Work:
    """The work of one nest."""
    loads = [op for op in nest.walk() if isinstance(op, LoadOp)]
    sources = list(dict.fromkeys(op.source for op in loads))
    read, written = (sum(tensor_bytes(v.type) for v in values) for values in (sources, nest.res))
    extents = _extents(nest)
    flops = (math.prod(extents[i] for i in c.indices) for c in nest_operations(nest) if not isinstance(c.op, CastOp))
    return Work(read, written, sum(flops))


def _extents(nest: NestOp) -> dict[SSAValue, int]:
    found: dict[SSAValue, int] = dict(zip(nest.body.block.args, map(typical, nest.sizes), strict=True))
    for op in nest.body.walk():
        if isinstance(op, ReduceOp):
            found.update(zip(op.body.block.args, map(typical, op.sizes), strict=True))
    return found


def nest_operations(nest: NestOp) -> list[Counted]:
    """Every distinct floating-point operation of a nest, conversions among them.

    Operations are numbered by value: the same computation over equal index ranges, as the stages of a staged reduction
    repeat it, is one.
    """
    numbering = _Numbering(nest)
    counted: dict[Number, Counted] = {}
    for op in nest.body.walk(region_first=True):
        if not op.results or not is_float(op.results[0].type):
            continue
        number = numbering.of[op.results[0]]
        reduction = isinstance(op, ReduceOp)
        if number in counted or not (reduction or is_payload(op) and op.name not in _FREE):
            continue
        needed = numbering.indices[number]
        if reduction:
            body = op.body.block.last_op
            assert body is not None
            needed = needed | numbering.indices[numbering.of[body.operands[0]]]
        counted[number] = Counted(op, tuple(numbering.values[i] for i in sorted(needed)))
    return list(counted.values())


Index: TypeAlias = tuple[int, int, int]
"""An iteration index: how deep its loop is nested, its position there, its extent. Loops side by side share theirs."""

Number: TypeAlias = Hashable


class _Numbering:
    """Values of a nest numbered by what they compute, with the indices each depends on."""

    def __init__(self, nest: NestOp) -> None:
        self.of: dict[SSAValue, Number] = {}
        self.indices: dict[Number, frozenset[Index]] = {}
        self.values: dict[Index, SSAValue] = {}
        self._seen: dict[Hashable, int] = {}
        self._arguments(nest.body.block, 0, nest.sizes)
        self._block(nest.body.block, 1)

    def _arguments(self, block: Block, depth: int, extents: Sequence[Extent]) -> None:
        for i, (argument, extent) in enumerate(zip(block.args, extents, strict=True)):
            index = (depth, i, typical(extent))
            self.values.setdefault(index, argument)
            self.of[argument] = self._number(index, frozenset({index}))

    def _number(self, key: Hashable, indices: frozenset[Index]) -> Number:
        number = self._seen.setdefault(key, len(self._seen))
        self.indices[number] = indices
        return number

    def _block(self, block: Block, depth: int) -> None:
        for op in block.ops:
            inner: tuple[Number, ...] = ()
            own: frozenset[Index] = frozenset()
            if isinstance(op, ReduceOp):
                self._arguments(op.body.block, depth, op.sizes)
                own = frozenset((depth, i, typical(n)) for i, n in enumerate(op.sizes))
                self._block(op.body.block, depth + 1)
                inner = self._yielded(op.body.block)
            elif isinstance(op, StagedReduceOp):
                self._block(op.stages.block, depth)
                for result, number in zip(op.res, self._yielded(op.stages.block), strict=True):
                    self.of[result] = number
                self._block_of_rescaling(op.rescale.block, depth)
                continue
            operands = (*(self.of.get(v, id(v)) for v in op.operands), *inner)
            needed = frozenset[Index]().union(*(self.indices.get(n, frozenset[Index]()) for n in operands)) - own
            key = (op.name, tuple(sorted((k, str(v)) for k, v in op.properties.items())), operands)
            for i, result in enumerate(op.results):
                self.of[result] = self._number((*key, str(result.type), i), needed)

    def _block_of_rescaling(self, block: Block, depth: int) -> None:
        """A rescaling runs once a chunk, not once an element: its values depend on no index."""
        for argument in block.args:
            self.of[argument] = self._number(("rescaling", id(argument)), frozenset())
        self._block(block, depth)

    def _yielded(self, block: Block) -> tuple[Number, ...]:
        end = block.last_op
        assert end is not None
        return tuple(self.of[v] for v in end.operands)
