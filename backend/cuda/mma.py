"""Tensor cores as C++: loads of matrices and their products, in loops over the blocks of a warp's tile."""

from __future__ import annotations

from xdsl.ir import SSAValue

from ...dialects.kernel import ShuffleRegistersOp
from ...dialects.kernel.mma import LdMatrixOp, MmaOp, StMatrixOp, mma_atom, word_elements
from .memory import pointer_to, prepare
from .statements import Statements, add_printer
from .writer import Register, Writer, terms

WORD = 4
"""Bytes of a register of the hardware, as which helpers read and write elements of matrices: two of 16 bits, or one."""


def print_ldmatrix(statements: Statements, op: LdMatrixOp) -> None:
    """Matrices into a new array."""
    _print_matrices(statements, op, "ldmatrix", statements.writer.declare(op.result).name, 0)


def print_stmatrix(statements: Statements, op: StMatrixOp) -> None:
    """Matrices of registers in the order of an array."""
    _print_matrices(statements, op, "stmatrix", *operand_array(statements, op.value))


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
    atom, word = mma_atom(op.lhs.type), word_elements(op.lhs.type)
    assert atom is not None
    helper = f"mma_{atom.shape}"
    writer.type_of(op.lhs)
    writer.use(f"{helper}.{atom.c_type}")
    high, *rows = op.rows.get_values()
    cols = op.cols.get_values()
    lhs = _words(writer, *operand_array(statements, op.lhs), f"i * {4 * word}" if rows else "")
    rhs = _words(writer, *operand_array(statements, op.rhs), f"j * {2 * word}" if cols else "")
    pad = writer.unrolled(("i", 1 << len(rows)), ("j", 1 << len(cols)))
    parts = [terms("i", [1 << b for b in rows]), terms("j", [1 << b for b in cols])]
    at = " + ".join(p.text for p in parts if p.text != "0")
    upper, lower = (_element(target.name, offset, at) for offset in (0, 1 << high))
    writer.line(f"{pad}{helper}({upper}, {lower}, {lhs}, {rhs});")


def operand_array(statements: Statements, value: SSAValue) -> tuple[str, int]:
    """The array that `value` is a part of, and where it starts; a new one for registers in another order."""
    writer, op = statements.writer, value.owner
    if value in writer.places:
        return writer.places[value].name, 0
    if isinstance(op, ShuffleRegistersOp) and op.source in writer.places:
        picked = op.registers.get_values()
        if picked[0] % 2 == 0 and tuple(picked) == tuple(range(picked[0], picked[0] + len(picked))):
            return writer.places[op.source].name, int(picked[0])
    place = writer.declare(value)
    del writer.places[value]  # until it is filled, the value is its expression
    statements.copy(value, place)
    writer.places[value] = place
    return place.name, 0


def _place(register: Register, count: int) -> str:
    """The element of an array where the rows of `register` lie, which move `count` matrices."""
    return "" if register == 0 else str(register) if count == 4 else f"{register} / {4 // count}"


def _index(offset: int, at: str) -> str:
    return " + ".join(part for part in (at, str(offset) if offset else "") if part)


def _element(array: str, offset: int, at: str) -> str:
    """A pointer to one element of an array of registers."""
    index = _index(offset, at)
    return f"&{array}[{index}]" if index else array


def _words(writer: Writer, array: str, offset: int, at: str) -> str:
    """The same of elements that are taken as words."""
    return writer.pointer(array, _index(offset, at), WORD)


add_printer(LdMatrixOp, print_ldmatrix)
add_printer(StMatrixOp, print_stmatrix)
add_printer(MmaOp, print_mma)
