"""Products of a warpgroup as C++: descriptors, a loop over the k_steps of k, accumulators that stay where they are."""

from __future__ import annotations

from xdsl.ir import Operation, SSAValue

from ...dialects.kernel import (
    RegistersToAccumulatorsOp,
    UndefAccumulatorsOp,
    WgmmaCommitOp,
    WgmmaFenceOp,
    WgmmaOp,
    WgmmaWaitOp,
)
from ...dialects.kernel.wgmma import SLICE_BYTES, slice_elements
from ...dialects.support.locations import refused
from ...errors import CompileError
from .device.wgmma import wgmma_key
from .mma import WORD, operand_array
from .statements import Statements, add_calls, add_printer, element_address
from .types import AND, Expr
from .writer import Place


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
        writer.line("#pragma unroll")
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


def print_wait(statements: Statements, op: WgmmaWaitOp) -> None:
    """Waiting for products; the registers stay where they are. Accumulators that become registers are named, so that
    what is computed from them stays behind the wait."""
    place = statements.writer.places[op.result] = _kept(statements, op.acc, op)
    registers_again = op.result.type != op.acc.type
    statements.writer.use("wgmma_wait_for" if registers_again else "wgmma_wait")
    statements.writer.line(f"wgmma_wait_for({place.name});" if registers_again else f"wgmma_wait<{op.pending.data}>();")


add_printer(UndefAccumulatorsOp, lambda s, op: s.writer.declare(op.result))
add_printer(RegistersToAccumulatorsOp, lambda s, op: s.taken_over(op.source, op.result))
add_printer(WgmmaOp, print_product)
add_printer(WgmmaWaitOp, print_wait)
add_calls({WgmmaFenceOp: lambda s, op: "wgmma_fence()", WgmmaCommitOp: lambda s, op: "wgmma_commit()"})
