"""How values of a block that is one thread are read: as SIMD vectors, or lane by lane."""

from __future__ import annotations

import re
from dataclasses import dataclass

from xdsl.dialects.builtin import i1
from xdsl.ir import Operation, SSAValue

from ...dialects import kernel
from ...dialects.kernel.memory import LoadOp
from ...dialects.payload import element_type
from ..cuda.expressions import ADD, EQUALITY, MUL, UNARY, Expr, add, infix
from ..cuda.ordering import is_view, linear_steps, registers
from ..cuda.writer import Place, Writer, terms
from ..dtypes import STRUCTS
from .ends import Ends
from .ordering import WIDEST

LINE = 64
"""Bytes of a line of a cache, which the widest vectors fill."""

VECTOR, LANE = "i", "i + l"
"""The first register of a vector in a loop over them, and the register of one lane."""


@dataclass(frozen=True)
class Local:
    """A value inside of a group's loop: a vector, or a scalar."""

    name: str
    is_vector: bool


class VectorWriter(Writer):
    """The text of a kernel whose blocks are one thread."""

    def __init__(self, func: kernel.FuncOp) -> None:
        super().__init__(func)
        self.locals: dict[SSAValue, Local] = {}
        self.ends = Ends()
        self.prefetched: set[LoadOp] = set()
        self.row = 0
        """Registers of a row, inside of a loop over the rows of a group: each begins at the register `row`."""

    def line(self, text: str) -> None:
        """Within a row the parts of a register's number are known: compilers do not see that the low one counts up and
        the high one stays, and would take both apart for every vector."""
        if self.row:
            bits = self.row.bit_length() - 1
            text = re.sub(rf"\b{VECTOR} & {self.row - 1}\b", f"{VECTOR} - row", text)
            text = re.sub(rf"\b{VECTOR} >> {bits}\b", f"row >> {bits}", text)
        super().line(text)

    def read(self, value: SSAValue, register: int | str = 0) -> Expr:
        local = self.locals.get(value)
        if local is not None:
            return self._lane(local, value) if local.is_vector and register == LANE else Expr(local.name)
        return super().read(value, register)

    def array(self, place: Place, value: SSAValue, start: str = "") -> None:
        """Arrays begin where vectors do: no vector of them lies in two lines of a cache."""
        super().array(place, value, start)
        if place.size >= WIDEST:
            text = self.lines[-1].lstrip()
            self.lines[-1] = f"{self.lines[-1][: -len(text)]}alignas({LINE}) {text}"

    def unroll(self, times: str = "", pad: str = "") -> None:
        """Compilers for CPUs know when to unroll loops over single elements."""

    def _lane(self, local: Local, value: SSAValue) -> Expr:
        if element_type(value.type) == i1:
            return Expr(f"{local.name}[l] != 0", EQUALITY)
        return Expr(f"lane({local.name}, l)" if self.type_of(value) in STRUCTS else f"{local.name}[l]")

    def read_vector(self, value: SSAValue) -> tuple[Expr, bool]:
        """A vector of registers of a value, from `VECTOR` on; or a scalar, if they are all the same, and which of the
        two it is."""
        local = self.locals.get(value)
        if local is not None:
            return Expr(local.name), local.is_vector
        op = value.owner
        if value in self.places or not isinstance(op, Operation) or not is_view(op):
            if registers(value) == 1:
                return self.read(value), False
            return Expr(f"load(&{self.read(value, VECTOR).text})"), True
        if isinstance(op, kernel.ShuffleRegistersOp) and registers(op.source) > 1:
            steps = linear_steps(op.registers)
            assert steps is not None
            low = steps[1][:4]
            if not any(low):
                return self.read(value, VECTOR), False
            if low == (1, 2, 4, 8) and op.source in self.places:
                return Expr(f"load(&{self.read(value, VECTOR).text})"), True
            return self.by_lanes(value, self.read(value, LANE).text), True
        if isinstance(op, kernel.IndicesOp):
            steps = list(op.steps.get_values())
            low, step = steps[:4], steps[0]
            if not any(low):
                return self.read(value, VECTOR), False
            if low == [step << n for n in range(4)]:
                base = add(self.read(op.origin), terms(VECTOR, steps))
                own = Expr(f"numbers<{self.index}>()")
                own = own if step == 1 else infix(own, "*", Expr(str(step), UNARY if step < 0 else UNARY + 5), MUL)
                return (own if base.text == "0" else infix(base, "+", own, ADD)), True
            return self.by_lanes(value, self.read(value, LANE).text), True
        return self.read(value), False

    def by_lanes(self, value: SSAValue, single: str) -> Expr:
        """A vector of the registers of `value`, each computed by the text `single`."""
        return Expr(f"each<{self.type_of(value)}>([&](int l) {{ return {single}; }})")
