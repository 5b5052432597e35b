"""How values of a block that is one thread are read: as SIMD vectors, or lane by lane."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from xdsl.dialects.builtin import i1
from xdsl.ir import Operation, SSAValue

from ...dialects import kernel
from ...dialects.kernel.memory import LoadOp
from ...dialects.payload import element_type
from ...target.model import LINE, MAX_LANES
from ..cpp.expressions import EQUALITY, UNARY, Expr, add, multiply
from ..cpp.ordering import is_view, linear_steps, registers
from ..cpp.writer import Place, Writer
from ..dtypes import STRUCTS
from .ends import Ends
from .ordering import is_same_in_lanes
from .panels import SIDE_BY_SIDE

VECTOR, LANE = "i", "i + l"
"""The first register of a vector in a loop over them, and the register of one lane."""


class Lanes(NamedTuple):
    """What is read of a value in a loop over vectors: a vector of the C++ type `element`, or a scalar, if all lanes are
    the same."""

    text: Expr
    is_vector: bool
    element: str

    @property
    def whole(self) -> Expr:
        """A vector, also of what is the same in all lanes."""
        return self.text if self.is_vector else Expr(f"all(({self.element}){self.text.at(UNARY)})")


class VectorWriter(Writer):
    """The text of a kernel whose blocks are one thread."""

    def __init__(self, func: kernel.FuncOp) -> None:
        super().__init__(func)
        self.scalars = replace(self.scalars, exact=True)
        self.locals: dict[SSAValue, Lanes] = {}
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
            return self._lane(local.text.text, value) if local.is_vector and register == LANE else local.text
        return super().read(value, register)

    def array(self, place: Place, value: SSAValue, start: str = "", head: str = "") -> None:
        """Arrays begin where vectors do: no vector of them lies in two lines of a cache."""
        super().array(place, value, start, f"alignas({LINE}) " if place.size >= MAX_LANES else head)

    def unroll(self, times: str = "", pad: str = "") -> None:
        """Compilers for CPUs know when to unroll loops over single elements."""

    def _lane(self, vector: str, value: SSAValue) -> Expr:
        if element_type(value.type) == i1:
            return Expr(f"{vector}[l] != 0", EQUALITY)
        return Expr(f"lane({vector}, l)" if self.type_of(value) in STRUCTS else f"{vector}[l]")

    def lanes(self, value: SSAValue, text: Expr, is_vector: bool = True) -> Lanes:
        """What is read of a value is `text`."""
        return Lanes(text, is_vector, self.type_of(value))

    def read_vector(self, value: SSAValue) -> Lanes:
        """What is read of a value in a loop over vectors, from the register `VECTOR` on."""
        if value in self.locals:
            return self.locals[value]
        if value in self.places and is_same_in_lanes(value):
            return self.lanes(value, self.read(value, VECTOR), False)
        op, memory, steps = value.owner, value, [1 << bit for bit in range(registers(value).bit_length() - 1)]
        if value not in self.places and isinstance(op, Operation) and is_view(op):
            linear = linear_steps(op.registers) if isinstance(op, kernel.ShuffleRegistersOp) else None
            memory, steps = (op.operands[0], linear[1]) if linear is not None else (value, ())
        text, low, counted = self.read(value, VECTOR), [*steps[:4]], memory.owner
        if isinstance(counted, kernel.IndicesOp) and (memory is value or low == SIDE_BY_SIDE):
            low, memory = [*counted.steps.get_values()[:4]], value
        if not any(low):
            return self.lanes(value, text, False)
        if memory in self.places and (near := self.near(value, low, text.text)) is not None:
            return self.lanes(value, near)
        if memory is value and low == [low[0] << n for n in range(4)]:
            return self.lanes(value, add(text, multiply(Expr(f"numbers<{self.index}>()"), low[0])))
        return self.lanes(value, self.by_lanes(value, self.read(value, LANE).text))

    def near(self, value: SSAValue, steps: Sequence[int], first: str) -> Expr | None:
        """A vector of elements that lie such steps from the `first` one in memory; None if they are too far apart."""
        if steps == SIDE_BY_SIDE:
            return Expr(f"load(&{first})")
        near = len(steps) == 4 and any(steps) and all(abs(step) <= 2 << bit for bit, step in enumerate(steps))
        plain = self.type_of(value) not in (*STRUCTS, "bool")
        return Expr(f"load_near<{', '.join(map(str, steps))}>(&{first})") if near and plain else None

    def by_lanes(self, value: SSAValue, single: str) -> Expr:
        """A vector of the registers of `value`, each computed by the text `single`."""
        return Expr(f"each<{self.type_of(value)}>([&](int l) {{ return {single}; }})")
