"""Registers that lanes exchange, as C++: loops over the registers, of 16 bits over pairs of them."""

from __future__ import annotations

from xdsl.ir import SSAValue

from ...dialects.kernel import PermuteRegistersOp, ShuffleOp
from ..cpp.expressions import BIT_XOR, infix
from ..cpp.ordering import registers
from ..cpp.statements import Statements, add_printer, shuffled
from ..cpp.writer import Place, Register, Writer, bare, flips
from ..dtypes import STRUCTS
from .tensor_cores import WORD, operand_array


def print_shuffle(statements: Statements, op: ShuffleOp) -> None:
    """One shuffle for each register, or for each pair; what a lane keeps is copied."""
    writer = statements.writer
    element, size = writer.type_of(op.result), registers(op.result)
    lane = None if op.lane is None else writer.read(op.lane)
    if size == 1:
        mine = writer.read(op.source)
        writer.define(op.result, lambda _: (mine if lane is None else shuffled(mine, lane.text, element, "")).text)
        return
    mode, pair = "xor_" if lane is None else "", element in STRUCTS and op.lane_xor.get_values()[0] == 0
    source = _pairs(statements, op.source) if pair else None
    place = writer.declare(op.result)
    with writer.registers_loop(size, 2 if pair else 1) as r:
        flip = flips(r, op.lane_xor.get_values())
        at = flip if lane is None else lane if flip.text == "0" else infix(lane, "^", flip, BIT_XOR)
        head = f"if ({flip.text}) " if lane is None else ""
        if source is not None:
            writer.use(f"shuffle_{mode}pair.{element}")
            writer.use(f"copy_pair.{element}")
            operands = ", ".join(writer.pointer(p.name, str(r), WORD) for p in (place, source))
            writer.line(f"{head}shuffle_{mode}pair({operands}, {at.text});")
            kept = f"copy_pair({operands})"
        else:
            mine = writer.read(op.source, r)
            writer.line(f"{head}{place[r].text} = {shuffled(mine, at.text, element, mode).text};")
            kept = f"{place[r].text} = {mine.text}"
        if lane is None:
            writer.line(f"else {kept};")


def print_renumber(statements: Statements, op: PermuteRegistersOp) -> None:
    """For each move a choice between two registers, or pairs, by a bit of the lane's number."""
    writer, moves = statements.writer, op.reg_xor.get_values()
    element, size = writer.type_of(op.result), registers(op.result)
    pair = element in STRUCTS and size > 1 and not any(m & 1 for m in moves)
    source = _pairs(statements, op.source) if pair else None
    lane = writer.read(op.lane).text
    for number, move in enumerate(sorted(set(moves) - {0})):
        bits = [f"{lane} >> {b}" if b else lane for b, m in enumerate(moves) if m == move]
        odd = f"({' ^ '.join(f'({b})' if len(bits) > 1 else b for b in bits)}) & 1"
        before, target = source, writer.declare(op.result)
        with writer.registers_loop(size, 2 if pair else 1) as r:
            other: Register = r ^ move if isinstance(r, int) else f"({r} ^ {move})"
            if pair:
                assert before is not None
                writer.use(f"choose_pair.{element}")
                moved = ((target, r), (before, other), (before, r))
                operands = ", ".join(writer.pointer(p.name, bare(str(n)), WORD) for p, n in moved)
                writer.line(f"choose_pair({operands}, {odd});")
            else:
                mine, its = (_read(writer, op.source, before, n) for n in (r, other))
                writer.line(f"{target[r].text} = {odd} ? {its} : {mine};")
        source = target
        if number + 1 < len(set(moves) - {0}):
            del writer.places[op.result]


def _read(writer: Writer, value: SSAValue, place: Place | None, register: Register) -> str:
    return (writer.read(value, register) if place is None else place[register]).text


def _pairs(statements: Statements, value: SSAValue) -> Place:
    """The array of a value of which pairs are read as words."""
    name, first = operand_array(statements, value)
    assert first == 0
    return Place(name, registers(value))


add_printer(ShuffleOp, print_shuffle)
add_printer(PermuteRegistersOp, print_renumber)
