"""The text of one kernel while it grows: lines, names, places of values, and how a value is read."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import reduce
from math import prod

from xdsl.dialects import arith
from xdsl.dialects.builtin import IndexType, MemRefType, i64
from xdsl.ir import Attribute, Operation, SSAValue

from ...dialects.kernel import (
    ExtractOp,
    FuncOp,
    IndicesOp,
    LoadOp,
    SharedOp,
    ShuffleRegistersOp,
    SplatOp,
    WgmmaOp,
    is_shared,
)
from ...dialects.layouts.linear import combine
from ...dialects.payload import CastOp, ConstantOp, ExtentOp, element_type
from ...dialects.payload.folding import constant_of
from ...dialects.shapes.extents import Extent, SymbolAttr, extents_of, most
from ...dialects.shapes.ranges import Ranges
from ...dialects.support.locations import line_text, location_of
from ...errors import CompileError
from ..dtypes import STRUCTS
from .expressions import ATOM, BIT_XOR, UNARY, Expr, Scalars, add, c_size, c_type, infix, literal, multiply
from .names import Names, hint_of, sanitise
from .ordering import is_view, linear_steps, moved, registers

WIDE = 2**30
"""Buffers with more elements than this are indexed with 64 bits."""

Register = int | str
"""A register's number: a constant, or the name of the loop variable that runs over all of them."""


@dataclass(frozen=True)
class Place:
    """Where a value lives: a variable, or an array of `size` > 1. Arrays and `mutable` variables may be overwritten."""

    name: str
    size: int
    mutable: bool = False

    def __getitem__(self, register: Register) -> Expr:
        return Expr(self.name if self.size == 1 else f"{self.name}[{bare(str(register))}]")


def bare(text: str) -> str:
    """`text` without parentheses around all of it."""
    if text.startswith("(") and text.endswith(")"):
        depth = 0
        for position, c in enumerate(text):
            depth += {"(": 1, ")": -1}.get(c, 0)
            if depth == 0:
                return text[1:-1] if position == len(text) - 1 else text
    return text


class Writer:
    """One kernel's text and the state of printing it."""

    ids = {"block": "blockIdx.x", "thread": "threadIdx.x", "lane": "threadIdx.x % 32", "warp": "threadIdx.x / 32"}

    UNIFORM_WARP = "__shfl_sync(0xffffffffu, threadIdx.x / 32, 0)"
    """The number of the warp, which the compiler keeps in a uniform register in this form. Descriptors of `wgmma` that
    depend on it need no moves into uniform registers then. It takes a register where it is not recomputed, so it is for
    kernels whose threads compute operands of products, and issue more instructions than tensor cores wait for."""

    def __init__(self, func: FuncOp) -> None:
        self.func = func
        self.lines: list[str] = []
        self.names = Names()
        self.ranges = Ranges(func)
        self.places: dict[SSAValue, Place] = {}
        self.helpers: set[str] = set()
        self.index = index_type(func)
        self.scalars = Scalars(self.index, self.use, self.ranges)
        self.sizes: dict[SymbolAttr, Expr] = {}
        self.preferred: dict[SSAValue, Place] = {}
        self._arrays: dict[str, tuple[int, int]] = {}
        self._alignments: dict[str, int] = {}
        self._depth = 1
        self._scopes: list[dict[str, Expr]] = [{}]
        self._place_shown: str | None = None
        if any(isinstance(op, WgmmaOp) and op.lhs_offset is None for op in func.walk()):
            self.ids = {**self.ids, "warp": self.UNIFORM_WARP}

    def line(self, text: str) -> None:
        """Append a line at the current depth."""
        self.lines.append("  " * self._depth + text)

    @contextmanager
    def braces(self, head: str) -> Generator[None]:
        """A braced block under the line `head {`."""
        self.line(f"{head} {{")
        self._depth += 1
        self._scopes.append({})
        yield
        self._scopes.pop()
        self._depth -= 1
        self.line("}")

    @contextmanager
    def registers_loop(self, size: int, step: int = 1) -> Generator[Register]:
        """An unrolled loop over register numbers; nothing at all where there is one step."""
        if size == step:
            yield 0
            return
        self.unroll()
        with self.braces(f"for (int i = 0; i < {size}; {'++i' if step == 1 else f'i += {step}'})"):
            yield "i"

    def unroll(self, times: str = "", pad: str = "") -> None:
        """Have the next loop unrolled, `times` often if that says anything."""
        self.line(f"{pad}#pragma unroll{times}")

    def unrolled(self, *loops: tuple[str, int]) -> str:
        """Heads of unrolled loops around the next line, by variable and size, without those of one step; what the line
        is indented by."""
        pad = ""
        for variable, size in loops:
            if size > 1:
                self.unroll(pad=pad)
                self.line(f"{pad}for (int {variable} = 0; {variable} < {size}; ++{variable})")
                pad += "  "
        return pad

    def comment_place(self, op: Operation) -> None:
        """A comment with the source line of `op`, where it changes."""
        place = line_text(location_of(op))
        if place is None or op.results and all(isinstance(r.type, IndexType) for r in op.results):
            return
        if place != self._place_shown:
            self._place_shown = place
            self.line(f"// {sanitise(place)}")

    def use(self, helper: str) -> None:
        """Remember that the kernel needs a helper."""
        self.helpers.add(helper)

    def type_of(self, value: SSAValue | Attribute) -> str:
        """The C++ type of one register of a value; a storage type's definition is remembered."""
        name = c_type(value.type if isinstance(value, SSAValue) else value, self.index)
        if name in STRUCTS:
            self.use(name)
        return name

    def named(self, make: Expr, hint: str) -> None:
        """A constant for an index expression that occurs often: declared once in each scope, used by `find`."""
        if self.find(make.text) is None:
            name = self.names.mint(hint)
            self.line(f"const {self.index} {name} = {make.text};")
            self._scopes[-1][make.text] = Expr(name)

    def find(self, text: str) -> Expr | None:
        """The constant that was declared for an index expression, if it is in scope."""
        return next((scope[text] for scope in reversed(self._scopes) if text in scope), None)

    def declare(self, value: SSAValue) -> Place:
        """A new place for `value`; an array is declared here, a scalar where it is computed."""
        place = Place(self.names.mint(hint_of(value)), registers(value))
        if place.size > 1:
            self.array(place, value)
        self.places[value] = place
        return place

    def define(self, value: SSAValue, text: Callable[[Register], str]) -> None:
        """Declare `value`, and set each of its registers to the `text` for it."""
        place = self.declare(value)
        with self.registers_loop(place.size) as r:
            head = f"const {self.type_of(value)} {place.name}" if place.size == 1 else place[r].text
            self.line(f"{head} = {text(r)};")

    def array(self, place: Place, value: SSAValue, start: str = "", head: str = "") -> None:
        """Declare the array `place` of registers of the type of `value`, behind `head`, with an initialiser if there is
        a `start`."""
        self._arrays[place.name] = len(self.lines), c_size(value.type)
        self.line(f"{head}{self.type_of(value)} {place.name}[{place.size}]{start};")

    def pointer(self, array: str, index: str, size: int) -> str:
        """A pointer to element `index` of an array of registers for accesses of `size` bytes each.

        Every access of registers in more than their own size is printed through this pointer, so an array, whatever
        values it holds one after the other, is aligned to the widest access of it.
        """
        self._alignments[array] = max(size, self._alignments.get(array, 1))
        return array if index in ("", "0") else f"&{array}[{index}]"

    def text(self) -> list[str]:
        """The lines of the body, with every array aligned as its accesses need."""
        lines = list(self.lines)
        for array, size in self._alignments.items():
            number, own = self._arrays[array]
            if size > own:
                text = lines[number].lstrip()
                lines[number] = f"{lines[number][: -len(text)]}__align__({size}) {text}"
        return lines

    def start(self, value: SSAValue, text: str) -> Place:
        """A new variable for `value`, set to `text`, that may be overwritten later."""
        place = Place(self.names.mint(hint_of(value)), 1, True)
        self.line(f"{self.type_of(value)} {place.name} = {text};")
        self.places[value] = place
        return place

    # -- reading values

    def read(self, value: SSAValue, register: Register = 0) -> Expr:
        """The C++ of one register of a value."""
        place = self.places.get(value)
        if place is not None:
            return place[register]
        op = value.owner
        if not isinstance(op, Operation) or not is_view(op):
            raise CompileError("a value is used before it is computed", operator=getattr(op, "name", None))
        return self._read_view(op, register)

    def _read_view(self, op: Operation, register: Register) -> Expr:
        if isinstance(op, ConstantOp | arith.ConstantOp):
            return self.constant(op)
        if isinstance(op, ExtentOp):
            return self.scalars.cast(self.size(op.symbol), IndexType(), op.result.type)
        if isinstance(op, SplatOp):
            return self.read(op.source)
        if isinstance(op, ExtractOp):
            return self.read(op.source, op.register.data)
        if isinstance(op, ShuffleRegistersOp):
            if registers(op.source) == 1:
                return self.read(op.source)
            steps = linear_steps(op.registers)
            assert steps is not None
            moved = add(terms(register, steps[1]), Expr(str(steps[0])))
            return self.read(op.source, int(moved.text) if moved.text.isdigit() else moved.text)
        if isinstance(op, IndicesOp):
            return add(self.read(op.origin), terms(register, op.steps.get_values()))
        if isinstance(op, SharedOp):
            raise CompileError("shared memory has no place yet: run kernel-allocate-shared", operator=op.name)
        operands = [self.read(v, register) for v in op.operands]
        return self.scalars.print(op, operands)

    def size(self, extent: Extent) -> Expr:
        """A size, or the parameter that holds it."""
        return Expr(str(extent)) if isinstance(extent, int) else self.sizes[extent]

    def constant(self, op: ConstantOp | arith.ConstantOp) -> Expr:
        """A constant's literal."""
        if (value := constant_of(op.result)) is None:
            raise CompileError(f"constant {op.value}: only scalars", operator=op.name)
        return self.literal(value, op.result.type)

    def literal(self, value: float, t: Attribute) -> Expr:
        """A constant of type `t`."""
        text, helper = literal(value, t, self.index)
        if helper is not None:
            self.use(helper)
        return text


def index_type(func: FuncOp) -> str:
    """The C++ type of indices and sizes in a kernel: large buffers need 64 bits, and so do indices of 64 bits that are
    read from memory, where any number may be: cut off at 32 bits it could look like one that is inside."""
    large = any(_elements(a.type) > WIDE for a in func.body.block.args)
    return "long long" if large or any(_is_read(op) for op in func.walk() if isinstance(op, CastOp)) else "int"


def _is_read(op: CastOp) -> bool:
    """Whether `op` makes an index of an integer of 64 bits that follows from what a buffer holds."""
    if element_type(op.result.type) != IndexType() or element_type(op.operand.type) != i64:
        return False
    seen, left = set[SSAValue](), [op.operand]
    while left:
        value = left.pop()
        if value in seen or element_type(value.type) == IndexType():
            continue
        seen.add(value)
        if not isinstance(value.owner, Operation):
            return True
        if isinstance(value.owner, LoadOp) and not is_shared(value.owner.memory.type):
            return True
        left += value.owner.operands
    return False


def _elements(t: Attribute) -> int:
    """The most elements that a buffer can have."""
    return prod(map(most, extents_of(t))) if isinstance(t, MemRefType) else 1  # pyright: ignore[reportUnknownArgumentType]


def terms(register: Register, steps: Sequence[int], low: int = 0, top: int | None = None) -> Expr:
    """The sum of `steps[b]` over the set bits b of a register number whose bits below `low` are 0."""
    bits = len(steps) if top is None else top
    if isinstance(register, int):
        number = moved(register, steps)
        return Expr(str(number), ATOM if number >= 0 else UNARY)
    if register != "i" and not register.isidentifier():
        register = f"({register})"
    result, b = Expr("0"), low
    while b < len(steps):
        end = b + 1
        while end < len(steps) and steps[end] == steps[b] << (end - b):
            end += 1
        if steps[b]:
            result = add(result, _run(register, b, end, steps[b], low, end == bits))
        b = end
    return result


def flips(register: Register, images: Sequence[int], low: int = 0) -> Expr:
    """The exclusive or of `images[b]` over the set bits b of a register number whose bits below `low` are 0: of sums
    of images that share no bits."""
    if isinstance(register, int):
        return Expr(str(combine(images, register)))
    seen, parts = 0, list[list[int]]([[]])
    for bit, image in enumerate(images):
        if seen & image:
            seen = 0
            parts.append([0] * bit)
        seen |= image
        parts[-1].append(image)
    sums = [terms(register, part, low, len(images)) for part in parts]
    return reduce(lambda a, b: infix(a, "^", b, BIT_XOR), [s for s in sums if s.text != "0"] or [Expr("0")])


def _run(register: str, b: int, end: int, step: int, low: int, is_top: bool) -> Expr:
    """`step` times the number in bits [b, end) of a register number."""
    if is_top and b == low and step % (1 << b) == 0:
        return multiply(Expr(register), step >> b)
    shifted = f"{register} >> {b}" if b else register
    if not is_top:
        shifted = f"{shifted} & {(1 << (end - b)) - 1}"
    return multiply(Expr(f"({shifted})" if shifted != register else register), step)
