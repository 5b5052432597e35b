"""Printing of the statements of a block: pointwise groups, stores, outer products, loops and conditionals.

The variable of a loop-carried value is declared before the loop and updated in each iteration:

- in place by the contraction that accumulates into it;
- in place by the pointwise operation whose result the loop yields, if nothing reads the old value afterwards;
- otherwise by a copy at the end of the body.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

from xdsl.dialects import scf
from xdsl.dialects.builtin import f32
from xdsl.ir import Block, Operation, SSAValue

from ...dialects import kernel
from ...dialects.kernel.memory import space_of
from ...dialects.payload import ConstantOp, element_bytes, element_type, is_float, is_payload
from ...dialects.shapes.ranges import trip_count
from ...dialects.support.locations import refused
from ...errors import CompileError
from ...plugins import rule_of
from .expressions import AND, PRINTERS_GROUP, UNARY, Expr, Register, add, c_type, terms
from .memory import memory_name, print_atomic, print_load, print_store
from .ordering import Butterfly, Group, Ordering, Statement, registers, roots, same_line
from .writer import Variable, Writer, hint_of

UNROLLED_LOADS = 48
"""Largest number of 4-byte registers that an unrolled loop with barriers may load from global memory.

A loop that loads more is unrolled by 2, so that the loads of the next iteration are outstanding. Tuned by hand.
"""

UNROLLED_WORK = 2048
"""Largest number of register operations, in all iterations together, of a loop that is unrolled. Tuned by hand."""

_WORK = kernel.OuterFmaOp | kernel.MmaOp | kernel.LdMatrixOp | kernel.LoadOp
"""Operations that count as work of a loop (`UNROLLED_WORK`), in addition to scalar payload."""

Printer = Callable[[Any, Any], object]
"""Function of the `Statements` of a block and an operation; prints the operation."""


class Statements:
    """Printer of the statements of one block.

    Attributes:
        ordering: class that orders the statements.
        printers: class of an operation or statement -> its printer.
        writer: the writer of the kernel.
        block: the block.
        order: its ordered statements.
        number: index of the statement that is being printed.
        inline: result of a group -> the expression to print in its only user.
    """

    ordering = Ordering
    printers: ClassVar[Mapping[type, Printer]] = {}

    def __init__(self, writer: Writer, block: Block) -> None:
        self.writer = writer
        self.block = block
        self.order = self.ordering(block)
        self.number = 0
        self.inline: dict[SSAValue, Expr] = {}

    def print(self) -> None:
        """Prints all statements except the terminator."""
        for self.number, statement in enumerate(self.order.statements):
            self._print(statement)
        self.number = len(self.order.statements)

    def _print(self, statement: Statement) -> None:
        if isinstance(statement, Group):
            self.writer.begin(*statement.ops)
            self._group(statement)
            return
        self.writer.comment_location(statement.shuffle if isinstance(statement, Butterfly) else statement)
        self.printers.get(type(statement), Statements._scalar)(self, statement)

    def is_last_use(self, value: SSAValue) -> bool:
        """Returns true if `value` is defined in this block and no statement after the current one reads it."""
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
            raise refused(op, "cannot be printed as C++", CompileError)
        printer(self, op)

    def _group(self, group: Group) -> None:
        writer, inside = self.writer, set(group.ops)
        outside = {op for op in group.ops if any(u.operation not in inside for u in op.results[0].uses)}
        if len(group.ops) == 1:
            writer.comment_location(group.ops[0])
        for op in group.ops:
            if op in outside:
                writer.declare(op.results[0])
        with writer.registers_loop(group.size) as r:
            for op in group.ops:
                if op in outside or op.results[0].first_use is not None:
                    self._pointwise(op, r, op in outside)
        for op in group.ops:
            if op not in outside:
                writer.variables.pop(op.results[0], None)

    def _pointwise(self, op: Operation, r: Register, is_read_later: bool) -> None:
        writer, result = self.writer, op.results[0]
        operands = [self.inline.pop(v) if v in self.inline else writer.read(v, r) for v in op.operands]
        text = writer.scalars.print(op, operands)
        if is_read_later:
            writer.comment_location(op)
            writer.line(f"{writer.variables[result][r].text} = {text.text};")
        else:
            self._define_inside(op, text)

    def _define_inside(self, op: Operation, text: Expr) -> None:
        """Prints a result that only its group reads: as a constant, or inlined if its only user has the same line."""
        writer, result, users = self.writer, op.results[0], [use.operation for use in op.results[0].uses]
        if result.name_hint is None and len(users) == 1 and same_line(users[0], op):
            self.inline[result] = text
            writer.inlines(op)
            return
        writer.comment_location(op)
        variable = writer.variables[result] = Variable(writer.names.mint(hint_of(result)), 1)
        writer.line(f"const {writer.type_of(result)} {variable.name} = {text.text};")

    def copy(self, value: SSAValue, target: Variable) -> None:
        """Prints the assignment of `value` to `target`, register by register."""
        with self.writer.registers_loop(target.size) as r:
            self.writer.line(f"{target[r].text} = {self.writer.read(value, r).text};")

    def reusable_variable(self, value: SSAValue) -> Variable | None:
        """Returns the variable of `value` if this statement may overwrite it, or None.

        The variable must be mutable, and no later statement may read it.
        """
        variable = self.writer.variables.get(value)
        return (
            variable
            if variable is not None and (variable.size > 1 or variable.mutable) and self.is_last_use(value)
            else None
        )

    def reuse_or_copy(self, source: SSAValue, result: SSAValue) -> Variable:
        """Returns the variable of `result`, initialised with `source`.

        It is the variable of `source` if this statement may overwrite it, or else a copy.
        """
        target = self.reusable_variable(source)
        if target is None or target.size != registers(result):
            target = self.writer.declare(result)
            self.copy(source, target)
        self.writer.variables[result] = target
        return target

    def outer_fma(self, op: kernel.OuterFmaOp) -> None:
        """Prints `kernel.outer_fma`, in place if the accumulator may be overwritten."""
        writer, target = self.writer, self.reuse_or_copy(op.acc, op.result)
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
        t, scalars = element_type(op.result.type), self.writer.scalars
        if is_float(t):
            raise refused(op, f"expected float, double or an integer type, but got {c_type(t)}", CompileError)
        return scalars.combined("arith.addi", t, c, scalars.combined("arith.muli", t, a, b)).text

    def store(self, op: kernel.StoreOp) -> None:
        """Prints a store. The value of a wide store is copied into an array first if it is an expression."""
        filled = op.vec.data > 1 and op.value not in self.writer.variables
        if filled:
            self.copy_to_array(op.value)
        print_store(self.writer, op)
        if filled:
            del self.writer.variables[op.value]

    def copy_to_array(self, value: SSAValue) -> Variable:
        """Declares an array, copies a value that is printed as an expression into it, and returns it."""
        variable = self.writer.declare(value)
        del self.writer.variables[value]  # The copy must read the expression and not the new array.
        self.copy(value, variable)
        self.writer.variables[value] = variable
        return variable

    def identify(self, op: kernel.IdOp) -> None:
        """Prints `kernel.id`: the index of the thread, warp, lane or block."""
        kind = op.kind.data.value
        text = f"blockIdx.x % {self.writer.func.cluster_size}" if kind == "rank" else self.writer.ids[kind]
        self.writer.define(op.result, lambda _: text)


def print_subview(statements: Statements, op: kernel.SubviewOp) -> None:
    """Prints `kernel.subview`: a pointer to one stage of a circular buffer."""
    start, ring = statements.writer.read(op.offset).text, memory_name(statements.writer, op.ring)
    add_pointer(statements, op.result, ring if start == "0" else f"{ring} + {start}", "slot")


def call_printers(calls: Mapping[type[Operation], Callable[[Any, Any], str]]) -> dict[type[Operation], Printer]:
    """Returns printers of operations that are calls of helpers.

    Args:
        calls: class of an operation -> function that returns the C++ call. The call starts with the helper's key.
    """

    def printer(text: Callable[[Any, Any], str]) -> Printer:
        def print_call(statements: Statements, op: Operation) -> None:
            call = text(statements, op)
            statements.writer.use(re.split(r"\W", call, maxsplit=1)[0])
            statements.writer.line(f"{call};")

        return print_call

    return {kind: printer(text) for kind, text in calls.items()}


def add_pointer(statements: Statements, value: SSAValue, text: str, word: str) -> None:
    """Declares the pointer `value`.

    Args:
        statements: printer of the block.
        value: value of a memref type.
        text: C++ of the address.
        word: name of the pointer if the IR has none.
    """
    writer, space = statements.writer, space_of(value.type)
    assert space is not None, value
    writer.line(f"{space.qualifier}{writer.type_of(value)}* const {writer.name(value, word)} = {text};")


def element_address(statements: Statements, memory: SSAValue, index: SSAValue) -> str:
    """Returns the C++ address `&x[i]` of an element, or `x` if the index is 0.

    Args:
        statements: printer of the block.
        memory: the buffer x.
        index: the index i.
    """
    name, at = memory_name(statements.writer, memory), statements.writer.read(index).text
    return name if at == "0" else f"&{name}[{at}]"


def print_for(outer: Statements, op: scf.ForOp) -> None:
    """Prints `scf.for`, after the declarations of its loop-carried variables."""
    writer, body = outer.writer, op.body.block
    carried = zip(op.iter_args, body.args[1:], op.results, strict=True)
    variables = [_carried_variable(outer, op, *values) for values in carried]
    lb, ub, step = (writer.read(v).text for v in (op.lb, op.ub, op.step))
    counter = writer.name(body.args[0], "k")
    writer.unroll(_unrolling(op))
    advance = f"++{counter}" if step == "1" else f"{counter} += {step}"
    with writer.braces(f"for ({writer.index} {counter} = {lb}; {counter} < {ub}; {advance})"):
        inner = type(outer)(writer, body)
        yielded = body.last_op.operands if body.last_op is not None else ()
        for argument, value, variable in zip(body.args[1:], map(_initial_accumulator, yielded), variables, strict=True):
            if isinstance(value.owner, Operation) and is_payload(value.owner):
                _compute_in_carried_variable(inner, argument, value, variable)
        inner.print()
        moves = [m for m in zip(yielded, variables, body.args[1:], strict=True) if writer.variables.get(m[0]) != m[1]]
        if moves:
            _assign_in_parallel(inner, moves)
    for result, variable in zip(op.results, variables, strict=True):
        writer.variables[result] = variable


def _carried_variable(
    outer: Statements, op: scf.ForOp, init: SSAValue, argument: SSAValue, result: SSAValue
) -> Variable:
    """Returns the variable of a loop-carried value, initialised with `init`.

    It is the variable of `init` if nothing else reads that, or else a new one.
    """
    writer, variable, users = outer.writer, outer.reusable_variable(init), [use.operation for use in init.uses]
    if variable is None or users.count(op) > 1 or any(op.is_ancestor(u) and u is not op for u in users):
        hint = result.name_hint or argument.name_hint or hint_of(result)
        variable = Variable(writer.names.mint(hint), registers(argument), registers(argument) == 1)
        if variable.size == 1:
            writer.line(f"{writer.type_of(argument)} {variable.name} = {writer.read(init).text};")
        elif isinstance(init.owner, ConstantOp) and init.owner.scalar == 0:
            writer.array(variable, argument, " = {}")
        else:
            writer.array(variable, argument)
            outer.copy(init, variable)
    writer.variables[argument] = variable
    return variable


def _unrolling(op: scf.ForOp) -> str:
    """Returns the argument of `#pragma unroll`: "" unrolls completely, " 1" not at all, " 2" by 2.

    A loop is unrolled completely if its trip count is constant, its work at most `UNROLLED_WORK`, and it contains no
    loop, mbarrier wait or `wgmma`. In a loop with barriers, compilers start all loads before the first barrier, so the
    loads must fit into `UNROLLED_LOADS` registers.
    """
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
    """Returns the number of 4-byte registers that an iteration of a loop loads from global memory."""
    loads = (o for o in op.body.walk() if isinstance(o, kernel.LoadOp) and not kernel.is_shared(o.memory.type))
    return sum(registers(load.result) * element_bytes(load.result.type) // 4 for load in loads)


def _compute_in_carried_variable(inner: Statements, argument: SSAValue, value: SSAValue, variable: Variable) -> None:
    """Makes `value` be computed directly into a loop-carried variable if its old content is not needed any more.

    Args:
        inner: printer of the loop body.
        argument: block argument of the body.
        value: pointwise result that the loop yields for the argument.
        variable: the loop-carried variable.
    """
    if value in inner.writer.preferred or registers(value) != variable.size:
        return
    ops = [s.ops if isinstance(s, Group) else [s] for s in inner.order.statements]
    number = next((n for n, o in enumerate(ops) if value.owner in o), -1)
    last = inner.order.last_read.get(argument, -1)
    if last < number or last == number >= 0 and _reads_only_before(ops[number], value.owner, argument):
        inner.writer.preferred[value] = variable


def _initial_accumulator(value: SSAValue) -> SSAValue:
    """Returns the first value in the chain of accumulators of contractions and loops that ends in `value`.

    All values of the chain share one variable, because only the next one in the chain reads each of them.
    """
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


def _reads_only_before(ops: Sequence[object], op: object, argument: SSAValue) -> bool:
    """Returns true if register r of `op` can overwrite register r of `argument` in the loop of a group.

    `ops` are the operations of the group. The result is false if one of them reads `argument` after `op`, or reads it
    through a view, and so possibly another register than r.
    """
    after = False
    for other in ops:
        for operand in other.operands:
            if argument in roots(operand) and (after or operand is not argument):
                return False
        after = after or other is op
    return True


def _assign_in_parallel(inner: Statements, moves: Sequence[tuple[SSAValue, Variable, SSAValue]]) -> None:
    """Prints the assignments of yielded values to loop-carried variables, as if they happened simultaneously.

    Values that depend on overwritten variables are saved first.

    Args:
        inner: printer of the loop body.
        moves: yielded value, loop-carried variable and block argument of each assignment.
    """
    writer, overwritten = inner.writer, {argument for _, _, argument in moves}
    saved_values: list[tuple[Variable, Variable]] = []
    for value, variable, _ in moves:
        if not any(root in overwritten for root in roots(value)):
            continue
        saved = Variable(writer.names.mint(hint_of(value)), variable.size)
        if variable.size == 1:
            writer.line(f"const {writer.type_of(value)} {saved.name} = {writer.read(value).text};")
        else:
            writer.array(saved, value)
            inner.copy(value, saved)
        saved_values.append((saved, variable))
    done = {variable for _, variable in saved_values}
    for value, variable, _ in moves:
        if variable not in done:
            inner.copy(value, variable)
    for saved, variable in saved_values:
        with writer.registers_loop(variable.size) as r:
            writer.line(f"{variable[r].text} = {saved[r].text};")


def print_if(outer: Statements, op: scf.IfOp) -> None:
    """Prints `scf.if`, after the declarations of its results."""
    writer = outer.writer
    variables: list[Variable] = []
    for result in op.results:
        variables.append(writer.declare(result))
        if variables[-1].size == 1:
            writer.line(f"{writer.type_of(result)} {variables[-1].name};")
    for head, region in ((f"if ({writer.read(op.cond).text})", op.true_region), ("else", op.false_region)):
        if not region.blocks or head == "else" and len(region.block.ops) <= 1 and not op.results:
            continue
        with writer.braces(head):
            inner = type(outer)(writer, region.block)
            inner.print()
            last = region.block.last_op
            for value, variable in zip(last.operands if isinstance(last, scf.YieldOp) else (), variables, strict=True):
                inner.copy(value, variable)


def print_values(statements: Statements, op: kernel.PrintOp) -> None:
    """Prints `kernel.print`: a call of `printf` for each register."""
    writer, t = statements.writer, element_type(op.value.type)
    writer.use("print_line")
    number = "%.9g" if is_float(t) else "%lld"
    at = ", ".join(["%lld"] * len(op.indices))
    label = re.sub(r"[^ -~]", "?", op.label.data).replace("%", "%%")
    text = json.dumps(f"{label}[{at}] = {number}\n").replace("??", "?\\?")
    with writer.registers_loop(registers(op.value)) as r:
        value = writer.read(op.value, r)
        if is_float(t):
            value = writer.scalars.cast(value, t, f32) if element_bytes(t) < 4 else value
        words = [f"(long long){writer.read(i, r).at(UNARY)}" for i in op.indices]
        words.append(f"({'double' if is_float(t) else 'long long'}){value.at(UNARY)}")
        held = [
            writer.read(v, at_register).at(AND) for v, at_register in ((op.mask, r), (op.predicate, 0)) if v is not None
        ]
        guard = f"if ({' && '.join(held)}) " if held else ""
        writer.line(f"{guard}print_line({', '.join([text, *words])});")


PRINTERS: Mapping[type, Printer] = {
    kernel.SubviewOp: print_subview,
    kernel.LoadOp: lambda s, op: print_load(s.writer, op),
    kernel.StoreOp: lambda s, op: s.store(op),
    kernel.AtomicRmwOp: lambda s, op: print_atomic(s.writer, op),
    kernel.PrintOp: print_values,
    kernel.BarrierOp: lambda s, _: s.writer.line("__syncthreads();"),
    kernel.SharedOp: lambda s, op: None,  # declared at the top of the kernel
    kernel.IdOp: lambda s, op: s.identify(op),
    kernel.OuterFmaOp: Statements.outer_fma,
    scf.ForOp: print_for,
    scf.IfOp: print_if,
}
"""Class of an operation -> its printer, for operations that GPU and CPU kernels share."""
