"""Lowers `tile.dot` and `tile.dot_async`, by their `atom` and the number of threads.

- No atom, on a GPU: fused multiply-adds of outer products.
- No atom, a block of one thread (CPU): `kernel.panel_fma` on operands in registers.
- An `mma` atom: tensor core instructions of a warp (`kernel.mma`).
- The `wgmma` atom: asynchronous instructions of a warpgroup, four warps (`kernel.wgmma`).

On a GPU operands are in shared memory. For tensor cores the left operand may be in registers.
"""

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
        why = "expected tile.dot_async for a dot of warpgroups; run tile-pipeline-dots"
        raise refused(op, why, argument="atom")
    if op.atom is not None:
        return _mma(out, op)
    return _fma(out, op) if out.op.lanes.data > 1 else _panel(out, op)


def _panel(out: Lowering, op: tile.DotOp) -> SSAValue:
    """Emits a dot of matrices that a single thread holds; `kernel.panel_fma` takes them in row-major order."""

    def by_rows(value: SSAValue) -> SSAValue:
        layout = out.layout(value)
        shape = layout.shape
        rows = blocked(shape, (1, 0), 1, 1, lanes=1).picks(layout)
        # One thread holds all elements, so a permutation of registers is enough.
        assert rows is not None
        return out.picked(out.vector(value), rows)

    lhs, rhs, acc = (by_rows(v) for v in (op.lhs, op.rhs, op.acc))
    dot = out.emit(kernel.PanelFmaOp(lhs, rhs, acc, shape_of(op.lhs.type)[1]), op.result.name_hint)
    layout = out.layout(op.result)
    back = layout.picks(blocked(layout.shape, (1, 0), 1, 1, lanes=1))
    assert back is not None
    return out.picked(dot, back)


def _fma(out: Lowering, op: tile.DotOp) -> SSAValue:
    """Emits a loop over k that adds the outer product of a column of the left and a row of the right operand."""
    acc, depth, hint = out.layout(op.acc), shape_of(op.lhs.type)[1], op.result.name_hint
    rows = [i for i, basis in enumerate(acc.reg) if basis[0]]
    cols = [i for i, basis in enumerate(acc.reg) if basis[1]]
    if set(rows) & set(cols) or len(rows) + len(cols) != len(acc.reg):
        raise refused(op, "expected accumulator registers that form a grid of rows and columns")

    def part(operand: int, k: Index) -> SSAValue:
        place = _slice(out, op, operand, operand_layout(acc, operand, depth), k)
        return place.load(out, out.of(op.operands[operand]), "ab"[operand])

    def add(k: SSAValue, carried: SSAValue) -> SSAValue:
        column, row = part(0, k), part(1, k)
        return out.emit(kernel.OuterFmaOp(column, row, carried, rows, cols), hint)

    return out.accumulate(out.of(op.acc), depth, 1, hint, add)


def _slice(out: Lowering, op: tile.DotOp, operand: int, layout: Linear, k: Index, atom: int = 1) -> SharedPlace:
    """Returns the offsets of a slice of an operand in shared memory.

    Args:
        out: the lowering.
        op: the dot.
        operand: 0 for the left operand, 1 for the right one.
        layout: register layout of the slice at k = 0.
        k: start of the slice, a multiple of `atom`.
        atom: extent of k in a slice.
    """
    shared, depth, along = layout_in_shared(op.operands[operand]), shape_of(op.lhs.type)[1], 1 - operand
    images = [shared.place(tuple(1 << i if d == along else 0 for d in range(2))) for i in range(log2(depth))]
    moving = [0] * log2(atom) + images[log2(atom) :]
    layout = Linear(shared.shape, layout.reg, layout.lane, layout.warp)
    size = element_bytes(op.operands[operand].type)
    return shared_place(out, shared, layout, size, moving, out.bits_of(k, moving))


def _held(op: Dot, acc: Linear) -> list[tuple[int, ...]] | None:
    """Returns the registers of the left operand for each atom along k, or None if it is in shared memory."""
    if (layout := linear_of(op.lhs.type)) is None:
        return None
    if (fragments := held_fragments(op, acc, layout)) is None:
        raise refused(
            op, "expected operands in the registers of the threads that multiply them; run tile-stage-dot-operands"
        )
    return fragments


def _mma(out: Lowering, op: tile.DotOp) -> SSAValue:
    """Emits one `kernel.mma` per atom along k: in a loop if both operands are in shared memory, else unrolled.

    f32 operands are rounded to tf32.
    """
    acc, sums, hint = out.layout(op.acc), out.of(op.acc), op.result.name_hint
    bits, atom, held = bits_of_accumulator(op, acc), atom_of(op).k, _held(op, acc)

    def product(lhs: SSAValue, k: Index, carried: SSAValue) -> SSAValue:
        right = _matrices(out, op, 1, acc, k)
        return out.emit(kernel.MmaOp(lhs, right, carried, bits.rows, bits.columns), hint)

    if held is None:
        depth = shape_of(op.lhs.type)[1]
        return out.accumulate(sums, depth, atom, hint, lambda k, c: product(_matrices(out, op, 0, acc, k), k, c))
    for step, registers in enumerate(held):
        lhs_registers = _rounded(out, out.picked(out.of(op.lhs), registers, "a"))
        sums = product(lhs_registers, step * atom, sums)
    return sums


def _matrices(out: Lowering, op: tile.DotOp, operand: int, acc: Linear, k: Index) -> SSAValue:
    """Returns the fragment of an operand for one atom, loaded by `ldmatrix` where possible.

    Args:
        out: the lowering.
        op: the dot.
        operand: 0 for the left operand, 1 for the right one.
        acc: accumulator layout.
        k: first k of the atom.
    """
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
    """Emits one `kernel.wgmma` for every part of k that is within one swizzled row of each operand."""
    acc, pending, lhs, rhs = out.layout(op.acc), out.of(op.acc), out.of(op.lhs), out.of(op.rhs)
    if warpgroup_accumulator(acc.shape, 1 << len(acc.warp)) != acc:
        raise refused(op, "accumulates in registers that are not those of products of warpgroups")
    held, lhs_boxes, rhs_boxes = _held(op, acc), None, _Boxed.of(op, 1)
    if held is None:
        lhs_boxes = _Boxed.of(op, 0)
        if lhs_boxes.boxes.swizzle != rhs_boxes.boxes.swizzle:
            raise refused(op, f"operands swizzled by {lhs_boxes.boxes.swizzle} and {rhs_boxes.boxes.swizzle} bytes")
    depth, k_step = shape_of(op.lhs.type)[1], kernel.slice_elements(op.lhs.type)
    step = min(
        [depth, *(p.boxes.row for p in (lhs_boxes, rhs_boxes) if p is not None and p.boxes.fast == 1 - p.operand)]
    )
    if not _follows(op):
        out.add_op(kernel.WgmmaFenceOp())
    use_acc = out.maybe(op.use_acc)
    for k in range(0, depth, step):
        source, place = lhs, None if lhs_boxes is None else lhs_boxes.place(out, acc, k)
        if held is not None:
            source = out.picked(lhs, [r for part in held[k // k_step : (k + step) // k_step] for r in part], "a")
        product = kernel.WgmmaOp(
            lhs=source,
            lhs_offset=place,
            rhs=rhs,
            rhs_offset=rhs_boxes.place(out, acc, k),
            acc=pending,
            k_steps=step // k_step,
            swizzle=rhs_boxes.boxes.swizzle,
            lhs_transposed=lhs_boxes is not None and lhs_boxes.boxes.fast == 0,
            rhs_transposed=rhs_boxes.boxes.fast == 1,
            leading_offset=rhs_boxes.panel(op, acc),
            scale_d_zero=k == 0 and op.scale_d_zero is not None,
            use_acc=use_acc if k == 0 else None,
        )
        pending = out.emit(product, op.result.name_hint)
    user = op.result.get_user_of_unique_use()
    if not isinstance(user, tile.DotAsyncOp) or user.parent is not op.parent:
        out.add_op(kernel.WgmmaCommitOp())
    return pending


def _follows(op: tile.DotAsyncOp) -> bool:
    """Returns true if `op` continues the accumulators of a preceding dot, so that it needs no `wgmma.fence`.

    A fence is needed nevertheless if the left operand is in registers, and after a wait for operands: the polling loop
    of the wait is a divergent path. Without our fence ptxas inserts one, and serialises all `wgmma` instructions (its
    warning C7519).
    """
    before: Operation | None = op.prev_op if linear_of(op.lhs.type) is None else None
    while before is not None and before is not op.acc.owner and not isinstance(before, tile.ConsumerWaitOp):
        before = before.prev_op
    return isinstance(before, tile.DotAsyncOp)


@dataclass(frozen=True)
class _Boxed:
    """Operand in shared memory, in the layout that TMA writes.

    A *panel* is a part of the tile whose rows are as long as the swizzle (at most 128 bytes). A wide tile is several
    panels, one after the other.

    operand  0 for the left operand, 1 for the right one
    shared   its layout
    boxes    the same layout as panels of swizzled rows
    """

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
        """Returns the offset of the rows (or columns) that the warpgroup of this thread multiplies.

        Args:
            out: the lowering.
            acc: accumulator layout.
            k: first k of the instruction.
        """

        def at(basis: Coordinate, k: int = 0) -> int:
            return self.shared.place((basis[0], k) if self.operand == 0 else (k, basis[1]))

        offsets = [at(basis) for basis in acc.warp[log2(kernel.WARPGROUP) :]]
        origin = out.thread_bits([*([0] * (LANE_BITS + log2(kernel.WARPGROUP))), *offsets])
        return out.value(out.add(origin, at((0, 0), k)))

    def panel(self, op: tile.DotAsyncOp, acc: Linear) -> int | None:
        """Returns the distance in elements between the panels that a warpgroup multiplies, or None for one panel."""
        columns, row = acc.registers * 2, self.boxes.row
        if self.boxes.fast == 0 or columns == row:
            return None
        if columns < row:
            raise refused(op, f"a warpgroup multiplies {columns} of the {row} columns of a panel")
        return self.shared.place((0, row))
