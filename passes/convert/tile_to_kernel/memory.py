"""Tiles in memory, as each thread accesses them: loads, stores and atomic operations on global memory, and tiles that
are staged in shared memory.

In global memory an access is affine expressions of a tile's indices. Of an expression the value for register 0 of this
thread is emitted; the step that every bit of the register number adds to it is known before
(`analysis/memory_access.py`). An expression without such steps is computed for every register. In shared memory the
layouts of tile and buffer give the place.

Nothing here emits a barrier: a later pass places them where accesses meet.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce as fold
from typing import Any, TypeAlias, TypeGuard

from xdsl.dialects import arith
from xdsl.dialects.builtin import BFloat16Type, Float16Type, IndexType, TensorType, VectorType
from xdsl.ir import Attribute, SSAValue

from ....dialects import kernel, payload, tile
from ....dialects.layouts import layout_in_shared
from ....dialects.layouts.linear import Coordinate, Linear, Shared, is_disjoint, log2, register_width
from ....dialects.layouts.mma import part_of_group
from ....dialects.payload import Predicate, element_bytes, element_type, shape_of
from ....dialects.shapes.affine import DIM, DIV, MOD, SYM, Atom, Form, number_of
from ....dialects.tile import RingOp
from ...analysis.async_copies import EPILOGUE_BUFFERS
from ...analysis.memory_access import WIDEST, Access, Bounds, Offsets, TileForms, Write, memory_type, plan_access
from .emitter import Index, Lowering, lowers


def is_vector(value: Index) -> TypeGuard[SSAValue]:
    return isinstance(value, SSAValue) and isinstance(value.type, VectorType)


Accessing: TypeAlias = tile.LoadOp | Write | tile.AffineOp | tile.StageAsyncOp | tile.TmaLoadOp | tile.TmaStoreOp
"""Operations with a map of a tile's indices and symbols."""


class Places(TileForms):
    """Emits expressions over the tile of `layout` that `op` moves, or is, and over the symbols of `op`."""

    def __init__(
        self, out: Lowering, op: Accessing, layout: Linear, below: Bounds | None = None, left: Sequence[int] = ()
    ) -> None:
        """`below` has bounds of symbols; `left` are the registers of the tile that `layout` has, if not all."""
        self.out = out
        symbols = [out.values[s] for s in op.symbols]
        self.lowered: list[Index] = [self._gathered(s, left) if is_vector(s) else s for s in symbols]
        super().__init__(layout, op.symbols, [is_vector(v) for v in self.lowered], below)

    def _gathered(self, value: SSAValue, left: Sequence[int]) -> SSAValue:
        """Returns a gathered index in the registers `left`, or in all; as a scalar if these are equal."""
        value = self.out.picked(value, left) if left else value
        op = value.owner
        if isinstance(op, kernel.SplatOp):
            return op.source
        if isinstance(op, kernel.ShuffleRegistersOp) and len(registers := set(op.registers.get_values())) == 1:
            return self.out.emit(kernel.ExtractOp(op.source, registers.pop()), op.source.name_hint)
        return self.out.emit(kernel.ExtractOp(value), value.name_hint) if shape_of(value.type) == (1,) else value

    def described(self, access: Access) -> dict[str, Any]:
        """Emits coordinates and checks, and returns the access as builders of the kernel dialect take it."""
        origins = [self.origin(index) for index in (*access.coordinates, *access.checks)]
        values, rank, bits = [*map(self.out.value, origins)], len(access.coordinates), len(self.layout.reg)
        parts = {"coordinates": values[:rank], "regs": access.regs(bits), "vec": access.vec}
        return {**parts, **_checked(access, values[rank:], bits)} if access.checks else parts

    def origin(self, offsets: Offsets) -> Index:
        """The value in register 0 of this thread; a vector with one entry a register where these differ otherwise."""
        return self._vector(offsets.form) if offsets.per_register else self._sum(offsets.form)

    def _sum(self, form: Form) -> Index:
        return self.out.sum([*(self._term(atom, factor) for atom, factor in form.terms), form.constant])

    def _term(self, atom: Atom, factor: int) -> Index:
        if atom[0] == DIM:
            return self.out.thread_bits([b[number_of(atom)] for b in (*self.layout.lane, *self.layout.warp)], factor)
        return self.out.mul(self.scalar(atom), factor)

    def scalar(self, atom: Atom) -> Index:
        """The value of an atom that is the same in all registers."""
        if atom[0] == SYM:
            return self.lowered[number_of(atom)]
        form, shift = self._shifted(atom)
        if atom[0] == MOD:
            return self.out.rem(self._sum(form), atom[3])
        return self.out.add(self.out.div(self._sum(form), atom[3]), -shift)

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
        if self.carry_free[d]:
            return out.emit(kernel.IndicesOp(out.value(origin), steps))
        own = out.emit(kernel.IndicesOp(out.value(0), [0] * len(steps)))
        for bit, step in enumerate(steps):
            alone = [step if b == bit else 0 for b in range(len(steps))]
            own = out.emit(arith.XOrIOp(own, out.emit(kernel.IndicesOp(out.value(0), alone))))
        base = out.emit(kernel.SplatOp(out.value(origin), self.layout.registers))
        return out.emit(arith.XOrIOp(own, base))


def _checked(access: Access, checks: list[SSAValue], bits: int) -> dict[str, Any]:
    lower, upper = zip(*access.bounds, strict=True)
    return {"checks": checks, "steps": access.steps(bits), "lower": lower, "upper": upper}


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


@lowers(tile.LoadOp)
def load(out: Lowering, op: tile.LoadOp) -> SSAValue:
    layout, fill, source = out.layout(op.result), out.maybe(op.fill), out.of(op.source)
    places = Places(out, op, layout)
    access = plan_access(op, places, source.type)
    if access.never and fill is not None:
        return out.from_vector(op.result, out.emit(kernel.SplatOp(fill, layout.registers)))
    value = out.emit(kernel.LoadOp(source, **places.described(access), fill=fill if access.checks else None))
    return out.from_vector(op.result, value)


@lowers(tile.StoreOp, tile.AtomicRmwOp)
def store(out: Lowering, op: Write) -> None:
    """The registers of a tile to memory, every element by one of the threads that hold it."""
    layout, left = out.layout(op.value).compact()
    value, target = out.picked(out.vector(op.value), left), out.of(op.target)
    places = Places(out, op, layout, left=left)
    access = plan_access(op, places, target.type)
    if access.never:
        return
    parts = {"value": value, "memory": target, **places.described(access), "predicate": holder_predicate(out, layout)}
    out.add_op(kernel.StoreOp(**parts) if isinstance(op, tile.StoreOp) else kernel.AtomicRmwOp(op.kind.data, **parts))


@dataclass(frozen=True)
class SharedPlace:
    """Where a thread's registers are in a shared buffer: `kernel.load`'s coordinate, register steps and width."""

    origin: Index
    regs: tuple[int, ...]
    vec: int
    xor: bool

    def load(self, out: Lowering, buffer: SSAValue, hint: str | None = None) -> SSAValue:
        return out.emit(kernel.LoadOp(buffer, **self._access(out)), hint)

    def store(self, out: Lowering, value: SSAValue, buffer: SSAValue, predicate: SSAValue | None) -> None:
        out.add_op(kernel.StoreOp(value, buffer, predicate=predicate, **self._access(out)))

    def _access(self, out: Lowering) -> dict[str, Any]:
        regs = [[r] for r in self.regs]
        return {"coordinates": [out.value(self.origin)], "regs": regs, "vec": self.vec, "xor": self.xor}


@dataclass(frozen=True)
class MatrixPlace(SharedPlace):
    """Where the rows of a thread are in a shared buffer, for `kernel.ldmatrix` and `kernel.stmatrix`: `count` matrices
    at a time, whose steps are `regs`."""

    count: int
    trans: bool

    def load(self, out: Lowering, buffer: SSAValue, hint: str | None = None) -> SSAValue:
        where = out.value(self.origin)
        op = kernel.LdMatrixOp(buffer, where, self.regs, count=self.count, trans=self.trans, xor=self.xor)
        return out.emit(op, hint)

    def store(self, out: Lowering, value: SSAValue, buffer: SSAValue, predicate: SSAValue | None) -> None:
        where, steps = out.value(self.origin), self.regs
        out.add_op(kernel.StMatrixOp(self.count, self.trans, value, buffer, where, xor=self.xor, steps=steps))


def shared_place(
    out: Lowering, shared: Shared, layout: Linear, bytes_each: int, moving: Sequence[int] = (), moved: Index = 0
) -> SharedPlace:
    """The places of `layout`'s elements in `shared`. `moved` is an offset to combine with, made of `moving` images."""
    regs = shared.images(layout.reg)
    threads = shared.images((*layout.lane, *layout.warp))
    origin = out.thread_bits(threads)
    mixed = fold(int.__or__, threads, 0)
    apart = all(not image & mixed for image in moving)
    origin = out.add(origin, moved) if apart else out.xor(origin, moved)
    mixed = fold(int.__or__, moving, mixed)
    xor = not is_disjoint(regs) or any(r & mixed for r in regs)
    vec = register_width(regs, (*threads, *moving), WIDEST // bytes_each) if layout.lanes > 1 else 1
    return SharedPlace(origin, tuple(regs), vec, xor)


def matrix_place(out: Lowering, shared: Shared, layout: Linear, element: Attribute) -> MatrixPlace | None:
    """The place of a tile held as `layout`, if it is made of matrices whose rows are contiguous in `shared`: along what
    four neighbouring lanes hold in pairs, or, transposed, along what eight do."""
    if not isinstance(element, BFloat16Type | Float16Type) or not layout.reg or not layout.is_injective:
        return None
    pairs, rows = (layout.reg[0], *layout.lane[:2]), layout.lane[2:]
    chosen, row = layout.reg[1:3], kernel.ROW_BYTES // element_bytes(element)
    nothing = (0,) * len(layout.shape)
    for trans in (False, True):
        along, names = (rows, pairs) if trans else (pairs, rows)
        lane = (*names, *chosen, *([nothing] * (2 - len(chosen))))
        addressed = Linear(layout.shape, (*along, *layout.reg[3:]), lane, layout.warp)
        images = shared.images(addressed.bases)
        if register_width(images[: len(addressed.reg)], images[len(addressed.reg) :], row) == row:
            place = shared_place(out, shared, addressed, element_bytes(element))
            return MatrixPlace(place.origin, place.regs[log2(row) :], row, place.xor, 1 << len(chosen), trans)
    return None


def store_shared(
    out: Lowering, value: SSAValue, layout: Linear, buffer: SSAValue, shared: Shared, matrices: bool = False
) -> None:
    """Put a tile in registers into `buffer`; every element is written by one thread. With `matrices`, by matrices of
    whole warps where the layouts are such."""
    compact, left = layout.compact()
    value = out.picked(value, left)
    place = matrix_place(out, shared, compact, element_type(value.type)) if matrices else None
    place = place or shared_place(out, shared, compact, element_bytes(value.type))
    place.store(out, value, buffer, holder_predicate(out, compact))


def load_shared(out: Lowering, buffer: SSAValue, shared: Shared, layout: Linear, matrices: bool = False) -> SSAValue:
    """A tile from `buffer` into the registers of `layout`. With `matrices`, as matrices where the layouts are such."""
    element = element_type(buffer.type)
    place = matrix_place(out, shared, layout, element) if matrices else None
    return (place or shared_place(out, shared, layout, element_bytes(element))).load(out, buffer)


def stage(out: Lowering, value: SSAValue, layout: Linear, shared: Shared, hint: str | None) -> SSAValue:
    buffer = out.at_head(kernel.SharedOp(element_type(value.type), shared.size), f"{hint or 'tile'}_shared")
    store_shared(out, value, layout, buffer, shared)
    return buffer


class Scratch:
    """Shared buffers of a kernel for tiles that are there for a short time, by element type and size. Whoever takes one
    has what was free for longest. A kernel with rings, which take shared memory for the whole time, `shares` them."""

    def __init__(self, op: tile.KernelOp) -> None:
        self.shares = any(isinstance(o, RingOp) for o in op.walk())
        self._free: dict[tuple[Attribute, int], list[SSAValue]] = {}
        self._made = Counter[tuple[Attribute, int]]()

    def take(self, out: Lowering, element: Attribute, shared: Shared, held: Sequence[Linear], hint: str) -> SSAValue:
        """A buffer of the size of `shared` for a tile that is held as each of `held`; a new one, until there are enough
        for turns. It is private to warpgroups as long as all who take it keep to their warpgroup's part."""
        kind, private = (element, shared.size), kernel.WARPGROUP if groups_apart(shared, *held) else None
        free = self._free.setdefault(kind, [])
        if not free or self._made[kind] < EPILOGUE_BUFFERS:
            self._made[kind] += 1
            return out.at_head(kernel.SharedOp(*kind, warp_group_private=private), f"{hint}_shared")
        op = (buffer := free.pop(0)).owner
        assert isinstance(op, kernel.SharedOp)
        if op.warp_group_private is not None and op.warp_group_private.data != private:
            op.warp_group_private = None
        return buffer

    def give(self, buffer: SSAValue) -> None:
        t = memory_type(buffer)
        self._free[t.element_type, t.get_shape()[0]].append(buffer)


def groups_apart(shared: Shared, *layouts: Linear) -> tuple[Coordinate, ...]:
    """The bases of the number of the warpgroup, if every warpgroup keeps to its own part of `shared` in all layouts,
    and the parts lie one behind the other; else, or for one warpgroup, none."""
    groups = layouts[0].warp[log2(kernel.WARPGROUP) :]
    if any(layout.warp[log2(kernel.WARPGROUP) :] != groups for layout in layouts):
        return ()
    if not groups or part_of_group(shared.shape, groups) is None:
        return ()
    part = shared.size >> len(groups)
    return groups if [shared.place(b) // part for b in groups] == [1 << i for i in range(len(groups))] else ()


@lowers(tile.StageOp)
def lower_stage(out: Lowering, op: tile.StageOp) -> None:
    value, held, at, hint = out.of(op.source), out.layout(op.source), layout_in_shared(op.result), op.source.name_hint
    if all(isinstance(u.operation, tile.TmaStoreOp) for u in op.result.uses):
        buffer = out.state(Scratch).take(out, element_type(value.type), at, [held], hint or "tile")
        store_shared(out, value, held, buffer, at, matrices=True)
        out.values[op.result] = buffer
    else:
        out.values[op.result] = stage(out, value, held, at, hint)
