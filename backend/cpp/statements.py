"""Statements of a block as C++: pointwise groups, stores, contractions, loops and conditionals.

A carried array is declared before the loop and updated in place: by the contraction that accumulates into it, by the
pointwise operation whose result the loop yields if nothing reads the old value afterwards, else by a copy at the end.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

from xdsl.dialects import scf
from xdsl.ir import Block, Operation, SSAValue

from ...dialects import kernel
from ...dialects.kernel.memory import space_of
from ...dialects.payload import ConstantOp, element_bytes, element_type, is_float, is_payload
from ...dialects.shapes.ranges import trip_count
from ...dialects.support.locations import refused
from ...errors import CompileError
from ...plugins import rule_of
from .expressions import PRINTERS_GROUP, Expr, Register, add, c_type, terms
from .memory import memory_name, print_atomic, print_load, print_store
from .ordering import Butterfly, Group, Ordering, Statement, registers, roots, same_line
from .writer import Place, Writer, hint_of

UNROLLED_LOADS = 48
"""Registers at most that hold what an unrolled loop loads between barriers; of a longer one two iterations go together,
so that the loads of the next are under way."""

UNROLLED_WORK = 2048
"""Loops are unrolled while all their iterations together do no more register operations than this."""

_WORK = kernel.OuterFmaOp | kernel.MmaOp | kernel.LdMatrixOp | kernel.LoadOp
"""Register operations, beside those of the payload."""

Printer = Callable[[Any, Any], object]
"""Prints an operation with the `Statements` of its block."""


class Statements:
    """Prints the statements of one block; knows the last statement that reads each value."""

    ordering = Ordering
    printers: ClassVar[Mapping[type, Printer]] = {}
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
        self.printers.get(type(statement), Statements._scalar)(self, statement)

    def dies(self, value: SSAValue) -> bool:
        """Returns true if the current statement is the last one that reads `value`, which belongs to this block."""
        owner = value.owner if isinstance(value.owner, Block) else value.owner.parent
        return owner is self.block and self.order.last_read.get(value, -1) <= self.number

    def _scalar(self, op: Operation) -> None:
        if not is_payload(op):
            self._print_by_plugin(op)
            return
        text = self.writer.scalars.print(op, [self.writer.read(v) for v in op.operands]).text
        self.writer.define(op.results[0], lambda _: text)

    def _print_by_plugin(self, op: Operation) -> None:
        printer = rule_of(PRINTERS_GROUP, op.name)
        if printer is None:
            raise refused(op, "cannot be printed as CUDA", CompileError)
        printer(self, op)

    def _group(self, group: Group) -> None:
        writer, inside = self.writer, set(group.ops)
        outside = {op for op in group.ops if any(u.operation not in inside for u in op.results[0].uses)}
        if len(group.ops) == 1:
            writer.comment_place(group.ops[0])
        for op in group.ops:
            if op in outside:
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
        if is_read_later:
            writer.comment_place(op)
            writer.line(f"{writer.places[result][r].text} = {text.text};")
        else:
            self._define_inside(op, text)

    def _define_inside(self, op: Operation, text: Expr) -> None:
        """Keeps a result that only its group reads in a constant, or prints it in its only user of the same line."""
        writer, result, users = self.writer, op.results[0], [use.operation for use in op.results[0].uses]
        if result.name_hint is None and len(users) == 1 and same_line(users[0], op):
            self.inline[result] = text
            return
        writer.comment_place(op)
        place = writer.places[result] = Place(writer.names.mint(hint_of(result)), 1)
        writer.line(f"const {writer.type_of(result)} {place.name} = {text.text};")

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

    def outer_fma(self, op: kernel.OuterFmaOp) -> None:
        """Prints the outer product of a register tile, into the registers of the accumulator if these may change."""
        writer, target = self.writer, self.taken_over(op.acc, op.result)
        rows, cols, c = registers(op.lhs), registers(op.rhs), c_type(op.result.type)
        i, j = ("i" if rows > 1 else 0), ("j" if cols > 1 else 0)
        pad = writer.unrolled(("i", rows), ("j", cols))
        row = terms(i, [1 << b for b in op.rows.get_values()])
        col = terms(j, [1 << b for b in op.cols.get_values()])
        at = target[add(row, col).text]
        a, b = writer.read(op.lhs, i), writer.read(op.rhs, j)
        fma = f"{'fmaf' if c == 'float' else 'fma'}({a.text}, {b.text}, {at.text})"
        if c not in ("float", "double"):
            fma = self._integer_fma(op, a, b, at)
        writer.line(f"{pad}{at.text} = {fma};")

    def _integer_fma(self, op: kernel.OuterFmaOp, a: Expr, b: Expr, c: Expr) -> str:
        """Returns `a * b + c` for integers."""
        t, scalars = element_type(op.result.type), self.writer.scalars
        if is_float(t):
            raise refused(op, f"no outer product of {c_type(t)}", CompileError)
        return scalars.combined("arith.addi", t, c, scalars.combined("arith.muli", t, a, b)).text

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


def print_slot(statements: Statements, op: kernel.SubviewOp) -> None:
    """Prints a pointer to a stage of a circular buffer."""
    start, ring = statements.writer.read(op.offset).text, memory_name(statements.writer, op.ring)
    add_pointer(statements, op.result, ring if start == "0" else f"{ring} + {start}", "slot")


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


def print_for(outer: Statements, op: scf.ForOp) -> None:
    """Prints a loop with the same bounds in all threads; places of carried values are declared before it."""
    writer, body = outer.writer, op.body.block
    carried = zip(op.iter_args, body.args[1:], op.results, strict=True)
    places = [_carried_place(outer, op, *values) for values in carried]
    lb, ub, step = (writer.read(v).text for v in (op.lb, op.ub, op.step))
    counter = writer.name(body.args[0], "k")
    writer.unroll(_unrolling(op))
    advance = f"++{counter}" if step == "1" else f"{counter} += {step}"
    with writer.braces(f"for ({writer.index} {counter} = {lb}; {counter} < {ub}; {advance})"):
        inner = type(outer)(writer, body)
        yielded = body.last_op.operands if body.last_op is not None else ()
        for argument, value, place in zip(body.args[1:], map(_accumulated, yielded), places, strict=True):
            if isinstance(value.owner, Operation) and is_payload(value.owner):
                _prefer(inner, argument, value, place)
        inner.print()
        moves = [m for m in zip(yielded, places, body.args[1:], strict=True) if writer.places.get(m[0]) != m[1]]
        if moves:
            _rotate(inner, moves)
    for result, place in zip(op.results, places, strict=True):
        writer.places[result] = place


def _carried_place(outer: Statements, op: scf.ForOp, init: SSAValue, argument: SSAValue, result: SSAValue) -> Place:
    """Returns the place of a carried value: that of its start if nothing else reads it, or a new one."""
    writer, place, users = outer.writer, outer.owned(init), [use.operation for use in init.uses]
    if place is None or users.count(op) > 1 or any(op.is_ancestor(u) and u is not op for u in users):
        hint = result.name_hint or argument.name_hint or hint_of(result)
        place = Place(writer.names.mint(hint), registers(argument), registers(argument) == 1)
        if place.size == 1:
            writer.line(f"{writer.type_of(argument)} {place.name} = {writer.read(init).text};")
        elif isinstance(init.owner, ConstantOp) and init.owner.scalar == 0:
            writer.array(place, argument, " = {}")
        else:
            writer.array(place, argument)
            outer.copy(init, place)
    writer.places[argument] = place
    return place


def _unrolling(op: scf.ForOp) -> str:
    """Returns the argument of `#pragma unroll`: a loop is unrolled as a whole if its trip count is known and its work
    small. Where threads wait in it, compilers start all loads before the first wait, which must fit into registers."""
    trips = trip_count(op)
    if trips is None or any(isinstance(o, scf.ForOp | kernel.MbarWaitOp | kernel.WgmmaOp) for o in op.body.walk()):
        return " 1"
    work = 0
    for inner in op.body.walk():
        if isinstance(inner, kernel.ReduceRegistersOp):
            work += registers(inner.source)
        elif is_payload(inner) or isinstance(inner, _WORK):
            work += registers(inner.results[0])
    if trips * work > UNROLLED_WORK:
        return " 1"
    waits = any(isinstance(inner, kernel.BarrierOp) for inner in op.body.block.ops)
    return " 2" if waits and trips * _loaded_registers(op) > UNROLLED_LOADS else ""


def _loaded_registers(op: scf.ForOp) -> int:
    """Returns the registers of 4 bytes that an iteration of a loop loads from global memory."""
    loads = (o for o in op.body.walk() if isinstance(o, kernel.LoadOp) and not kernel.is_shared(o.memory.type))
    return sum(registers(load.result) * element_bytes(load.result.type) // 4 for load in loads)


def _prefer(inner: Statements, argument: SSAValue, value: SSAValue, place: Place) -> None:
    """Lets the pointwise result `value`, which is yielded for `argument`, be computed straight into the carried place
    if nothing needs the old value any more."""
    if value in inner.writer.preferred or registers(value) != place.size:
        return
    ops = [s.ops if isinstance(s, Group) else [s] for s in inner.order.statements]
    number = next((n for n, o in enumerate(ops) if value.owner in o), -1)
    last = inner.order.last_read.get(argument, -1)
    if last < number or last == number >= 0 and _reads_before(ops[number], value.owner, argument):
        inner.writer.preferred[value] = place


def _accumulated(value: SSAValue) -> SSAValue:
    """Returns the value whose place `value` takes over, through contractions and loops."""
    while True:
        op = value.owner
        if isinstance(op, scf.ForOp):
            start = op.iter_args[op.results.index(value)]  # pyright: ignore[reportArgumentType]
        elif isinstance(op, kernel.OuterFmaOp | kernel.PanelFmaOp | kernel.MmaOp):
            start = op.acc
        else:
            return value
        if len(list(start.uses)) > 1:
            return value
        value = start


def _reads_before(ops: Sequence[object], op: object, argument: SSAValue) -> bool:
    """Returns true if in a statement nothing after `op` reads `argument`, and every read is of the same register."""
    after = False
    for other in ops:
        for operand in other.operands:
            if argument in roots(operand) and (after or operand is not argument):
                return False
        after = after or other is op
    return True


def _rotate(inner: Statements, moves: Sequence[tuple[SSAValue, Place, SSAValue]]) -> None:
    """Sets carried places to the values that the loop yields, as if all at once: (value, place, argument)."""
    writer, overwritten = inner.writer, {argument for _, _, argument in moves}
    late: list[tuple[Place, Place]] = []
    for value, place, _ in moves:
        if not any(root in overwritten for root in roots(value)):
            continue
        saved = Place(writer.names.mint(hint_of(value)), place.size)
        if place.size == 1:
            writer.line(f"const {writer.type_of(value)} {saved.name} = {writer.read(value).text};")
        else:
            writer.array(saved, value)
            inner.copy(value, saved)
        late.append((saved, place))
    done = {place for _, place in late}
    for value, place, _ in moves:
        if place not in done:
            inner.copy(value, place)
    for saved, place in late:
        with writer.registers_loop(place.size) as r:
            writer.line(f"{place[r].text} = {saved[r].text};")


def print_if(outer: Statements, op: scf.IfOp) -> None:
    writer = outer.writer
    places: list[Place] = []
    for result in op.results:
        places.append(writer.declare(result))
        if places[-1].size == 1:
            writer.line(f"{writer.type_of(result)} {places[-1].name};")
    for head, region in ((f"if ({writer.read(op.cond).text})", op.true_region), ("else", op.false_region)):
        if not region.blocks or head == "else" and len(region.block.ops) <= 1 and not op.results:
            continue
        with writer.braces(head):
            inner = type(outer)(writer, region.block)
            inner.print()
            last = region.block.last_op
            for value, place in zip(last.operands if isinstance(last, scf.YieldOp) else (), places, strict=True):
                inner.copy(value, place)


PRINTERS: Mapping[type, Printer] = {
    kernel.SubviewOp: print_slot,
    kernel.LoadOp: lambda s, op: print_load(s.writer, op),
    kernel.StoreOp: lambda s, op: s.store(op),
    kernel.AtomicRmwOp: lambda s, op: print_atomic(s.writer, op),
    kernel.BarrierOp: lambda s, _: s.writer.line("__syncthreads();"),
    kernel.SharedOp: lambda s, op: None,  # declared at the top of the kernel
    kernel.IdOp: lambda s, op: s.identify(op),
    kernel.OuterFmaOp: Statements.outer_fma,
    scf.ForOp: print_for,
    scf.IfOp: print_if,
}
"""Printers of what kernels of GPUs and CPUs have in common."""
