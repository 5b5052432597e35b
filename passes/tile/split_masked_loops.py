"""Masks only where something is masked: `tile-split-masked-loops`.

A comparison, or a bound of an access, is read as a form (`dialects/shapes/affine.py`): the position in the tile (dims)
and scalars that do not change in the loop (symbols), with a factor of the loop's counter. The greatest value within the
tile gives a half-line of iterations in which the form is nowhere positive.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, TypeAlias

from xdsl.dialects import arith, scf
from xdsl.dialects.builtin import IndexType, i1
from xdsl.ir import Operation, SSAValue
from xdsl.ir.affine import AffineExpr, AffineMap

from ...dialects import payload, tile
from ...dialects.payload import constant_of, element_type, shape_of
from ...dialects.payload.folding import same_as_operand
from ...dialects.shapes.affine import (
    DIM,
    SYM,
    Atom,
    Form,
    Simplifier,
    add,
    constant,
    dim,
    number_of,
    renumbered,
    scale,
    symbol,
    write,
)
from ...dialects.shapes.domain import DomainAttr
from ...dialects.shapes.extents import SymbolAttr, typical
from ...dialects.shapes.ranges import constant_index, range_of_value
from ..analysis.integer_forms import FormReader
from ..analysis.masks import answers, hypercube
from ..pass_manager import TilePass, emit_remark
from ..rewriting import erase, erase_unneeded, insert_after, insert_before, set_fields
from .loops import FIRST_CARRIED

NAME = "tile-split-masked-loops"

MASKS = "payload.cmp|tile.load{domain}|tile.store{domain}|tile.atomic_rmw{domain}|tile.stage_async{domain}"
"""Operations that may be masked, as `needs` of a pass names them."""

WORTHWHILE = 0.5
"""The share of the iterations that has to be without masks: the body is there once more for them."""


class SplitMaskedLoopsPass(TilePass):
    """Compare indices only in those iterations of a loop in which that decides something.

    What: a comparison of affine indices, and each end of a domain, has one answer for all elements of a tile from some
    iteration on, or up to one; which, is an affine expression of the block's indices. A loop whose elements are mostly
    compared in vain is divided there, into two loops or three, which carry what it carried: the one in the middle has
    the answers instead of the comparisons, and accesses without bounds. Where a comparison has its answer in the whole
    loop, or hardly anywhere, no loop is divided.
    Why: below the diagonal of causal attention, inside of a sliding window, and before the last, ragged chunk of a row
    nothing is masked; comparing and selecting would take as long as the exponentials.
    Why here: the carried values of a loop with a pipeline or a ring are all that is in flight, so after the passes that
    start copies early nothing has to be drained between the parts; and the producer of a ring is not divided at all.

    ```mlir
    %s = scf.for %k = %c0 to %n step %c1 iter_args(%a = %zero) {
      %i = tile.affine d0 + %k * 64 : tensor<64xindex>
      %seen = payload.cmp lt %i, %end : tensor<64xindex>    // %end is 1000 everywhere
      %t = payload.select %seen, %x, %zero : tensor<64xf32>
      ... %t ...
    ```
    becomes, with %n = 16,
    ```mlir
    %c15 = arith.constant 15 : index
    %r = scf.for %k = %c0 to %c15 step %c1 iter_args(%a = %zero) {
      ... %x ...
    }
    %s = scf.for %k = %c15 to %n step %c1 iter_args(%a = %r) { ... as before ... }
    ```
    """

    name = "tile-split-masked-loops"
    inside = scf.ForOp
    needs: ClassVar[Mapping[str, int]] = {MASKS: 1}

    def on(self, op: tile.KernelOp) -> None:
        loops = [o for o in op.body.walk() if isinstance(o, scf.ForOp)]
        compared = [o for o in op.body.walk() if isinstance(o, payload.CmpOp) and shape_of(o.result.type)]
        if any([split(loop) for loop in reversed(loops) if any(map(loop.is_ancestor, compared))]):
            erase_unneeded(op.body)


Access: TypeAlias = tile.LoadOp | tile.StoreOp | tile.AtomicRmwOp | tile.StageAsyncOp
"""What has a domain."""

Scalar: TypeAlias = SSAValue | SymbolAttr
"""What a symbol of a form stands for: a scalar that is defined around the loop, or a size known at run time."""


@dataclass(frozen=True)
class Region:
    """Iterations that are at least each of `starts` and less than each of `stops`."""

    starts: frozenset[Form] = frozenset()
    stops: frozenset[Form] = frozenset()

    def __and__(self, other: Region) -> Region:
        return Region(self.starts | other.starts, self.stops | other.stops)

    @property
    def is_whole(self) -> bool:
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
                if options := tuple(self._answers(op)):
                    yield Condition(op, 0, options)
            elif isinstance(op, Access) and op.domain is not None:
                for i, region in self._constraints(op, op.domain):
                    yield Condition(op, i, ((True, region),))

    def scalar(self, value: SSAValue) -> Form | None:
        """An index of the tile level as a form without dimensions, the loop's counter not among its symbols."""
        form = _Reader(self).of(value)
        return None if form is None or self.counter in form.atoms() else form

    def simplifier(self, shape: Sequence[int] = ()) -> Simplifier:
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
        value = op.result if isinstance(op, tile.LoadOp | tile.StageAsyncOp) else op.value
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
        total = inside = 0
        for sample, (start, stop) in zip(self.samples, self.bounds, strict=True):
            total += max(0, stop - start)
            values = [sample.of(v) if i else 0 for i, v in enumerate(self.regions.scalars)]
            first = max([start, *(write(f).eval([], values) for f in region.starts)])
            last = min([stop, *(write(f).eval([], values) for f in region.stops)])
            inside += max(0, last - first)
        return inside / total if total else 0.0


@dataclass
class _Chosen:
    """Conditions with the answers that they have in `region`, and the share of the iterations that lies there."""

    region: Region = Region()
    share: float = 1.0
    answers: list[tuple[Condition, bool, Region]] = field(default_factory=list[tuple[Condition, bool, Region]])

    def with_one(self, condition: Condition, shares: Shares) -> _Chosen | None:
        """Also with the answer to `condition` that leaves the most iterations; None if these are too few."""
        options = [(shares.of(self.region & own), known, own) for known, own in condition.options]
        share, known, own = max(options, key=lambda option: option[0])
        if share < WORTHWHILE and not own.is_whole:
            return None
        return _Chosen(self.region & own, share, [*self.answers, (condition, known, own)])


def split(loop: scf.ForOp) -> bool:
    """Divide `loop` where most of its masks begin or end to matter, if that is worth it. Returns true if it is."""
    regions = Regions(loop)
    conditions = list(regions.conditions()) if constant_index(loop.step) == 1 else []
    if not conditions:
        return False
    shares, chosen = Shares(loop, regions), _Chosen()
    # What is compared for every element is worth a loop; what bounds an access only comes along.
    for condition in sorted(conditions, key=lambda c: not isinstance(c.op, payload.CmpOp)):
        compared = any(isinstance(c.op, payload.CmpOp) for c, _, _ in chosen.answers)
        if isinstance(condition.op, payload.CmpOp) or compared:
            if (better := chosen.with_one(condition, shares)) is not None:
                chosen = better
            elif isinstance(condition.op, payload.CmpOp):
                emit_remark(condition.op, NAME, "too few iterations are without it for a loop of their own")
    if chosen.answers:
        _Splitting(loop, regions, chosen).build()
    return bool(chosen.answers)


@dataclass(frozen=True)
class _End:
    """Where a part of a loop ends: a value, and its form if that is known."""

    value: SSAValue | None
    form: Form | None


@dataclass
class _Splitting:
    """Divides one loop."""

    loop: scf.ForOp
    regions: Regions
    chosen: _Chosen

    def build(self) -> None:
        loop, region = self.loop, self.chosen.region
        lower, upper = (_End(v, self.regions.scalar(v)) for v in (loop.lb, loop.ub))
        ends, middle = [lower, upper], 0
        if region.stops:
            stop = self._merged(arith.MinSIOp, [_End(None, f) for f in sorted(region.stops)] + [upper])
            ends.insert(1, self._merged(arith.MaxSIOp, [stop, lower]))
        if region.starts:
            start = self._merged(arith.MaxSIOp, [_End(None, f) for f in sorted(region.starts)] + [lower])
            ends.insert(1, self._merged(arith.MinSIOp, [start, ends[1]]))
            middle = 1
        parts = self._divided([self._value(e) for e in ends])
        walked = [list(part.body.walk()) for part in parts]
        places = {op: i for i, op in enumerate(walked[0])}
        compared: list[tuple[payload.CmpOp, bool]] = []
        bounded: dict[Access, list[int]] = {}
        for i, ops in enumerate(walked):
            for condition, value, own in self.chosen.answers:
                # In front of the middle the iterations are below all stops, too.
                if i == middle or own.is_whole or (i < middle and not own.starts):
                    op = ops[places[condition.op]]
                    if isinstance(op, payload.CmpOp):
                        compared.append((op, value))
                    elif isinstance(op, Access):
                        bounded.setdefault(op, []).append(condition.constraint)
        for comparison, value in compared:
            _replace(comparison, payload.ConstantOp(value, comparison.result.type))
        for access, constraints in bounded.items():
            _unbounded(access, constraints)

    def _divided(self, ends: Sequence[SSAValue]) -> list[scf.ForOp]:
        """A loop from each of `ends` to the next, each carrying on what the one before it gives."""
        loop = self.loop
        parts = [loop, *(loop.clone() for _ in ends[2:])]
        users = [list(r.uses) for r in loop.results]
        insert_after(loop, *parts[1:])
        for part, start, stop in zip(parts, ends, ends[1:], strict=False):
            part.operands[0], part.operands[1] = start, stop
        for before, part in zip(parts, parts[1:], strict=False):
            for i, value in enumerate(before.results):
                part.operands[FIRST_CARRIED + i] = value
                part.results[i].name_hint = value.name_hint
        for uses, value in zip(users, parts[-1].results, strict=True):
            for use in uses:
                use.operation.operands[use.index] = value
        return parts

    def _merged(self, kind: type[arith.MinSIOp] | type[arith.MaxSIOp], ends: Sequence[_End]) -> _End:
        """The least, or the greatest, of `ends`, of which those are not computed that another one excludes."""
        kept: list[_End] = []
        for end in ends:
            if not any(self._excludes(kind, other, end) for other in kept):
                kept = [other for other in kept if not self._excludes(kind, end, other)] + [end]
        found = kept[0]
        for end in kept[1:]:
            found = _End(self._inserted(kind(self._value(found), self._value(end))), None)
        return found

    def _excludes(self, kind: type[arith.MinSIOp] | type[arith.MaxSIOp], a: _End, b: _End) -> bool:
        """Whether `a` is the least, or the greatest, of the two whatever their values are."""
        if a.form is None or b.form is None:
            return False
        difference = add(a.form, b.form, -1) if kind is arith.MaxSIOp else add(b.form, a.form, -1)
        bounds = self.regions.simplifier().interval(difference)
        return bounds is not None and bounds[0] >= 0

    def _value(self, end: _End) -> SSAValue:
        if end.value is not None:
            return end.value
        assert end.form is not None
        if end.form.is_constant:
            return self._inserted(arith.ConstantOp.from_int_and_width(end.form.constant, IndexType()))
        numbers = sorted({number_of(atom) for atom in end.form.atoms()})
        form = renumbered(end.form, {}, {n: i for i, n in enumerate(numbers)})
        scalars = [self.regions.scalars[n] for n in numbers]
        extents = {s: self._inserted(payload.ExtentOp(s, IndexType())) for s in scalars if isinstance(s, SymbolAttr)}
        symbols = [extents[s] if isinstance(s, SymbolAttr) else s for s in scalars]
        if write(form) == AffineExpr.symbol(0):
            return symbols[0]
        return self._inserted(tile.AffineOp(AffineMap(0, len(symbols), (write(form),)), symbols, IndexType()))

    def _inserted(self, op: Operation) -> SSAValue:
        insert_before(self.loop, op)
        op.results[0].name_hint = "part"
        return op.results[0]


def _unbounded(op: Access, dropped: Sequence[int]) -> None:
    """Take constraints off the domain of an access: they always hold."""
    assert op.domain is not None
    affine, limits = op.domain.affine, op.domain.limits
    kept = [i for i in range(len(limits)) if i not in dropped]
    results = tuple(affine.results[i] for i in kept)
    if kept:
        affine = AffineMap(affine.num_dims, affine.num_symbols, results)
        set_fields(op, domain=DomainAttr.get(affine, [limits[i] for i in kept]))
    elif isinstance(op, tile.LoadOp):
        _replace(op, tile.LoadOp(op.source, op.map, op.symbols, result=op.result.type))
    else:
        set_fields(op, domain=None)


def _replace(op: Operation, new: Operation) -> None:
    """Put `new` in the place of `op`, and simplify what uses its result."""
    new.results[0].name_hint = op.results[0].name_hint
    insert_before(op, new)
    _substitute(op, new.results[0])


def _substitute(op: Operation, value: SSAValue) -> None:
    users = [use.operation for use in op.results[0].uses]
    op.results[0].replace_all_uses_with(value)
    erase(op)
    for user in dict.fromkeys(users):
        _simplify(user)


def _simplify(op: Operation) -> None:
    """Replace `op` by what it is, if a constant operand decides that; a truth value may be cast, repeated or moved."""
    if op.parent is None:
        return
    numbers = [constant_of(o) for o in op.operands]
    if (same := same_as_operand(op, numbers)) is not None:
        _substitute(op, op.operands[same])
    elif isinstance(op, payload.CastOp | tile.BroadcastOp | tile.ConvertLayoutOp) and numbers[0] is not None:
        if element_type(op.operands[0].type) == i1:
            _replace(op, payload.ConstantOp(abs(numbers[0]), op.results[0].type))
