"""What a value without a name is called in CUDA: a word that says what it is."""

from __future__ import annotations

from xdsl.dialects import scf
from xdsl.dialects.builtin import IndexType, i1
from xdsl.ir import Operation, SSAValue

from ...dialects.kernel import (
    IndicesOp,
    LdMatrixOp,
    MmaOp,
    OuterFmaOp,
    PermuteRegistersOp,
    ReduceRegistersOp,
    RegistersToAccumulatorsOp,
    ShuffleOp,
    ShuffleRegistersOp,
    ShuffleXorOp,
    UndefAccumulatorsOp,
)
from ...dialects.kernel.memory import LoadOp
from ...dialects.payload import CastOp, SelectOp, element_type

WORDS = {
    "arith.addf": "sum",
    "arith.addi": "sum",
    "arith.subf": "diff",
    "arith.subi": "diff",
    "arith.mulf": "prod",
    "arith.muli": "prod",
    "arith.divf": "quot",
    "arith.negf": "neg",
    "arith.maximumf": "hi",
    "arith.maxnumf": "hi",
    "arith.maxsi": "hi",
    "arith.minimumf": "lo",
    "arith.minnumf": "lo",
    "arith.minsi": "lo",
    "math.exp": "e",
    "math.exp2": "e",
    "math.log": "ln",
    "math.rsqrt": "inv",
    "math.sqrt": "root",
    "math.absf": "size",
    "math.fma": "sum",
}
"""Words for operations, one a line."""

FOLDED = {"add": "total", "mul": "product", "max": "top", "min": "least", "and": "all", "or": "any"}


def hint_of(value: SSAValue) -> str:
    """The name of `value`, or a word for what computes it."""
    if value.name_hint is not None:
        return value.name_hint
    op = value.owner
    if not isinstance(op, Operation):
        return "v"
    if element_type(value.type) == i1:
        return "is"
    if isinstance(element_type(value.type), IndexType):
        return "at" if not isinstance(op, CastOp) else "n"
    if isinstance(op, LoadOp | LdMatrixOp):
        return f"{op.memory.name_hint or 'mem'}_in"
    if isinstance(op, ReduceRegistersOp):
        return FOLDED[op.kind.data.value]
    if isinstance(op, SelectOp):
        return "sel"
    if isinstance(op, scf.ForOp | OuterFmaOp | MmaOp | UndefAccumulatorsOp | RegistersToAccumulatorsOp):
        return "acc"
    if isinstance(op, ShuffleOp | PermuteRegistersOp | ShuffleXorOp | ShuffleRegistersOp | IndicesOp | CastOp):
        return "r"
    return WORDS.get(op.name, "v")
