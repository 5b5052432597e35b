"""Vectorisation of accesses to global memory: the widest loads and stores that are provably aligned and contiguous.

A thread holds its elements of a tile in registers. A coordinate is often affine in the register number: register 0 has
a base value, and each bit of the register number adds a constant *step*. This file computes the steps and a divisor of
all base values (`Offsets`). Coordinates that are not affine, and gathers, need a value for every register instead
(`per_register`).
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
"""Maximum number of bytes that one thread loads or stores with one instruction."""


@dataclass
class Access:
    """Attributes of the `kernel.load` or `kernel.store` of one tile.

    coordinates  coordinate in each dimension of the memory
    checks       expressions that are compared with bounds
    bounds       for each check the bounds, the upper one exclusive
    vec          elements of one vector access
    never        true if no element of the tile is within the bounds
    """

    coordinates: list[Offsets]
    checks: list[Offsets]
    bounds: list[tuple[int, Extent]]
    vec: int
    never: bool

    @property
    def per_register(self) -> bool:
        """True if some coordinate or check has a separate value for every register."""
        return any(p.per_register for p in (*self.coordinates, *self.checks))

    def regs(self, bits: int) -> list[list[int]]:
        """Returns, for each of the `bits` of the register number, its step in each dimension of the memory."""
        return [[p.steps[b] for p in self.coordinates] for b in range(bits)]

    def steps(self, bits: int) -> list[list[int]]:
        """Returns, for each of the `bits` of the register number, its step in each check; 0 for bits of one vector."""
        low = log2(self.vec)
        return [[0 if b < low else c.steps[b] for c in self.checks] for b in range(bits)]


def plan_access(op: tile.LoadOp | Write | tile.StageAsyncOp, forms: TileForms, memory: Attribute) -> Access:
    """Returns the coordinates of an access, the checks that are not always true, and the widest legal vector.

    Args:
        op: the load, store or asynchronous copy of a tile.
        forms: expressions over the tile and the symbols of `op`.
        memory: type of the memory.
    """
    access = Access([forms.offsets(forms.form(e)) for e in op.map.data.results], [], [], 1, False)
    if op.domain is not None:
        for expr, (lo, hi) in zip(op.domain.affine.results, op.domain.limits, strict=True):
            form = forms.form(expr)
            if not forms.simplifier.within(form, lo, hi):
                access.never |= forms.simplifier.outside(form, lo, hi)
                access.checks.append(forms.offsets(form))
                access.bounds.append((lo, hi))
    # On a CPU (one lane) the C++ compiler forms vectors, which need no alignment. Atomic operations have one element.
    single = forms.layout.lanes == 1 or isinstance(op, tile.AtomicRmwOp)
    if access.coordinates and not access.per_register and not single:
        access.vec = _width(access, len(forms.layout.reg), memory)
    return access


def _width(access: Access, bits: int, memory: Attribute) -> int:
    """Returns the number of elements of a vector access.

    Its registers must be contiguous in memory and aligned, and all of them must have the same answer to each check.

    Args:
        access: the access, without `vec`.
        bits: bits of the register number.
        memory: type of the memory.
    """
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
    """Returns true if a check has the same answer for all registers that differ only in the lowest `low` bits.

    This holds if the values of such registers are between two consecutive multiples of a number that divides both
    bounds. A bound that is known only at run time has no known divisor.
    """
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
    """Values of an affine expression in the registers of a thread.

    form          the expression
    steps         step of each bit of the register number
    divisor       divisor of the value of register 0, in all threads
    per_register  true if the expression is not affine in the register number; then steps and divisor are unused
    """

    form: Form
    steps: tuple[int, ...]
    divisor: int
    per_register: bool = False


Bounds: TypeAlias = Mapping[SSAValue, int]
"""Symbol -> exclusive upper bound."""


class TileForms:
    """Affine expressions over the positions of a tile and scalar symbols.

    Attributes:
        layout: layout of the tile.
        divisors: a divisor of each symbol.
        gathered: for each symbol whether it has a value for every register.
        simplifier: ranges of positions and symbols.
        carry_free: for each dimension d whether the bases of d have disjoint bits. Then XOR of the bases, which
            defines the layout, equals addition.
    """

    def __init__(
        self, layout: Linear, symbols: Sequence[SSAValue], gathered: Sequence[bool] = (), below: Bounds | None = None
    ) -> None:
        """Initialises the ranges of all dims and symbols.

        Args:
            layout: layout of the tile.
            symbols: scalar operands of the expressions.
            gathered: for each symbol whether it has a value for every register; empty if none has.
            below: upper bounds of symbols, in addition to those that follow from their definition.
        """
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
        self.carry_free = [is_disjoint([b[d] for b in layout.bases]) for d in range(len(layout.shape))]

    def form(self, expr: AffineExpr) -> Form:
        """Returns `expr`, simplified in the ranges of the tile and its symbols."""
        return self.simplifier.read(expr, self._dims, self._symbols)

    def offsets(self, form: Form) -> Offsets:
        """Returns the values of a form in the registers of a thread."""
        steps = [0] * len(self.layout.reg)
        if not all(
            self.is_scalar(atom) or atom[0] == DIM and self.carry_free[number_of(atom)] for atom, _ in form.terms
        ):
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
        """Returns true if an atom of a form has one value for all registers of a thread."""
        if atom[0] == SYM:
            return not self.gathered[number_of(atom)]
        return atom[0] != DIM and all(self.is_scalar(a) for a in Form(atom[1], atom[2]).atoms())


def _limited(values: Range, bound: int | None) -> Range:
    if bound is None or not isinstance(values, tuple):
        return values
    return values[0], max(values[0] + 1, min(values[1], bound))
