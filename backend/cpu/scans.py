"""Scans of registers in a block that is one thread: along the lanes of SIMD vectors, or down their columns."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from xdsl.dialects.builtin import i1

from ...dialects.kernel import ScanRegistersOp
from ...dialects.payload import element_type
from ...dialects.payload.folding import constant_of
from ...dialects.tensor import MONOIDS, identity
from ...target.model import MAX_LANES
from ..cpp.expressions import UNARY
from ..cpp.names import hint_of
from ..cpp.ordering import registers
from .folds import HELPERS, combiner, combining

if TYPE_CHECKING:
    from .groups import VectorStatements


class ScanLoop(NamedTuple):
    """Loop of a scan over `row` registers, of which `inner` neighbours are in different scans. `short`: registers of a
    row, where the loop takes several rows that are shorter than a vector; else 0."""

    row: int
    inner: int
    short: int = 0


def row_of_scan(op: ScanRegistersOp) -> ScanLoop | None:
    """Returns the loop of a scan; None if the bits of the scan have gaps, if no vector instruction combines two
    elements, or if rows are shorter than a vector and start with other values than the identity."""
    bits, size = [*op.bits.get_values()], registers(op.source)
    if not bits or bits != [*range(bits[0], bits[-1] + 1)] or element_type(op.source.type) == i1 or not combining(op):
        return None
    row, inner = 2 << bits[-1], 1 << bits[0]
    if row >= MAX_LANES:
        return ScanLoop(row, inner)
    alone = constant_of(op.init) == identity(op.kind.data, element_type(op.source.type)) and not op.carry.uses
    return ScanLoop(size, inner, row) if alone and size >= MAX_LANES else None


class RowScan:
    """Text of a scan inside of the loop over the vectors of a row, as a variable of the C++ class `Scan`."""

    def __init__(self, statements: VectorStatements, op: ScanRegistersOp) -> None:
        self.op, self.writer = op, statements.writer
        name = MONOIDS[op.kind.data].combiner(op.result.type).name
        for helper in ("vector.scan", *([HELPERS[name]] if name in HELPERS else [])):
            self.writer.use(helper)
        found = row_of_scan(op)
        assert found is not None
        self.row, self.inner, self.short = found
        self.several = registers(op.carry) > 1
        self.carry = self.writer.declare(op.carry) if self.several and op.carry.uses else None
        self.name = self.writer.names.mint(hint_of(op.result))
        self.element = self.writer.type_of(op.source)
        neutral = identity(op.kind.data, element_type(op.source.type))
        self.neutral = f"({self.element}){self.writer.literal(neutral, op.source.type).at(UNARY)}"

    def _at(self, lane: str) -> str:
        """The number of the carry of a lane in the current row."""
        rows = registers(self.op.source) // self.row
        return f"row / {self.row} * {self.inner} + {lane}" if rows > 1 else lane

    def begin(self) -> None:
        """Declares the scan of a row, with the values that it starts with."""
        writer, op = self.writer, self.op
        same = constant_of(op.init) is not None or not self.several
        start = writer.read(op.init, 0 if same else self._at("l")).text
        short = f", {self.short}" if self.short else ""
        writer.line(f"Scan<{self.element}, {self.inner}{short}> {self.name};")
        writer.line(f"{self.name}.start_row([&](int l) {{ return ({self.element}){start}; }}, {self.neutral});")

    def next(self, source: str) -> str:
        """Returns the text of the scan of the vector `source`."""
        return f"{self.name}.next_vector({source}, i, {self.neutral}, {combiner(self.op)})"

    def end(self) -> None:
        """Stores the last elements of a row."""
        last = f"{self.name}.last_lane({'l' if self.several else '0'}, {combiner(self.op)})"
        if self.carry is not None:
            self.writer.line(f"for (int l = 0; l < {self.inner}; ++l) {self.carry[self._at('l')].text} = {last};")
        elif self.op.carry.uses and not self.several:
            self.writer.start(self.op.carry, last)
