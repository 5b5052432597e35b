"""Loads and stores of global memory, as wide as can be proved right."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import gcd
from typing import TypeAlias

from xdsl.dialects.builtin import MemRefType
from xdsl.ir import Attribute, SSAValue

from ...dialects import tile
from ...dialects.layouts.linear import log2
from ...dialects.payload import element_bytes
from ...dialects.shapes.extents import Extent, extents_of
from .register_offsets import Offsets, TileForms

Write: TypeAlias = tile.StoreOp | tile.AtomicRmwOp

WIDEST = 16
"""Bytes that one thread moves at once, at most."""


@dataclass
class Access:
    """What a `kernel.load` or `kernel.store` of one tile is, but for the values that it takes."""

    coordinates: list[Offsets]
    checks: list[Offsets]
    bounds: list[tuple[int, Extent]]
    vec: int
    never: bool

    @property
    def per_register(self) -> bool:
        """Whether some coordinate or check has a value of its own in every register."""
        return any(p.per_register for p in (*self.coordinates, *self.checks))

    def regs(self, bits: int) -> list[list[int]]:
        """For every bit of the register number, its step in every dimension of the memory."""
        return [[p.steps[b] for p in self.coordinates] for b in range(bits)]

    def steps(self, bits: int) -> list[list[int]]:
        """For every bit of the register number, its step in every check; none within one access."""
        low = log2(self.vec)
        return [[0 if b < low else c.steps[b] for c in self.checks] for b in range(bits)]


def plan_access(op: tile.LoadOp | Write | tile.StageAsyncOp, forms: TileForms, memory: MemRefType[Attribute]) -> Access:
    """Compute where `op` goes: coordinates, the checks that are not always true, and the widest legal access."""
    coordinates = [forms.offsets(forms.form(e)) for e in op.map.data.results]
    checks: list[Offsets] = []
    bounds: list[tuple[int, Extent]] = []
    never = False
    if op.domain is not None:
        for expr, (lo, hi) in zip(op.domain.affine.results, op.domain.limits, strict=True):
            form = forms.form(expr)
            if forms.simplifier.within(form, lo, hi):
                continue
            never = never or forms.simplifier.outside(form, lo, hi)
            checks.append(forms.offsets(form))
            bounds.append((lo, hi))
    access = Access(coordinates, checks, bounds, 1, never)
    access.vec = _width(access, len(forms.layout.reg), memory)
    return access


def _width(access: Access, bits: int, memory: MemRefType[Attribute]) -> int:
    """The number of consecutive registers that move at once."""
    shape = extents_of(memory)
    if not shape or access.per_register:
        return 1
    vec, limit = 1, min(1 << bits, WIDEST // element_bytes(memory))
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


def _is_uniform(check: Offsets, bound: tuple[int, Extent], low: int) -> bool:
    """Whether the check has one answer for all registers that differ in the lowest `low` bits only: these lie between
    two neighbouring multiples of a number that divides both bounds. Nothing is known to divide a symbol."""
    if any(s < 0 for s in check.steps[:low]):
        return False
    spread = sum(check.steps[:low])
    grain = gcd(check.divisor, *check.steps[low:], *(b if isinstance(b, int) else 1 for b in bound))
    return spread == 0 or grain > spread


def memory_type(value: SSAValue) -> MemRefType[Attribute]:
    """The type of a buffer."""
    assert isinstance(value.type, MemRefType), value.type
    return value.type  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
