"""Loads, stores and atomic operations on global memory: affine expressions of a tile's indices, as each thread computes
them.

Of one expression the value for register 0 of this thread is emitted; what every bit of the register number adds to it
is known before (`analysis/memory_access.py`). What that cannot say is computed for every register.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeGuard

from xdsl.dialects import arith
from xdsl.dialects.builtin import IndexType, TensorType, VectorType
from xdsl.ir import SSAValue

from ....dialects import kernel, payload, tile
from ....dialects.layouts.linear import Linear, log2
from ....dialects.payload import Predicate, shape_of
from ....dialects.shapes.affine import DIM, DIV, MOD, SYM, Atom, Form, number_of
from ...analysis.memory_access import Access, Offsets, TileForms, Write, memory_type, plan_access
from .emitter import Index, Lowering, lowers


def is_vector(value: Index) -> TypeGuard[SSAValue]:
    return isinstance(value, SSAValue) and isinstance(value.type, VectorType)


class Places(TileForms):
    """Emits expressions over the tile of `layout` that `op` moves, or is, and over the symbols of `op`."""

    def __init__(
        self,
        out: Lowering,
        op: tile.LoadOp | Write | tile.AffineOp | tile.StageAsyncOp | tile.TmaLoadOp | tile.TmaStoreOp,
        layout: Linear,
        below: Mapping[SSAValue, int] | None = None,
        left: Sequence[int] | None = None,
    ) -> None:
        """`below` are upper bounds of symbols; `left` the registers of the tile that `layout` has, if not all."""
        self.out = out
        symbols = [out.values[s] for s in op.symbols]
        symbols = [out.picked(s, left) if left is not None and is_vector(s) else s for s in symbols]
        self.lowered: list[Index] = [self._uniform(s) if is_vector(s) else s for s in symbols]
        super().__init__(layout, op.symbols, [is_vector(v) for v in self.lowered], below)

    def _uniform(self, value: SSAValue) -> SSAValue:
        """A gathered index that is the same in all registers of a thread, as a scalar; any other as it is."""
        op = value.owner
        if isinstance(op, kernel.SplatOp):
            return op.source
        if isinstance(op, kernel.ShuffleRegistersOp) and len(registers := set(op.registers.get_values())) == 1:
            return self.out.emit(kernel.ExtractOp(op.source, registers.pop()), op.source.name_hint)
        return self.out.emit(kernel.ExtractOp(value), value.name_hint) if shape_of(value.type) == (1,) else value

    def origin(self, offsets: Offsets) -> Index:
        """The value in register 0 of this thread; a vector with one entry a register where these differ otherwise."""
        form = offsets.form
        if offsets.per_register:
            return self._vector(form)
        terms: list[Index] = []
        for atom, factor in form.terms:
            if atom[0] == DIM:
                images = [b[number_of(atom)] for b in (*self.layout.lane, *self.layout.warp)]
                terms.append(self.out.thread_bits(images, factor))
            else:
                terms.append(self.out.mul(self.scalar(atom), factor))
        return self.out.sum([*terms, form.constant])

    def scalar(self, atom: Atom) -> Index:
        """The value of an atom that is the same in all registers."""
        if atom[0] == SYM:
            return self.lowered[number_of(atom)]
        form, shift = self._shifted(atom)
        dividend = self.out.sum([*(self.out.mul(self.scalar(a), f) for a, f in form.terms), form.constant])
        if atom[0] == MOD:
            return self.out.rem(dividend, atom[3])
        return self.out.add(self.out.div(dividend, atom[3]), -shift)

    def _shifted(self, atom: Atom) -> tuple[Form, int]:
        """The dividend of `atom` plus a multiple of the divisor that makes it never negative, and that multiple."""
        form, divisor = Form(atom[1], atom[2]), atom[3]
        bounds = self.simplifier.interval(form)
        low = bounds[0] if bounds is not None else -(1 << 30) // divisor * divisor
        quotient = 0 if low >= 0 else -(low // divisor)
        return Form(form.terms, form.constant + quotient * divisor), quotient

    # Vectors: one entry for every register.

    def _constant(self, value: int) -> SSAValue:
        return self.out.emit(payload.ConstantOp(value, VectorType(IndexType(), [self.layout.registers])))

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
        if self.is_scalar(atom):
            return self.out.emit(kernel.SplatOp(self.out.value(self.scalar(atom)), self.layout.registers))
        if atom[0] == DIM:
            return self._indices(number_of(atom))
        if atom[0] == SYM:
            return self.out.value(self.lowered[number_of(atom)])
        form, shift = self._shifted(atom)
        dividend, divisor = self._vector(form), atom[3]
        if atom[0] == MOD:
            return self._remainder(dividend, form, divisor)
        assert atom[0] == DIV
        whole = divisor & (divisor - 1) == 0
        number = self._constant(log2(divisor) if whole else divisor)
        quotient = self.out.emit((arith.ShRUIOp if whole else arith.DivUIOp)(dividend, number))
        return self.out.emit(arith.AddiOp(quotient, self._constant(-shift))) if shift else quotient

    def _remainder(self, dividend: SSAValue, form: Form, divisor: int) -> SSAValue:
        """The remainder of `dividend`, which is `form` and not negative: no division where little is left to take."""
        if divisor & (divisor - 1) == 0:
            return self.out.emit(arith.AndIOp(dividend, self._constant(divisor - 1)))
        number, bounds = self._constant(divisor), self.simplifier.interval(form)
        if bounds is None or bounds[1] >= 2 * divisor:
            return self.out.emit(arith.RemUIOp(dividend, number))
        over = self.out.emit(payload.CmpOp("ge", dividend, number))
        return self.out.emit(payload.SelectOp(over, self.out.emit(arith.SubiOp(dividend, number)), dividend))

    def _indices(self, d: int) -> SSAValue:
        """The tile's index `d` in every register."""
        out = self.out
        origin = out.thread_bits([b[d] for b in (*self.layout.lane, *self.layout.warp)])
        steps = [b[d] for b in self.layout.reg]
        if self.clean[d]:
            return out.emit(kernel.IndicesOp(out.value(origin), steps))
        own = out.emit(kernel.IndicesOp(out.value(0), [0] * len(steps)))
        for bit, step in enumerate(steps):
            alone = [step if b == bit else 0 for b in range(len(steps))]
            own = out.emit(arith.XOrIOp(own, out.emit(kernel.IndicesOp(out.value(0), alone))))
        base = out.emit(kernel.SplatOp(out.value(origin), self.layout.registers))
        return out.emit(arith.XOrIOp(own, base))


@lowers(tile.AffineOp)
def affine(out: Lowering, op: tile.AffineOp) -> Index:
    places = Places(out, op, out.layout(op.result))
    offsets = places.offsets(places.form(op.map.data.results[0]))
    origin = places.origin(offsets)
    if offsets.per_register or not isinstance(op.result.type, TensorType):
        return origin
    return out.emit(kernel.IndicesOp(out.value(origin), offsets.steps))


def holder_predicate(out: Lowering, layout: Linear) -> SSAValue | None:
    """True in the threads that hold an element nobody before them holds; None if that is every thread."""
    redundant, lanes = layout.redundant(), len(layout.lane)
    bits = sorted((*redundant.lane, *(lanes + b for b in redundant.warp)))
    return _first_holder(out, bits, lanes + len(layout.warp)) if bits else None


def _first_holder(out: Lowering, bits: list[int], total: int) -> SSAValue:
    """True where `bits` of the thread's number, which has `total` bits, are zero."""
    if bits == list(range(bits[0], bits[-1] + 1)):
        mask = out.thread_field(bits[0], len(bits), total)
    else:
        mask = out.thread_bits([1 << b if b in bits else 0 for b in range(total)])
    return out.compare(Predicate.EQ, mask, 0, "first")


def origins(access: Access, places: Places) -> tuple[list[Index], list[Index]]:
    return [places.origin(c) for c in access.coordinates], [places.origin(c) for c in access.checks]


def described(out: Lowering, access: Access, where: tuple[list[Index], list[Index]], bits: int) -> dict[str, Any]:
    """An access of 2^`bits` registers at the `origins` `where`, as builders of the kernel dialect take it."""
    coordinates, checks = ([out.value(index) for index in part] for part in where)
    places = {"coordinates": coordinates, "regs": access.regs(bits), "vec": access.vec}
    if not checks:
        return places
    lower, upper = zip(*access.bounds, strict=True)
    return {**places, "checks": checks, "steps": access.steps(bits), "lower": lower, "upper": upper}


@lowers(tile.LoadOp)
def load(out: Lowering, op: tile.LoadOp) -> SSAValue:
    layout = out.layout(op.result)
    fill = out.maybe(op.fill)
    places = Places(out, op, layout)
    access = plan_access(op, places, memory_type(source := out.of(op.source)))
    where = origins(access, places)
    if access.never and fill is not None:
        return out.from_vector(op.result, out.emit(kernel.SplatOp(fill, layout.registers)))
    place = described(out, access, where, len(layout.reg))
    return out.from_vector(op.result, out.emit(kernel.LoadOp(source, **place, fill=fill if access.checks else None)))


@lowers(tile.StoreOp, tile.AtomicRmwOp)
def store(out: Lowering, op: Write) -> None:
    """The registers of a tile to memory, every element by one of the threads that hold it."""
    layout, left = out.layout(op.value).compact()
    value = out.picked(out.vector(op.value), left)
    places = Places(out, op, layout, left=left)
    access = plan_access(op, places, memory_type(target := out.of(op.target)))
    where = origins(access, places)
    if access.never:
        return
    access.vec = 1 if isinstance(op, tile.AtomicRmwOp) else access.vec
    made: dict[str, Any] = {"value": value, "memory": target, **described(out, access, where, len(layout.reg))}
    made["predicate"] = holder_predicate(out, layout)
    out.add_op(kernel.AtomicRmwOp(op.kind.data, **made) if isinstance(op, tile.AtomicRmwOp) else kernel.StoreOp(**made))
