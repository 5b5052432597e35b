"""One statement of a kernel as C++: pointwise groups, folds, butterflies, contractions, loops, conditionals."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

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
from .ordering import Butterfly, Group, Ordering, Statement, registers, same_line
from .writer import Place, Register, Writer, hint_of, terms

Printer = Callable[[Any, Any], object]
"""Prints an operation with the `Statements` of its block."""


class Statements:
    """Prints the statements of one block; knows the last statement that reads each value."""

    ordering = Ordering
    printers: ClassVar[Mapping[type[Operation], Printer]] = {}
    """Printers of operations that are not pointwise: tables of several files together."""

    def __init__(self, writer: Writer, block: Block) -> None:
        self.writer = writer
        self.block = block
        self.order = self.ordering(block)
        self.number = 0
        self.inline: dict[SSAValue, Expr] = {}

    def print(self) -> None:
        """Prints all statements, without the terminator."""
        for self.number, statement in enumerate(self.order.statements):
            self._print(statement)
        self.number = len(self.order.statements)

    def _print(self, statement: Statement) -> None:
        if isinstance(statement, Group):
            self._group(statement)
            return
        self.writer.comment_place(statement.shuffle if isinstance(statement, Butterfly) else statement)
        if isinstance(statement, Butterfly):
            self._butterfly(statement)
        elif (printer := self.printers.get(type(statement))) is not None:
            printer(self, statement)
        elif is_payload(statement):
            self._scalar(statement)
        else:
            raise refused(statement, "cannot be printed as CUDA", CompileError)

    def dies(self, value: SSAValue) -> bool:
        """Returns true if the current statement is the last one that reads `value`, which belongs to this block."""
        owner = value.owner if isinstance(value.owner, Block) else value.owner.parent
        return owner is self.block and self.order.last_read.get(value, -1) <= self.number

    def _scalar(self, op: Operation) -> None:
        writer, result = self.writer, op.results[0]
        text = writer.scalars.print(op, [writer.read(v) for v in op.operands]).text
        if (target := writer.preferred.get(result)) is not None:
            writer.places[result] = target
            writer.line(f"{target.name} = {text};")
        else:
            writer.define(result, lambda _: text)

    def _group(self, group: Group) -> None:
        writer, inside = self.writer, set(group.ops)
        outside = {op for op in group.ops if any(u.operation not in inside for u in op.results[0].uses)}
        if len(group.ops) == 1:
            writer.comment_place(group.ops[0])
        for op in group.ops:
            if op in outside and op.results[0] not in writer.preferred:
                writer.declare(op.results[0])
        with writer.registers_loop(group.size) as r:
            for op in group.ops:
                if op in outside or op.results[0].first_use is not None:
                    self._pointwise(op, r, op in outside)
        for op in group.ops:
            if op not in outside:
                writer.places.pop(op.results[0], None)

    def _pointwise(self, op: Operation, r: Register, is_read_later: bool) -> None:
        writer, result = self.writer, op.results[0]
        operands = [self.inline.pop(v) if v in self.inline else writer.read(v, r) for v in op.operands]
        text = writer.scalars.print(op, operands)
        users = [use.operation for use in result.uses]
        if not is_read_later and result.name_hint is None and len(users) == 1 and same_line(users[0], op):
            self.inline[result] = text
            return
        writer.comment_place(op)
        if not is_read_later:
            place = writer.places[result] = Place(writer.names.mint(hint_of(result)), 1)
            writer.line(f"const {writer.type_of(result)} {place.name} = {text.text};")
            return
        if (target := writer.preferred.get(result)) is not None:
            writer.places[result] = target
        writer.line(f"{writer.places[result][r].text} = {text.text};")

    def copy(self, value: SSAValue, target: Place) -> None:
        """Sets `target` to `value`, register by register."""
        with self.writer.registers_loop(target.size) as r:
            self.writer.line(f"{target[r].text} = {self.writer.read(value, r).text};")

    def owned(self, value: SSAValue) -> Place | None:
        """Returns the place of `value` if it may be overwritten: nothing reads it after this statement."""
        place = self.writer.places.get(value)
        return place if place is not None and (place.size > 1 or place.mutable) and self.dies(value) else None

    def taken_over(self, source: SSAValue, result: SSAValue) -> Place:
        """Returns the place of `result`, which starts as `source`: that of `source`, if it may be overwritten, or a
        copy."""
        target = self.owned(source)
        if target is None or target.size != registers(result):
            target = self.writer.declare(result)
            self.copy(source, target)
        self.writer.places[result] = target
        return target

    def fold(self, op: kernel.ReduceRegistersOp) -> None:
        """Prints registers of a thread that are combined into fewer."""
        writer, bits, size = self.writer, sorted(op.bits.get_values()), registers(op.source)
        name = MONOIDS[op.kind.data].combiner(op.result.type).name
        if size == registers(op.result):
            self.copy(op.source, writer.declare(op.result))
        elif registers(op.result) == 1:
            place = writer.start(op.result, writer.read(op.source, 0).text)
            writer.unroll()
            text = self._reduced(name, place[0], writer.read(op.source, "i"), op.result).text
            writer.line(f"for (int i = 1; i < {size}; ++i) {update(place[0], text)}")
        else:
            place, steps, mask = writer.declare(op.result), _steps_without(bits, size), sum(1 << b for b in bits)
            with writer.registers_loop(size) as r:
                target, source = place[terms(r, steps).text], writer.read(op.source, r)
                both = self._reduced(name, target, source, op.result)
                writer.line(f"{target.text} = (i & {mask}) == 0 ? {source.at(UNARY)} : {both.at(TERNARY + 1)};")

    def scan(self, op: kernel.ScanRegistersOp) -> None:
        """Prints registers of a thread that are combined with those before them, in order."""
        writer, size, several = self.writer, registers(op.source), registers(op.carry) > 1
        name = MONOIDS[op.kind.data].combiner(op.result.type).name
        if several:
            carry = self.taken_over(op.init, op.carry)
        else:
            carry = writer.start(op.carry, writer.read(op.init).text)
        place, steps = writer.declare(op.result), _steps_without(op.bits.get_values(), size)
        with writer.registers_loop(size) as r:
            last = carry[terms(r, steps).text if several else 0]
            writer.line(update(last, self._reduced(name, last, writer.read(op.source, r), op.result).text))
            writer.line(f"{place[r].text} = {last.text};")

    def _reduced(self, name: str, a: Expr, b: Expr, value: SSAValue) -> Expr:
        result = combined(self.writer, name, a, b, value)
        is_call = name in ("arith.maxsi", "arith.minsi") and result.level == ATOM
        return Expr(f"({self.writer.type_of(value)}){result.text}", UNARY) if is_call else result

    def _butterfly(self, b: Butterfly) -> None:
        """Prints a reduction across lanes after which every lane has the result."""
        writer, target = self.writer, self.owned(b.source)
        if target is None and registers(b.result) == 1:
            target = writer.start(b.result, writer.read(b.source).text)
        elif target is None:
            target = writer.declare(b.result)
            self.copy(b.source, target)
        writer.places[b.result] = target
        with writer.registers_loop(target.size) as r:
            mask, head = str(b.masks[0]), ""
            if len(b.masks) > 1:
                growing = b.masks[1] > b.masks[0]
                end = f"m <= {b.masks[-1]}; m *= 2" if growing else f"m >= {b.masks[-1]}; m /= 2"
                mask, head = "m", f"for (int m = {b.masks[0]}; {end}) "
                writer.unroll()
            lane = shuffled(target[r], mask, writer.type_of(b.result))
            text = combined(writer, b.combine.name, target[r], lane, b.result).text
            writer.line(head + update(target[r], text))

    def shuffle(self, op: kernel.ShuffleXorOp) -> None:
        """Prints the registers of another lane."""
        writer, mask, element = self.writer, str(op.mask.data), self.writer.type_of(op.result)
        writer.define(op.result, lambda r: shuffled(writer.read(op.source, r), mask, element).text)

    def pick(self, op: kernel.ShuffleRegistersOp) -> None:
        """Prints registers in an order that is no sum over bits, one by one."""
        place = self.writer.declare(op.result)
        for r, number in enumerate(op.registers.get_values()):
            self.writer.line(f"{place[r].text} = {self.writer.read(op.source, number).text};")

    def outer_fma(self, op: kernel.OuterFmaOp) -> None:
        """Prints the outer product of a register tile, into the registers of the accumulator if these may change."""
        writer, target = self.writer, self.taken_over(op.acc, op.result)
        rows, cols, c = registers(op.lhs), registers(op.rhs), c_type(op.result.type)
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
        """Prints a store; for a wide access a value that is an expression gets an array first."""
        filled = op.vec.data > 1 and op.value not in self.writer.places
        if filled:
            self.array_of(op.value)
        print_store(self.writer, op)
        if filled:
            del self.writer.places[op.value]

    def array_of(self, value: SSAValue) -> Place:
        """Returns a new array for a value that is an expression."""
        place = self.writer.declare(value)
        del self.writer.places[value]  # until it is filled, the value is its expression
        self.copy(value, place)
        self.writer.places[value] = place
        return place

    def identify(self, op: kernel.IdOp) -> None:
        """Prints a number of a thread."""
        kind = op.kind.data.value
        text = f"blockIdx.x % {self.writer.func.cluster_size}" if kind == "rank" else self.writer.ids[kind]
        self.writer.define(op.result, lambda _: text)


def _steps_without(bits: Sequence[int], size: int) -> list[int]:
    """Returns the steps of the bits of a register's number among `size` where `bits` are left out."""
    others = [b for b in range(size.bit_length() - 1) if b not in bits]
    return [1 << others.index(b) if b in others else 0 for b in range(size.bit_length() - 1)]


def shuffled(value: Expr, other: str, c: str, mode: str = "xor_") -> Expr:
    """Returns the `value` of another lane; types that the hardware does not shuffle travel in an int."""
    call = f"__shfl_{mode}sync(0xffffffffu, {{}}, {other})"
    if c in STRUCTS:
        return Expr(f"{c}{{({STRUCTS[c]}){call.format(f'(int){value.text}.bits')}}}")
    if c in ("bool", "signed char", "unsigned char", "short", "unsigned short"):
        return Expr(f"({c}){call.format(f'(int){value.at(UNARY)}')}", UNARY)
    return Expr(call.format(value.text))


def update(target: Expr, text: str) -> str:
    sum_of = f"{target.text} + "
    return f"{target.text} += {text[len(sum_of) :]};" if text.startswith(sum_of) else f"{target.text} = {text};"


def combined(writer: Writer, name: str, a: Expr, b: Expr, value: SSAValue) -> Expr:
    """Returns `a` and `b`, of the type of `value`, under the operation `name`. Never through `&&`: every lane must take
    part in a shuffle."""
    if (element := element_type(value.type)) == i1 and (on_bool := OPERATORS[name].on_bool) is not None:
        symbol = {"&&": "&", "||": "|"}.get(on_bool[0], on_bool[0])
        return Expr(f"(bool)({a.text} {symbol} {b.text})", UNARY)
    result = writer.scalars.combine(name, element, (a, b))
    assert result is not None, name
    return result


def print_slot(statements: Statements, op: kernel.SubviewOp) -> None:
    """Prints a pointer to a stage of a circular buffer."""
    start, ring = statements.writer.read(op.offset).text, memory_name(statements.writer, op.ring)
    add_pointer(statements, op.result, ring if start == "0" else f"{ring} + {start}", "slot")


PRINTERS: Mapping[type[Operation], Printer] = {
    kernel.SubviewOp: print_slot,
    kernel.LoadOp: lambda s, op: print_load(s.writer, op),
    kernel.StoreOp: lambda s, op: s.store(op),
    kernel.AtomicRmwOp: lambda s, op: print_atomic(s.writer, op),
    kernel.BarrierOp: lambda s, _: s.writer.line("__syncthreads();"),
    kernel.SharedOp: lambda s, op: None,  # declared at the top of the kernel
    kernel.IdOp: lambda s, op: s.identify(op),
    kernel.ReduceRegistersOp: Statements.fold,
    kernel.ScanRegistersOp: Statements.scan,
    kernel.ShuffleXorOp: Statements.shuffle,
    kernel.ShuffleRegistersOp: Statements.pick,
    kernel.OuterFmaOp: Statements.outer_fma,
}
"""Printers of what kernels of GPUs and CPUs have in common."""


def as_calls(calls: Mapping[type[Operation], Callable[[Any, Any], str]]) -> dict[type[Operation], Printer]:
    """Returns printers of operations as calls of device functions, whose text begins with the name of the helper."""

    def printer(text: Callable[[Any, Any], str]) -> Printer:
        def print_call(statements: Statements, op: Operation) -> None:
            call = text(statements, op)
            statements.writer.use(re.split(r"\W", call, maxsplit=1)[0])
            statements.writer.line(f"{call};")

        return print_call

    return {kind: printer(text) for kind, text in calls.items()}


def add_pointer(statements: Statements, value: SSAValue, text: str, word: str) -> None:
    """Declares the pointer `value` to elements of its memref, called after it or else `word`."""
    writer, space = statements.writer, space_of(value.type)
    assert space is not None, value
    writer.line(f"{space.qualifier}{writer.type_of(value)}* const {writer.name(value, word)} = {text};")


def element_address(statements: Statements, memory: SSAValue, index: SSAValue) -> str:
    """Returns `&x[i]`, or `x` where the index is 0."""
    name, at = memory_name(statements.writer, memory), statements.writer.read(index).text
    return name if at == "0" else f"&{name}[{at}]"
