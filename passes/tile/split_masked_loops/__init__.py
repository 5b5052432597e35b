"""Masks only where something is masked: `tile-split-masked-loops`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from xdsl.dialects import arith, scf
from xdsl.dialects.builtin import IndexType, i1
from xdsl.ir import Operation, SSAValue
from xdsl.ir.affine import AffineExpr, AffineMap

from ....dialects import payload, tile
from ....dialects.payload import element_type
from ....dialects.payload.folding import constant_of, same_as_operand
from ....dialects.shapes.affine import Form, add, number_of, renumbered, write
from ....dialects.shapes.domain import DomainAttr
from ....dialects.shapes.extents import SymbolAttr
from ....dialects.shapes.ranges import constant_index
from ...anchored import TilePass
from ...dce import erase_unneeded
from ...remarks import emit_remark
from ...rewriting import erase, insert_after, insert_before, set_fields
from .regions import Access, Condition, Region, Regions, Scalar, Shares

NAME = "tile-split-masked-loops"

WORTHWHILE = 0.5
"""The share of the iterations that has to be without masks: the body is there once more for them."""


FIRST_CARRIED = 3
"""The operands of a loop before those that it carries: its bounds and its step."""


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

    def on(self, op: tile.KernelOp) -> None:
        for loop in reversed([o for o in op.body.walk() if isinstance(o, scf.ForOp)]):
            split(loop)
        erase_unneeded(op.body)


@dataclass
class _Chosen:
    """Conditions with the answers that they have in `region`, and the share of the iterations that lies there."""

    region: Region = Region()
    share: float = 1.0
    answers: list[tuple[Condition, bool, Region]] = field(default_factory=list[tuple[Condition, bool, Region]])

    def with_one(self, condition: Condition, shares: Shares) -> _Chosen | None:
        """Also with the answer to `condition` that leaves the most iterations; None if these are too few."""
        found = [(self.region & region, known, region) for known, region in condition.options]
        ranked = [(shares.of(region), -i) for i, (region, _, _) in enumerate(found)]
        share, i = max(ranked)
        region, known, own = found[-i]
        if share < WORTHWHILE and not own.is_whole:
            return None
        return _Chosen(region, share, [*self.answers, (condition, known, own)])


def split(loop: scf.ForOp) -> None:
    """Divide `loop` where most of its masks begin or end to matter, if that is worth it."""
    if constant_index(loop.step) != 1:
        return
    regions = Regions(loop)
    conditions = list(regions.conditions())
    if not conditions:
        return
    shares, chosen = Shares(loop, regions), _Chosen()
    # What is compared for every element is worth a loop; what bounds an access only comes along.
    for condition in sorted(conditions, key=lambda c: not isinstance(c.op, payload.CmpOp)):
        compared = any(isinstance(c.op, payload.CmpOp) for c, _, _ in chosen.answers)
        if isinstance(condition.op, payload.CmpOp) or compared:
            better = chosen.with_one(condition, shares)
            if better is not None:
                chosen = better
            elif isinstance(condition.op, payload.CmpOp):
                emit_remark(condition.op, NAME, "too few iterations are without it for a loop of their own")
    if chosen.answers:
        _Splitting(loop, regions, chosen).build()


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
        """Replace the loop by its parts."""
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
            op = kind(self._value(found), self._value(end))
            found = _End(self._inserted(op), None)
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
        scalars = self.regions.scalars
        symbols = [self._scalar(scalars[n]) for n in numbers]
        if write(form) == AffineExpr.symbol(0):
            return symbols[0]
        op = tile.AffineOp(AffineMap(0, len(symbols), (write(form),)), symbols, IndexType())
        return self._inserted(op)

    def _scalar(self, scalar: Scalar) -> SSAValue:
        if not isinstance(scalar, SymbolAttr):
            return scalar
        return self._inserted(payload.ExtentOp(scalar, IndexType()))

    def _inserted(self, op: Operation) -> SSAValue:
        """`op`, in front of the loop."""
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
