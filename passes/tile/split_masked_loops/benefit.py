"""How much of a loop lies in a region, on average over the blocks of a grid: a sample of them is computed."""

from __future__ import annotations

from dataclasses import dataclass, field

from xdsl.dialects import arith, scf
from xdsl.dialects.builtin import IntegerAttr
from xdsl.ir import Block, SSAValue

from ....dialects import payload, tile
from ....dialects.shapes.affine import write
from ....dialects.shapes.extents import SymbolAttr, typical
from ....dialects.shapes.ranges import range_of_value
from ...analysis.masks import hypercube
from .regions import Region, Regions, Scalar

SAMPLES = 64
"""Combinations of block numbers and outer counters that are looked at."""

UNKNOWN = 64
"""Values that a scalar is taken to have of which no range is known."""


@dataclass
class _Sample:
    """Number `number` of the samples: the value of every scalar that others are computed from."""

    number: int
    values: dict[SSAValue, int] = field(default_factory=dict[SSAValue, int])
    leaves: int = 0

    def of(self, value: Scalar) -> int:
        """The value of a scalar."""
        if isinstance(value, SymbolAttr):
            return typical(value)
        if value not in self.values:
            found = self._computed(value)
            self.values[value] = self._leaf(value) if found is None else found
        return self.values[value]

    def _leaf(self, value: SSAValue) -> int:
        """Values of the range, independent of those of the other scalars."""
        known = range_of_value(value)
        lo, hi = known if isinstance(known, tuple) else (0, UNKNOWN)
        self.leaves += 1
        return hypercube(lo, hi, SAMPLES, self.leaves)[self.number] if lo < hi else lo

    def _computed(self, value: SSAValue) -> int | None:
        op = value.owner
        match op:
            case arith.ConstantOp() if isinstance(op.value, IntegerAttr):
                return op.value.value.data
            case payload.ExtentOp():
                return typical(op.symbol)
            case payload.CastOp():
                return self.of(op.operand)
            case tile.AffineOp():
                return op.map.data.eval([], [self.of(s) for s in op.symbols])[0]
            case arith.AddiOp() | arith.SubiOp() | arith.MuliOp() | arith.MinSIOp() | arith.MaxSIOp():
                a, b = self.of(op.lhs), self.of(op.rhs)
                return {
                    "arith.addi": a + b,
                    "arith.subi": a - b,
                    "arith.muli": a * b,
                    "arith.minsi": min(a, b),
                    "arith.maxsi": max(a, b),
                }[op.name]
            case arith.DivUIOp():
                return self.of(op.lhs) // max(1, self.of(op.rhs))
            case Block() | _:
                return None


class Shares:
    """Answers which share of the iterations of a loop lies in a region."""

    def __init__(self, loop: scf.ForOp, regions: Regions) -> None:
        self.regions = regions
        self.samples = [_Sample(i) for i in range(SAMPLES)]
        self.bounds = [(s.of(loop.lb), s.of(loop.ub)) for s in self.samples]

    def of(self, region: Region) -> float:
        """The share of `region`, between 0 and 1; 0 for a loop that never runs."""
        total = inside = 0
        for sample, (start, stop) in zip(self.samples, self.bounds, strict=True):
            total += max(0, stop - start)
            values = [sample.of(v) if i else 0 for i, v in enumerate(self.regions.scalars)]
            first = max([start, *(write(f).eval([], values) for f in region.starts)])
            last = min([stop, *(write(f).eval([], values) for f in region.stops)])
            inside += max(0, last - first)
        return inside / total if total else 0.0
