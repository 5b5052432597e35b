"""`tile-split-masked-loops`: peels the iterations of a loop in which a mask has the same value for the whole tile.

A *condition* is a comparison, or one bound of the domain of a load or store. Its *answer* is true or false. The
condition is read as an integer *form* (`dialects/shapes/affine.py`): a linear expression in the position in the tile
(dims), scalars that are constant in the loop (symbols), and the loop counter. The answer is the same for the whole tile
if the form is at most 0 at all positions. This holds up to some iteration, or from some iteration on: the `Region` of
the answer. For example `d0 + k * 64 < 1000`, with d0 < 64, is true for the whole tile in the iterations k < 15.
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
"""Operations that may have masks, in the syntax of the `needs` of a pass."""

MIN_UNMASKED_FRACTION = 0.5
"""Least fraction of iterations without a mask for which a loop is divided. The division duplicates the body."""


class SplitMaskedLoopsPass(TilePass):
    """Divides loops so that most iterations need no masks.

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

    A comparison of indices, or a bound of a domain, may have the same answer for all elements of a tile from some
    iteration on, or up to some iteration. The number of that iteration is an affine expression of the grid indices. If
    at least half of the iterations have known answers, the loop is divided there into two or three loops. The one
    without masks uses constants for the comparisons, and its loads and stores have no bounds. If an answer is the same
    in the whole loop, it is replaced without a division.

    **Rationale**: nothing is masked below the diagonal of causal attention, inside a sliding window, and before the
    last chunk of a row. Comparisons and selects would take as long as the exponentials.

    **Pipeline position**: after the passes that pipeline loads. The loop carries the outstanding tiles, so the pipeline
    is not drained between the parts. The producer of a warp-specialised kernel has no masks and is not divided.
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
"""Operation that may have a domain."""

Scalar: TypeAlias = SSAValue | SymbolAttr
"""Meaning of a symbol of a form: the loop counter, a scalar defined outside of the loop, or a dynamic size."""


@dataclass(frozen=True)
class Region:
    """Range of iterations: at least the maximum of `starts` and less than the minimum of `stops`. If both are empty,
    all iterations."""

    starts: frozenset[Form] = frozenset()
    stops: frozenset[Form] = frozenset()

    def __and__(self, other: Region) -> Region:
        return Region(self.starts | other.starts, self.stops | other.stops)

    @property
    def is_whole(self) -> bool:
        return not self.starts and not self.stops


@dataclass(frozen=True)
class Condition:
    """Comparison, or one constraint of the domain of an access, whose answer is the same for a whole tile in a region.

    op          the comparison or access
    constraint  index of the constraint in the domain; 0 for a comparison
    options     pairs of an answer and the region in which all elements of the tile have it
    """

    op: payload.CmpOp | Access
    constraint: int
    options: tuple[tuple[bool, Region], ...]


class Regions:
    """Conditions of one loop, and the scalars on which they depend."""

    def __init__(self, loop: scf.ForOp) -> None:
        self.loop = loop
        self.scalars: list[Scalar] = []
        """Symbol number -> its scalar, for all forms; number 0 is the loop counter."""
        self.counter = self._symbol(loop.body.block.args[0]).terms[0][0]

    def conditions(self) -> Iterator[Condition]:
        """Yields the conditions in the loop whose answer is known in some iterations, in program order."""
        for op in self.loop.body.walk():
            if isinstance(op, payload.CmpOp) and shape_of(op.result.type):
                if options := tuple(self._answers(op)):
                    yield Condition(op, 0, options)
            elif isinstance(op, Access) and op.domain is not None:
                for i, region in self._constraints(op, op.domain):
                    yield Condition(op, i, ((True, region),))

    def scalar(self, value: SSAValue) -> Form | None:
        """Returns the form of a scalar index that does not depend on the loop counter, or None if it cannot be read."""
        form = _Reader(self).of(value)
        return None if form is None or self.counter in form.atoms() else form

    def simplifier(self, shape: Sequence[int] = ()) -> Simplifier:
        found = Simplifier(shape)
        for i, value in enumerate(self.scalars):
            found.set_range((SYM, i), self._range(value))
        return found

    @staticmethod
    def _range(value: Scalar) -> tuple[int, int] | None:
        bounds = (value.minimum, value.maximum + 1) if isinstance(value, SymbolAttr) else range_of_value(value)
        return bounds if isinstance(bounds, tuple) else None

    def _symbol(self, value: Scalar) -> Form:
        for i, scalar in enumerate(self.scalars):
            if scalar is value or (isinstance(value, SymbolAttr) and scalar == value):
                return symbol(i)
        self.scalars.append(value)
        return symbol(len(self.scalars) - 1)

    def leaf(self, value: Scalar, simplifier: Simplifier) -> Form | None:
        """Returns the symbol of a scalar, or None if the scalar is computed inside the loop."""
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
        if (operands := reader.all((op.lhs, op.rhs), dims)) is None:
            return
        difference = add(operands[0], operands[1], -1)
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
        """Returns the iterations in which `form` is at most 0 for all elements of the tile, or None if they are
        unknown."""
        bounds = simplifier.interval(form)
        if bounds is not None and bounds[1] <= 0:
            return Region()
        factor, highest, scalar_terms = 0, form.constant, dict[Atom, int]()
        for atom, coefficient in form.terms:
            if atom == self.counter:
                factor = coefficient
            elif all(a[0] == SYM and a != self.counter for a in Form(((atom, 1),), 0).atoms()):
                scalar_terms[atom] = coefficient
            elif all(a[0] == DIM for a in Form(((atom, 1),), 0).atoms()):
                within = simplifier.interval(Form(((atom, coefficient),), 0))
                if within is None:
                    return None
                highest += within[1]
            else:
                # A term that mixes tile positions and scalars has no bound.
                return None
        if factor == 0:
            return None
        total = Form(tuple(sorted(scalar_terms.items())), highest)
        # factor * counter + total <= 0
        if factor > 0:
            return Region(stops=frozenset((add(simplifier.floordiv(scale(total, -1), factor), constant(1)),)))
        return Region(starts=frozenset((simplifier.floordiv(add(total, constant(-factor - 1)), -factor),)))


class _Reader(FormReader):
    """Reads integer values of tile operations as forms over the dimensions of one tile."""

    def __init__(self, regions: Regions, shape: Sequence[int] = ()) -> None:
        super().__init__(regions.simplifier(shape), shape)
        self.regions = regions

    def leaf(self, value: Scalar) -> Form | None:
        if isinstance(value, SymbolAttr) or isinstance(value.type, IndexType):
            return self.regions.leaf(value, self.simplifier)
        return None


SAMPLES = 64
"""Number of sampled combinations of grid indices and outer loop counters."""

ASSUMED_RANGE = 64
"""Assumed number of values of a scalar whose range is unknown."""

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
    """Sample of a kernel: an assignment of values to its scalars.

    number  index of the sample
    values  scalar -> its value in this sample
    leaves  number of independent scalars so far
    """

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
            case _:
                # Other scalars are independent: each one gets a random value of its range.
                bounds = range_of_value(value)
                lo, hi = bounds if isinstance(bounds, tuple) else (0, ASSUMED_RANGE)
                self.leaves += 1
                return hypercube(lo, hi, SAMPLES, self.leaves)[self.number] if lo < hi else lo


class Shares:
    """Estimates the fraction of the iterations of a loop in a region, from samples of the blocks of the grid."""

    def __init__(self, loop: scf.ForOp, regions: Regions) -> None:
        self.regions = regions
        self.samples = [_Sample(i) for i in range(SAMPLES)]
        self.bounds = [(s.of(loop.lb), s.of(loop.ub)) for s in self.samples]

    def of(self, region: Region) -> float:
        """Returns the estimated fraction of iterations in `region`, from 0 to 1."""
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
    """Answers that are assumed in the unmasked part of a loop.

    region   iterations of the unmasked part
    share    estimated fraction of the iterations in `region`
    answers  condition, its answer, and the region of the answer
    """

    region: Region = Region()
    share: float = 1.0
    answers: list[tuple[Condition, bool, Region]] = field(default_factory=list[tuple[Condition, bool, Region]])

    def with_one(self, condition: Condition, shares: Shares) -> _Chosen | None:
        """Returns the choice extended by the answer to `condition` that keeps the most iterations, or None if that
        leaves too few."""
        options = [(shares.of(self.region & region), answer, region) for answer, region in condition.options]
        share, answer, region = max(options, key=lambda option: option[0])
        if share < MIN_UNMASKED_FRACTION and not region.is_whole:
            return None
        return _Chosen(self.region & region, share, [*self.answers, (condition, answer, region)])


def split(loop: scf.ForOp) -> bool:
    """Divides `loop` into parts with and without masks. Returns true if any mask was removed."""
    regions = Regions(loop)
    conditions = list(regions.conditions()) if constant_index(loop.step) == 1 else []
    if not conditions:
        return False
    shares, chosen = Shares(loop, regions), _Chosen()
    # Comparisons alone justify a division. Bounds of accesses are removed only in addition.
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
    """Bound of a part of a loop: an SSA value, or None if it is not emitted yet, and its form, or None if it is
    unknown."""

    value: SSAValue | None
    form: Form | None


@dataclass
class _Splitting:
    """Division of one loop according to the chosen answers."""

    loop: scf.ForOp
    regions: Regions
    chosen: _Chosen

    def build(self) -> None:
        loop, whole = self.loop, self.chosen.region
        lower, upper = (_End(v, self.regions.scalar(v)) for v in (loop.lb, loop.ub))
        ends, middle = [lower, upper], 0
        if whole.stops:
            stop = self._merged(arith.MinSIOp, [_End(None, f) for f in sorted(whole.stops)] + [upper])
            ends.insert(1, self._merged(arith.MaxSIOp, [stop, lower]))
        if whole.starts:
            start = self._merged(arith.MaxSIOp, [_End(None, f) for f in sorted(whole.starts)] + [lower])
            ends.insert(1, self._merged(arith.MinSIOp, [start, ends[1]]))
            middle = 1
        parts = self._divided([self._value(e) for e in ends])
        walked = [list(part.body.walk()) for part in parts]
        positions = {op: i for i, op in enumerate(walked[0])}
        compared: list[tuple[payload.CmpOp, bool]] = []
        bounded: dict[Access, list[int]] = {}
        for i, ops in enumerate(walked):
            for condition, value, region in self.chosen.answers:
                # The answer also holds in the parts before the unmasked part, unless its region has a start.
                if i == middle or region.is_whole or (i < middle and not region.starts):
                    op = ops[positions[condition.op]]
                    if isinstance(op, payload.CmpOp):
                        compared.append((op, value))
                    elif isinstance(op, Access):
                        bounded.setdefault(op, []).append(condition.constraint)
        for comparison, value in compared:
            _replace(comparison, payload.ConstantOp(value, comparison.result.type))
        for access, constraints in bounded.items():
            _unbounded(access, constraints)

    def _divided(self, ends: Sequence[SSAValue]) -> list[scf.ForOp]:
        """Replaces the loop by consecutive loops between the bounds `ends`. Each starts with the results of the
        previous one."""
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
        """Returns the minimum or maximum of `ends`. Bounds that are never the result are not emitted."""
        candidates: list[_End] = []
        for end in ends:
            if not any(self._excludes(kind, other, end) for other in candidates):
                candidates = [other for other in candidates if not self._excludes(kind, end, other)] + [end]
        merged = candidates[0]
        for end in candidates[1:]:
            merged = _End(self._inserted(kind(self._value(merged), self._value(end))), None)
        return merged

    def _excludes(self, kind: type[arith.MinSIOp] | type[arith.MaxSIOp], a: _End, b: _End) -> bool:
        """Returns true if `a` is always the minimum or maximum of `a` and `b`."""
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
    """Removes the constraints `dropped` from the domain of an access, as they always hold."""
    assert op.domain is not None
    affine, limits = op.domain.affine, op.domain.limits
    remaining = [i for i in range(len(limits)) if i not in dropped]
    results = tuple(affine.results[i] for i in remaining)
    if remaining:
        affine = AffineMap(affine.num_dims, affine.num_symbols, results)
        set_fields(op, domain=DomainAttr.get(affine, [limits[i] for i in remaining]))
    elif isinstance(op, tile.LoadOp):
        _replace(op, tile.LoadOp(op.source, op.map, op.symbols, result=op.result.type))
    else:
        set_fields(op, domain=None)


def _replace(op: Operation, new: Operation) -> None:
    """Replaces `op` by `new`, and simplifies the users of its result."""
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
    """Replaces `op` by an operand or a constant if constant operands determine its result. Casts, broadcasts and layout
    conversions of a constant mask become constants."""
    if op.parent is None:
        return
    numbers = [constant_of(o) for o in op.operands]
    if (same := same_as_operand(op, numbers)) is not None:
        _substitute(op, op.operands[same])
    elif isinstance(op, payload.CastOp | tile.BroadcastOp | tile.ConvertLayoutOp) and numbers[0] is not None:
        if element_type(op.operands[0].type) == i1:
            _replace(op, payload.ConstantOp(abs(numbers[0]), op.results[0].type))
