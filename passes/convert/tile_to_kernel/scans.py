"""Lowers `tile.scan` (a prefix sum or similar) along a dimension of a tile.

Each thread scans its registers one after another. Lanes combine their totals by shuffles, then warps through shared
memory. Each thread finally combines its elements with the total of all elements before its own.
"""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.ir import SSAValue

from ....dialects import kernel, payload, tile
from ....dialects.layouts.linear import LANE_BITS, LANES, Linear, log2, unit
from ....dialects.payload import element_type, shape_of
from ....dialects.support.locations import refused
from ....dialects.tensor import ReductionKind, combine, identity
from .emitter import Index, Lowering, lowers
from .exchanges import gathered_from_warps


@dataclass(frozen=True)
class _Order:
    """Bits of the scanned coordinate, by where the layout stores them, from the lowest to the highest.

    registers   bits of the register number that are the lowest bits of the coordinate
    lanes       number of consecutive bits of the lane number that are the next bits
    first_lane  first of these bits of the lane number
    warps       bits of the warp number that are the highest bits
    """

    registers: list[int]
    lanes: int
    first_lane: int
    warps: list[int]

    @staticmethod
    def of(layout: Linear, dim: int) -> _Order | None:
        """Returns the order of dimension `dim` in `layout`, or None unless registers precede lanes, and lanes warps."""
        bits = [unit(len(layout.shape), dim, 1 << b) for b in range(log2(layout.shape[dim]))]
        registers = [layout.reg.index(b) for b in bits if b in layout.reg]
        lanes = [layout.lane.index(b) for b in bits if b in layout.lane]
        warps = [layout.warp.index(b) for b in bits if b in layout.warp]
        held = ((layout.reg, registers), (layout.lane, lanes), (layout.warp, warps))
        owners = [bases[n] for bases, numbers in held for n in numbers]
        first = lanes[0] if lanes else 0
        if owners != bits or registers != sorted(registers) or lanes != [*range(first, first + len(lanes))]:
            return None
        mixed = [b for b in layout.bases if b[dim] and b not in bits]
        return None if mixed else _Order(registers, len(lanes), first, warps)


@lowers(tile.ScanOp)
def scan(out: Lowering, op: tile.ScanOp) -> None:
    layout, dim, kind, hint = out.layout(op.source), op.dim.data, op.kind.data, op.result.name_hint
    order, total_layout = _Order.of(layout, dim), layout.without([dim])
    if order is None:
        raise refused(op, "scans a layout whose bits are not in the order of the dimension")
    register_bases = tuple(b for i, b in enumerate(total_layout.reg) if i not in order.registers)
    total_layout = Linear(total_layout.shape, register_bases, total_layout.lane, total_layout.warp)
    picks, back = total_layout.picks(out.layout(op.init)), out.layout(op.carry).picks(total_layout)
    if picks is None or back is None:
        raise refused(op, "expected an initial tile in the layout of the source")
    init, source = out.picked(out.vector(op.init), picks), out.of(op.source)
    if not order.lanes and not order.warps:
        new = out.add_op(kernel.ScanRegistersOp(kind, source, init, order.registers), hint)
        result, carry = new.result, new.carry
    else:
        steps = _Steps(out, kind, init)
        local = total = source
        if order.registers:
            new = out.add_op(kernel.ScanRegistersOp(kind, source, steps.neutral, order.registers), hint)
            local, total = new.result, new.carry
        before, total = steps.lanes(total, order)
        if order.warps:
            others, total = steps.warps(op, total, total_layout, order)
            before = steps.combined(others, before)
        before = steps.combined(init, before)
        bits = [b for b in range(len(layout.reg)) if b not in order.registers]
        spread = [sum(1 << n for n, b in enumerate(bits) if r >> b & 1) for r in range(layout.registers)]
        result, carry = steps.combined(out.picked(before, spread), local, hint), steps.combined(init, total)
    out.define(op.result, result)
    out.define(op.carry, out.from_vector(op.carry, out.picked(carry, back)))


class _Steps:
    """Emitter of the steps of a scan between threads.

    The vectors have one register for each scan of the thread, that is for each element in the other dimensions.
    """

    def __init__(self, out: Lowering, kind: ReductionKind, init: SSAValue) -> None:
        self.out, self.kind, self.type = out, kind, init.type
        self.neutral = out.emit(payload.ConstantOp(identity(kind, element_type(init.type)), init.type))

    def combined(self, first: SSAValue, second: SSAValue, hint: str | None = None) -> SSAValue:
        return self.out.emit(combine(self.kind, first, second), hint)

    def _chosen(self, condition: SSAValue, value: SSAValue, other: SSAValue) -> SSAValue:
        spread = self.out.emit(kernel.SplatOp(condition, shape_of(value.type)[0]))
        return self.out.emit(payload.SelectOp(spread, value, other))

    def _from(self, value: SSAValue, lane: Index) -> SSAValue:
        flips = [0] * log2(shape_of(value.type)[0])
        return self.out.emit(kernel.ShuffleOp(value, self.out.value(lane), flips))

    def lanes(self, value: SSAValue, order: _Order) -> tuple[SSAValue, SSAValue]:
        """Scans over lanes, in log2(lanes) steps with one shuffle each (Hillis and Steele).

        Args:
            value: totals of the lane.
            order: order of the scanned coordinate.

        Returns:
            The combination of all preceding lanes, and the combination of all lanes.
        """
        out, last = self.out, (1 << order.lanes) - 1
        if not order.lanes:
            return self.neutral, value
        lane = out.id("lane")
        place = out.rem(out.div(lane, 1 << order.first_lane), 1 << order.lanes) if order.lanes < LANE_BITS else lane

        def before(value: SSAValue, distance: int) -> tuple[SSAValue, SSAValue]:
            source = out.rem(out.add(lane, LANES - (distance << order.first_lane)), LANES)
            return out.compare("ge", place, distance, "has_lane"), self._from(value, source)

        for step in range(order.lanes):
            has_lane, other = before(value, 1 << step)
            value = self._chosen(has_lane, self.combined(other, value), value)
        has_lane, other = before(value, 1)
        end = out.add(lane, out.mul(out.xor(place, last), 1 << order.first_lane)) if order.lanes < LANE_BITS else last
        return self._chosen(has_lane, other, self.neutral), self._from(value, end)

    def warps(self, op: tile.ScanOp, total: SSAValue, layout: Linear, order: _Order) -> tuple[SSAValue, SSAValue]:
        """Scans over warps, through shared memory.

        Args:
            op: the scan, for its name.
            total: totals of the warp.
            layout: layout of `total`.
            order: order of the scanned coordinate.

        Returns:
            The combination of all preceding warps, and the combination of all warps.
        """
        out, count = self.out, len(order.warps)
        gathered = gathered_from_warps(out, total, layout, order.warps, op.result.name_hint)
        images = [1 << order.warps.index(w) if w in order.warps else 0 for w in range(log2(out.warps))]
        place = out.bits_of(out.id("warp"), images)
        size = shape_of(gathered.type)[0]
        number = out.emit(kernel.IndicesOp(out.value(0), [1 << b if b < count else 0 for b in range(log2(size))]))
        mine = out.emit(kernel.SplatOp(out.value(place), size))
        neutral = out.emit(payload.ConstantOp(identity(self.kind, element_type(self.type)), gathered.type))
        earlier = out.emit(payload.SelectOp(out.emit(payload.CmpOp("lt", number, mine)), gathered, neutral))
        before, whole = (kernel.ScanRegistersOp(self.kind, v, self.neutral, range(count)) for v in (earlier, gathered))
        return out.add_op(before).carry, out.add_op(whole).carry
