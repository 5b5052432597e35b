"""Sums of products of bf16 in a block that is one thread: what is multiplied is read as it is, two elements at a time.

Between a value of bf16 and the product are operations that need not be computed: the cast to f32, zeros behind the end,
and the same elements over and over for each row that they are multiplied with.
"""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.dialects.arith import MulfOp
from xdsl.dialects.builtin import bf16
from xdsl.ir import Operation, SSAValue, Use

from ...dialects.kernel import ReduceRegistersOp, ShuffleRegistersOp
from ...dialects.kernel.memory import LoadOp
from ...dialects.payload import CastOp, CmpOp, SelectOp, element_type
from ...dialects.tensor import ReductionKind
from .ends import End, end_of_read
from .folds import row_of
from .panels import distances, only_read_by, plain_load, sources

PAIRS = 32
"""Elements of bf16 in the widest vectors; so many are a whole number of vectors of any machine."""

_PAIR = [1, 2, 4, 8, 16]


@dataclass(frozen=True)
class Factor:
    """What is multiplied: a value of bf16 whose register `steps` says, for each bit of a register's number, or what
    `load` reads where it is multiplied."""

    value: SSAValue
    steps: tuple[int, ...]
    load: LoadOp | None


@dataclass(frozen=True)
class Dot:
    """The sums of the `product` of rows of two factors, up to `end`, or of whole ones."""

    product: MulfOp
    factors: tuple[Factor, Factor]
    end: End | None


def dot_of(op: Operation) -> Dot | None:
    """The dot product that a reduction is; None for any other, and where rows are no whole number of vectors."""
    if not isinstance(op, ReduceRegistersOp) or op.kind.data is not ReductionKind.ADD:
        return None
    end, product = end_of_read(op), op.source.owner
    length = row_of(op) if end is None else end.length
    if length is None or length < PAIRS or length % PAIRS or not isinstance(product, MulfOp):
        return None
    lhs, rhs = (_factor(value, end) for value in product.operands)
    alone = product.result.get_user_of_unique_use() is op
    return Dot(product, (lhs, rhs), end) if alone and lhs and rhs and (lhs.load or rhs.load) else None


def is_left_to_dots(op: Operation) -> bool:
    """Whether nothing but dot products reads what an operation computes, and those read what it is computed from; what
    it loads they read where it lies."""

    def reads(use: Use) -> bool:
        dot = dot_of(use.operation)
        return dot is not None and (not isinstance(op, LoadOp) or any(f.load is op for f in dot.factors))

    found = isinstance(op, LoadOp) or _is_between(op)
    return found and op.results[0].first_use is not None and only_read_by(op, reads, _is_between)


def is_multiplied(value: SSAValue) -> bool:
    """Whether dot products, which are all that reads a value through some of its uses, multiply what it holds itself:
    it is of bf16, and none that is read where it lies."""
    return element_type(value.type) == bf16 and not (isinstance(value.owner, LoadOp) and is_left_to_dots(value.owner))


def _is_between(op: Operation) -> bool:
    """Whether an operation could be between what a dot product reads and its sum."""
    if isinstance(op, MulfOp | SelectOp):
        return element_type(op.result.type) != bf16
    bits = isinstance(op, CastOp) and element_type(op.operand.type) == bf16
    return bits or isinstance(op, CmpOp | ShuffleRegistersOp)


def _factor(value: SSAValue, end: End | None) -> Factor | None:
    """The value of bf16 that `value` is made of, without what is zero behind `end`."""
    repeated = False
    for source, first, steps in sources(value, end):
        if isinstance(source.owner, ShuffleRegistersOp):
            repeated = True
        elif element_type(source.type) == bf16:
            load = None if repeated else plain_load(source)
            found = isinstance(source.owner, Operation) and first == 0 and steps[:5] == _PAIR
            found = found and (repeated or load is not None and _is_in_rows(load))
            return Factor(source, tuple(steps), load) if found else None
    return None


def _is_in_rows(load: LoadOp) -> bool:
    """Whether what is multiplied at a time lies side by side in memory, and each check holds up to one of it, or for
    all."""
    bases = [[basis[c] for basis in load.check_steps[:5]] for c in range(len(load.checks))]
    return distances(load, _PAIR) == _PAIR and all(steps in (_PAIR, [0] * 5) for steps in bases)
