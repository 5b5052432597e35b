"""Tensor cores as C++: loads of matrices, products of warps in loops over the blocks of a tile, and of warpgroups in a
loop over slices of k, whose accumulators stay where they are."""

from __future__ import annotations

from xdsl.ir import Operation, SSAValue

from ...dialects.kernel import AccumulatorsOp, ShuffleRegistersOp, WgmmaCommitOp, WgmmaFenceOp, WgmmaOp, WgmmaWaitOp
from ...dialects.kernel.mma import LdMatrixOp, MmaOp, StMatrixOp
from ...dialects.kernel.wgmma import SLICE_BYTES, slice_elements
from ...dialects.layouts.linear import combine
from ...dialects.payload import shape_of
from ...dialects.support.locations import refused
from ...errors import CompileError
from ..cpp.device.generated import wgmma_key
from ..cpp.expressions import AND, Expr
from ..cpp.memory import pointer_to, prepare
from ..cpp.statements import Statements, add_calls, add_printer, element_address
from ..cpp.writer import Place, Register, Writer, terms

WORD = 4
"""Bytes of a register of the hardware, as which helpers read and write elements of matrices: two of 16 bits, or one."""


def _print_matrices(statements: Statements, op: LdMatrixOp | StMatrixOp, kind: str, array: str, first: int) -> None:
    """One call a step; the loop variable counts the elements that a lane's rows have so far."""
    writer, count = statements.writer, op.count.data
    helper = f"{kind}_x{count}{'_trans' if op.trans is not None else ''}"
    writer.use(f"{helper}.{writer.type_of(op.memory)}")
    prepare(writer, op)
    with writer.registers_loop(op.registers, op.row) as r:
        operands = [_words(writer, array, first, _place(r, count)), pointer_to(writer, op, r)]
        target, source = operands if isinstance(op, LdMatrixOp) else reversed(operands)
        writer.line(f"{helper}({target}, {source});")


def print_mma(statements: Statements, op: MmaOp) -> None:
    """All products of a warp, into the accumulator's own registers where nobody else reads them."""
    writer, target = statements.writer, statements.taken_over(op.acc, op.result)
    atom = op.atom
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
    sums = (_element(target.name, combine([1 << bit for bit in halves], half), at) for half in range(1 << len(halves)))
    writer.line(f"{pad}{helper}({', '.join(sums)}, {lhs}, {rhs});")


def operand_array(statements: Statements, value: SSAValue) -> tuple[str, int]:
    """The array that `value` is a part of, and where it starts; a new one for registers in another order."""
    writer, op = statements.writer, value.owner
    if value in writer.places:
        return writer.places[value].name, 0
    if isinstance(op, ShuffleRegistersOp) and op.source in writer.places:
        picked = op.registers.get_values()
        if picked[0] % 2 == 0 and tuple(picked) == tuple(range(picked[0], picked[0] + len(picked))):
            return writer.places[op.source].name, int(picked[0])
    return statements.array_of(value).name, 0


def _place(register: Register, count: int) -> str:
    """The element of an array where the rows of `register` lie, which move `count` matrices."""
    return "" if register == 0 else str(register) if count == 4 else f"{register} / {4 // count}"


def _element(array: str, offset: int, at: str) -> str:
    """A pointer to one element of an array of registers."""
    index = _index(offset, at)
    return f"&{array}[{index}]" if index else array


def _words(writer: Writer, array: str, offset: int, at: str) -> str:
    """The same of elements that are taken as words."""
    return writer.pointer(array, _index(offset, at), WORD)


def _operand(statements: Statements, value: SSAValue, at: str) -> str:
    """A pointer to the registers of an operand; a single one is a variable."""
    writer = statements.writer
    if shape_of(value.type) != (1,):
        return _words(writer, *operand_array(statements, value), at)
    if value not in writer.places:
        text = writer.read(value).text
        writer.define(value, lambda _: text)
    return f"&{writer.places[value].name}"


def _times(counter: str, step: int) -> str:
    return counter if step == 1 else f"{counter} * {step}"


def _index(offset: int, at: str) -> str:
    return " + ".join(part for part in (at, str(offset) if offset else "") if part)


def _kept(statements: Statements, acc: SSAValue, op: Operation) -> Place:
    """The registers of accumulators, which nothing else may read. Raises CompileError."""
    place = statements.owned(acc)
    if place is None:
        raise refused(op, "accumulators in flight are used twice", CompileError)
    return place


def print_product(statements: Statements, op: WgmmaOp) -> None:
    """One call for every slice of k."""
    writer, k_steps = statements.writer, op.k_steps.data
    place = writer.places[op.result] = _kept(statements, op.acc, op)
    element = writer.type_of(op.element)
    in_registers = op.lhs_offset is None
    key = wgmma_key(op.columns, element, in_registers, op.lhs_transposed is not None, op.rhs_transposed is not None)
    helper = key.split(".")[0]
    loops = k_steps > 1
    if in_registers:
        name, first = operand_array(statements, op.lhs)
        each = slice_elements(op.element) // 2
        parts = [p for p in (f"slice * {each}" if loops else "", str(first) if first else "") if p]
        left = writer.pointer(name, " + ".join(parts), WORD)
    else:
        assert op.lhs_offset is not None
        left = _matrix(statements, op, "left", op.lhs, op.lhs_offset, op.lhs_transposed is not None)
    right = _matrix(statements, op, "right", op.rhs, op.rhs_offset, op.rhs_transposed is not None)
    writer.use(key)
    more = Expr("true") if op.use_acc is None else writer.read(op.use_acc)
    if op.scale_d_zero is not None:
        more = Expr("false")
    if loops:
        if more.text != "true":
            more = Expr("slice > 0" if more.text == "false" else f"slice > 0 || {more.at(AND)}")
        writer.unroll()
        head = f"for (int slice = 0; slice < {k_steps}; ++slice) "
    else:
        head = ""
    writer.line(f"{head}{helper}({place.name}, {left}, {right}, {more.text});")


def _matrix(statements: Statements, op: WgmmaOp, side: str, memory: SSAValue, at: SSAValue, transposed: bool) -> str:
    """The descriptor of an operand, declared, and how it moves with the slice of k."""
    writer, width = statements.writer, op.swizzle.data
    pointer = element_address(statements, memory, at)
    panel = 0 if op.leading_offset is None else 2 * op.leading_offset.data
    leading = panel if transposed and panel else 16
    writer.use("matrix")
    name = writer.names.mint(memory.name_hint or side, side)
    writer.line(f"const unsigned long long {name} = matrix({pointer}, {leading}, {8 * width}, {width});")
    if op.k_steps.data == 1:
        return name
    step = slice_elements(op.element) * width // 16 if transposed else SLICE_BYTES // 16
    return f"{name} + slice * {step}"


def print_accumulators(statements: Statements, op: AccumulatorsOp) -> None:
    """Accumulators take over the registers that they start as, or get their own."""
    if op.source is None:
        statements.writer.declare(op.result)
    else:
        statements.taken_over(op.source, op.result)


def print_wait(statements: Statements, op: WgmmaWaitOp) -> None:
    """Waiting for products; the registers stay where they are. Accumulators that become registers are named, so that
    what is computed from them stays behind the wait."""
    place = statements.writer.places[op.result] = _kept(statements, op.acc, op)
    registers_again = op.result.type != op.acc.type
    statements.writer.use("wgmma_wait_for" if registers_again else "wgmma_wait")
    pending = op.pending.data
    wait_for = f"wgmma_wait_for<{pending}>({place.name});" if pending else f"wgmma_wait_for({place.name});"
    statements.writer.line(wait_for if registers_again else f"wgmma_wait<{pending}>();")


add_printer(LdMatrixOp, lambda s, op: _print_matrices(s, op, "ldmatrix", s.writer.declare(op.result).name, 0))
add_printer(StMatrixOp, lambda s, op: _print_matrices(s, op, "stmatrix", *operand_array(s, op.value)))
add_printer(MmaOp, print_mma)
add_printer(AccumulatorsOp, print_accumulators)
add_printer(WgmmaOp, print_product)
add_printer(WgmmaWaitOp, print_wait)
add_calls({WgmmaFenceOp: lambda s, op: "wgmma_fence()", WgmmaCommitOp: lambda s, op: "wgmma_commit()"})
