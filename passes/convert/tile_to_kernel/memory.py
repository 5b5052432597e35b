"""Lowers accesses to memory: loads, stores and atomic operations on global memory, and tiles staged in shared memory.

**Global memory**: the coordinates of an access are affine expressions of the tile's indices. The kernel computes each
expression for register 0 of the thread. Every bit of the register number adds a constant step, which
`analysis/memory_access.py` finds. An expression without constant steps is computed for every register, as a vector.

**Shared memory**: the layouts of the tile and of the buffer determine the offset of each register.

This module emits no barriers; `kernel-insert-barriers` does.
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
    """Returns true if `value` is a vector with one entry per register."""
    return isinstance(value, SSAValue) and isinstance(value.type, VectorType)


Accessing: TypeAlias = tile.LoadOp | Write | tile.AffineOp | tile.StageAsyncOp | tile.TmaLoadOp | tile.TmaStoreOp
"""Operations with a `map` from the indices of a tile, and symbols, to coordinates."""


class Places(TileForms):
    """Emitter of affine expressions over the indices of a tile and the symbols of an operation.

    An *atom* is one term of an expression without its factor: an index, a symbol, or a quotient or remainder of a form.
    """

    def __init__(
        self, out: Lowering, op: Accessing, layout: Linear, below: Bounds | None = None, subset: Sequence[int] = ()
    ) -> None:
        """Prepares the symbols.

        Args:
            out: the lowering.
            op: operation whose `map` and symbols are emitted.
            layout: layout of the tile that `op` accesses or computes.
            below: exclusive upper bounds of symbols, in addition to those that follow from their definition.
            subset: registers of the tile that are in `layout`, if only some are.
        """
        self.out = out
        symbols = [out.values[s] for s in op.symbols]
        self.lowered: list[Index] = [self._gathered(s, subset) if is_vector(s) else s for s in symbols]
        super().__init__(layout, op.symbols, [is_vector(v) for v in self.lowered], below)

    def _gathered(self, value: SSAValue, subset: Sequence[int]) -> SSAValue:
        """Returns the vector `value` of gathered indices, restricted to the registers `subset` (all if empty).

        It is a scalar if all registers have the same value.
        """
        value = self.out.picked(value, subset) if subset else value
        op = value.owner
        if isinstance(op, kernel.SplatOp):
            return op.source
        if isinstance(op, kernel.ShuffleRegistersOp) and len(registers := set(op.registers.get_values())) == 1:
            return self.out.emit(kernel.ExtractOp(op.source, registers.pop()), op.source.name_hint)
        return self.out.emit(kernel.ExtractOp(value), value.name_hint) if shape_of(value.type) == (1,) else value

    def described(self, access: Access) -> dict[str, Any]:
        """Emits coordinates and checks, and returns `access` as keyword arguments of `kernel.load` and similar ops."""
        origins = [self.origin(index) for index in (*access.coordinates, *access.checks)]
        values, rank, bits = [*map(self.out.value, origins)], len(access.coordinates), len(self.layout.reg)
        parts = {"coordinates": values[:rank], "regs": access.regs(bits), "vec": access.vec}
        return {**parts, **_checked(access, values[rank:], bits)} if access.checks else parts

    def origin(self, offsets: Offsets) -> Index:
        """Returns the value in register 0 of the thread; a vector of all registers if there are no constant steps."""
        return self._vector(offsets.form) if offsets.per_register else self._sum(offsets.form)

    def _sum(self, form: Form) -> Index:
        return self.out.sum([*(self._term(atom, factor) for atom, factor in form.terms), form.constant])

    def _term(self, atom: Atom, factor: int) -> Index:
        if atom[0] == DIM:
            return self.out.thread_bits([b[number_of(atom)] for b in (*self.layout.lane, *self.layout.warp)], factor)
        return self.out.mul(self.scalar(atom), factor)

    def scalar(self, atom: Atom) -> Index:
        """Returns the value of an atom that is equal in all registers."""
        if atom[0] == SYM:
            return self.lowered[number_of(atom)]
        form, shift = self._shifted(atom)
        if atom[0] == MOD:
            return self.out.rem(self._sum(form), atom[3])
        return self.out.add(self.out.div(self._sum(form), atom[3]), -shift)

    def _shifted(self, atom: Atom) -> tuple[Form, int]:
        """Returns the dividend of `atom` shifted by a multiple of the divisor, and that multiple as a quotient.

        The shifted dividend is never negative, so that unsigned division applies. A dividend of unknown range is
        assumed to be at least about -2^30.
        """
        form, divisor = Form(atom[1], atom[2]), atom[3]
        bounds = self.simplifier.interval(form)
        low = bounds[0] if bounds is not None else -(1 << 30) // divisor * divisor
        quotient = 0 if low >= 0 else -(low // divisor)
        return Form(form.terms, form.constant + quotient * divisor), quotient

    # Vectors with one entry for every register.

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
        """Returns `dividend mod divisor`; a conditional subtraction if the dividend is less than `2 * divisor`.

        Args:
            dividend: vector that is not negative.
            form: the dividend as a form, for its range.
            divisor: positive number.
        """
        if divisor & (divisor - 1) == 0:
            return self.out.emit(arith.AndIOp(dividend, self._constant(divisor - 1)))
        number, bounds = self._constant(divisor), self.simplifier.interval(form)
        if bounds is None or bounds[1] >= 2 * divisor:
            return self.out.emit(arith.RemUIOp(dividend, number))
        over = self.out.emit(payload.CmpOp("ge", dividend, number))
        return self.out.emit(payload.SelectOp(over, self.out.emit(arith.SubiOp(dividend, number)), dividend))

    def _indices(self, d: int) -> SSAValue:
        """Returns the tile's index `d` in every register."""
        out = self.out
        origin = out.thread_bits([b[d] for b in (*self.layout.lane, *self.layout.warp)])
        steps = [b[d] for b in self.layout.reg]
        if self.carry_free[d]:
            return out.emit(kernel.IndicesOp(out.value(origin), steps))
        indices = out.emit(kernel.IndicesOp(out.value(0), [0] * len(steps)))
        for bit, step in enumerate(steps):
            alone = [step if b == bit else 0 for b in range(len(steps))]
            indices = out.emit(arith.XOrIOp(indices, out.emit(kernel.IndicesOp(out.value(0), alone))))
        base = out.emit(kernel.SplatOp(out.value(origin), self.layout.registers))
        return out.emit(arith.XOrIOp(indices, base))


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
    """Returns a condition that is true in exactly one thread per element, the first holder; None if all hold different
    elements."""
    redundant, lanes = layout.redundant(), len(layout.lane)
    bits = sorted((*redundant.lane, *(lanes + b for b in redundant.warp)))
    return _first_holder(out, bits, lanes + len(layout.warp)) if bits else None


def _first_holder(out: Lowering, bits: list[int], total: int) -> SSAValue:
    """Returns true in the threads whose number, of `total` bits, has zeros at the positions `bits`."""
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
    """Stores the registers of a tile; only the first thread that holds an element stores it."""
    layout, registers = out.layout(op.value).compact()
    value, target = out.picked(out.vector(op.value), registers), out.of(op.target)
    places = Places(out, op, layout, subset=registers)
    access = plan_access(op, places, target.type)
    if access.never:
        return
    parts = {"value": value, "memory": target, **places.described(access), "predicate": holder_predicate(out, layout)}
    out.add_op(kernel.StoreOp(**parts) if isinstance(op, tile.StoreOp) else kernel.AtomicRmwOp(op.kind.data, **parts))


@lowers(tile.PrintOp)
def lower_print(out: Lowering, op: tile.PrintOp) -> None:
    """Prints the registers of a tile; only the first thread that holds an element prints it."""
    layout, registers = out.layout(op.value).compact()
    value, *indices = (out.picked(out.vector(v), registers) for v in (op.value, *op.indices))
    mask = None if op.mask is None else out.picked(out.vector(op.mask), registers)
    out.add_op(kernel.PrintOp(op.label, value, indices, mask, holder_predicate(out, layout)))


@dataclass(frozen=True)
class SharedPlace:
    """Offsets of a thread's registers in a shared buffer, as `kernel.load` and `kernel.store` take them.

    origin  offset of register 0, in elements
    regs    step of each bit of the register number, in elements
    vec     elements of one vector access
    xor     true if steps are combined with the origin by XOR, because they share bits; otherwise they are added
    """

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
    """Offsets of matrix rows in a shared buffer, for `kernel.ldmatrix` and `kernel.stmatrix`.

    Each lane provides the address of one row of 16 bytes. `regs` are the steps of the bits of the register number that
    select a group of matrices.

    count  matrices of one instruction
    trans  true if matrices are transposed
    """

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
    """Returns the offsets of a tile in a shared buffer.

    Args:
        out: the lowering.
        shared: layout of the buffer.
        layout: register layout of the tile.
        bytes_each: size of an element in bytes.
        moving: images, in the buffer, of the bits of a run-time coordinate, such as k in a dot.
        moved: offset of that coordinate: the XOR of the `moving` images of its set bits.
    """
    regs = shared.images(layout.reg)
    threads = shared.images((*layout.lane, *layout.warp))
    origin = out.thread_bits(threads)
    mixed = fold(int.__or__, threads, 0)
    is_separate = all(not image & mixed for image in moving)
    origin = out.add(origin, moved) if is_separate else out.xor(origin, moved)
    mixed = fold(int.__or__, moving, mixed)
    xor = not is_disjoint(regs) or any(r & mixed for r in regs)
    vec = register_width(regs, (*threads, *moving), WIDEST // bytes_each) if layout.lanes > 1 else 1
    return SharedPlace(origin, tuple(regs), vec, xor)


def matrix_place(out: Lowering, shared: Shared, layout: Linear, element: Attribute) -> MatrixPlace | None:
    """Returns the offsets for `ldmatrix` or `stmatrix`, or None if the layouts do not fit these instructions.

    The tile must consist of 8x8 matrices of 16-bit elements, with rows that are contiguous in shared memory. A row is
    held by four neighbouring lanes, two elements each; or, transposed, by one element of each of eight lanes.

    Args:
        out: the lowering.
        shared: layout of the buffer.
        layout: register layout of the tile.
        element: element type.
    """
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
    """Stores a tile to shared memory; every element is written by one thread.

    Args:
        out: the lowering.
        value: vector of registers.
        layout: register layout of the tile.
        buffer: destination.
        shared: layout of `buffer`.
        matrices: whether to use `stmatrix` if the layouts allow it.
    """
    compact, registers = layout.compact()
    value = out.picked(value, registers)
    place = matrix_place(out, shared, compact, element_type(value.type)) if matrices else None
    place = place or shared_place(out, shared, compact, element_bytes(value.type))
    place.store(out, value, buffer, holder_predicate(out, compact))


def load_shared(out: Lowering, buffer: SSAValue, shared: Shared, layout: Linear, matrices: bool = False) -> SSAValue:
    """Returns the registers of a tile that is loaded from shared memory.

    Args:
        out: the lowering.
        buffer: source.
        shared: layout of `buffer`.
        layout: register layout of the result.
        matrices: whether to use `ldmatrix` if the layouts allow it.
    """
    element = element_type(buffer.type)
    place = matrix_place(out, shared, layout, element) if matrices else None
    return (place or shared_place(out, shared, layout, element_bytes(element))).load(out, buffer)


def stage(out: Lowering, value: SSAValue, layout: Linear, shared: Shared, hint: str | None) -> SSAValue:
    """Stores a tile to a new shared buffer, and returns the buffer.

    Args:
        out: the lowering.
        value: vector of registers.
        layout: register layout of the tile.
        shared: layout of the buffer.
        hint: name of the tile, from which the name of the buffer is made.
    """
    buffer = out.at_head(kernel.SharedOp(element_type(value.type), shared.size), f"{hint or 'tile'}_shared")
    store_shared(out, value, layout, buffer, shared)
    return buffer


class SharedBufferPool:
    """Pool of temporary shared buffers of a kernel, by element type and size.

    `take` returns the buffer that has been free for longest.

    Attributes:
        shares: true if the kernel has circular buffers. They occupy shared memory for the whole kernel, so conversions
            of layouts use this pool. In other kernels each conversion has its own buffer.
    """

    def __init__(self, op: tile.KernelOp) -> None:
        self.shares = any(isinstance(o, RingOp) for o in op.walk())
        self._free: dict[tuple[Attribute, int], list[SSAValue]] = {}
        self._made = Counter[tuple[Attribute, int]]()

    def take(self, out: Lowering, element: Attribute, shared: Shared, held: Sequence[Linear], hint: str) -> SSAValue:
        """Returns a buffer for one tile: a new one until there are `EPILOGUE_BUFFERS` of this size, then a reused one.

        A buffer is marked `warp_group_private` as long as, in all its uses, each warpgroup accesses only its own part.

        Args:
            out: the lowering.
            element: element type.
            shared: layout of the buffer.
            held: register layouts in which the tile is stored and loaded.
            hint: name of the tile.
        """
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
        """Returns `buffer` to the pool."""
        t = memory_type(buffer)
        self._free[t.element_type, t.get_shape()[0]].append(buffer)


def groups_apart(shared: Shared, *layouts: Linear) -> tuple[Coordinate, ...]:
    """Returns the bases of the bits of the warpgroup's number if each warpgroup accesses only its own part of `shared`.

    This must hold in all `layouts`, and the parts must be consecutive in memory. Returns an empty tuple otherwise, and
    for a single warpgroup.
    """
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
        buffer = out.state(SharedBufferPool).take(out, element_type(value.type), at, [held], hint or "tile")
        store_shared(out, value, held, buffer, at, matrices=True)
        out.values[op.result] = buffer
    else:
        out.values[op.result] = stage(out, value, held, at, hint)
