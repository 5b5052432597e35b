"""Reading of values as SIMD vectors, or lane by lane, in the C++ of CPU kernels.

In a loop over vectors, `i` is the first register of the current vector, and `i + l` the register of lane `l`. A load
whose lanes have arbitrary addresses is printed as a gather: a vector of offsets, and a mask of the lanes in bounds.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from math import prod
from typing import NamedTuple

from xdsl.dialects.builtin import i1
from xdsl.ir import Operation, SSAValue

from ...dialects import kernel
from ...dialects.kernel import LoadOp
from ...dialects.payload import element_type
from ...dialects.shapes.extents import Extent
from ...dialects.tensor import identity
from ...target.model import LINE, MAX_LANES
from ..cpp.expressions import AND, EQUALITY, RELATION, UNARY, Expr, add, call, infix, multiply, terms
from ..cpp.memory import bit_steps, memory_name, open_checks, pitches
from ..cpp.ordering import is_view, linear_steps, registers
from ..cpp.writer import Variable, Writer, memory_extents
from ..dtypes import STRUCTS
from .ends import Ends
from .ordering import is_same_in_lanes
from .panels import SIDE_BY_SIDE

VECTOR, LANE = "i", "i + l"
"""C++ of the first register of the current vector, and of the register of one lane."""


class Lanes(NamedTuple):
    """C++ of a value in a loop over vectors.

    Attributes:
        text: the expression: a vector, or a scalar if the value is equal in all lanes.
        is_vector: whether `text` is a vector.
        element: C++ type of an element.
    """

    text: Expr
    is_vector: bool
    element: str

    @property
    def whole(self) -> Expr:
        """The value as a vector; a scalar is broadcast."""
        return self.text if self.is_vector else Expr(f"all(({self.element}){self.text.at(UNARY)})")


class VectorWriter(Writer):
    """Writer of a CPU kernel, whose blocks have one thread.

    Attributes:
        locals: values of the current vector loop that have a local C++ variable.
        ends: analysis of the padding of register arrays.
        prefetched: loads with a printed prefetch.
    """

    def __init__(self, func: kernel.FuncOp) -> None:
        super().__init__(func)
        self.scalars = replace(self.scalars, exact=True)
        self.locals: dict[SSAValue, Lanes] = {}
        self.ends = Ends()
        self.prefetched: set[LoadOp] = set()
        self.row = 0
        """Row length in registers inside a loop over rows, or 0. The C++ variable `row` is the row's first register."""

    def line(self, text: str) -> None:
        """Appends a line.

        The variable `row` is the first register of the current row. In a loop over rows, the position in the row is
        printed as `i - row` instead of `i & mask`, and the row's number as `row >> bits` instead of `i >> bits`:
        compilers do not detect that the high bits of `i` are constant in a row.
        """
        if self.row:
            bits = self.row.bit_length() - 1
            text = re.sub(rf"\b{VECTOR} & {self.row - 1}\b", f"{VECTOR} - row", text)
            text = re.sub(rf"\b{VECTOR} >> {bits}\b", f"row >> {bits}", text)
        super().line(text)

    def read(self, value: SSAValue, register: int | str = 0) -> Expr:
        """Returns the C++ of one register of `value`, or of the vector of registers if `register` is `VECTOR`."""
        local = self.locals.get(value)
        if local is None or not local.is_vector or register != LANE:
            return super().read(value, register) if local is None else local.text
        if element_type(value.type) == i1:
            return Expr(f"{local.text.text}[l] != 0", EQUALITY)
        return Expr(f"lane({local.text.text}, l)" if local.element in STRUCTS else f"{local.text.text}[l]")

    def array(self, variable: Variable, value: SSAValue, start: str = "", head: str = "") -> None:
        """Declares an array that is aligned to a cache line, so that no vector crosses a line.

        Args:
            variable: name and size.
            value: value that it holds.
            start: initial value.
            head: text before the declaration, such as an alignment; ignored for arrays of at least `MAX_LANES`
                elements.
        """
        super().array(variable, value, start, f"alignas({LINE}) " if variable.size >= MAX_LANES else head)

    def unroll(self, times: str = "", pad: str = "") -> None:
        """Prints nothing: compilers for CPUs choose the unrolling of loops over single elements."""

    def lanes(self, value: SSAValue, text: Expr, is_vector: bool = True) -> Lanes:
        """Returns `text` as the C++ of `value`, with the value's element type.

        Args:
            value: the value.
            text: the expression.
            is_vector: whether the expression is a vector, and not a scalar.
        """
        return Lanes(text, is_vector, self.type_of(value))

    def read_vector(self, value: SSAValue) -> Lanes:
        """Returns the current vector of `value`: the registers from `i` on."""
        if value in self.locals:
            return self.locals[value]
        if value in self.variables and is_same_in_lanes(value):
            return self.lanes(value, self.read(value, VECTOR), False)
        op, memory, steps = value.owner, value, [1 << bit for bit in range(registers(value).bit_length() - 1)]
        if value not in self.variables and isinstance(op, Operation) and is_view(op):
            linear = linear_steps(op.registers) if isinstance(op, kernel.ShuffleRegistersOp) else None
            memory, steps = (op.operands[0], linear[1]) if linear is not None else (value, ())
        text, low, counted = self.read(value, VECTOR), [*steps[:4]], memory.owner
        if isinstance(counted, kernel.IndicesOp) and (memory is value or low == SIDE_BY_SIDE):
            low, memory = [*counted.steps.get_values()[:4]], value
        if not any(low):
            return self.lanes(value, text, False)
        if memory in self.variables and (near := self.near(value, low, text.text)) is not None:
            return self.lanes(value, near)
        if memory is value and (across := _across(low, self.index)) is not None:
            return self.lanes(value, add(text, across))
        return self.lanes(value, self.by_lanes(value, self.read(value, LANE).text))

    def near(self, value: SSAValue, steps: Sequence[int], first: str) -> Expr | None:
        """Returns a vector of elements that one or two loads can cover, or None if they are too far apart in memory.

        Args:
            value: value with the element type of the vector.
            steps: offsets of lanes 1, 2, 4 and 8 in elements.
            first: C++ of the first element.
        """
        if steps == SIDE_BY_SIDE:
            return Expr(f"load(&{first})")
        near = len(steps) == 4 and any(steps) and all(abs(step) <= 2 << bit for bit, step in enumerate(steps))
        plain = self.type_of(value) not in (*STRUCTS, "bool")
        return Expr(f"load_near<{', '.join(map(str, steps))}>(&{first})") if near and plain else None

    def fill(self, op: LoadOp) -> str:
        """Returns the fill value of a load, as C++."""
        return f"({self.type_of(op.result)}){'0' if op.fill is None else self.read(op.fill).text}"

    def identity(self, op: kernel.ReduceRegistersOp | kernel.ScanRegistersOp) -> str:
        """Returns the identity of a reduction or scan, as C++."""
        t = op.source.type
        return f"({self.type_of(t)}){self.scalars.literal(identity(op.kind.data, element_type(t)), t).at(UNARY)}"

    def by_lanes(self, value: SSAValue, single: str) -> Expr:
        """Returns a vector that is computed lane by lane.

        Args:
            value: value with the element type of the vector.
            single: C++ of one element, in terms of the lane `l`.
        """
        return Expr(f"each<{self.type_of(value)}>([&](int l) {{ return {single}; }})")


ELEMENTS = ("float", "double", "int", "long long")
"""C++ types of elements that can be gathered."""

LARGEST = 2**31 - 1
"""Largest number of elements of a gathered buffer: offsets have 32 bits."""

Holds = Callable[[SSAValue, Sequence[int], Extent], bool]
"""Function of (value, steps, bound) that returns true if the bounds check holds in all iterations of the loop."""


def gathered(writer: VectorWriter, op: LoadOp, holds: Holds) -> Expr | None:
    """Returns the C++ of a load as a gather, or None if it cannot be a gather.

    Args:
        writer: the writer.
        op: the load. Coordinates or checks differ between lanes.
        holds: function that returns true if a bounds check holds in all iterations of the loop.
    """
    extents, element = memory_extents(op.memory.type), writer.type_of(op.result)
    static = [e for e in extents if isinstance(e, int)]
    fits = len(static) == len(extents) and prod(static) <= LARGEST
    if not fits or element not in ELEMENTS or op.vec.data > 1 or op.xor is not None:
        return None
    steps = bit_steps(op)
    base, offset = terms(VECTOR, steps), Expr("0")
    for coordinate, (number, _) in zip(op.coordinates, pitches(extents), strict=True):
        read = writer.read_vector(coordinate)
        if read.is_vector:
            offset = add(offset, multiply(_narrow(read), number))
        else:
            base = add(base, multiply(read.text, number))
    across, mask = _across(steps, "int"), _mask(writer, op, holds)
    if across is None or mask is None:
        return None
    name, fill = memory_name(writer, op.memory), writer.fill(op)
    memory = f"&{name}[{base.text}], &{name}[{prod(static)}]"
    if across.text != "0" and offset.text == "0":
        return Expr(f"load_every<{steps[0]}>({memory}, {mask}, {fill})")
    offset = add(offset, across)
    offset = Expr("vec<int>{}") if offset.text == "0" else offset
    return Expr(f"gather({memory}, {offset.text}, {mask}, {fill})")


def _across(steps: Sequence[int], element: str) -> Expr | None:
    """Returns the C++ vector of lane offsets `lane * step`, or None if the offsets have no constant step.

    Args:
        steps: step of each bit of a register number. The four lowest bits are the lane.
        element: C++ type of the offsets.
    """
    low = [*steps[:4]]
    if any(low) and low != [low[0] << bit for bit in range(4)]:
        return None
    return multiply(Expr(f"numbers<{element}>()"), low[0] if any(low) else 0)


def _mask(writer: VectorWriter, op: LoadOp, holds: Holds) -> str | None:
    """Returns the C++ mask of the lanes that are in bounds, or None if it must be computed lane by lane.

    Args:
        writer: the writer.
        op: the load.
        holds: function that returns true if a bounds check holds in all iterations of the loop.
    """
    masks, conditions = list[str](), list[str]()
    for value, steps, lo, hi, under, over in open_checks(writer, op):
        if not under and holds(value, steps, hi):
            continue
        read = writer.read_vector(value)
        element = "int" if read.is_vector else writer.index
        across = _across(steps, element)
        if across is None or not isinstance(hi, int) or not 0 <= lo <= hi <= LARGEST:
            return None
        at = add(add(_narrow(read) if read.is_vector else read.text, terms(VECTOR, steps)), across)
        sides = [infix(at, ">=", Expr(str(lo)), RELATION)] if under else []
        sides += [infix(at, "<", Expr(str(hi)), RELATION)] if over else []
        if not read.is_vector and across.text == "0":
            conditions += [side.at(AND) for side in sides]
        else:
            masks += [f"({side.text})" if element == "int" else f"as_mask({side.text})" for side in sides]
    if conditions:
        masks.append(f"all((bool)({' && '.join(conditions)}))")
    return " & ".join(masks) or "all(true)"


def _narrow(read: Lanes) -> Expr:
    return read.text if read.element == "int" else call("narrow", [read.text])
