"""Where registers are: affine expressions of a tile's indices, as each thread computes them.

Of one expression the value for register 0 of this thread is emitted; what every bit of the register number adds to it
is known before (`analysis/memory_access.py`). What that cannot say is computed for every register.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import cast

from xdsl.dialects import arith
from xdsl.dialects.builtin import IndexType, VectorType
from xdsl.ir import Attribute, SSAValue

from ....dialects import kernel, payload
from ....dialects.layouts.linear import Linear
from ....dialects.payload import shape_of
from ....dialects.shapes.affine import DIM, DIV, MOD, SYM, Atom, Form, number_of
from ...analysis.memory_access import Offsets, TileForms
from .emitter import Emitter, Index


class Places(TileForms):
    """Emits expressions over one tile of `layout` and symbols: values of the tile level, and what they became."""

    def __init__(
        self,
        out: Emitter,
        layout: Linear,
        symbols: Sequence[SSAValue],
        lowered: Sequence[Index],
        below: Mapping[SSAValue, int] | None = None,
    ) -> None:
        self.out = out
        self.lowered: list[Index] = [uniform_index(out, v) for v in lowered]
        super().__init__(layout, symbols, [_is_vector(v) for v in self.lowered], below)

    def origin(self, offsets: Offsets) -> Index:
        """The value in register 0 of this thread; a vector with one entry a register where these differ otherwise."""
        form = offsets.form
        if offsets.per_register:
            return self._vector(form)
        terms: list[Index] = []
        for atom, factor in form.terms:
            if atom[0] == DIM:
                images = [b[number_of(atom)] for b in (*self.layout.lane, *self.layout.warp)]
                terms.append(self.out.thread_bits(images, factor)[0])
            else:
                terms.append(self.out.mul(self._scalar(atom), factor))
        return self.out.sum([*terms, form.constant])

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
        if self.is_scalar(atom):
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
        if self.clean[d]:
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
    if isinstance(op, kernel.ShuffleRegistersOp) and len(registers := set(op.registers.get_values())) == 1:
        return out.emit(kernel.ExtractOp(op.source, registers.pop()), op.source.name_hint)
    if shape_of(cast(Attribute, value.type)) == (1,):  # pyright: ignore[reportUnknownMemberType]
        return out.emit(kernel.ExtractOp(value), value.name_hint)
    return value


def _is_vector(value: Index) -> bool:
    return isinstance(value, SSAValue) and isinstance(value.type, VectorType)
