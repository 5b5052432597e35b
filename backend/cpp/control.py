"""Blocks, loops and conditionals as C++, and where their carried values live.

A carried array is declared before the loop and updated in place: by the contraction that accumulates into it, by the
pointwise operation whose result the loop yields if nothing reads the old value afterwards, else by a copy at the end.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from xdsl.dialects import scf
from xdsl.ir import Operation, SSAValue

from ...dialects import kernel
from ...dialects.payload import ConstantOp, element_bytes, is_payload
from ...dialects.shapes.ranges import trip_count
from .ordering import Group, registers, roots
from .statements import Printer, Statements
from .writer import Place, hint_of

UNROLLED_LOADS = 48
"""Registers at most that hold what an unrolled loop loads between barriers; of a longer one two iterations go together,
so that the loads of the next are under way."""

UNROLLED_WORK = 2048
"""Loops are unrolled while all their iterations together do no more register operations than this."""

_WORK = kernel.OuterFmaOp | kernel.MmaOp | kernel.LdMatrixOp | kernel.LoadOp
"""Register operations, beside those of the payload."""


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
        _prefer(inner, body.args[1:], yielded, places)
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
    work = loaded = 0
    for inner in op.body.walk():
        if isinstance(inner, kernel.LoadOp) and not kernel.is_shared(inner.memory.type):
            loaded += registers(inner.result) * element_bytes(inner.result.type) // 4
        if isinstance(inner, kernel.ReduceRegistersOp):
            work += registers(inner.source)
        elif is_payload(inner) or isinstance(inner, _WORK):
            work += registers(inner.results[0])
    waits = any(isinstance(inner, kernel.BarrierOp) for inner in op.body.block.ops)
    if trips * work > UNROLLED_WORK:
        return " 1"
    return " 2" if waits and trips * loaded > UNROLLED_LOADS else ""


def _prefer(
    inner: Statements, arguments: Sequence[SSAValue], yielded: Sequence[SSAValue], places: Sequence[Place]
) -> None:
    """Lets yielded results be computed straight into the carried places where the old value is no longer needed."""
    computed = dict[SSAValue, tuple[int, Operation]]()
    for number, statement in enumerate(inner.order.statements):
        for op in statement.ops if isinstance(statement, Group) else [statement]:
            if isinstance(op, Operation) and is_payload(op):
                computed.setdefault(op.results[0], (number, op))
    for argument, value, place in zip(arguments, yielded, places, strict=True):
        value = _accumulated(value)
        if value not in computed or value in inner.writer.preferred or registers(value) != place.size:
            continue
        (number, op), last = computed[value], inner.order.last_read.get(argument, -1)
        if last < number or last == number and _reads_before(inner, number, op, argument):
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


def _reads_before(inner: Statements, number: int, op: Operation, argument: SSAValue) -> bool:
    """Returns true if in a statement nothing after `op` reads `argument`, and every read is of the same register."""
    statement, after = inner.order.statements[number], False
    for other in statement.ops if isinstance(statement, Group) else [op]:
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


PRINTERS: Mapping[type[Operation], Printer] = {scf.ForOp: print_for, scf.IfOp: print_if}
