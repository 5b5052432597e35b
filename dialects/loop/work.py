"""What a program's kernels have to do at least: bytes to move and operations to compute, counted on the loop level.

Bytes are every operand and result of a nest once. Operations are the floating-point payload, each as often as the
values it depends on differ: what does not depend on an index is not counted once more for it, as a compiler would
hoist it.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from math import prod
from typing import TypeAlias

from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import FuncOp
from xdsl.ir import Block, Operation, SSAValue
from xdsl.traits import SymbolTable

from ..payload import CastOp, CmpOp, ConstantOp, SelectOp, is_float, is_payload, tensor_bytes
from ..shapes.binding import Sizes
from ..shapes.extents import Extent, typical
from ..tensor import ReduceOp as TensorReduceOp, ScanOp
from . import LoadOp, NestOp, ReduceOp, StagedReduceOp

_FREE = (ConstantOp, SelectOp, CmpOp)

Size: TypeAlias = Callable[[Extent], int]
"""What an extent counts as; sizes known only at run time count as `typical` where no others are given."""


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


def count_flops(main: FuncOp, sizes: Sizes) -> int:
    """The float operations of a function at the tensor or loop level, where symbols have the values `sizes`, without
    those of functions that it calls. Conversions count nothing, and neither do tile kernels."""
    return sum(_flops(op, sizes) for op in main.body.block.ops)


def _flops(op: Operation, sizes: Sizes) -> int:
    if isinstance(op, NestOp):
        return _nest_flops(op, sizes.number)
    if isinstance(op, ScanOp):
        step = SymbolTable.lookup_symbol(op, op.step)
        return op.steps * count_flops(step, sizes) if isinstance(step, FuncOp) else 0
    if isinstance(op, TensorReduceOp):
        return prod(sizes.shape(op.source.type)) if is_float(op.source.type) else 0
    if not is_payload(op) or isinstance(op, _FREE + (CastOp,)) or not op.operands or not is_float(op.operands[0].type):
        return 0
    return prod(sizes.shape(op.results[0].type))


def nest_work(nest: NestOp) -> Work:
    """The work of one nest."""
    loads = [op for op in nest.walk() if isinstance(op, LoadOp)]
    sources = list(dict.fromkeys(op.source for op in loads))
    read, written = (sum(tensor_bytes(v.type) for v in values) for values in (sources, nest.res))
    return Work(read, written, _nest_flops(nest))


def _nest_flops(nest: NestOp, size: Size = typical) -> int:
    extents: dict[SSAValue, int] = dict(zip(nest.body.block.args, map(size, nest.sizes), strict=True))
    for op in nest.body.walk():
        if isinstance(op, ReduceOp):
            extents.update(zip(op.body.block.args, map(size, op.sizes), strict=True))
    counted = (c for c in nest_operations(nest, size) if not isinstance(c.op, CastOp))
    return sum(prod(extents[i] for i in c.indices) for c in counted)


def nest_operations(nest: NestOp, size: Size = typical) -> list[Counted]:
    """Every distinct floating-point operation of a nest, conversions among them.

    Operations are numbered by value: the same computation over equal index ranges, as the stages of a staged reduction
    repeat it, is one.
    """
    numbering = _Numbering(nest, size)
    counted: dict[Number, Counted] = {}
    for op in nest.body.walk(region_first=True):
        if not op.results or not is_float(op.results[0].type):
            continue
        number = numbering.of[op.results[0]]
        reduction = isinstance(op, ReduceOp)
        if number in counted or not (reduction or is_payload(op) and not isinstance(op, _FREE)):
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

    def __init__(self, nest: NestOp, size: Size) -> None:
        self.size = size
        self.of: dict[SSAValue, Number] = {}
        self.indices: dict[Number, frozenset[Index]] = {}
        self.values: dict[Index, SSAValue] = {}
        self._seen: dict[Hashable, int] = {}
        self._arguments(nest.body.block, 0, nest.sizes)
        self._block(nest.body.block, 1)

    def _arguments(self, block: Block, depth: int, extents: Sequence[Extent]) -> None:
        for i, (argument, extent) in enumerate(zip(block.args, extents, strict=True)):
            index = (depth, i, self.size(extent))
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
                own = frozenset((depth, i, self.size(n)) for i, n in enumerate(op.sizes))
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
