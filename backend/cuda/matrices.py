"""Tensor cores as C++: loads of matrices and their products, in loops over the blocks of a warp's tile."""

from __future__ import annotations

from ...dialects.kernel_matrix import LdMatrixOp, MmaOp
from .access import pointer_to, prepare
from .statements import Statements, add_printer
from .types import Expr
from .writer import Register, terms

PACKED = 16
"""Bytes to which arrays of operands are aligned: their pairs of 16-bit elements are read as 32-bit registers."""


def print_ldmatrix(statements: Statements, op: LdMatrixOp) -> None:
    """One call a step; the loop variable counts the elements that a lane's rows have so far."""
    writer, count = statements.writer, op.count.data
    place = writer.declare(op.result, alignment=PACKED)
    helper = f"ldmatrix_x{count}{'_trans' if op.trans is not None else ''}"
    writer.use(f"{helper}.{writer.type_of(op.result)}")
    prepare(writer, op)
    with writer.registers_loop(op.registers, 8) as r:
        at: Register = r if r == 0 or count == 4 else f"{r} / {4 // count}"
        target = place.name if r == 0 else f"&{place[at].text}"
        writer.line(f"{helper}({target}, {pointer_to(writer, op, r)});")


def print_mma(statements: Statements, op: MmaOp) -> None:
    """All products of a warp, into the accumulator's own registers where nobody else reads them."""
    writer = statements.writer
    target = statements.owned(op.acc)
    if target is None:
        target = writer.declare(op.result)
        statements.copy(op.acc, target)
    writer.places[op.result] = target
    helper = "mma_m16n8k16"
    writer.use(f"{helper}.{writer.type_of(op.lhs)}")
    high, *rows = op.row_bits
    cols = op.col_bits
    heads = [(v, 1 << len(bits)) for v, bits in (("i", rows), ("j", cols)) if bits]
    for depth, (v, size) in enumerate(heads):
        writer.line("  " * depth + "#pragma unroll")
        writer.line("  " * depth + f"for (int {v} = 0; {v} < {size}; ++{v})")
    parts = [terms("i", [1 << b for b in rows]), terms("j", [1 << b for b in cols])]
    at = " + ".join(p.text for p in parts if p.text != "0")
    upper, lower = _element(target.name, at, 0), _element(target.name, at, 1 << high)
    lhs = _element(writer.places[op.lhs].name, "i * 8" if rows else "", 0)
    rhs = _element(writer.places[op.rhs].name, "j * 4" if cols else "", 0)
    writer.line(f"{'  ' * len(heads)}{helper}({upper}, {lower}, {lhs}, {rhs});")


def _element(array: str, at: str, offset: int) -> str:
    """A pointer to one element of an array of registers."""
    index = " + ".join(part for part in (at, str(offset) if offset else "") if part)
    return Expr(f"&{array}[{index}]" if index else array).text


add_printer(LdMatrixOp, print_ldmatrix)
add_printer(MmaOp, print_mma)
