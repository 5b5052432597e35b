"""One statement of a kernel as C++: pointwise groups, folds, butterflies, contractions, loops, conditionals."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from xdsl.dialects.builtin import i1
from xdsl.ir import Block, Operation, SSAValue

from ...dialects import kernel
from ...dialects.kernel.memory import space_of
from ...dialects.payload import element_type, is_float, is_payload
from ...dialects.support.locations import refused
from ...dialects.tensor import MONOIDS
from ...errors import CompileError
from ..dtypes import STRUCTS
from .expressions import ATOM, OPERATORS, TERNARY, UNARY, Expr, c_type
from .memory import memory_name, print_atomic, print_load, print_store
from .names import hint_of
from .ordering import Butterfly, Group, Ordering, Statement, registers, same_line
from .writer import Place, Register, Writer, terms


class Statements:
    """Prints the statements of one block; knows which values nobody reads any more."""

    ordering = Ordering
    """What puts the operations of the block into order."""

    def __init__(self, writer: Writer, block: Block) -> None:
        self.writer = writer
        self.block = block
        self.order = self.ordering(block)
        self.number = 0
        self.inline: dict[SSAValue, Expr] = {}

    def print(self) -> None:
        """All statements, without the terminator."""
        for self.number, statement in enumerate(self.order.statements):
            self._print(statement)
        self.number = len(self.order.statements)

    def _print(self, statement: Statement) -> None:
        if isinstance(statement, Group):
            self._group(statement)
        elif isinstance(statement, Butterfly):
            self.writer.comment_place(statement.shuffle)
            self._butterfly(statement)
        else:
            self.writer.comment_place(statement)
            self._operation(statement)

    def _operation(self, op: Operation) -> None:
        printer = _PRINTERS.get(type(op))
        if printer is not None:
            printer(self, op)
        elif is_payload(op):
            self._scalar(op)
        else:
            raise refused(op, "cannot be printed as CUDA", CompileError)

    def dies(self, value: SSAValue) -> bool:
        """Whether the current statement is the last one that reads `value`, which belongs to this very block."""
        owner = value.owner if isinstance(value.owner, Block) else value.owner.parent
        return owner is self.block and self.order.last_read.get(value, -1) <= self.number

    # -- registers

    def _scalar(self, op: Operation) -> None:
        writer, result = self.writer, op.results[0]
        operands = [writer.read(v) for v in op.operands]
        text = writer.scalars.print(op, operands).text
        target = writer.preferred.get(result)
        if target is not None:
            writer.places[result] = target
            writer.line(f"{target.name} = {text};")
        else:
            writer.define(result, lambda _: text)

    def _group(self, group: Group) -> None:
        writer = self.writer
        inside = set(group.ops)
        outside = {op for op in group.ops if any(u.operation not in inside for u in op.results[0].uses)}
        if len(group.ops) == 1:
            writer.comment_place(group.ops[0])
        for op in group.ops:
            if op in outside and op.results[0] not in writer.preferred:
                writer.declare(op.results[0])
        with writer.registers_loop(group.size) as r:
            for op in group.ops:
                self._pointwise(op, r, inside, op in outside)
        for op in group.ops:
            if op not in outside:
                writer.places.pop(op.results[0], None)

    def _pointwise(self, op: Operation, r: Register, inside: set[Operation], kept: bool) -> None:
        writer, result = self.writer, op.results[0]
        if not kept and not list(result.uses):
            return
        text = writer.scalars.print(op, self._operands(op, r))
        if not kept and self._inlines(op):
            self.inline[result] = text
            return
        writer.comment_place(op)
        if not kept:
            place = writer.places[result] = Place(writer.names.mint(hint_of(result)), 1)
            writer.line(f"const {writer.type_of(result)} {place.name} = {text.text};")
            return
        target = writer.preferred.get(result)
        if target is not None:
            writer.places[result] = target
        writer.line(f"{writer.places[result][r].text} = {text.text};")

    def _operands(self, op: Operation, r: Register) -> list[Expr]:
        return [self.inline.pop(v) if v in self.inline else self.writer.read(v, r) for v in op.operands]

    def _inlines(self, op: Operation) -> bool:
        """Whether a nameless result inside a group prints inside the one operation that uses it."""
        result = op.results[0]
        uses = list(result.uses)
        return result.name_hint is None and len(uses) == 1 and same_line(uses[0].operation, op)

    def copy(self, value: SSAValue, target: Place) -> None:
        """Set `target` to `value`, register by register."""
        with self.writer.registers_loop(target.size) as r:
            self.writer.line(f"{target[r].text} = {self.writer.read(value, r).text};")

    def owned(self, value: SSAValue) -> Place | None:
        """The place of `value` if it may be overwritten now: nothing reads it after this statement."""
        place = self.writer.places.get(value)
        return place if place is not None and (place.size > 1 or place.mutable) and self.dies(value) else None

    def taken_over(self, source: SSAValue, result: SSAValue) -> Place:
        """The place of `result`, which starts as `source`: its own if nothing reads that any more, else a copy."""
        target = self.owned(source)
        if target is None or target.size != registers(result):
            target = self.writer.declare(result)
            self.copy(source, target)
        self.writer.places[result] = target
        return target

    def fold(self, op: kernel.ReduceRegistersOp) -> None:
        """Registers of a thread combined into fewer."""
        writer, bits = self.writer, sorted(op.bits.get_values())
        size, left = registers(op.source), registers(op.result)
        if size == left:
            self.copy(op.source, writer.declare(op.result))
            return
        name = MONOIDS[op.kind.data].combiner(op.result.type).name
        if left == 1:
            place = writer.start(op.result, writer.read(op.source, 0).text)
            writer.unroll()
            text = self._reduced(name, place[0], writer.read(op.source, "i"), op.result).text
            writer.line(f"for (int i = 1; i < {size}; ++i) {update(place[0], text)}")
            return
        place = writer.declare(op.result)
        kept = [b for b in range(size.bit_length() - 1) if b not in bits]
        steps = [1 << kept.index(b) if b in kept else 0 for b in range(size.bit_length() - 1)]
        mask = sum(1 << b for b in bits)
        with writer.registers_loop(size) as r:
            target = place[terms(r, steps).text]
            source = writer.read(op.source, r)
            both = self._reduced(name, target, source, op.result)
            writer.line(f"{target.text} = (i & {mask}) == 0 ? {source.at(UNARY)} : {both.at(TERNARY + 1)};")

    def scan(self, op: kernel.ScanRegistersOp) -> None:
        """Registers of a thread combined with those before them, in order."""
        writer, size, bits = self.writer, registers(op.source), [*op.bits.get_values()]
        name = MONOIDS[op.kind.data].combiner(op.result.type).name
        carry = (
            self.taken_over(op.init, op.carry)
            if registers(op.carry) > 1
            else writer.start(op.carry, writer.read(op.init).text)
        )
        place = writer.declare(op.result)
        kept = [b for b in range(size.bit_length() - 1) if b not in bits]
        steps = [1 << kept.index(b) if b in kept else 0 for b in range(size.bit_length() - 1)]
        with writer.registers_loop(size) as r:
            last = carry[terms(r, steps).text] if registers(op.carry) > 1 else carry[0]
            text = self._reduced(name, last, writer.read(op.source, r), op.result).text
            writer.line(update(last, text))
            writer.line(f"{place[r].text} = {last.text};")

    def _reduced(self, name: str, a: Expr, b: Expr, value: SSAValue) -> Expr:
        result = combined(self.writer, name, a, b, value)
        is_call = name in ("arith.maxsi", "arith.minsi") and result.level == ATOM
        return Expr(f"({self.writer.type_of(value)}){result.text}", UNARY) if is_call else result

    def _butterfly(self, b: Butterfly) -> None:
        """Combine across lanes: every lane ends with the result."""
        writer = self.writer
        target = self.owned(b.source)
        if target is None and registers(b.result) == 1:
            target = writer.start(b.result, writer.read(b.source).text)
        elif target is None:
            target = writer.declare(b.result)
            self.copy(b.source, target)
        writer.places[b.result] = target
        with writer.registers_loop(target.size) as r:
            if len(b.masks) == 1:
                mask, head = str(b.masks[0]), ""
            else:
                growing = b.masks[1] > b.masks[0]
                end = f"m <= {b.masks[-1]}; m *= 2" if growing else f"m >= {b.masks[-1]}; m /= 2"
                mask, head = "m", f"for (int m = {b.masks[0]}; {end}) "
                writer.unroll()
            lane = shuffled(target[r], mask, writer.type_of(b.result))
            text = combined(writer, b.combine.name, target[r], lane, b.result).text
            writer.line(head + update(target[r], text))

    def shuffle(self, op: kernel.ShuffleXorOp) -> None:
        """Another lane's registers."""
        writer, mask, element = self.writer, str(op.mask.data), self.writer.type_of(op.result)
        writer.define(op.result, lambda r: shuffled(writer.read(op.source, r), mask, element).text)

    def pick(self, op: kernel.ShuffleRegistersOp) -> None:
        """Registers in an order that is no sum over bits: one by one."""
        place = self.writer.declare(op.result)
        for r, number in enumerate(op.registers.get_values()):
            self.writer.line(f"{place[r].text} = {self.writer.read(op.source, number).text};")

    def outer_fma(self, op: kernel.OuterFmaOp) -> None:
        """A register tile's outer product, into the accumulator's own registers where nobody else reads them."""
        writer, target = self.writer, self.taken_over(op.acc, op.result)
        rows, cols = registers(op.lhs), registers(op.rhs)
        c = c_type(op.result.type)
        i, j = ("i" if rows > 1 else 0), ("j" if cols > 1 else 0)
        pad = writer.unrolled(("i", rows), ("j", cols))
        row = terms(i, [1 << b for b in op.rows.get_values()])
        col = terms(j, [1 << b for b in op.cols.get_values()])
        at = target[" + ".join(t.text for t in (row, col) if t.text != "0") or 0]
        a, b = writer.read(op.lhs, i), writer.read(op.rhs, j)
        if c in ("float", "double"):
            writer.line(f"{pad}{at.text} = {'fmaf' if c == 'float' else 'fma'}({a.text}, {b.text}, {at.text});")
        elif is_float(op.result.type):
            raise refused(op, f"no outer product of {c}", CompileError)
        else:
            product = combined(writer, "arith.muli", a, b, op.result)
            writer.line(f"{pad}{at.text} = {combined(writer, 'arith.addi', at, product, op.result).text};")

    def store(self, op: kernel.StoreOp) -> None:
        """A store; a value that only exists as an expression gets an array first if the access is wide."""
        filled = op.vec.data > 1 and op.value not in self.writer.places
        if filled:
            self.array_of(op.value)
        print_store(self.writer, op)
        if filled:
            del self.writer.places[op.value]

    def array_of(self, value: SSAValue) -> Place:
        """A new array for a value that is an expression."""
        place = self.writer.declare(value)
        del self.writer.places[value]  # until it is filled, the value is its expression
        self.copy(value, place)
        self.writer.places[value] = place
        return place

    def identify(self, op: kernel.IdOp) -> None:
        """A thread's numbers."""
        kind = op.kind.data.value
        text = f"blockIdx.x % {self.writer.func.cluster_size}" if kind == "rank" else self.writer.ids[kind]
        self.writer.define(op.result, lambda _: text)


def shuffled(value: Expr, other: str, c: str, mode: str = "xor_") -> Expr:
    """The `value` of another lane; types that the hardware does not shuffle travel in an int."""
    call = f"__shfl_{mode}sync(0xffffffffu, {{}}, {other})"
    if c in STRUCTS:
        return Expr(f"{c}{{({STRUCTS[c]}){call.format(f'(int){value.text}.bits')}}}")
    if c in ("bool", "signed char", "unsigned char", "short", "unsigned short"):
        return Expr(f"({c}){call.format(f'(int){value.at(UNARY)}')}", UNARY)
    return Expr(call.format(value.text))


def update(target: Expr, text: str) -> str:
    """`target = text;` for a text that combines `target` with one other operand."""
    sum_of = f"{target.text} + "
    return f"{target.text} += {text[len(sum_of) :]};" if text.startswith(sum_of) else f"{target.text} = {text};"


def combined(writer: Writer, name: str, a: Expr, b: Expr, value: SSAValue) -> Expr:
    """`a` and `b`, of the type of `value`, under the payload operation `name`. Never through `&&`: every lane has to
    take part in a shuffle."""
    if (element := element_type(value.type)) == i1 and (on_bool := OPERATORS[name].on_bool) is not None:
        symbol = {"&&": "&", "||": "|"}.get(on_bool[0], on_bool[0])
        return Expr(f"(bool)({a.text} {symbol} {b.text})", UNARY)
    result = writer.scalars.combine(name, element, (a, b))
    assert result is not None, name
    return result


def nothing(_: Statements, __: Operation) -> None:
    """Shared buffers and tensor maps are declared at the top of the kernel."""


_PRINTERS: dict[type[Operation], Callable[[Statements, Any], object]] = {
    kernel.LoadOp: lambda s, op: print_load(s.writer, op),
    kernel.StoreOp: lambda s, op: s.store(op),
    kernel.AtomicRmwOp: lambda s, op: print_atomic(s.writer, op),
    kernel.BarrierOp: lambda s, _: s.writer.line("__syncthreads();"),
    kernel.SharedOp: nothing,
    kernel.IdOp: lambda s, op: s.identify(op),
    kernel.ReduceRegistersOp: lambda s, op: s.fold(op),
    kernel.ScanRegistersOp: lambda s, op: s.scan(op),
    kernel.ShuffleXorOp: Statements.shuffle,
    kernel.ShuffleRegistersOp: Statements.pick,
    kernel.OuterFmaOp: lambda s, op: s.outer_fma(op),
}


def add_printer(kind: type[Operation], printer: Callable[[Statements, Any], object]) -> None:
    """Print operations of class `kind` with `printer`. Operations with regions are added from `control.py`."""
    _PRINTERS[kind] = printer


def add_calls(calls: Mapping[type[Operation], Callable[[Statements, Any], str]]) -> None:
    """Print operations as calls of device functions: the text of each, which begins with the name of its helper."""

    def printer(text: Callable[[Statements, Any], str]) -> Callable[[Statements, Any], None]:
        def print_call(statements: Statements, op: Operation) -> None:
            call = text(statements, op)
            statements.writer.use(re.split(r"\W", call, maxsplit=1)[0])
            statements.writer.line(f"{call};")

        return print_call

    _PRINTERS.update({kind: printer(text) for kind, text in calls.items()})


def add_pointer(statements: Statements, value: SSAValue, text: str, word: str) -> None:
    """Declare the pointer `value` to elements of its memref, called after it or else `word`."""
    writer, space = statements.writer, space_of(value.type)
    assert space is not None, value
    element = writer.type_of(value)
    name = writer.names.mint(value.name_hint, word)
    writer.line(f"{space.qualifier}{element}* const {name} = {text};")
    writer.places[value] = Place(name, 1)


def element_address(statements: Statements, memory: SSAValue, index: SSAValue) -> str:
    """`&x[i]`, or `x` where the index is 0."""
    name, at = memory_name(statements.writer, memory), statements.writer.read(index).text
    return name if at == "0" else f"&{name}[{at}]"
