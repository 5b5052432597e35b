"""Ranges and divisors of index values in tile and kernel programs.

`Ranges` derives the smallest and largest value of an index from thread ids, grids, loop bounds and arithmetic:

```
%lane = kernel.id lane                  -> (0, 31)
%i = arith.muli %lane, %c4 : index      -> (0, 124)
```
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import gcd, inf
from typing import Any

from xdsl.dialects import scf
from xdsl.dialects.arith import AddiOp, MuliOp, SubiOp
from xdsl.dialects.builtin import IndexType
from xdsl.ir import BlockArgument, Operation, OpResult, SSAValue

from ..kernel import AdvanceOp, ExtractOp, FuncOp, Id, IdOp, IndicesOp, ShuffleRegistersOp, SplatOp, WarpSpecializeOp
from ..payload import AssertOp, ExtentOp, SelectOp, constant_of
from ..tile import AffineOp, KernelOp
from .affine import range_of
from .extents import most_tiles

Range = tuple[float, float]
"""Smallest and largest value, both inclusive: whole numbers, or an infinity where the bound is unknown."""

UNKNOWN: Range = (-inf, inf)


def constant_index(value: SSAValue) -> int | None:
    """Returns the value of a constant index, or None if `value` is not constant."""
    number = constant_of(value)
    return number if isinstance(number, int) else None


def trip_count(loop: scf.ForOp) -> int | None:
    """Returns the number of iterations of a loop, or None if it is not constant."""
    lb, ub, step = (constant_index(v) for v in (loop.lb, loop.ub, loop.step))
    if lb is None or ub is None or step is None or step < 1:
        return None
    return max(0, -(-(ub - lb) // step))


class Ranges:
    """Ranges of the index values of one kernel, computed on demand and cached."""

    def __init__(self, func: FuncOp | None = None) -> None:
        """Initialises the ranges of thread and block ids if `func` is a kernel of the kernel level."""
        self._ranges: dict[SSAValue, Range] = {}
        self.ids: dict[Id, Range] = {}
        if func is not None:
            self.ids = {
                Id.BLOCK: (0, max(func.most_blocks, 1) - 1),
                Id.RANK: (0, func.cluster_size - 1),
                Id.THREAD: (0, func.threads - 1),
                Id.LANE: (0, 31),
                Id.WARP: (0, func.warps.data - 1),
            }

    def of(self, value: SSAValue) -> Range:
        """Returns the range of `value`."""
        bounds = self._ranges.get(value)
        if bounds is None:
            # Loops refer to themselves: while the operands are visited, the safe answer is the unknown range.
            self._ranges[value] = UNKNOWN
            bounds = self._ranges[value] = self._compute(value)
        return bounds

    def is_natural(self, value: SSAValue) -> bool:
        return self.of(value)[0] >= 0

    def _compute(self, value: SSAValue) -> Range:
        if (number := constant_index(value)) is not None:
            return (number, number)
        op = value.op if isinstance(value, OpResult) else value.owner.parent_op()
        if op is not None and (special := _OPERATIONS.get(type(op))) is not None:
            return special(self, op, value)
        if not isinstance(value, OpResult) or (rule := _RULES.get(value.op.name)) is None:
            return UNKNOWN
        return rule(*(self.of(v) for v in value.op.operands))


def half_open(bounds: Range) -> tuple[int, int] | None:
    """Returns `(lo, hi)` with lo <= value < hi, or None if a bound is unknown."""
    return None if inf in (-bounds[0], bounds[1]) else (int(bounds[0]), int(bounds[1]) + 1)


def range_of_value(value: SSAValue) -> tuple[int, int] | None:
    """Returns `(lo, hi)` with lo <= value < hi for a scalar index of the tile level, or None if it is unknown."""
    return half_open(Ranges().of(value))


def divisor_of(value: SSAValue) -> int:
    """Returns a number that always divides a scalar index of the tile level; 0 for the constant zero."""
    if (number := constant_index(value)) is not None:
        return abs(number)
    op = value.block.parent_op() if isinstance(value, BlockArgument) and value.index == 0 else value.owner
    if isinstance(value, BlockArgument):
        return gcd(divisor_of(op.lb), divisor_of(op.step)) or 1 if isinstance(op, scf.ForOp) else 1
    if isinstance(value.type, IndexType):
        if isinstance(op, MuliOp):
            return divisor_of(op.lhs) * divisor_of(op.rhs)
        if isinstance(op, AddiOp | SubiOp):
            return gcd(divisor_of(op.lhs), divisor_of(op.rhs)) or 1
    return 1


def span(steps: Sequence[int]) -> tuple[int, int]:
    """Returns the smallest and the largest sum of a subset of `steps`."""
    return sum(s for s in steps if s < 0), sum(s for s in steps if s > 0)


def _counter(ranges: Ranges, loop: scf.ForOp, value: SSAValue) -> Range:
    """Returns the range of the counter of a loop; values carried by the loop have an unknown range."""
    if value is not loop.body.block.args[0]:
        return UNKNOWN
    lo, hi, step = ranges.of(loop.lb), ranges.of(loop.ub), ranges.of(loop.step)
    if step[0] < 1:
        return UNKNOWN
    last = hi[1] - 1
    if lo[0] == lo[1] and step[0] == step[1] and last != inf:
        last = lo[0] + (last - lo[0]) // step[0] * step[0]
    return (lo[0], max(last, lo[0]))


def _block_index(ranges: Ranges, op: KernelOp, value: SSAValue) -> Range:
    if value not in op.blocks:
        return UNKNOWN
    return (0, most_tiles(op.grid_shape[op.blocks.index(value)]) - 1)


def _warp_index(ranges: Ranges, op: WarpSpecializeOp, value: SSAValue) -> Range:
    program = op.programs.index(value.owner.parent_region())  # pyright: ignore
    return (0, op.partition_warps[program] - 1)


def _affine(ranges: Ranges, op: AffineOp, value: SSAValue) -> Range:
    if not isinstance(value.type, IndexType):
        return UNKNOWN
    bounds = range_of(op.map.data.results[0], (), [half_open(ranges.of(s)) for s in op.symbols])
    return UNKNOWN if bounds is None else (bounds[0], bounds[1] - 1)


def _indices(ranges: Ranges, op: IndicesOp, value: SSAValue) -> Range:
    (lo, hi), (below, above) = ranges.of(op.origin), span(op.steps.get_values())
    return (lo + below, hi + above)


_OPERATIONS: dict[type[Operation], Callable[[Ranges, Any, SSAValue], Range]] = {
    scf.ForOp: _counter,
    KernelOp: _block_index,
    WarpSpecializeOp: _warp_index,
    ExtentOp: lambda ranges, op, value: (op.symbol.minimum, op.symbol.maximum),
    IdOp: lambda ranges, op, value: ranges.ids[op.kind.data],
    AdvanceOp: lambda ranges, op, value: (0, op.slots.data - 1 if value is op.next_slot else 1),
    AssertOp: lambda ranges, op, value: ranges.of(op.value),
    SelectOp: lambda ranges, op, value: _hull(ranges.of(op.lhs), ranges.of(op.rhs)),
    AffineOp: _affine,
    IndicesOp: _indices,
    **dict.fromkeys((SplatOp, ShuffleRegistersOp, ExtractOp), lambda ranges, op, value: ranges.of(op.source)),
}
"""Operation -> function that returns the range of its result or block argument."""


def _hull(a: Range, b: Range) -> Range:
    return (min(a[0], b[0]), max(a[1], b[1]))


def _mul(a: Range, b: Range) -> Range:
    # 0 times infinity is 0 here, not NaN.
    products = [0.0 if 0 in (x, y) else x * y for x in a for y in b]
    return (min(products), max(products))


def _floor_div(a: Range, b: Range) -> Range:
    if b[0] != b[1] or b[0] < 1:
        return UNKNOWN
    lo, hi = (x if x in (inf, -inf) else int(x) // int(b[0]) for x in a)
    return (lo, hi)


def _div(a: Range, b: Range) -> Range:
    return _floor_div(a, b) if a[0] >= 0 else UNKNOWN


def _rem(a: Range, b: Range) -> Range:
    if a[0] < 0 or b[0] < 1:
        return UNKNOWN
    return (0, min(a[1], b[1] - 1))


def _or(a: Range, b: Range) -> Range:
    if a[0] < 0 or b[0] < 0 or inf in (a[1], b[1]):
        return UNKNOWN
    return (0, (1 << max(int(a[1]), int(b[1])).bit_length()) - 1)


def _power(exponent: Range) -> Range:
    is_constant = exponent[0] == exponent[1] and 0 <= exponent[0] < 63
    return (1 << int(exponent[0]), 1 << int(exponent[0])) if is_constant else UNKNOWN


_RULES: dict[str, Callable[[Range, Range], Range]] = {
    "arith.addi": lambda a, b: (a[0] + b[0], a[1] + b[1]),
    "arith.subi": lambda a, b: (a[0] - b[1], a[1] - b[0]),
    "arith.muli": _mul,
    "arith.divsi": _div,
    "arith.divui": _div,
    "arith.floordivsi": _floor_div,
    "arith.remsi": _rem,
    "arith.remui": _rem,
    "arith.andi": lambda a, b: (0, min(a[1], b[1])) if a[0] >= 0 and b[0] >= 0 else UNKNOWN,
    "arith.ori": _or,
    "arith.xori": _or,
    "arith.shrui": lambda a, b: _div(a, _power(b)),
    "arith.minsi": lambda a, b: (min(a[0], b[0]), min(a[1], b[1])),
    "arith.maxsi": lambda a, b: (max(a[0], b[0]), max(a[1], b[1])),
}
"""Name of an arith operation -> function from the ranges of its operands to the range of its result."""
