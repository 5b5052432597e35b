"""kernel-simplify-indices: simplify the index arithmetic of kernels with what is known about thread numbers."""

from __future__ import annotations

from dataclasses import dataclass, field

from xdsl.dialects import arith
from xdsl.dialects.builtin import ArrayAttr, IndexType, i1
from xdsl.ir import Block, Operation, Region, SSAValue

from ...dialects.kernel import FuncOp, Id, IdOp
from ...dialects.kernel.memory import LoadOp, StoreOp
from ...dialects.layouts.attributes import bases_attr
from ...dialects.payload import CmpOp, ConstantOp, SelectOp, shape_of
from ...dialects.payload.folding import decided
from ...dialects.shapes.extents import least
from ...dialects.shapes.ranges import Ranges, constant_index, span
from ..anchored import FuncPass
from ..rewriting import erase, insert_before, set_fields

DIVISIONS = frozenset({"arith.divsi", "arith.divui", "arith.floordivsi"})
REMAINDERS = frozenset({"arith.remsi", "arith.remui"})
FOLDED = (DIVISIONS | REMAINDERS).union(f"arith.{n}" for n in "addi subi muli shrui andi minsi maxsi".split())

TERMS = 8
"""Sums of more terms than this are left as they are written, so that the pass takes linear time."""


@dataclass(frozen=True)
class Linear:
    """A sum: `terms` maps values to their factors, in the order of the text."""

    terms: tuple[tuple[SSAValue, int], ...] = ()
    constant: int = 0

    def plus(self, other: Linear, factor: int = 1) -> Linear:
        """`self + factor * other`."""
        factors = dict(self.terms)
        for value, f in other.terms:
            factors[value] = factors.get(value, 0) + factor * f
        kept = tuple((v, f) for v, f in factors.items() if f)
        return Linear(kept, self.constant + factor * other.constant)

    def times(self, factor: int) -> Linear:
        """`factor * self`."""
        return Linear().plus(self, factor)

    def range(self, ranges: Ranges) -> tuple[float, float]:
        """Its least and greatest value."""
        lo = hi = float(self.constant)
        for value, factor in self.terms:
            a, b = ranges.of(value)
            lo, hi = lo + min(factor * a, factor * b), hi + max(factor * a, factor * b)
        return lo, hi

    def split(self, divisor: int) -> tuple[Linear, Linear]:
        """(q, r) with self = divisor * q + r, where r holds the terms that `divisor` does not divide."""
        q = Linear(tuple((v, f // divisor) for v, f in self.terms if f % divisor == 0), self.constant // divisor)
        return q, Linear(tuple((v, f) for v, f in self.terms if f % divisor), self.constant % divisor)


class SimplifyIndicesPass(FuncPass):
    """Simplify index arithmetic, comparisons of indices and checks of accesses.

    What: one walk in program order. Sums are kept as linear forms, so constants meet; a division or remainder drops
    the terms that the divisor divides, and disappears where the rest lies between 0 and the divisor; comparisons and
    checks that the ranges of lanes, warps, blocks and loop counters decide disappear; equal thread numbers are merged.
    Why: lowering writes one general formula for every access; this makes it the formula a person would have written.
    Why here: after the lowering, which knows nothing of ranges, and before the text, which prints what is left.

    ```mlir
    %w = arith.divsi %thread, %c32 : index        // with %thread = %warp * 32 + %lane
    %m = arith.remsi %lane, %c32 : index
    ```
    becomes `%warp` and `%lane`.
    """

    name = "kernel-simplify-indices"

    def on(self, op: FuncOp) -> None:
        _Folder(op).run()


@dataclass
class _Folder:
    func: FuncOp
    ranges: Ranges = field(init=False)
    forms: dict[SSAValue, Linear] = field(default_factory=dict[SSAValue, Linear])
    ids: dict[Id, SSAValue] = field(default_factory=dict[Id, SSAValue])

    def __post_init__(self) -> None:
        self.ranges = Ranges(self.func)

    def run(self) -> None:
        self._region(self.func.body)
        for op in reversed(list(self.func.body.walk())):
            if isinstance(op, arith.ConstantOp | ConstantOp | IdOp) or op.name in FOLDED:
                if all(not list(r.uses) for r in op.results):
                    erase(op)

    def _region(self, region: Region) -> None:
        for block in region.blocks:
            for op in list(block.ops):
                self._operation(op, block)
                for inner in op.regions:
                    self._region(inner)

    def _operation(self, op: Operation, block: Block) -> None:
        if isinstance(op, IdOp):
            self._identifier(op, block)
        elif isinstance(op, LoadOp | StoreOp):
            self._checks(op)
        elif isinstance(op, CmpOp) and isinstance(op.lhs.type, IndexType):
            self._comparison(op)
        elif isinstance(op, SelectOp) and (known := constant_index(op.cond)) is not None and not shape_of(op.cond.type):
            self._replace(op, op.lhs if known else op.rhs)
        elif op.name in FOLDED and isinstance(op.results[0].type, IndexType):
            self._arithmetic(op, block)

    def _identifier(self, op: IdOp, block: Block) -> None:
        known = self.ids.get(op.kind.data)
        if known is not None:
            self._replace(op, known)
        elif block is self.func.body.block:
            self.ids[op.kind.data] = op.result

    # -- sums

    def form(self, value: SSAValue) -> Linear:
        """`value` as a sum."""
        found = self.forms.get(value)
        if found is None:
            number = constant_index(value)
            found = Linear(((value, 1),)) if number is None else Linear((), number)
            self.forms[value] = found
        return found

    def _arithmetic(self, op: Operation, block: Block) -> None:
        result = op.results[0]
        folded = self._folded(op, *(self.form(v) for v in op.operands))
        if folded is None or len(folded.terms) > TERMS:
            self.forms[result] = Linear(((result, 1),))
            return
        lo, hi = folded.range(self.ranges)
        if lo == hi:
            folded = Linear((), int(lo))
        self.forms[result] = folded
        self._rewrite(op, folded, block)

    def _folded(self, op: Operation, a: Linear, b: Linear) -> Linear | None:
        constant = b.constant if not b.terms else -1
        match op.name:
            case "arith.addi":
                return a.plus(b)
            case "arith.subi":
                return a.plus(b, -1)
            case "arith.muli" if not b.terms:
                return a.times(b.constant)
            case "arith.muli" if not a.terms:
                return b.times(a.constant)
            case "arith.minsi" | "arith.maxsi":
                return self._extreme(op, a, b)
            case "arith.shrui" if 0 <= constant < 32:
                return self._divided(op, a, 1 << constant)
            case "arith.andi" if constant >= 0 and constant & (constant + 1) == 0:
                return self._divided(op, a, constant + 1)
            case _ if op.name in DIVISIONS | REMAINDERS and constant > 0:
                return self._divided(op, a, constant)
            case _:
                return None

    def _extreme(self, op: Operation, a: Linear, b: Linear) -> Linear | None:
        lo, hi = a.plus(b, -1).range(self.ranges)
        if hi <= 0:
            return a if op.name == "arith.minsi" else b
        if lo >= 0:
            return b if op.name == "arith.minsi" else a
        return None

    def _divided(self, op: Operation, a: Linear, divisor: int) -> Linear | None:
        """The quotient or remainder of a sum, if the part that `divisor` does not divide stays below it."""
        quotient, rest = a.split(divisor)
        lo, hi = rest.range(self.ranges)
        floors = op.name in ("arith.floordivsi", "arith.andi")
        if lo < 0 or hi >= divisor or (a.range(self.ranges)[0] < 0 and not floors):
            return None
        return rest if op.name in REMAINDERS | {"arith.andi"} else quotient

    # -- rewriting

    def _rewrite(self, op: Operation, folded: Linear, block: Block) -> None:
        """Put the shortest text of `folded` in the place of `op`, unless `op` is that already."""
        if len(folded.terms) == 1 and folded.terms[0][1] == 1 and folded.constant == 0:
            value = folded.terms[0][0]
            if value is not op.results[0]:
                self._replace(op, value)
            return
        if _written_length(op, self.forms) <= _length(folded):
            return
        result: SSAValue | None = None
        for value, factor in folded.terms:
            term = value if factor == 1 else self._insert(arith.MuliOp(value, self._number(factor, op)), op)
            result = term if result is None else self._insert(arith.AddiOp(result, term), op)
        if result is None:
            result = self._number(folded.constant, op)
        elif folded.constant:
            result = self._insert(arith.AddiOp(result, self._number(folded.constant, op)), op)
        self._replace(op, result)

    def _number(self, number: int, before: Operation) -> SSAValue:
        return self._insert(ConstantOp(number, IndexType()), before)

    def _insert(self, new: Operation, before: Operation) -> SSAValue:
        insert_before(before, new)
        if new.name in FOLDED:
            folded = self._folded(new, *(self.form(v) for v in new.operands))
            self.forms[new.results[0]] = folded or Linear(((new.results[0], 1),))
        return new.results[0]

    def _replace(self, op: Operation, value: SSAValue) -> None:
        if value.name_hint is None and isinstance(value.owner, Operation):
            value.name_hint = op.results[0].name_hint
        op.results[0].replace_all_uses_with(value)
        erase(op)

    # -- decisions

    def _comparison(self, op: CmpOp) -> None:
        difference = self.form(op.lhs).plus(self.form(op.rhs), -1)
        known = decided(op.predicate.data, *difference.range(self.ranges))
        if known is not None:
            self._replace(op, self._insert(ConstantOp(known, i1), op))

    def _checks(self, op: LoadOp | StoreOp) -> None:
        kept: list[int] = []
        for c, (value, (lo, hi)) in enumerate(zip(op.checks, op.bounds, strict=True)):
            first, last = self.form(value).range(self.ranges) if value in self.forms else self.ranges.of(value)
            below, above = span([basis[c] for basis in op.check_steps])
            if first + below < lo or last + above >= least(hi):
                kept.append(c)
        if len(kept) < len(op.checks):
            self._drop_checks(op, kept)

    def _drop_checks(self, op: LoadOp | StoreOp, kept: list[int]) -> None:
        checks = [op.checks[c] for c in kept]
        steps = [[basis[c] for c in kept] for basis in op.check_steps]
        lower, upper = (ArrayAttr([bound.data[c] for c in kept]) for bound in (op.lower, op.upper))
        set_fields(op, checks=checks, steps=bases_attr(steps if kept else ()), lower=lower, upper=upper)
        if isinstance(op, LoadOp) and not kept:
            set_fields(op, fill=None)


def _length(form: Linear) -> int:
    """How many operations a sum takes."""
    products = sum(1 for _, factor in form.terms if factor != 1)
    return products + max(0, len(form.terms) - 1) + (1 if form.constant and form.terms else 0)


def _written_length(op: Operation, forms: dict[SSAValue, Linear]) -> int:
    """How many operations it takes to write `op` over operands that are used elsewhere anyway."""
    length = 1
    for operand in op.operands:
        if isinstance(operand.owner, Operation) and operand in forms and len(list(operand.uses)) == 1:
            owner = operand.owner
            length += _written_length(owner, forms) if owner.name in FOLDED and owner.parent is op.parent else 0
    return length
