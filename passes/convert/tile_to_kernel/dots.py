"""Contractions: by fused multiply-adds, on tensor cores by warps (`kernel.mma`), or by whole warpgroups
(`kernel.wgmma`). Operands lie in shared memory; a left one on tensor cores may be in registers."""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.dialects.builtin import Float32Type, VectorType
from xdsl.ir import Operation, SSAValue

from ....dialects import kernel, payload, tile
from ....dialects.layouts import layout_in_shared, linear_of
from ....dialects.layouts.linear import LANE_BITS, Coordinate, Linear, Shared, blocked, log2, operand_layout
from ....dialects.layouts.mma import Boxes, boxes_of, fragment, matrix_rows, warpgroup_accumulator
from ....dialects.payload import element_bytes, element_type, shape_of
from ....dialects.support.locations import refused
from ...analysis.tile_layouts import atom_of, bits_of_accumulator, held_fragments
from .emitter import Index, Lowering, lowers
from .memory import MatrixPlace, SharedPlace, shared_place

Dot = tile.DotOp | tile.DotAsyncOp


@lowers(tile.DotOp)
def lower_dot(out: Lowering, op: tile.DotOp) -> SSAValue:
    if op.is_wgmma:
        why = "is asynchronous (tile-pipeline-dots makes it tile.dot_async)"
        raise refused(op, why, argument="atom")
    if op.atom is not None:
        return _mma(out, op)
    return _fma(out, op) if out.op.lanes.data > 1 else _panel(out, op)


def _panel(out: Lowering, op: tile.DotOp) -> SSAValue:
    """A product of matrices that a single thread holds."""

    def by_rows(value: SSAValue) -> SSAValue:
        layout = out.layout(value)
        shape = layout.shape
        rows = blocked(shape, (1, 0), 1, 1, lanes=1).picks(layout)
        assert rows is not None  # one thread holds everything
        return out.picked(out.vector(value), rows)

    lhs, rhs, acc = (by_rows(v) for v in (op.lhs, op.rhs, op.acc))
    made = out.emit(kernel.PanelFmaOp(lhs, rhs, acc, shape_of(op.lhs.type)[1]), op.result.name_hint)
    layout = out.layout(op.result)
    back = layout.picks(blocked(layout.shape, (1, 0), 1, 1, lanes=1))
    assert back is not None
    return out.picked(made, back)


def _fma(out: Lowering, op: tile.DotOp) -> SSAValue:
    """A loop over k that adds the outer product of a column of the left and a row of the right operand."""
    acc, depth, hint = out.layout(op.acc), shape_of(op.lhs.type)[1], op.result.name_hint
    rows = [i for i, basis in enumerate(acc.reg) if basis[0]]
    cols = [i for i, basis in enumerate(acc.reg) if basis[1]]
    if set(rows) & set(cols) or len(rows) + len(cols) != len(acc.reg):
        raise refused(op, "accumulates in registers that are no grid of rows and columns")

    def part(operand: int, k: Index) -> SSAValue:
        place = _slice(out, op, operand, operand_layout(acc, operand, depth), k)
        return place.load(out, out.of(op.operands[operand]), "ab"[operand])

    def add(k: SSAValue, carried: SSAValue) -> SSAValue:
        column, row = part(0, k), part(1, k)
        return out.emit(kernel.OuterFmaOp(column, row, carried, rows, cols), hint)

    return out.accumulate(out.of(op.acc), depth, 1, hint, add)


def _slice(out: Lowering, op: tile.DotOp, operand: int, layout: Linear, k: Index, atom: int = 1) -> SharedPlace:
    """The place of the registers of `layout`, which is that of k = 0, at `k`, a multiple of `atom`."""
    shared, depth, along = layout_in_shared(op.operands[operand]), shape_of(op.lhs.type)[1], 1 - operand
    images = [shared.place(tuple(1 << i if d == along else 0 for d in range(2))) for i in range(log2(depth))]
    moving = [0] * log2(atom) + images[log2(atom) :]
    layout = Linear(shared.shape, layout.reg, layout.lane, layout.warp)
    size = element_bytes(op.operands[operand].type)
    return shared_place(out, shared, layout, size, moving, out.bits_of(k, moving))


def _held(op: Dot, acc: Linear) -> list[tuple[int, ...]] | None:
    """If the left operand is in registers: those for the k of each atom. None if it is in shared memory."""
    if (layout := linear_of(op.lhs.type)) is None:
        return None
    if (found := held_fragments(op, acc, layout)) is None:
        raise refused(
            op, "multiplies a tile that other threads hold (tile-stage-dot-operands puts it where they read it)"
        )
    return found


def _mma(out: Lowering, op: tile.DotOp) -> SSAValue:
    """The k of an atom at a time: a loop with both operands in shared memory, or unrolled if the left one is in
    registers. What is in f32 is rounded to tf32 on the way."""
    acc, sums, hint = out.layout(op.acc), out.of(op.acc), op.result.name_hint
    bits, atom, held = bits_of_accumulator(op, acc), atom_of(op).k, _held(op, acc)

    def product(left: SSAValue, k: Index, carried: SSAValue) -> SSAValue:
        right = _matrices(out, op, 1, acc, k)
        return out.emit(kernel.MmaOp(left, right, carried, bits.rows, bits.columns), hint)

    if held is None:
        depth = shape_of(op.lhs.type)[1]
        return out.accumulate(sums, depth, atom, hint, lambda k, c: product(_matrices(out, op, 0, acc, k), k, c))
    for step, registers in enumerate(held):
        left = _rounded(out, out.picked(out.of(op.lhs), registers, "a"))
        sums = product(left, step * atom, sums)
    return sums


def _matrices(out: Lowering, op: tile.DotOp, operand: int, acc: Linear, k: Index) -> SSAValue:
    """The operand's matrices for the k of one atom from `k` on."""
    buffer, hint, atom = out.of(op.operands[operand]), "ab"[operand], atom_of(op)
    row = kernel.ROW_BYTES // element_bytes(atom.element)
    for trans in atom.matrix_orders:
        layout, count = matrix_rows(acc, operand, atom.k, trans, atom)
        place = _slice(out, op, operand, layout, k, atom.k)
        if place.vec == row:
            rows = MatrixPlace(place.origin, place.regs[log2(row) :], row, place.xor, count, trans)
            return _rounded(out, rows.load(out, buffer, hint))
    if True in atom.matrix_orders:
        raise refused(op, f"operand {operand} has no rows of {row} elements in shared memory")
    place = _slice(out, op, operand, fragment(acc, operand, atom.k, atom), k, atom.k)
    return _rounded(out, place.load(out, buffer, hint))


def _rounded(out: Lowering, registers: SSAValue) -> SSAValue:
    if not isinstance(element_type(registers.type), Float32Type):
        return registers
    return out.emit(payload.RoundTf32Op(registers), registers.name_hint)


@lowers(tile.AccumulatorsOp)
def lower_accumulators(out: Lowering, op: tile.AccumulatorsOp) -> SSAValue:
    t = VectorType(Float32Type(), [out.layout(op.result).registers])
    return out.emit(kernel.AccumulatorsOp(out.maybe(op.start), kernel.AsyncAccumulatorsType(t)))


@lowers(tile.DotWaitOp)
def lower_dot_wait(out: Lowering, op: tile.DotWaitOp) -> SSAValue:
    return out.emit(kernel.WgmmaWaitOp(op.pending.data, out.of(op.acc), done=op.result.type != op.acc.type))


@lowers(tile.DotAsyncOp)
def dot_async(out: Lowering, op: tile.DotAsyncOp) -> SSAValue:
    """One `kernel.wgmma` for every stretch of k that lies in one row of each operand."""
    acc, pending, lhs, rhs = out.layout(op.acc), out.of(op.acc), out.of(op.lhs), out.of(op.rhs)
    if warpgroup_accumulator(acc.shape, 1 << len(acc.warp)) != acc:
        raise refused(op, "accumulates in registers that are not those of products of warpgroups")
    held, left, right = _held(op, acc), None, _Boxed.of(op, 1)
    if held is None:
        left = _Boxed.of(op, 0)
        if left.boxes.swizzle != right.boxes.swizzle:
            raise refused(op, f"operands swizzled by {left.boxes.swizzle} and {right.boxes.swizzle} bytes")
    depth, each = shape_of(op.lhs.type)[1], kernel.slice_elements(op.lhs.type)
    step = min([depth, *(p.boxes.row for p in (left, right) if p is not None and p.boxes.fast == 1 - p.operand)])
    if not _follows(op):
        out.add_op(kernel.WgmmaFenceOp())
    use_acc = out.maybe(op.use_acc)
    for k in range(0, depth, step):
        source, place = lhs, None if left is None else left.place(out, acc, k)
        if held is not None:
            source = out.picked(lhs, [r for part in held[k // each : (k + step) // each] for r in part], "a")
        product = kernel.WgmmaOp(
            lhs=source,
            lhs_offset=place,
            rhs=rhs,
            rhs_offset=right.place(out, acc, k),
            acc=pending,
            k_steps=step // each,
            swizzle=right.boxes.swizzle,
            lhs_transposed=left is not None and left.boxes.fast == 0,
            rhs_transposed=right.boxes.fast == 1,
            leading_offset=right.panel(op, acc),
            scale_d_zero=k == 0 and op.scale_d_zero is not None,
            use_acc=use_acc if k == 0 else None,
        )
        pending = out.emit(product, op.result.name_hint)
    user = op.result.get_user_of_unique_use()
    if not isinstance(user, tile.DotAsyncOp) or user.parent is not op.parent:
        out.add_op(kernel.WgmmaCommitOp())
    return pending


def _follows(op: tile.DotAsyncOp) -> bool:
    """Whether `op` goes on with the accumulators of another contraction and needs no fence of its own. Behind a wait
    for operands it does: the loop that polls is a divergent path, in which ptxas would otherwise put a fence of its own
    and no longer overlap anything (its message C7519)."""
    before: Operation | None = op.prev_op if linear_of(op.lhs.type) is None else None
    while before is not None and before is not op.acc.owner and not isinstance(before, tile.ConsumerWaitOp):
        before = before.prev_op
    return isinstance(before, tile.DotAsyncOp)


@dataclass(frozen=True)
class _Boxed:
    """An operand in shared memory, and the boxes that it lies in."""

    operand: int
    shared: Shared
    boxes: Boxes

    @staticmethod
    def of(op: tile.DotAsyncOp, operand: int) -> _Boxed:
        value = op.operands[operand]
        shared = layout_in_shared(value)
        if (boxes := boxes_of(shared, element_bytes(value.type))) is None:
            raise refused(op, f"operand {operand} does not lie in boxes in shared memory")
        return _Boxed(operand, shared, boxes)

    def place(self, out: Lowering, acc: Linear, k: int) -> SSAValue:
        """Where the rows (or columns) of this thread's warpgroup start, at `k`."""

        def at(basis: Coordinate, k: int = 0) -> int:
            return self.shared.place((basis[0], k) if self.operand == 0 else (k, basis[1]))

        own = [at(basis) for basis in acc.warp[log2(kernel.WARPGROUP) :]]
        origin = out.thread_bits([*([0] * (LANE_BITS + log2(kernel.WARPGROUP))), *own])
        return out.value(out.add(origin, at((0, 0), k)))

    def panel(self, op: tile.DotAsyncOp, acc: Linear) -> int | None:
        """The distance of the panels of columns that a warpgroup multiplies, if there are several."""
        own, row = acc.registers * 2, self.boxes.row
        if self.boxes.fast == 0 or own == row:
            return None
        if own < row:
            raise refused(op, f"a warpgroup multiplies {own} of the {row} columns of a panel")
        return self.shared.place((0, row))
