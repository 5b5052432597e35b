"""How an affine expression of a tile's indices varies over the registers and threads of a layout.

Of one expression, register 0 of a thread has some value, and every bit of the register number adds a step to it. What
is known of both without emitting anything: the steps, and a number that divides the value of register 0 in all threads.
Expressions that are not linear in the tile's indices, and gathers, have a value of their own in every register.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import gcd

from xdsl.ir import SSAValue
from xdsl.ir.affine import AffineExpr

from ...dialects.layouts.linear import Linear, is_disjoint
from ...dialects.shapes.affine import DIM, SYM, Atom, Form, Range, Simplifier, constant, dim, number_of, symbol
from ...dialects.shapes.ranges import divisor_of, range_of_value


@dataclass(frozen=True)
class Offsets:
    """One expression in the registers of a thread.

    `steps` is what each set bit of the register number adds to the value of register 0, which `divisor` divides in all
    threads; or every register has a value of its own, and the steps are zero.
    """

    form: Form
    steps: tuple[int, ...]
    divisor: int
    per_register: bool = False


class TileForms:
    """Expressions over a tile of `layout` and `symbols`, scalar indices of the tile level."""

    def __init__(
        self,
        layout: Linear,
        symbols: Sequence[SSAValue],
        gathered: Sequence[bool] = (),
        below: Mapping[SSAValue, int] | None = None,
    ) -> None:
        """`gathered` symbols have a value for every register; `below` are upper bounds of symbols that hold wherever
        the expressions are used."""
        self.layout = layout
        self.divisors = [divisor_of(s) for s in symbols]
        self.gathered = tuple(gathered) or (False,) * len(symbols)
        ranges = [_limited(range_of_value(s), (below or {}).get(s)) for s in symbols]
        self.simplifier = Simplifier(layout.shape, ranges)
        self._dims = [dim(i) if n != 1 else constant(0) for i, n in enumerate(layout.shape)]
        self._symbols = [
            symbol(i) if not isinstance(r, tuple) or r[1] - r[0] != 1 else constant(r[0]) for i, r in enumerate(ranges)
        ]
        self.clean = [is_disjoint([b[d] for b in layout.bases]) for d in range(len(layout.shape))]
        """Whether index d is the sum, not only the exclusive or, of what the bits of register and thread add."""

    def form(self, expr: AffineExpr) -> Form:
        """`expr`, simplified in the ranges of the tile and its symbols."""
        return self.simplifier.read(expr, self._dims, self._symbols)

    def offsets(self, form: Form) -> Offsets:
        """How `form` varies over the registers."""
        steps = [0] * len(self.layout.reg)
        if not all(self.is_scalar(atom) or self._is_linear(atom) for atom, _ in form.terms):
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
        """Whether the atom has one value for the whole tile."""
        if atom[0] == SYM:
            return not self.gathered[number_of(atom)]
        return atom[0] != DIM and all(self.is_scalar(a) for a in Form(atom[1], atom[2]).atoms())

    def _is_linear(self, atom: Atom) -> bool:
        return atom[0] == DIM and self.clean[number_of(atom)]


def _limited(values: Range, bound: int | None) -> Range:
    """A range below `bound` as well."""
    if bound is None or not isinstance(values, tuple):
        return values
    return values[0], max(values[0] + 1, min(values[1], bound))
