"""Sums of products of bf16 in a block that is one thread: what is multiplied is read as it is, two elements at a time.

Between a value of bf16 and the product are operations that need not be computed: the cast to f32, zeros behind the end,
and the same elements over and over for each row that they are multiplied with.
"""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.dialects.arith import MulfOp
from xdsl.dialects.builtin import bf16
from xdsl.ir import Operation, SSAValue

from ...dialects.kernel import ReduceRegistersOp, ShuffleRegistersOp
from ...dialects.kernel.memory import LoadOp
from ...dialects.payload import CastOp, CmpOp, SelectOp, element_type
from ...dialects.tensor import ReductionKind
from ..cuda.ordering import linear_steps, moved, registers
from .ends import End, end_of_reduced, end_of_select
from .folds import row_of
from .panels import distances, plain_load

PAIRS = 32
"""Elements of bf16 in the widest vectors; so many are a whole number of vectors of any machine."""

_PAIR = (1, 2, 4, 8, 16)


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
    length, end, product = row_of(op), end_of_reduced(op), op.source.owner
    if length is None or not isinstance(product, MulfOp) or product.result.get_user_of_unique_use() is None:
        return None
    if end is not None:
        length = end.bound - end.origin if isinstance(end.bound, int) and isinstance(end.origin, int) else 0
    lhs, rhs = (_factor(value, end) for value in product.operands)
    whole = length > 0 and length % PAIRS == 0
    return Dot(product, (lhs, rhs), end) if whole and lhs and rhs and (lhs.load or rhs.load) else None


def is_left_to_dots(op: Operation) -> bool:
    """Whether nothing but dot products reads what an operation computes, and those read what it is computed from."""
    return _is_between(op) and op.results[0].first_use is not None and _feeds_dots(op, op)


def is_multiplied(value: SSAValue) -> bool:
    """Whether dot products, which are all that reads a value through some of its uses, multiply what it holds itself:
    it is of bf16, and none that is read where it lies."""
    return element_type(value.type) == bf16 and not (isinstance(value.owner, LoadOp) and is_left_to_dots(value.owner))


def _feeds_dots(op: Operation, first: Operation) -> bool:
    """Whether all that reads the result of `op`, which `first` is or leads to, is dot products; these read `first`, if
    it is a load, where it lies."""
    for user in (use.operation for use in op.results[0].uses):
        if isinstance(op, MulfOp):
            dot = dot_of(user)
            if dot is None or isinstance(first, LoadOp) and all(f.load is not first for f in dot.factors):
                return False
        elif isinstance(user, LoadOp) or not _is_between(user) or not _feeds_dots(user, first):
            return False
    return True


def _is_between(op: Operation) -> bool:
    """Whether an operation could be between what a dot product reads and its sum."""
    if isinstance(op, CastOp | LoadOp):
        return element_type(op.operands[0].type) == bf16
    if isinstance(op, MulfOp | SelectOp):
        return element_type(op.result.type) != bf16
    return isinstance(op, CmpOp | ShuffleRegistersOp)


def _factor(value: SSAValue, end: End | None) -> Factor | None:
    """The value of bf16 that `value` is made of, without what is zero behind `end`."""
    steps = tuple(1 << b for b in range(registers(value).bit_length() - 1))
    repeated = False
    while element_type(value.type) != bf16 or isinstance(value.owner, ShuffleRegistersOp):
        op = value.owner
        if isinstance(op, CastOp):
            value = op.operand
        elif isinstance(op, SelectOp) and end is not None and end_of_select(op) == end:
            value = op.lhs
        elif isinstance(op, ShuffleRegistersOp) and (linear := linear_steps(op.registers)) and not linear[0]:
            steps = tuple(moved(step, linear[1]) for step in steps)
            value, repeated = op.source, True
        else:
            return None
    if steps[:5] != _PAIR or not isinstance(value.owner, Operation):
        return None
    load = None if repeated else plain_load(value)
    return Factor(value, steps, load) if repeated or load is not None and _is_in_rows(load) else None


def _is_in_rows(load: LoadOp) -> bool:
    """Whether what is multiplied at a time lies side by side in memory, and each check holds up to one of it, or for
    all."""
    bases = [tuple(basis[c] for basis in load.check_steps[:5]) for c in range(len(load.checks))]
    apart = tuple(distances(load, _PAIR))
    return apart == _PAIR and all(steps in (_PAIR, (0,) * 5) for steps in bases)
