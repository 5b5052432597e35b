"""Printing of elementwise operations, reductions and scans of registers as C++ on SIMD vectors."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from xdsl.dialects.builtin import f32, i1
from xdsl.ir import Attribute

from ...dialects.kernel import AtomicRmwOp, ReduceRegistersOp, ScanRegistersOp
from ...dialects.payload import constant_of, element_type, is_float
from ...dialects.tensor import MONOIDS, identity
from ...target.model import MAX_LANES
from ..cpp.expressions import ATOM, BIT_AND, BIT_OR, BIT_XOR, OPERATORS, WRAPPING, Expr, c_size, call, infix
from ..cpp.ordering import registers
from ..cpp.writer import hint_of

if TYPE_CHECKING:
    from .groups import VectorStatements

FUNCTION_OPERATIONS = 32
"""Estimated vector operations of one math function. Counted: 20 for exp, 45 for erf."""

_LIBRARY = "acos acosh asin asinh atan atanh atan2 cbrt cosh log10 pow sinh tan".split()
"""Functions that glibc computes, for f32 and f64; on vectors (libmvec) if it can."""

FUNCTIONS = dict.fromkeys("expf exp2f logf tanhf erff".split(), "vector.{}") | {"expm1f": "vector.expf"}
FUNCTIONS |= dict.fromkeys(("log2f", "log1pf"), "vector.logf") | dict.fromkeys(("sinf", "cosf"), "vector.turn")
FUNCTIONS |= dict.fromkeys("sqrtf rsqrtf fabsf floorf ceilf truncf rintf".split(), "vector.builtin")
FUNCTIONS |= {f"{name}f": "vector.library.f32" for name in _LIBRARY}
FUNCTIONS |= dict.fromkeys((*_LIBRARY, *"cos erf exp exp2 expm1 log log1p log2 sin tanh".split()), "vector.library.f64")
FUNCTIONS |= dict.fromkeys("sqrt rsqrt fabs floor ceil trunc rint".split(), "vector.builtin.f64")
"""Name of a C math function -> section of functions.hpp that defines it for vectors."""

_FUNCTION = re.compile(rf"\b(?:{'|'.join(name for name, section in FUNCTIONS.items() if 'builtin' not in section)})\(")

HELPERS = {"payload.logaddexp": "vector.log_add_exp"}
"""Binary operation that is printed as a call -> section of functions.hpp with the function, on vectors of f32."""

BITWISE = (BIT_AND, BIT_XOR, BIT_OR)
"""Precedence levels of bitwise operators. Only these apply to masks (vectors of i1)."""


def operations(lines: Sequence[str]) -> int:
    """Estimates the vector operations in lines of C++: one for a line, more for functions and loops over lanes."""
    text = "\n".join(lines)
    by_lanes = text.count("each<") + text.count("PER_LANE")
    return len(lines) + MAX_LANES * by_lanes + FUNCTION_OPERATIONS * len(_FUNCTION.findall(text))


def combined(name: str, element: Attribute, operands: Sequence[Expr], whole: Sequence[Expr]) -> Expr | None:
    """Returns a binary operation on vectors, or None if it must be computed lane by lane.

    Args:
        name: name of the operation.
        element: element type.
        operands: the operands; one may be a scalar. Infix operators on elements of 4 or more bytes use them.
        whole: the operands, both as vectors. Functions and narrower elements use them.
    """
    operator, narrow = OPERATORS.get(name), c_size(element) < 4
    if name in HELPERS and element != f32:
        return None
    if operator is None or narrow and is_float(element) or element == i1 and operator.level not in BITWISE:
        return None
    if operator.level != ATOM:
        is_supported = is_float(element) or name in WRAPPING or operator.level in BITWISE
        lhs, rhs = whole if narrow else operands
        return infix(lhs, operator.symbol, rhs, operator.level) if is_supported else None
    function = operator.symbol if is_float(element) else {"arith.maxsi": "larger", "arith.minsi": "smaller"}.get(name)
    return None if function is None else call(function, whole)


def combining(op: ReduceRegistersOp | ScanRegistersOp | AtomicRmwOp, a: str = "a", b: str = "b") -> str | None:
    """Returns the C++ that combines two vectors or elements of a reduced value, or None if there is none.

    Args:
        op: the reduction, scan or atomic operation.
        a, b: C++ of the operands.
    """
    both, t = (Expr(a), Expr(b)), op.value.type if isinstance(op, AtomicRmwOp) else op.result.type
    combination = combined(MONOIDS[op.kind.data].combiner(t).name, element_type(t), both, both)
    return None if combination is None else combination.text


def row_of(op: ReduceRegistersOp) -> int | None:
    """Returns the row length of a reduction along rows, or None for other reductions.

    The reduction combines each row, a number of contiguous registers, into one register.
    """
    bits = sorted(op.bits.get_values())
    return 1 << len(bits) if combining(op) is not None and bits == list(range(len(bits))) else None


def columns_of(op: ReduceRegistersOp) -> int | None:
    """Returns the row length of a reduction over rows, or None for other reductions.

    The reduction combines rows elementwise. A row is a multiple of `MAX_LANES` registers.
    """
    bits = sorted(op.bits.get_values())
    wide = bits and 1 << bits[0] >= MAX_LANES and bits == [*range(bits[0], bits[-1] + 1)]
    return 1 << bits[0] if wide and combining(op) is not None else None


def combiner(op: ReduceRegistersOp | ScanRegistersOp | AtomicRmwOp) -> str:
    """Returns the C++ lambda that combines two partial results of a reduction, as vectors or scalars."""
    return f"[](auto a, auto b) {{ return {combining(op)}; }}"


class ScanLoop(NamedTuple):
    """Loop of a scan over vectors.

    Attributes:
        row: number of registers that one execution of the loop visits.
        inner: number of interleaved scans: registers r and r + inner belong to the same scan.
        short: row length in registers if the loop scans several rows, each shorter than a vector; otherwise 0.
    """

    row: int
    inner: int
    short: int = 0


def row_of_scan(op: ScanRegistersOp) -> ScanLoop | None:
    """Returns the loop of a scan, or None.

    There is no loop if the register bits of the scan are not contiguous, or if no vector operation combines elements.
    Rows that are shorter than a vector have a loop only if their initial value is the identity.
    """
    bits, size = [*op.bits.get_values()], registers(op.source)
    if not bits or bits != [*range(bits[0], bits[-1] + 1)] or element_type(op.source.type) == i1 or not combining(op):
        return None
    row, inner = 2 << bits[-1], 1 << bits[0]
    if row >= MAX_LANES:
        return ScanLoop(row, inner)
    alone = constant_of(op.init) == identity(op.kind.data, element_type(op.source.type)) and not op.carry.uses
    return ScanLoop(size, inner, row) if alone and size >= MAX_LANES else None


class RowScan:
    """Printer of one scan in a loop over vectors. The running value is a C++ variable of the class `Scan`."""

    def __init__(self, statements: VectorStatements, op: ScanRegistersOp) -> None:
        self.op, self.writer = op, statements.writer
        name = MONOIDS[op.kind.data].combiner(op.result.type).name
        for helper in ("vector.scan", *([HELPERS[name]] if name in HELPERS else [])):
            self.writer.use(helper)
        loop = row_of_scan(op)
        assert loop is not None
        self.row, self.inner, self.short = loop
        self.several = registers(op.carry) > 1
        self.carry = self.writer.declare(op.carry) if self.several and op.carry.uses else None
        self.name = self.writer.names.mint(hint_of(op.result))
        self.element = self.writer.type_of(op.source)
        self.neutral = self.writer.identity(op)

    def _at(self, lane: str) -> str:
        """Returns the C++ index, in the array of initial or last values, of interleaved scan number `lane`."""
        rows = registers(self.op.source) // self.row
        return f"row / {self.row} * {self.inner} + {lane}" if rows > 1 else lane

    def begin(self) -> None:
        """Prints the start of a row: the declaration of the `Scan`, and its initial value."""
        writer, op = self.writer, self.op
        is_scalar = constant_of(op.init) is not None or not self.several
        start = writer.read(op.init, 0 if is_scalar else self._at("l")).text
        short = f", {self.short}" if self.short else ""
        writer.line(f"Scan<{self.element}, {self.inner}{short}> {self.name};")
        writer.line(f"{self.name}.start_row([&](int l) {{ return ({self.element}){start}; }}, {self.neutral});")

    def next(self, source: str) -> str:
        """Returns the C++ of the scanned vector for the next vector `source`."""
        return f"{self.name}.next_vector({source}, i, {self.neutral}, {combiner(self.op)})"

    def end(self) -> None:
        """Prints the assignment of the last elements of a row to the result `carry`, if it is used."""
        last = f"{self.name}.last_lane({'l' if self.several else '0'}, {combiner(self.op)})"
        if self.carry is not None:
            self.writer.line(f"for (int l = 0; l < {self.inner}; ++l) {self.carry[self._at('l')].text} = {last};")
        elif self.op.carry.uses and not self.several:
            self.writer.start(self.op.carry, last)
