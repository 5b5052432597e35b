"""Loads and stores of global memory, as wide as can be proved right."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from math import gcd
from typing import TypeAlias

from xdsl.dialects.builtin import MemRefType
from xdsl.ir import Attribute, SSAValue

from ...dialects import kernel, payload, tile
from ...dialects.extents import Extent, extents_of
from ...dialects.linear_layout import Linear, log2
from ...dialects.payload import Predicate, element_bytes
from .emitter import Emitter
from .places import Place, Places

Write: TypeAlias = tile.StoreOp | tile.AtomicRmwOp

WIDEST = 16
"""Bytes that one thread moves at once, at most."""


@dataclass
class Access:
    """The parts of a `kernel.load` or `kernel.store` that say where it goes."""

    coordinates: list[Place]
    checks: list[Place]
    bounds: list[tuple[int, Extent]]
    vec: int
    never: bool

    def origins(self, out: Emitter) -> tuple[list[SSAValue], list[SSAValue]]:
        """The coordinates and the checks as values."""
        coordinates = [out.value(p.origin) for p in self.coordinates]
        return coordinates, [out.value(c.origin) for c in self.checks]

    def regs(self, bits: int) -> list[list[int]]:
        """For every bit of the register number, its step in every dimension of the memory."""
        return [[p.steps[b] for p in self.coordinates] for b in range(bits)]

    def steps(self, bits: int) -> list[list[int]]:
        """For every bit of the register number, its step in every check; none within one access."""
        low = log2(self.vec)
        return [[0 if b < low else c.steps[b] for c in self.checks] for b in range(bits)]


def plan_access(op: tile.LoadOp | Write | tile.StageAsyncOp, places: Places, memory: MemRefType[Attribute]) -> Access:
    """Compute where `op` goes: coordinates, the checks that are not always true, and the widest legal access."""
    coordinates = [places.place(places.form(e)) for e in op.map.data.results]
    checks: list[Place] = []
    bounds: list[tuple[int, Extent]] = []
    never = False
    if op.domain is not None:
        for expr, (lo, hi) in zip(op.domain.affine.results, op.domain.limits, strict=True):
            form = places.form(expr)
            if places.simplifier.within(form, lo, hi):
                continue
            never = never or places.simplifier.outside(form, lo, hi)
            checks.append(places.place(form))
            bounds.append((lo, hi))
    access = Access(coordinates, checks, bounds, 1, never)
    access.vec = _width(access, len(places.layout.reg), memory)
    return access


def _width(access: Access, bits: int, memory: MemRefType[Attribute]) -> int:
    """The number of consecutive registers that move at once."""
    shape = extents_of(memory)
    if not shape or any(p.per_register for p in (*access.coordinates, *access.checks)):
        return 1
    vec, limit = 1, min(1 << bits, WIDEST // element_bytes(memory.element_type))
    while vec < limit and _is_legal(access, 2 * vec, bits, shape):
        vec *= 2
    return vec


def _is_legal(access: Access, vec: int, bits: int, shape: Sequence[Extent]) -> bool:
    low = log2(vec)
    *outer, last = access.coordinates
    if any(last.steps[b] != 1 << b or any(p.steps[b] for p in outer) for b in range(low)):
        return False
    if last.divisor % vec or any(last.steps[b] % vec for b in range(low, bits)):
        return False
    if len(shape) > 1 and (not isinstance(shape[-1], int) or shape[-1] % vec):
        return False
    return all(_is_uniform(c, bound, low) for c, bound in zip(access.checks, access.bounds, strict=True))


def _is_uniform(check: Place, bound: tuple[int, Extent], low: int) -> bool:
    """Whether the check has one answer for all registers that differ in the lowest `low` bits only: these lie between
    two neighbouring multiples of a number that divides both bounds. Nothing is known to divide a symbol."""
    if any(s < 0 for s in check.steps[:low]):
        return False
    spread = sum(check.steps[:low])
    grain = gcd(check.divisor, *check.steps[low:], *(b if isinstance(b, int) else 1 for b in bound))
    return spread == 0 or grain > spread


def holder_predicate(out: Emitter, layout: Linear) -> SSAValue | None:
    """True in the threads that hold an element nobody before them holds; None if that is every thread."""
    redundant, lanes = layout.redundant(), len(layout.lane)
    bits = sorted((*redundant.lane, *(lanes + b for b in redundant.warp)))
    if not bits:
        return None
    total = lanes + len(layout.warp)
    if bits == list(range(bits[0], bits[-1] + 1)):
        mask = out.thread_field(bits[0], len(bits), total)
    else:
        mask = out.thread_bits([1 << b if b in bits else 0 for b in range(total)])[0]
    return out.emit(payload.CmpOp(Predicate.EQ, out.value(mask), out.value(0)), "first")


def load(out: Emitter, op: tile.LoadOp, source: SSAValue, places: Places, fill: SSAValue | None) -> SSAValue:
    """Emit the load; a vector with the registers of the tile's layout."""
    memory, bits = memory_type(source), len(places.layout.reg)
    access = plan_access(op, places, memory)
    if access.never and fill is not None:
        return out.emit(kernel.SplatOp(fill, places.layout.registers))
    coordinates, checks = access.origins(out)
    return out.emit(
        kernel.LoadOp(
            source,
            coordinates,
            access.regs(bits),
            vec=access.vec,
            checks=checks,
            steps=access.steps(bits),
            bounds=access.bounds,
            fill=fill if checks else None,
        )
    )


def store(out: Emitter, op: Write, value: SSAValue, target: SSAValue, places: Places) -> None:
    """Emit the store of the registers of a layout that holds nothing twice; every element is written by one thread."""
    access = plan_access(op, places, memory_type(target))
    if access.never:
        return
    atomic = isinstance(op, tile.AtomicRmwOp)
    access.vec = 1 if atomic else access.vec
    coordinates, checks = access.origins(out)
    predicate = holder_predicate(out, places.layout)
    bits = len(places.layout.reg)
    regs, steps, bounds = access.regs(bits), access.steps(bits), access.bounds
    made = partial(kernel.AtomicRmwOp, op.kind.data) if atomic else partial(kernel.StoreOp, vec=access.vec)
    out.add_op(made(value, target, coordinates, regs, checks=checks, steps=steps, bounds=bounds, predicate=predicate))


def memory_type(value: SSAValue) -> MemRefType[Attribute]:
    """The type of a buffer."""
    assert isinstance(value.type, MemRefType), value.type
    return value.type  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
