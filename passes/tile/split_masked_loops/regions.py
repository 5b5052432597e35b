"""In which iterations of a loop a comparison, or a bound of an access, has one answer for all elements of a tile.

Whatever is compared is read as a form (`dialects/shapes/affine.py`): the position in the tile (dims) and scalars that
do not change in the loop (symbols), with a factor of the loop's counter. The greatest value within the tile gives a
half-line of iterations in which the form is nowhere positive.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from xdsl.dialects import arith, scf
from xdsl.dialects.builtin import IndexType
from xdsl.ir import Operation, SSAValue

from ....dialects import payload, tile
from ....dialects.payload import shape_of
from ....dialects.shapes.affine import DIM, SYM, Atom, Form, Simplifier, add, constant, dim, scale, symbol, write
from ....dialects.shapes.domain import DomainAttr
from ....dialects.shapes.extents import SymbolAttr, typical
from ....dialects.shapes.ranges import constant_index, range_of_value
from ....dialects.tile.async_copy import StageAsyncOp
from ...analysis.integer_forms import FormReader
from ...analysis.masks import answers, hypercube

Access: TypeAlias = tile.LoadOp | tile.StoreOp | tile.AtomicRmwOp | StageAsyncOp
"""What has a domain."""

Scalar: TypeAlias = SSAValue | SymbolAttr
"""What a symbol of a form stands for: a scalar that is defined around the loop, or a size known at run time."""


@dataclass(frozen=True)
class Region:
    """Iterations that are at least each of `starts` and less than each of `stops`."""

    starts: frozenset[Form] = frozenset()
    stops: frozenset[Form] = frozenset()

    def __and__(self, other: Region) -> Region:
        """What both contain."""
        return Region(self.starts | other.starts, self.stops | other.stops)

    @property
    def is_whole(self) -> bool:
        """Whether every iteration belongs to it."""
        return not self.starts and not self.stops


@dataclass(frozen=True)
class Condition:
    """`op` asks something of the elements of a tile: a comparison, or constraint number `constraint` of a domain.

    options  answer -> where all elements have it
    """

    op: payload.CmpOp | Access
    constraint: int
    options: tuple[tuple[bool, Region], ...]


class Regions:
    """The conditions of one loop."""

    def __init__(self, loop: scf.ForOp) -> None:
        self.loop = loop
        self.scalars: list[Scalar] = []
        """What the symbols of all forms stand for; the first is the loop's counter."""
        self.counter = self._symbol(loop.body.block.args[0]).terms[0][0]

    def conditions(self) -> Iterator[Condition]:
        """The conditions inside of the loop that have one answer in a part of it, in order."""
        for op in self.loop.body.walk():
            if isinstance(op, payload.CmpOp) and shape_of(op.result.type):
                options = tuple(self._answers(op))
                if options:
                    yield Condition(op, 0, options)
            elif isinstance(op, Access) and op.domain is not None:
                for i, region in self._constraints(op, op.domain):
                    yield Condition(op, i, ((True, region),))

    def scalar(self, value: SSAValue) -> Form | None:
        """An index of the tile level as a form without dimensions, the loop's counter not among its symbols."""
        form = _Reader(self).of(value)
        return None if form is None or self.counter in form.atoms() else form

    def simplifier(self, shape: Sequence[int] = ()) -> Simplifier:
        """Arithmetic on the forms of tiles of a shape."""
        found = Simplifier(shape)
        for i, value in enumerate(self.scalars):
            found.set_range((SYM, i), self._range(value))
        return found

    @staticmethod
    def _range(value: Scalar) -> tuple[int, int] | None:
        found = (value.minimum, value.maximum + 1) if isinstance(value, SymbolAttr) else range_of_value(value)
        return found if isinstance(found, tuple) else None

    def _symbol(self, value: Scalar) -> Form:
        for i, known in enumerate(self.scalars):
            if known is value or (isinstance(value, SymbolAttr) and known == value):
                return symbol(i)
        self.scalars.append(value)
        return symbol(len(self.scalars) - 1)

    def leaf(self, value: Scalar, simplifier: Simplifier) -> Form | None:
        """The symbol of a scalar; None if it changes inside of the loop, and is not its counter."""
        if not isinstance(value, SymbolAttr) and value is not self.loop.body.block.args[0]:
            if self.loop.is_ancestor(value.owner):
                return None
        form = self._symbol(value)
        atom = form.terms[0][0]
        if atom not in simplifier.intervals:
            simplifier.set_range(atom, self._range(value))
        return form

    def _answers(self, op: payload.CmpOp) -> Iterator[tuple[bool, Region]]:
        shape = shape_of(op.lhs.type)
        reader = _Reader(self, shape)
        dims = tuple(range(len(shape)))
        if (found := reader.all((op.lhs, op.rhs), dims)) is None:
            return
        difference = add(found[0], found[1], -1)
        for answer, form in answers(op.predicate.data, difference):
            if (region := self._region(form, reader.simplifier)) is not None:
                yield answer, region

    def _constraints(self, op: Access, domain: DomainAttr) -> Iterator[tuple[int, Region]]:
        value = op.result if isinstance(op, tile.LoadOp | StageAsyncOp) else op.value
        shape = shape_of(value.type)
        reader = _Reader(self, shape)
        if any(shape_of(s.type) for s in op.symbols) or (symbols := reader.all(op.symbols)) is None:
            return
        for i, (expr, (lo, hi)) in enumerate(zip(domain.affine.results, domain.limits, strict=True)):
            form = reader.simplifier.read(expr, [dim(d) for d in range(len(shape))], symbols)
            end = constant(hi) if isinstance(hi, int) else reader.leaf(hi)
            assert end is not None
            below = self._region(add(constant(lo), form, -1), reader.simplifier)
            above = self._region(add(add(form, constant(1)), end, -1), reader.simplifier)
            if below is not None and above is not None:
                yield i, below & above

    def _region(self, form: Form, simplifier: Simplifier) -> Region | None:
        """The iterations in which `form` is at most 0 for all elements; None if there need not be any such."""
        bounds = simplifier.interval(form)
        if bounds is not None and bounds[1] <= 0:
            return Region()
        factor, highest, rest = 0, form.constant, dict[Atom, int]()
        for atom, coefficient in form.terms:
            if atom == self.counter:
                factor = coefficient
            elif all(a[0] == SYM and a != self.counter for a in Form(((atom, 1),), 0).atoms()):
                rest[atom] = coefficient
            elif all(a[0] == DIM for a in Form(((atom, 1),), 0).atoms()):
                within = simplifier.interval(Form(((atom, coefficient),), 0))
                if within is None:
                    return None
                highest += within[1]
            else:
                return None  # which element is asked about what depends on the iteration
        if factor == 0:
            return None
        total = Form(tuple(sorted(rest.items())), highest)
        if factor > 0:  # counter <= -total / factor
            return Region(stops=frozenset((add(simplifier.floordiv(scale(total, -1), factor), constant(1)),)))
        return Region(starts=frozenset((simplifier.floordiv(add(total, constant(-factor - 1)), -factor),)))


class _Reader(FormReader):
    """Reads integers of the tile level as forms over the dimensions of one tile."""

    def __init__(self, regions: Regions, shape: Sequence[int] = ()) -> None:
        super().__init__(regions.simplifier(shape), shape)
        self.regions = regions

    def leaf(self, value: Scalar) -> Form | None:
        if isinstance(value, SymbolAttr) or isinstance(value.type, IndexType):
            return self.regions.leaf(value, self.simplifier)
        return None


SAMPLES = 64
"""Combinations of block numbers and outer counters that are looked at."""

UNKNOWN = 64
"""Values that a scalar is taken to have of which no range is known."""

_ARITHMETIC: dict[type[Operation], Callable[[int, int], int]] = {
    arith.AddiOp: int.__add__,
    arith.SubiOp: int.__sub__,
    arith.MuliOp: int.__mul__,
    arith.MinSIOp: min,
    arith.MaxSIOp: max,
    arith.DivUIOp: lambda a, b: a // max(1, b),
}


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
            self.values[value] = self._computed(value)
        return self.values[value]

    def _computed(self, value: SSAValue) -> int:
        if (number := constant_index(value)) is not None:
            return number
        op = value.owner
        match op:
            case payload.ExtentOp():
                return typical(op.symbol)
            case payload.CastOp():
                return self.of(op.operand)
            case tile.AffineOp():
                return op.map.data.eval([], [self.of(s) for s in op.symbols])[0]
            case Operation() if type(op) in _ARITHMETIC:
                return _ARITHMETIC[type(op)](*(self.of(v) for v in op.operands))
            case _:  # a value of the range, independent of those of the other scalars
                known = range_of_value(value)
                lo, hi = known if isinstance(known, tuple) else (0, UNKNOWN)
                self.leaves += 1
                return hypercube(lo, hi, SAMPLES, self.leaves)[self.number] if lo < hi else lo


class Shares:
    """Answers how much of a loop lies in a region, on average over a sample of the blocks of a grid."""

    def __init__(self, loop: scf.ForOp, regions: Regions) -> None:
        self.regions = regions
        self.samples = [_Sample(i) for i in range(SAMPLES)]
        self.bounds = [(s.of(loop.lb), s.of(loop.ub)) for s in self.samples]

    def of(self, region: Region) -> float:
        """The share of the iterations in `region`, between 0 and 1; 0 for a loop that never runs."""
        total = inside = 0
        for sample, (start, stop) in zip(self.samples, self.bounds, strict=True):
            total += max(0, stop - start)
            values = [sample.of(v) if i else 0 for i, v in enumerate(self.regions.scalars)]
            first = max([start, *(write(f).eval([], values) for f in region.starts)])
            last = min([stop, *(write(f).eval([], values) for f in region.stops)])
            inside += max(0, last - first)
        return inside / total if total else 0.0
