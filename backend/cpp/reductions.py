"""Printing of reductions, scans and shuffles, within a thread and across lanes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from xdsl.ir import SSAValue

from ...dialects import kernel
from ...dialects.payload import element_type
from ...dialects.tensor import MONOIDS
from ..dtypes import STRUCTS
from .expressions import ATOM, TERNARY, UNARY, Expr, terms
from .ordering import Butterfly, registers
from .statements import Printer, Statements


def print_register_reduction(statements: Statements, op: kernel.ReduceRegistersOp) -> None:
    """Prints a reduction of the registers of one thread into fewer registers."""
    writer, bits, size = statements.writer, sorted(op.bits.get_values()), registers(op.source)
    name = MONOIDS[op.kind.data].combiner(op.result.type).name
    if size == registers(op.result):
        statements.copy(op.source, writer.declare(op.result))
    elif registers(op.result) == 1:
        variable = writer.start(op.result, writer.read(op.source, 0).text)
        writer.unroll()
        text = _reduced(statements, name, variable[0], writer.read(op.source, "i"), op.result).text
        writer.line(f"for (int i = 1; i < {size}; ++i) {assignment(variable[0], text)}")
    else:
        variable, steps, mask = writer.declare(op.result), _steps_without(bits, size), sum(1 << b for b in bits)
        with writer.registers_loop(size) as r:
            target, source = variable[terms(r, steps).text], writer.read(op.source, r)
            both = _reduced(statements, name, target, source, op.result)
            writer.line(f"{target.text} = (i & {mask}) == 0 ? {source.at(UNARY)} : {both.at(TERNARY + 1)};")


def print_scan(statements: Statements, op: kernel.ScanRegistersOp) -> None:
    """Prints a prefix scan of the registers of one thread: each is combined with all before it."""
    writer, size, several = statements.writer, registers(op.source), registers(op.carry) > 1
    name = MONOIDS[op.kind.data].combiner(op.result.type).name
    if several:
        carry = statements.reuse_or_copy(op.init, op.carry)
    else:
        carry = writer.start(op.carry, writer.read(op.init).text)
    variable, steps = writer.declare(op.result), _steps_without(op.bits.get_values(), size)
    with writer.registers_loop(size) as r:
        last = carry[terms(r, steps).text if several else 0]
        writer.line(assignment(last, _reduced(statements, name, last, writer.read(op.source, r), op.result).text))
        writer.line(f"{variable[r].text} = {last.text};")


def _reduced(statements: Statements, name: str, a: Expr, b: Expr, value: SSAValue) -> Expr:
    result = statements.writer.scalars.combined(name, element_type(value.type), a, b)
    is_call = name in ("arith.maxsi", "arith.minsi") and result.level == ATOM
    return Expr(f"({statements.writer.type_of(value)}){result.text}", UNARY) if is_call else result


def print_butterfly(statements: Statements, b: Butterfly) -> None:
    """Prints an all-reduce across lanes, as a loop of `__shfl_xor_sync`."""
    writer, target = statements.writer, statements.reusable_variable(b.shuffle.source)
    if target is None and registers(b.result) == 1:
        target = writer.start(b.result, writer.read(b.shuffle.source).text)
    elif target is None:
        target = writer.declare(b.result)
        statements.copy(b.shuffle.source, target)
    writer.variables[b.result] = target
    with writer.registers_loop(target.size) as r:
        mask, head = str(b.masks[0]), ""
        if len(b.masks) > 1:
            growing = b.masks[1] > b.masks[0]
            end = f"m <= {b.masks[-1]}; m *= 2" if growing else f"m >= {b.masks[-1]}; m /= 2"
            mask, head = "m", f"for (int m = {b.masks[0]}; {end}) "
            writer.unroll()
        lane = shuffle_call(target[r], mask, writer.type_of(b.result))
        text = writer.scalars.combined(b.combine.name, element_type(b.result.type), target[r], lane).text
        writer.line(head + assignment(target[r], text))


def print_shuffle(statements: Statements, op: kernel.ShuffleXorOp) -> None:
    """Prints `kernel.shuffle_xor`: the registers of the lane whose number differs by a mask."""
    writer, mask, element = statements.writer, str(op.mask.data), statements.writer.type_of(op.result)
    writer.define(op.result, lambda r: shuffle_call(writer.read(op.source, r), mask, element).text)


def print_shuffle_registers(statements: Statements, op: kernel.ShuffleRegistersOp) -> None:
    """Prints an irregular permutation of registers, with one assignment for each register.

    Regular permutations are not printed: their readers use the source with another index (`linear_steps`).
    """
    variable = statements.writer.declare(op.result)
    for r, number in enumerate(op.registers.get_values()):
        statements.writer.line(f"{variable[r].text} = {statements.writer.read(op.source, number).text};")


def _steps_without(bits: Sequence[int], size: int) -> list[int]:
    """Returns steps that number the registers of a reduction's result.

    Bits of the source's register number that are in `bits` are reduced and have the step 0. The other bits have the
    steps 1, 2, 4 and so on. `size` is the number of source registers.
    """
    others = [b for b in range(size.bit_length() - 1) if b not in bits]
    return [1 << others.index(b) if b in others else 0 for b in range(size.bit_length() - 1)]


def shuffle_call(value: Expr, other: str, c: str, mode: str = "xor_") -> Expr:
    """Returns the C++ shuffle that reads `value` in another lane. Types without a shuffle are converted to `int`.

    Args:
        value: the value.
        other: C++ of the lane, or of the mask.
        c: C++ type of the value.
        mode: "xor_" for a mask, "" for a lane.
    """
    call = f"__shfl_{mode}sync(0xffffffffu, {{}}, {other})"
    if c in STRUCTS:
        return Expr(f"{c}{{({STRUCTS[c]}){call.format(f'(int){value.text}.bits')}}}")
    if c in ("bool", "signed char", "unsigned char", "short", "unsigned short"):
        return Expr(f"({c}){call.format(f'(int){value.at(UNARY)}')}", UNARY)
    return Expr(call.format(value.text))


def assignment(target: Expr, text: str) -> str:
    """Returns the statement that assigns `text` to `target`, with `+=` if `text` adds to the target."""
    sum_of = f"{target.text} + "
    return f"{target.text} += {text[len(sum_of) :]};" if text.startswith(sum_of) else f"{target.text} = {text};"


PRINTERS: Mapping[type, Printer] = {
    Butterfly: print_butterfly,
    kernel.ReduceRegistersOp: print_register_reduction,
    kernel.ScanRegistersOp: print_scan,
    kernel.ShuffleXorOp: print_shuffle,
    kernel.ShuffleRegistersOp: print_shuffle_registers,
}
"""Class of an operation or statement -> its printer."""
