"""Printing of tensor core operations, and of shuffles between lanes.

`mma.sync` instructions of a warp are printed in loops over the blocks of its tile. `wgmma` instructions of a warpgroup
are printed in a loop over slices of k; a slice is the k extent of one instruction. Accumulators are updated in place.
Shuffles of 16-bit elements exchange pairs, as 32-bit words.
"""

from __future__ import annotations

from collections.abc import Mapping

from xdsl.ir import Operation, SSAValue

from ...dialects import kernel
from ...dialects.kernel.wgmma import SLICE_BYTES, slice_elements
from ...dialects.layouts.linear import combine
from ...dialects.payload import shape_of
from ...dialects.support.locations import refused
from ...errors import CompileError
from ..cpp.device import wgmma_key
from ..cpp.expressions import AND, BIT_XOR, Expr, Register, flips, infix, terms, without_parentheses
from ..cpp.memory import element_at, prepare
from ..cpp.ordering import registers
from ..cpp.reductions import shuffle_call
from ..cpp.statements import Printer, Statements, call_printers, element_address
from ..cpp.writer import Variable
from ..dtypes import STRUCTS

WORD = 4
"""Bytes of a hardware register: the width in which helpers access matrix elements, two of 16 bits or one of 32."""


def _print_matrices(
    statements: Statements, op: kernel.LdMatrixOp | kernel.StMatrixOp, kind: str, array: str, first: int
) -> None:
    """Prints `ldmatrix` or `stmatrix` calls. Each call moves `op.count` matrices.

    Args:
        statements: printer of the block.
        op: the operation.
        kind: "ldmatrix" or "stmatrix".
        array: name of the array of registers.
        first: index of its first register.
    """
    writer, count = statements.writer, op.count.data
    helper = f"{kind}_x{count}{'_trans' if op.trans is not None else ''}"
    writer.use(f"{helper}.{writer.type_of(op.memory)}")
    prepare(writer, op)
    with writer.registers_loop(op.registers, op.row) as r:
        index = "" if r == 0 else str(r) if count == 4 else f"{r} / {4 // count}"
        operands = [writer.pointer(array, _sum(index, first), WORD), f"&{element_at(writer, op, r)}"]
        target, source = operands if isinstance(op, kernel.LdMatrixOp) else reversed(operands)
        writer.line(f"{helper}({target}, {source});")


def print_mma(statements: Statements, op: kernel.MmaOp) -> None:
    """Prints `kernel.mma`: all `mma.sync` of a warp's tile, in place if the accumulator may be overwritten."""
    writer, target, atom = statements.writer, statements.reuse_or_copy(op.acc, op.result), op.atom
    helper, (a, b) = f"mma_{atom.shape}", atom.registers
    writer.type_of(op.lhs)
    writer.use(f"{helper}.{atom.c_type}")
    halves, rows = op.rows.get_values()[: atom.row_bits], op.rows.get_values()[atom.row_bits :]
    cols = op.cols.get_values()
    lhs = _operand(statements, op.lhs, _times("i", a) if rows else "")
    rhs = _operand(statements, op.rhs, _times("j", b) if cols else "")
    pad = writer.unrolled(("i", 1 << len(rows)), ("j", 1 << len(cols)))
    parts = [terms("i", [1 << b for b in rows]), terms("j", [1 << b for b in cols])]
    at = " + ".join(p.text for p in parts if p.text != "0")
    indices = [_sum(at, combine([1 << bit for bit in halves], half)) for half in range(1 << len(halves))]
    sums = [f"&{target.name}[{index}]" if index else target.name for index in indices]
    writer.line(f"{pad}{helper}({', '.join([*sums, lhs, rhs])});")


def operand_array(statements: Statements, value: SSAValue) -> tuple[str, int]:
    """Returns an array with the registers of `value` in order, and the index of the first.

    It is the array of `value`, an array that contains `value` as a contiguous part, or a new copy.
    """
    writer, op = statements.writer, value.owner
    if value in writer.variables:
        return writer.variables[value].name, 0
    if isinstance(op, kernel.ShuffleRegistersOp) and op.source in writer.variables:
        picked = op.registers.get_values()
        if picked[0] % 2 == 0 and tuple(picked) == tuple(range(picked[0], picked[0] + len(picked))):
            return writer.variables[op.source].name, int(picked[0])
    return statements.copy_to_array(value).name, 0


def _operand(statements: Statements, value: SSAValue, at: str) -> str:
    """Returns the C++ pointer to the registers of an operand, from the index expression `at` on."""
    writer = statements.writer
    if shape_of(value.type) != (1,):
        array, first = operand_array(statements, value)
        return writer.pointer(array, _sum(at, first), WORD)
    if value not in writer.variables:
        text = writer.read(value).text
        writer.define(value, lambda _: text)
    return f"&{writer.variables[value].name}"


def _times(counter: str, step: int) -> str:
    return counter if step == 1 else f"{counter} * {step}"


def _sum(index: str, offset: int) -> str:
    """Returns `index + offset` without zero terms, or an empty text if both are 0."""
    return " + ".join([*([index] if index else []), *([str(offset)] if offset else [])])


def _accumulators(statements: Statements, acc: SSAValue, op: Operation) -> Variable:
    """Returns the array of asynchronous accumulators, which `op` updates in place.

    Raises CompileError if another operation reads the accumulators.
    """
    variable = statements.reusable_variable(acc)
    if variable is None:
        raise refused(
            op, "expected one use of asynchronous accumulators, but another operation reads them too", CompileError
        )
    return variable


def print_wgmma(statements: Statements, op: kernel.WgmmaOp) -> None:
    """Prints `kernel.wgmma`: one call for each slice of k."""
    writer, slices = statements.writer, op.k_steps.data
    variable = writer.variables[op.result] = _accumulators(statements, op.acc, op)
    transposed = op.lhs_transposed is not None, op.rhs_transposed is not None
    key = wgmma_key(op.columns, writer.type_of(op.element), op.lhs_offset is None, *transposed)
    if op.lhs_offset is None:
        name, first = operand_array(statements, op.lhs)
        step = f"slice * {slice_elements(op.element) // 2}" if slices > 1 else ""
        lhs_operand = writer.pointer(name, _sum(step, first), WORD)
    else:
        lhs_operand = _matrix(statements, op, "left", op.lhs, op.lhs_offset, transposed[0])
    rhs_operand = _matrix(statements, op, "right", op.rhs, op.rhs_offset, transposed[1])
    writer.use(key)
    accumulate, head = Expr("true") if op.use_acc is None else writer.read(op.use_acc), ""
    if op.scale_d_zero is not None:
        accumulate = Expr("false")
    if slices > 1:
        if accumulate.text != "true":
            accumulate = Expr("slice > 0" if accumulate.text == "false" else f"slice > 0 || {accumulate.at(AND)}")
        writer.unroll()
        head = f"for (int slice = 0; slice < {slices}; ++slice) "
    writer.line(f"{head}{key.split('.')[0]}({variable.name}, {lhs_operand}, {rhs_operand}, {accumulate.text});")


def _matrix(
    statements: Statements, op: kernel.WgmmaOp, side: str, memory: SSAValue, at: SSAValue, transposed: bool
) -> str:
    """Declares the shared memory descriptor of an operand. Returns its C++ for the current slice of k.

    Args:
        statements: printer of the block.
        op: the operation.
        side: name of the descriptor if the buffer has none.
        memory: the shared buffer.
        at: index of the operand's first element.
        transposed: whether k is not the contiguous dimension.
    """
    writer, width = statements.writer, op.swizzle.data
    pointer = element_address(statements, memory, at)
    panel = 0 if op.leading_offset is None else 2 * op.leading_offset.data
    leading = panel if transposed and panel else 16
    writer.use("matrix")
    name = writer.names.mint(memory.name_hint or side, side)
    writer.line(f"const unsigned long long {name} = matrix({pointer}, {leading}, {8 * width}, {width});")
    step = slice_elements(op.element) * width // 16 if transposed else SLICE_BYTES // 16
    return name if op.k_steps.data == 1 else f"{name} + slice * {step}"


def print_accumulators(statements: Statements, op: kernel.AccumulatorsOp) -> None:
    """Assigns accumulators the array of their initial value, or declares a new one."""
    if op.source is None:
        statements.writer.declare(op.result)
    else:
        statements.reuse_or_copy(op.source, op.result)


def print_wait(statements: Statements, op: kernel.WgmmaWaitOp) -> None:
    """Prints a wait for outstanding `wgmma` instructions.

    If the result can be read as registers, the accumulators are operands of the wait, so that the compiler cannot move
    reads of them before it.
    """
    writer, pending = statements.writer, op.pending.data
    variable = writer.variables[op.result] = _accumulators(statements, op.acc, op)
    are_read = op.result.type != op.acc.type
    writer.use("wgmma_wait_for" if are_read else "wgmma_wait")
    wait_for = f"wgmma_wait_for<{pending}>({variable.name});" if pending else f"wgmma_wait_for({variable.name});"
    writer.line(wait_for if are_read else f"wgmma_wait<{pending}>();")


def print_shuffle(statements: Statements, op: kernel.ShuffleOp) -> None:
    """Prints `kernel.shuffle`: one shuffle for each register, or for each pair of 16-bit registers.

    Without an explicit source lane, registers whose lane mask is 0 are copied.
    """
    writer, size = statements.writer, registers(op.result)
    element, lane = writer.type_of(op.result), None if op.lane is None else writer.read(op.lane)
    if size == 1:
        mine = writer.read(op.source)
        writer.define(op.result, lambda _: (mine if lane is None else shuffle_call(mine, lane.text, element, "")).text)
        return
    mode, pair = "xor_" if lane is None else "", element in STRUCTS and op.lane_xor.get_values()[0] == 0
    source = _pairs(statements, op.source) if pair else None
    variable = writer.declare(op.result)
    with writer.registers_loop(size, 2 if pair else 1) as r:
        flip = flips(r, op.lane_xor.get_values())
        at = flip if lane is None else lane if flip.text == "0" else infix(lane, "^", flip, BIT_XOR)
        if source is not None:
            writer.use(f"shuffle_{mode}pair.{element}")
            writer.use(f"copy_pair.{element}")
            operands = ", ".join(writer.pointer(p.name, str(r), WORD) for p in (variable, source))
            exchange, copy = f"shuffle_{mode}pair({operands}, {at.text});", f"copy_pair({operands});"
        else:
            mine = writer.read(op.source, r)
            exchange, copy = (
                f"{variable[r].text} = {v.text};" for v in (shuffle_call(mine, at.text, element, mode), mine)
            )
        writer.line(f"if ({flip.text}) {exchange}" if lane is None else exchange)
        if lane is None:
            writer.line(f"else {copy}")


def print_permute_registers(statements: Statements, op: kernel.PermuteRegistersOp) -> None:
    """Prints `kernel.permute_registers`, a permutation of registers that depends on the lane.

    Register r becomes register `r ^ x`. x combines the numbers in `reg_xor` whose bit is set in the lane. For each
    different number, a loop selects between two registers, or two pairs of 16-bit registers.
    """
    writer, bits = statements.writer, op.reg_xor.get_values()
    element, size, moves = writer.type_of(op.result), registers(op.result), sorted({*bits} - {0})
    pair = element in STRUCTS and size > 1 and not any(m & 1 for m in bits)
    source = _pairs(statements, op.source) if pair else None
    lane = writer.read(op.lane).text
    for move in moves:
        chosen = [f"{lane} >> {b}" if b else lane for b, m in enumerate(bits) if m == move]
        odd = f"({' ^ '.join(f'({b})' if len(chosen) > 1 else b for b in chosen)}) & 1"
        before, target = source, writer.declare(op.result)
        with writer.registers_loop(size, 2 if pair else 1) as r:
            other: Register = r ^ move if isinstance(r, int) else f"({r} ^ {move})"
            if pair:
                assert before is not None
                writer.use(f"choose_pair.{element}")
                operand_registers = ((target, r), (before, other), (before, r))
                operands = ", ".join(
                    writer.pointer(p.name, without_parentheses(str(n)), WORD) for p, n in operand_registers
                )
                writer.line(f"choose_pair({operands}, {odd});")
            else:
                mine, its = (writer.read(op.source, n) if before is None else before[n] for n in (r, other))
                writer.line(f"{target[r].text} = {odd} ? {its.text} : {mine.text};")
        source = target
        if move != moves[-1]:
            del writer.variables[op.result]


def _pairs(statements: Statements, value: SSAValue) -> Variable:
    """Returns the array of a value whose pairs of 16-bit registers are accessed as words."""
    name, first = operand_array(statements, value)
    assert first == 0
    return Variable(name, registers(value))


PRINTERS: Mapping[type[Operation], Printer] = {
    kernel.ShuffleOp: print_shuffle,
    kernel.PermuteRegistersOp: print_permute_registers,
    kernel.LdMatrixOp: lambda s, op: _print_matrices(s, op, "ldmatrix", s.writer.declare(op.result).name, 0),
    kernel.StMatrixOp: lambda s, op: _print_matrices(s, op, "stmatrix", *operand_array(s, op.value)),
    kernel.MmaOp: print_mma,
    kernel.AccumulatorsOp: print_accumulators,
    kernel.WgmmaOp: print_wgmma,
    kernel.WgmmaWaitOp: print_wait,
    **call_printers(
        {kernel.WgmmaFenceOp: lambda s, op: "wgmma_fence()", kernel.WgmmaCommitOp: lambda s, op: "wgmma_commit()"}
    ),
}
