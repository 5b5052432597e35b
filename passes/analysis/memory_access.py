"""Loads and stores of global memory, as wide as can be proved right.

An affine expression of a tile's indices has a value in register 0 of a thread, and every bit of the register number
adds a step to it. Known are the steps, and a divisor of the value of register 0 in all threads. Expressions that are
not linear in the tile's indices, and gathers, have a value of their own in every register.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import gcd
from typing import TypeAlias

from xdsl.dialects.builtin import MemRefType
from xdsl.ir import Attribute, SSAValue
from xdsl.ir.affine import AffineExpr

from ...dialects import tile
from ...dialects.layouts.linear import Linear, is_disjoint, log2
from ...dialects.payload import element_bytes
from ...dialects.shapes.affine import (
    DIM,
    SYM,
    Atom,
    Form,
    Range,
    Simplifier,
    constant,
    dim,
    number_of,
    symbol,
)
from ...dialects.shapes.extents import Extent, extents_of
from ...dialects.shapes.ranges import divisor_of, range_of_value

Write: TypeAlias = tile.StoreOp | tile.AtomicRmwOp

WIDEST = 16
"""Bytes that one thread moves at once, at most."""


@dataclass
class Access:
    """A `kernel.load` or `kernel.store` of one tile, without the values that it takes."""

    coordinates: list[Offsets]
    checks: list[Offsets]
    bounds: list[tuple[int, Extent]]
    vec: int
    never: bool

    @property
    def per_register(self) -> bool:
        """True if some coordinate or check has a value of its own in every register."""
        return any(p.per_register for p in (*self.coordinates, *self.checks))

    def regs(self, bits: int) -> list[list[int]]:
        """Returns the step of every bit of the register number in every dimension of the memory."""
        return [[p.steps[b] for p in self.coordinates] for b in range(bits)]

    def steps(self, bits: int) -> list[list[int]]:
        """Returns the step of every bit of the register number in every check; none within one access."""
        low = log2(self.vec)
        return [[0 if b < low else c.steps[b] for c in self.checks] for b in range(bits)]


def plan_access(op: tile.LoadOp | Write | tile.StageAsyncOp, forms: TileForms, memory: Attribute) -> Access:
    """Returns coordinates, the checks that are not always true, and the widest legal access."""
    access = Access([forms.offsets(forms.form(e)) for e in op.map.data.results], [], [], 1, False)
    if op.domain is not None:
        for expr, (lo, hi) in zip(op.domain.affine.results, op.domain.limits, strict=True):
            form = forms.form(expr)
            if not forms.simplifier.within(form, lo, hi):
                access.never |= forms.simplifier.outside(form, lo, hi)
                access.checks.append(forms.offsets(form))
                access.bounds.append((lo, hi))
    # Vectors of a core need no alignment, so its accesses are of single elements, as atomic operations are.
    single = forms.layout.lanes == 1 or isinstance(op, tile.AtomicRmwOp)
    if access.coordinates and not access.per_register and not single:
        access.vec = _width(access, len(forms.layout.reg), memory)
    return access


def _width(access: Access, bits: int, memory: Attribute) -> int:
    """Returns the number of consecutive registers that move at once: consecutive in memory, aligned, with one answer to
    each check."""
    *outer, last = access.coordinates
    limit = min(1 << bits, WIDEST // element_bytes(memory))
    low = 0
    while 2 << low <= limit and last.steps[low] == 1 << low and not any(p.steps[low] for p in outer):
        low += 1
    pitch = extents_of(memory)[-1] if outer else 0
    vec = gcd(1 << low, last.divisor, *last.steps[low:], pitch if isinstance(pitch, int) else 1)
    while not all(_is_uniform(c, bound, log2(vec)) for c, bound in zip(access.checks, access.bounds, strict=True)):
        vec //= 2
    return vec


def _is_uniform(check: Offsets, bound: tuple[int, Extent], low: int) -> bool:
    """Returns true if the check has one answer for all registers that differ in the lowest `low` bits: they are between
    consecutive multiples of a divisor of both bounds. A symbol has no known divisor."""
    if any(s < 0 for s in check.steps[:low]):
        return False
    spread = sum(check.steps[:low])
    grain = gcd(check.divisor, *check.steps[low:], *(b if isinstance(b, int) else 1 for b in bound))
    return spread == 0 or grain > spread


def memory_type(value: SSAValue) -> MemRefType[Attribute]:
    assert isinstance(value.type, MemRefType), value.type
    return value.type  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]


@dataclass(frozen=True)
class Offsets:
    """An expression in the registers of a thread: every set bit of the register number adds one of `steps` to the value
    of register 0, which `divisor` divides in all threads; or every register has a value of its own, without steps."""

    form: Form
    steps: tuple[int, ...]
    divisor: int
    per_register: bool = False


Bounds: TypeAlias = Mapping[SSAValue, int]
"""Symbol -> an upper bound, exclusive."""


class TileForms:
    """Expressions over a tile of `layout` and `symbols`, scalar indices of the tile level."""

    def __init__(
        self, layout: Linear, symbols: Sequence[SSAValue], gathered: Sequence[bool] = (), below: Bounds | None = None
    ) -> None:
        """`gathered` symbols have a value for every register; `below` has bounds of symbols."""
        self.layout = layout
        self.divisors = [divisor_of(s) for s in symbols]
        self.gathered = gathered or [False] * len(symbols)
        ranges = [range_of_value(s) for s in symbols]
        if below:
            ranges = [_limited(r, below.get(s)) for r, s in zip(ranges, symbols, strict=True)]
        self.simplifier = Simplifier(layout.shape, ranges)
        self._dims = [dim(i) if n != 1 else constant(0) for i, n in enumerate(layout.shape)]
        self._symbols = [
            symbol(i) if not isinstance(r, tuple) or r[1] - r[0] != 1 else constant(r[0]) for i, r in enumerate(ranges)
        ]
        self.clean = [is_disjoint([b[d] for b in layout.bases]) for d in range(len(layout.shape))]
        """Whether index d is the sum, not only the exclusive or, of what the bits of register and thread add."""

    def form(self, expr: AffineExpr) -> Form:
        """Returns `expr`, simplified in the ranges of the tile and its symbols."""
        return self.simplifier.read(expr, self._dims, self._symbols)

    def offsets(self, form: Form) -> Offsets:
        steps = [0] * len(self.layout.reg)
        if not all(self.is_scalar(atom) or atom[0] == DIM and self.clean[number_of(atom)] for atom, _ in form.terms):
            return Offsets(form, tuple(steps), 1, per_register=True)
        divisor = form.constant
        for atom, factor in form.terms:
            if atom[0] == DIM:
                number = number_of(atom)
                for bit, basis in enumerate(self.layout.reg):
                    steps[bit] += factor * basis[number]
                divisor = gcd(divisor, *(factor * b[number] for b in (*self.layout.lane, *self.layout.warp)))
            else:
                divisor = gcd(divisor, factor * (self.divisors[number_of(atom)] if atom[0] == SYM else 1))
        return Offsets(form, tuple(steps), divisor)

    def is_scalar(self, atom: Atom) -> bool:
        if atom[0] == SYM:
            return not self.gathered[number_of(atom)]
        return atom[0] != DIM and all(self.is_scalar(a) for a in Form(atom[1], atom[2]).atoms())


def _limited(values: Range, bound: int | None) -> Range:
    if bound is None or not isinstance(values, tuple):
        return values
    return values[0], max(values[0] + 1, min(values[1], bound))
