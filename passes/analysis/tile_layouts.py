"""Layouts of tiles: attributes and linear layouts, the cheapest conversion, the place of elements in shared memory, and
the operands of contractions that threads read.

A swizzle is searched for: every slow bit of the offset may be added, by exclusive or, to one of the bits that choose
the bank, and the choice with the fewest wavefronts over all accesses wins."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import NamedTuple, overload

from xdsl.ir import Attribute, Operation, SSAValue

from ...dialects import tile
from ...dialects.kernel.mma import ROW_BYTES, MmaAtom, mma_atom
from ...dialects.layouts import LayoutAttr, SharedAttr, bases_of
from ...dialects.layouts.conversion import Exchange, find_exchange
from ...dialects.layouts.linear import (
    LANES,
    Bases,
    Coordinate,
    Linear,
    Shared,
    log2,
    ordered,
    register_width,
    wavefronts,
)
from ...dialects.layouts.mma import Bits, accumulator_bits, fragment, matrix_rows
from ...dialects.payload import element_bytes, shape_of
from ...dialects.support.locations import refused
from ...dialects.tile.kernel import encoding_of, without_flight
from ...errors import CompileError


def linear_of(t: Attribute) -> Linear | None:
    """Returns the register layout of a tile type, or of sums in flight, or None."""
    t = without_flight(t)
    if not isinstance(e := encoding_of(t), LayoutAttr):
        return None
    return Linear(shape_of(t), bases_of(e.reg), bases_of(e.lane), bases_of(e.warp))


def shared_of(t: Attribute) -> Shared | None:
    """Returns the shared layout of a tile type, or None."""
    e = encoding_of(t)
    return Shared(shape_of(t), bases_of(e.offset)) if isinstance(e, SharedAttr) else None


def shared_of_type(t: Attribute) -> Shared:
    """Returns the shared layout of a type that is known to have one."""
    layout = shared_of(t)
    assert layout is not None
    return layout


@overload
def attr_of(layout: Linear) -> LayoutAttr: ...
@overload
def attr_of(layout: Shared) -> SharedAttr: ...
def attr_of(layout: Linear | Shared) -> LayoutAttr | SharedAttr:
    """The attribute of a layout."""
    if isinstance(layout, Shared):
        return SharedAttr.get(layout.offset)
    return LayoutAttr.get(layout.reg, layout.lane, layout.warp)


def layout_in_registers(value: SSAValue, warps: int, lanes: int = LANES) -> Linear:
    """Returns the register layout of a tile in a block of `warps` warps. Raises ScheduleError if it is missing or
    bad."""
    layout = linear_of(value.type)
    if layout is None:
        raise _refused(value, "has no layout in registers (tile-assign-layouts gives it one)")
    if (layout.lanes, layout.warps) != (lanes, warps):
        raise _refused(value, f"has a layout with {len(layout.lane)} lane and {len(layout.warp)} warp bits")
    _verify_bases(value, layout.shape, layout.bases)
    if not layout.is_surjective:
        raise _refused(value, "has a layout that leaves out elements")
    return layout


def layout_in_shared(value: SSAValue) -> Shared:
    """Returns the shared layout of a tile. Raises ScheduleError if it has none, or one that is no bijection."""
    layout = shared_of(value.type)
    if layout is None:
        raise _refused(value, "is not in shared memory (tile-stage-dot-operands puts it there)")
    _verify_bases(value, layout.shape, layout.offset)
    if not layout.is_bijective:
        raise _refused(value, "has a shared layout that is no bijection")
    return layout


def _verify_bases(value: SSAValue, shape: Sequence[int], bases: Bases) -> None:
    if any(len(b) != len(shape) or any(not 0 <= c < n for c, n in zip(b, shape, strict=True)) for b in bases):
        raise _refused(value, "has a layout with bases outside of the tile")


def _refused(value: SSAValue, reason: str) -> CompileError:
    op = value.owner if isinstance(value.owner, Operation) else value.owner.parent_op()
    assert op is not None
    name = f"%{value.name_hint}: " if value.name_hint else ""
    return refused(op, f"{name}a tile {value.type} {reason}")


SHUFFLED_BYTES, SELECTS_PER_SHUFFLE, BARRIERS_IN_SHUFFLES = 4, 2, 16
"""Bytes of a shuffle, selects in the time of a shuffle, and shuffles in the time that two barriers cost a warp."""


def route(source: Linear, target: Linear, bytes_each: int) -> str:
    """Returns the cheapest route from one layout to another: `registers`, `shuffles` or `shared`.

    A shuffle moves 128 bytes of a warp, as a store to shared memory or a load does. There are two of those, with
    barriers between them.
    """
    if target.picks(source) is not None:
        return "registers"
    found = find_exchange(source, target)
    if found is None:
        return "shared"
    moved = (source.compact()[0].registers + target.registers) * bytes_each / SHUFFLED_BYTES
    return "shuffles" if price(found, source, bytes_each) <= moved + BARRIERS_IN_SHUFFLES else "shared"


def way_of(op: tile.ConvertLayoutOp, source: Linear, target: Linear) -> str:
    """Returns the route of a conversion: the one of its attribute, or the cheapest."""
    return route(source, target, element_bytes(op.source.type)) if op.via is None else op.via.data


def price(found: Exchange, source: Linear, bytes_each: int) -> float:
    """Returns the cost of an exchange, in registers that are shuffled."""
    each = max(1, bytes_each // SHUFFLED_BYTES)
    halves = 2 if bytes_each < SHUFFLED_BYTES and found.paired else 1
    return (found.shuffles + found.choices(source.registers) / SELECTS_PER_SHUFFLE) * each / halves


IMPOSSIBLE = 1 << 40
"""More than any access costs."""


@dataclass(frozen=True)
class Reader:
    """An access to a shared tile by the threads of a layout, `weight` times as often as others. `elements` must be
    contiguous: with fewer the access is wrong."""

    layout: Linear
    bytes_each: int
    weight: int = 1
    elements: int = 1

    def cost(self, shared: Shared) -> tuple[int, bool]:
        """Returns the weighted cost of one warp for all its registers, mostly wavefronts, and true if no layout with
        accesses of this width could be cheaper."""
        regs = shared.images(self.layout.reg)
        lanes = shared.images(self.layout.lane)
        vec = register_width(regs, (*lanes, *shared.images(self.layout.warp)), 16 // self.bytes_each)
        if vec < self.elements:
            return IMPOSSIBLE, False
        fronts = wavefronts(tuple(lanes), vec, self.bytes_each)
        best = fronts <= max(vec * self.bytes_each // 4, 1)
        return (4 * fronts + 1) * (self.layout.registers // vec) * self.weight, best


def choose_shared(
    shape: Sequence[int], readers: Sequence[Reader], *, by_order: Sequence[Sequence[Reader]] | None = None
) -> Shared:
    """Returns the shared layout on which `readers` take the fewest wavefronts; the plainest of equals.

    Candidates are row-major order, and that with the first dimension contiguous, each with swizzles. `by_order` has
    further readers for either.
    """
    rank = len(shape)
    orders = [(*reversed(range(rank)),), *([(0, *reversed(range(1, rank)))] if rank > 1 else [])]
    more = by_order or [()] * len(orders)
    best = [_swizzled(tuple(shape), o, [*readers, *m]) for o, m in zip(orders, more, strict=True)]
    return min(best, key=lambda candidate: candidate.cost).layout


class _Candidate(NamedTuple):
    """A shared layout with the pairs of `ordered` that swizzle it. `free`: no swizzle could be cheaper."""

    cost: int
    free: bool
    layout: Shared
    swizzle: tuple[tuple[int, int], ...]


def _swizzled(shape: tuple[int, ...], order: Sequence[int], readers: Sequence[Reader]) -> _Candidate:
    """Returns the layout with the best swizzle on one order of dimensions, which is searched bit by bit."""

    def candidate(*swizzle: tuple[int, int]) -> _Candidate:
        layout = ordered(shape, order, swizzle)
        costs, free = zip(*(r.cost(layout) for r in readers), strict=True)
        return _Candidate(sum(costs), all(free), layout, swizzle)

    best = candidate()
    banks = log2(128 // min(r.bytes_each for r in readers))
    for bit in range(log2(shape[order[0]]), log2(prod(shape))):
        if not best.free:
            targets = reversed(range(min(bit, banks)))
            swizzled = [candidate(*best.swizzle, (1 << bit, 1 << target)) for target in targets]
            best = min([best, *swizzled], key=lambda candidate: candidate.cost)
    return best


Dot = tile.DotOp | tile.DotAsyncOp


def atom_of(op: Dot) -> MmaAtom:
    """Returns the atom of a contraction on tensor cores. Raises ScheduleError if there is none for its types."""
    (m, k), (_, n) = shape_of(op.lhs.type), shape_of(op.rhs.type)
    atom = mma_atom(op.lhs.type, (m, n, k))
    if atom is None:
        raise refused(op, f"multiplies tiles of {op.lhs.type}, for which tensor cores have no product")
    return atom


def bits_of_accumulator(op: Dot, acc: Linear) -> Bits:
    """Returns the register bits of rows and columns. Raises ScheduleError for a layout that tensor cores do not
    have."""
    bits = accumulator_bits(acc, atom_of(op))
    if bits is None:
        raise refused(op, "accumulates in registers that are not those of a product on tensor cores")
    return bits


def readers(op: Dot, acc: Linear, operand: int) -> tuple[Reader, Reader]:
    """Returns how a warp reads an operand that is contiguous along k, and one that is not: by rows of matrices, which
    can transpose elements of two bytes, or element by element. Raises ScheduleError."""
    bits_of_accumulator(op, acc)
    atom, depth = atom_of(op), shape_of(op.lhs.type)[1]
    bytes_each = element_bytes(op.operands[operand].type)

    def reader(trans: bool) -> Reader:
        if trans not in atom.matrix_orders:
            return Reader(fragment(acc, operand, depth, atom), bytes_each)
        layout = matrix_rows(acc, operand, depth, trans, atom).layout
        return Reader(layout, bytes_each, elements=ROW_BYTES // bytes_each)

    return reader(False), reader(True)


def held_fragments(op: Dot, acc: Linear, lhs: Linear) -> list[tuple[int, ...]] | None:
    """Returns the registers of the left operand for every k of an atom, or None if other threads multiply it."""
    bits_of_accumulator(op, acc)
    atom, depth = atom_of(op), shape_of(op.lhs.type)[1]
    picks = fragment(acc, 0, depth, atom).picks(lhs)
    if picks is None:
        return None
    size = len(picks) * atom.k // depth
    return [picks[i : i + size] for i in range(0, len(picks), size)]


def operand_layout(acc: Linear, operand: int, depth: int) -> Linear:
    """Returns the elements of operand 0 ([m, k]) or 1 ([k, n]) at k = 0 that threads need for a contraction into
    `acc`."""

    def own(b: Coordinate) -> Coordinate:
        return (b[0], 0) if operand == 0 else (0, b[1])

    shape = (acc.shape[0], depth) if operand == 0 else (depth, acc.shape[1])
    reg = tuple(own(b) for b in acc.reg if b[operand])
    return Linear(shape, reg, tuple(map(own, acc.lane)), tuple(map(own, acc.warp)))
