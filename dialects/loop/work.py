"""Minimum work of a program's kernels: bytes to move and floating-point operations, counted at the loop level.

Every operand and result of a nest is moved once. An operation counts once for each combination of the indices that its
value depends on, as if it were hoisted out of the other loops.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import prod
from typing import TypeAlias

from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import FuncOp
from xdsl.ir import Operation, SSAValue
from xdsl.traits import SymbolTable

from ..payload import CastOp, CmpOp, ConstantOp, SelectOp, element_bytes, is_float, is_payload
from ..shapes.binding import Sizes
from ..shapes.extents import Extent, extents_of, typical
from ..support.equivalence import Numbering
from ..support.locations import ancestors
from ..tensor import PrefixScanOp, ReduceOp as TensorReduceOp, ScanOp as TensorScanOp
from . import LoadOp, NestOp, ReduceOp, ScanOp, StagedReduceOp
from .dependence import Dependence, yielded

_FREE = (ConstantOp, SelectOp, CmpOp)
"""Operations that count as no work."""

Size: TypeAlias = Callable[[Extent], int]
"""Function that returns the number to assume for an extent; `typical` by default."""


@dataclass(frozen=True)
class Work:
    """Work of one nest. `read`, `written`: bytes. `flops`: floating-point operations."""

    read: int
    written: int
    flops: int

    @property
    def bytes(self) -> int:
        """Returns the bytes read and written."""
        return self.read + self.written

    def __add__(self, other: Work) -> Work:
        return Work(self.read + other.read, self.written + other.written, self.flops + other.flops)


@dataclass(frozen=True)
class Counted:
    """Floating-point operation of a nest and the indices that its value depends on.

    If several reductions over the same range share the operation, only the indices of one of them are listed.
    """

    op: Operation
    indices: tuple[SSAValue, ...]


def count_work(module: ModuleOp) -> list[Work]:
    """Returns the work of each nest of a module, in the order of the program."""
    return [nest_work(op) for op in module.walk() if isinstance(op, NestOp)]


def count_flops(main: FuncOp, sizes: Sizes) -> int:
    """Returns the floating-point operations of a function at the tensor or the loop level.

    The steps of scans count. Called functions, conversions and tile kernels do not. `sizes` has the values of symbols.
    """
    return sum(_flops(op, sizes) for op in main.body.block.ops)


def _flops(op: Operation, sizes: Sizes) -> int:
    if isinstance(op, NestOp):
        return _nest_flops(op, sizes.number)
    if isinstance(op, TensorScanOp):
        step = SymbolTable.lookup_symbol(op, op.step)
        return op.steps * count_flops(step, sizes) if isinstance(step, FuncOp) else 0
    if isinstance(op, TensorReduceOp | PrefixScanOp):
        return prod(sizes.shape(op.source.type)) if is_float(op.source.type) else 0
    if not is_payload(op) or isinstance(op, _FREE + (CastOp,)) or not op.operands or not is_float(op.operands[0].type):
        return 0
    return prod(sizes.shape(op.results[0].type))


def reduced_terms(op: Operation, sizes: Sizes) -> int | None:
    """Returns the number of values that a reduction or scan combines, with symbols as in `sizes`, or None for other
    operations."""
    if isinstance(op, TensorReduceOp):
        shape = sizes.shape(op.source.type)
        return prod(shape[int(d)] for d in op.dims.get_values())
    if isinstance(op, PrefixScanOp):
        return sizes.shape(op.source.type)[op.dim.value.data]
    if isinstance(op, ReduceOp):
        return prod(sizes.numbers(op.sizes))
    if isinstance(op, ScanOp):
        nest = op.parent_op()
        assert isinstance(nest, NestOp)
        return sizes.numbers(nest.sizes)[nest.body.block.args.index(op.index)]
    return None


def nest_work(nest: NestOp, size: Size = typical) -> Work:
    """Returns the work of a nest, with `size` as the number for each extent."""
    written = sum(_bytes(v, size) for v in nest.res)
    return Work(sum(operand_bytes(nest, size).values()), written, _nest_flops(nest, size))


def _bytes(tensor: SSAValue, size: Size) -> int:
    return prod(map(size, extents_of(tensor.type))) * element_bytes(tensor.type)


def operand_bytes(nest: NestOp, size: Size = typical) -> dict[SSAValue, int]:
    """Returns the bytes that a nest reads of each tensor that it loads.

    A tensor counts with all its elements. If its loads execute fewer times, as in a gather of a few rows of a table, it
    counts with one element for each execution. Loads do not repeat over indices that they do not depend on.

    Args:
        nest: the nest.
        size: number for each extent.
    """
    extents, dependence, elements = _extents(nest, size), Dependence(), dict[SSAValue, int]()
    for op in nest.walk():
        if isinstance(op, LoadOp):
            count = prod(extents[i] for i in dependence.of(op.result))
            elements[op.source] = elements.get(op.source, 0) + count
    return {v: min(_bytes(v, size), n * element_bytes(v.type)) for v, n in elements.items()}


def _extents(nest: NestOp, size: Size) -> dict[SSAValue, int]:
    extents: dict[SSAValue, int] = dict(zip(nest.body.block.args, map(size, nest.sizes), strict=True))
    for op in nest.body.walk():
        if isinstance(op, ReduceOp):
            extents.update(zip(op.body.block.args, map(size, op.sizes), strict=True))
    return extents


def _nest_flops(nest: NestOp, size: Size) -> int:
    extents = _extents(nest, size)
    counted = (c for c in nest_operations(nest, size) if not isinstance(c.op, CastOp))
    return sum(prod(extents[i] for i in c.indices) for c in counted)


def nest_operations(nest: NestOp, size: Size = typical) -> list[Counted]:
    """Returns every distinct floating-point operation of a nest, conversions included.

    The same computation over equal index ranges, such as repeated by the stages of a staged reduction, counts once.
    """
    dependence, numbering = Dependence(), Numbering()
    indices: dict[int, tuple[Index, SSAValue]] = {}
    for op in nest.walk():
        if isinstance(op, NestOp | ReduceOp):
            depth = sum(isinstance(ancestor, NestOp | ReduceOp) for ancestor in ancestors(op))
            for position, (argument, extent) in enumerate(zip(op.body.block.args, op.sizes, strict=True)):
                index = depth, position, size(extent)
                indices.setdefault(numbering.identify(argument, index), (index, argument))
    counted: dict[int, Counted] = {}
    for op in nest.body.walk(region_first=True):
        if isinstance(op, ReduceOp):
            numbering.identify(op.result, (op.kind, op.extents, numbering.of(yielded(op.body.block)[0])))
        elif isinstance(op, StagedReduceOp):
            for result, stage in zip(op.res, yielded(op.stages.block), strict=True):
                numbering.equate(result, stage)
        if not op.results or not is_float(op.results[0].type):
            continue
        number = numbering.of(op.results[0])
        if number in counted or not (isinstance(op, ReduceOp | ScanOp) or is_payload(op) and not isinstance(op, _FREE)):
            continue
        values = (op.results[0], *(yielded(op.body.block) if isinstance(op, ReduceOp) else ()))
        needed = {indices[numbering.of(i)] for v in values for i in dependence.of(v)}
        counted[number] = Counted(op, tuple(argument for _, argument in sorted(needed, key=lambda entry: entry[0])))
    return list(counted.values())


Index: TypeAlias = tuple[int, int, int]
"""Identity of an iteration index: nesting depth of its loop, position in the loop, extent. Sibling loops share it."""
