"""Where registers are: affine expressions of a tile's indices, as each thread computes them.

For one expression a `Place` holds the value for register 0 of this thread and what every bit of the register number
adds to it. Expressions that are not linear in the tile's indices, and gathers, are computed for every register.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import gcd
from typing import cast

from xdsl.dialects import arith, scf
from xdsl.dialects.builtin import IndexType, IntegerAttr, VectorType
from xdsl.ir import Attribute, BlockArgument, Operation, SSAValue
from xdsl.ir.affine import AffineExpr

from ...dialects import kernel, payload, tile
from ...dialects.counts import most_tiles
from ...dialects.linear_layout import Linear
from ...dialects.payload import shape_of
from ..index_simplify import DIM, DIV, MOD, SYM, Atom, Form, Range, Simplifier, dim, number_of, range_of, symbol
from .emitter import Emitter, Index, is_disjoint


@dataclass(frozen=True)
class Place:
    """One expression, in all registers of this thread.

    `origin` is its value in register 0 and `steps` what each set bit of the register number adds; or `origin` is a
    vector with one entry a register and the steps are zero. `divisor` divides the value in register 0 for all threads.
    """

    origin: Index
    steps: tuple[int, ...]
    divisor: int

    @property
    def per_register(self) -> bool:
        """Whether `origin` is a vector."""
        return isinstance(self.origin, SSAValue) and isinstance(self.origin.type, VectorType)


class Places:
    """Computes places for one tile of `layout` under given symbols (values of the tile level and what they became)."""

    def __init__(
        self,
        out: Emitter,
        layout: Linear,
        symbols: Sequence[SSAValue],
        lowered: Sequence[Index],
        below: Mapping[SSAValue, int] | None = None,
    ) -> None:
        """`below` are upper bounds of symbols that hold wherever the places are used."""
        self.out = out
        self.layout = layout
        self.lowered: list[Index] = [uniform_index(out, v) for v in lowered]
        self.divisors = [divisor_of(s) for s in symbols]
        ranges = [_limited(range_of_value(s), (below or {}).get(s)) for s in symbols]
        self.simplifier = Simplifier(layout.shape, ranges)
        self._dims = [dim(i) if n != 1 else Form((), 0) for i, n in enumerate(layout.shape)]
        self._symbols = [
            symbol(i) if not isinstance(r, tuple) or r[1] - r[0] != 1 else Form((), r[0]) for i, r in enumerate(ranges)
        ]
        self._clean = [is_disjoint([b[d] for b in layout.bases]) for d in range(len(layout.shape))]

    def form(self, expr: AffineExpr) -> Form:
        """`expr`, simplified in the ranges of the tile and its symbols."""
        return self.simplifier.read(expr, self._dims, self._symbols)

    def place(self, form: Form) -> Place:
        """Emit the computation of `form`."""
        if not all(self._is_scalar(atom) or self._is_linear(atom) for atom, _ in form.terms):
            return Place(self._vector(form), (0,) * len(self.layout.reg), 1)
        terms: list[Index] = []
        steps = [0] * len(self.layout.reg)
        divisor = form.constant
        for atom, factor in form.terms:
            if atom[0] == DIM:
                number = number_of(atom)
                images = [b[number] for b in (*self.layout.lane, *self.layout.warp)]
                terms.append(self.out.thread_bits(images, factor)[0])
                for bit, basis in enumerate(self.layout.reg):
                    steps[bit] += factor * basis[number]
                divisor = gcd(divisor, *(factor * i for i in images))
            else:
                terms.append(self.out.mul(self._scalar(atom), factor))
                divisor = gcd(divisor, factor * (self.divisors[number_of(atom)] if atom[0] == SYM else 1))
        return Place(self.out.sum([*terms, form.constant]), tuple(steps), divisor)

    def _is_linear(self, atom: Atom) -> bool:
        return atom[0] == DIM and self._clean[number_of(atom)]

    def _is_scalar(self, atom: Atom) -> bool:
        """Whether the atom has one value for the whole tile."""
        if atom[0] == SYM:
            return not _is_vector(self.lowered[number_of(atom)])
        return atom[0] != DIM and all(self._is_scalar(a) for a in Form(atom[1], atom[2]).atoms())

    def _scalar(self, atom: Atom) -> Index:
        if atom[0] == SYM:
            return self.lowered[number_of(atom)]
        return self._quotient(atom, self._scalar_form(self._shifted(atom)[0]))

    def _scalar_form(self, form: Form) -> Index:
        return self.out.sum([*(self.out.mul(self._scalar(a), f) for a, f in form.terms), form.constant])

    def _shifted(self, atom: Atom) -> tuple[Form, int]:
        """The dividend of `atom` plus a multiple of the divisor that makes it never negative, and that multiple."""
        form, divisor = Form(atom[1], atom[2]), atom[3]
        bounds = self.simplifier.interval(form)
        low = bounds[0] if bounds is not None else -(1 << 30) // divisor * divisor
        quotient = 0 if low >= 0 else -(low // divisor)
        return Form(form.terms, form.constant + quotient * divisor), quotient

    def _quotient(self, atom: Atom, dividend: Index) -> Index:
        if atom[0] == MOD:
            return self.out.rem(dividend, atom[3])
        return self.out.add(self.out.div(dividend, atom[3]), -self._shifted(atom)[1])

    # Vectors: one entry for every register.

    @property
    def _type(self) -> Attribute:
        return VectorType(IndexType(), [self.layout.registers])

    def _constant(self, value: int) -> SSAValue:
        return self.out.emit(payload.ConstantOp(value, self._type))

    def _vector(self, form: Form) -> SSAValue:
        total: SSAValue | None = None
        for atom, factor in form.terms:
            part = self._vector_atom(atom)
            if factor != 1:
                part = self.out.emit(arith.MuliOp(part, self._constant(factor)))
            total = part if total is None else self.out.emit(arith.AddiOp(total, part))
        if total is None:
            return self._constant(form.constant)
        return self.out.emit(arith.AddiOp(total, self._constant(form.constant))) if form.constant else total

    def _vector_atom(self, atom: Atom) -> SSAValue:
        n = self.layout.registers
        if self._is_scalar(atom):
            return self.out.emit(kernel.SplatOp(self.out.value(self._scalar(atom)), n))
        if atom[0] == DIM:
            return self.indices(number_of(atom))
        if atom[0] == SYM:
            value = self.lowered[number_of(atom)]
            assert isinstance(value, SSAValue)
            return value
        form, shift = self._shifted(atom)
        dividend, divisor = self._vector(form), self._constant(atom[3])
        if atom[0] == MOD:
            return self.out.emit(arith.RemUIOp(dividend, divisor))
        assert atom[0] == DIV
        quotient = self.out.emit(arith.DivUIOp(dividend, divisor))
        return self.out.emit(arith.AddiOp(quotient, self._constant(-shift))) if shift else quotient

    def indices(self, d: int) -> SSAValue:
        """The tile's index `d` in every register."""
        images = [b[d] for b in (*self.layout.lane, *self.layout.warp)]
        origin = self.out.thread_bits(images)[0]
        steps = [b[d] for b in self.layout.reg]
        if self._clean[d]:
            return self.out.emit(kernel.IndicesOp(self.out.value(origin), steps))
        own = self.out.emit(kernel.IndicesOp(self.out.value(0), [0] * len(steps)))
        for bit, step in enumerate(steps):
            alone = [step if b == bit else 0 for b in range(len(steps))]
            own = self.out.emit(arith.XOrIOp(own, self.out.emit(kernel.IndicesOp(self.out.value(0), alone))))
        base = self.out.emit(kernel.SplatOp(self.out.value(origin), self.layout.registers))
        return self.out.emit(arith.XOrIOp(own, base))


def uniform_index(out: Emitter, value: Index) -> Index:
    """A gathered index that is the same in all registers of a thread, as a scalar; any other index as it is."""
    if isinstance(value, int) or not isinstance(value.type, VectorType):
        return value
    op = value.owner
    if isinstance(op, kernel.SplatOp):
        return op.source
    if isinstance(op, kernel.PickOp) and len(registers := set(op.registers.get_values())) == 1:
        return out.emit(kernel.ExtractOp(op.source, registers.pop()), op.source.name_hint)
    if shape_of(cast(Attribute, value.type)) == (1,):  # pyright: ignore[reportUnknownMemberType]
        return out.emit(kernel.ExtractOp(value), value.name_hint)
    return value


def _is_vector(value: Index) -> bool:
    return isinstance(value, SSAValue) and isinstance(value.type, VectorType)


def _constant_of(value: SSAValue) -> int | None:
    op = value.owner
    if isinstance(op, payload.ConstantOp | arith.ConstantOp) and isinstance(op.value, IntegerAttr):
        return op.value.value.data
    return None


def _loop_of(value: SSAValue) -> scf.ForOp | None:
    """The loop whose counter `value` is."""
    if isinstance(value, BlockArgument) and value.index == 0:
        parent = value.owner.parent_op()
        return parent if isinstance(parent, scf.ForOp) else None
    return None


def _limited(found: Range, bound: int | None) -> Range:
    """A range below `bound` as well."""
    if bound is None or not isinstance(found, tuple):
        return found
    return found[0], max(found[0] + 1, min(found[1], bound))


def range_of_value(value: SSAValue) -> Range:
    """What is known of a scalar index of the tile level: `(lo, hi)` with lo <= value < hi, or None."""
    if (number := _constant_of(value)) is not None:
        return number, number + 1
    if (loop := _loop_of(value)) is not None:
        return _range_of_counter(loop)
    if isinstance(value, BlockArgument) and isinstance(parent := value.owner.parent_op(), tile.KernelOp):
        return 0, most_tiles(parent.grid_shape[value.index - len(parent.buffers)])
    if isinstance(value.owner, payload.ExtentOp):
        return value.owner.symbol.minimum, value.owner.symbol.maximum + 1
    if isinstance(value.owner, arith.DivUIOp) and (divisor := _constant_of(value.owner.rhs)):
        whole = range_of_value(value.owner.lhs)
        return (whole[0] // divisor, (whole[1] - 1) // divisor + 1) if isinstance(whole, tuple) else None
    if isinstance(value.owner, arith.AddiOp) and value.type == IndexType():
        lhs, rhs = range_of_value(value.owner.lhs), range_of_value(value.owner.rhs)
        if isinstance(lhs, tuple) and isinstance(rhs, tuple):
            return lhs[0] + rhs[0], lhs[1] + rhs[1] - 1
    if isinstance(value.owner, arith.MinSIOp | arith.MaxSIOp):
        lhs, rhs = range_of_value(value.owner.lhs), range_of_value(value.owner.rhs)
        if isinstance(lhs, tuple) and isinstance(rhs, tuple):
            pick = min if isinstance(value.owner, arith.MinSIOp) else max
            return pick(lhs[0], rhs[0]), pick(lhs[1], rhs[1])
    if isinstance(value.owner, tile.AffineOp) and value.type == IndexType():
        op = value.owner
        return range_of(op.map.data.results[0], (), [range_of_value(s) for s in op.symbols])
    return None


def _range_of_counter(loop: scf.ForOp) -> Range:
    """What the counter of a loop lies between; where the bounds are computed, as if the loop ran at least once."""
    lb, ub, step = (range_of_value(v) for v in (loop.lb, loop.ub, loop.step))
    if not isinstance(lb, tuple) or not isinstance(ub, tuple) or not isinstance(step, tuple):
        return None
    last = ub[1] - 2
    if lb[1] - lb[0] == 1 and step[1] - step[0] == 1:
        last = lb[0] + (last - lb[0]) // step[0] * step[0]
    return lb[0], max(last, lb[0]) + 1


def divisor_of(value: SSAValue) -> int:
    """A number that always divides a scalar index of the tile level; 0 for the constant zero."""
    if (number := _constant_of(value)) is not None:
        return abs(number)
    if (loop := _loop_of(value)) is not None:
        return gcd(divisor_of(loop.lb), divisor_of(loop.step)) or 1
    op = value.owner
    if isinstance(op, Operation) and value.type == IndexType():
        if isinstance(op, arith.MuliOp):
            return divisor_of(op.lhs) * divisor_of(op.rhs)
        if isinstance(op, arith.AddiOp | arith.SubiOp):
            return gcd(divisor_of(op.lhs), divisor_of(op.rhs)) or 1
    return 1
