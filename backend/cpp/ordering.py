"""Order of the statements of a block, and grouping of its operations into statements.

A statement is one of:

- a group: pointwise operations on the same number of registers, printed as one unrolled loop;
- a butterfly: an all-reduce across lanes, printed as one loop of shuffles;
- any other single operation.

A group stays open until another statement needs one of its results. Loads between its operations therefore move before
the group. This is legal because a group only accesses registers, and it starts the loads early. Loads from global
memory also move before barriers.

Views are not statements: they are printed as expressions in each statement that reads them. Views are constants,
regular permutations of registers, and index arithmetic with a single user.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import TypeAlias

import numpy as np
from xdsl.dialects import arith, scf
from xdsl.dialects.builtin import DenseArrayBase, IndexType, i1
from xdsl.ir import Block, Operation, SSAValue

from ...dialects import kernel
from ...dialects.kernel.memory import GLOBAL, space_of
from ...dialects.payload import is_payload, shape_of
from ...dialects.support.locations import file_line_of, location_of

POINTWISE_FENCES = frozenset(
    f"kernel.{name}"
    for name in (
        "barrier cluster_barrier group_barrier fence_async mbar_arrive mbar_expect mbar_wait accumulators "
        "wgmma wgmma_fence wgmma_wait"
    ).split()
)
"""Operations that no group may move across: barriers, and operations that order accesses to `wgmma` registers."""

INLINED_OPS = frozenset(
    "payload.constant payload.extent arith.constant kernel.splat kernel.indices kernel.extract kernel.shared".split()
)
"""Names of operations that are always views."""

INLINE_DEPTH = 5
"""Deepest nesting of a printed expression. A deeper one is assigned to a variable first. Tuned by hand."""

COMMUTATIVE = frozenset(
    f"arith.{name}" for name in ("addf mulf maximumf minimumf addi muli maxsi minsi andi ori xori").split()
)
"""Commutative operations, which can combine the two values of a butterfly."""


@dataclass(eq=False)
class Group:
    """Pointwise operations on `size` > 1 registers, printed as one loop over the registers.

    Register r of a result depends only on registers r of the group's other results.
    """

    size: int
    ops: list[Operation] = field(default_factory=list[Operation])


@dataclass
class Butterfly:
    """Butterfly reduction across lanes, an all-reduce: for each mask, `v = combine(v, shuffle_xor(v, mask))`.

    Attributes:
        shuffle: the first shuffle, whose source is the initial value.
        combine: one of the combining operations, which are all of the same kind.
        masks: mask of each step; they double or halve.
        result: result of the last step.
    """

    shuffle: kernel.ShuffleXorOp
    combine: Operation
    masks: list[int]
    result: SSAValue

    @property
    def ops(self) -> list[Operation]:
        """Operations whose operands the statement reads."""
        return [self.shuffle]


Statement: TypeAlias = Operation | Group | Butterfly


def registers(value: SSAValue) -> int:
    """Returns the number of registers of `value` in a thread; 1 for scalars."""
    shape = shape_of(value.type.registers if isinstance(value.type, kernel.AsyncAccumulatorsType) else value.type)
    return shape[0] if shape else 1


def is_view(op: Operation) -> bool:
    """Returns true if `op` is printed as an expression where its result is read, and not as a statement."""
    if isinstance(op, kernel.ShuffleRegistersOp):
        return linear_steps(op.registers) is not None
    return op.name in INLINED_OPS or is_inlined(op)


@lru_cache(256)
def linear_steps(array: DenseArrayBase) -> tuple[int, tuple[int, ...]] | None:
    """Returns (first number, step of each bit) of a regular sequence, or None for an irregular one.

    In a regular sequence of 2^n numbers, number i is the first one plus the steps of the set bits of i.
    """
    numbers = np.array(array.get_values())
    if len(numbers) & (len(numbers) - 1):
        return None
    steps = [int(numbers[1 << b] - numbers[0]) for b in range(len(numbers).bit_length() - 1)]
    for b, step in enumerate(steps):
        if (numbers[1 << b : 2 << b] != numbers[: 1 << b] + step).any():
            return None
    return int(numbers[0]), tuple(steps)


def same_line(a: Operation, b: Operation) -> bool:
    """Returns true if two operations come from the same line of the same file, or if neither has a location."""
    locations = [file_line_of(location_of(op)) for op in (a, b)]
    return len({None if p is None else (p.filename, p.line) for p in locations}) == 1


def _only_user(op: Operation) -> Operation | None:
    uses = list(op.results[0].uses) if len(op.results) == 1 else []
    return uses[0].operation if len(uses) == 1 else None


def is_inlined(op: Operation) -> bool:
    """Returns true if `op` is scalar payload that is printed as an expression in its only user.

    The user must be in the same block, and the expression at most `INLINE_DEPTH` deep. Index arithmetic and conditions
    are inlined if they have no name in the IR, or if an addition or multiplication uses them. Other scalars are inlined
    into scalar payload of the same source line, if they have no name.
    """
    if not is_payload(op) or registers(op.results[0]) != 1:
        return False
    user, result = _only_user(op), op.results[0]
    if user is None or user.parent is not op.parent or isinstance(user, scf.ForOp | scf.YieldOp):
        return False
    if isinstance(result.type, IndexType) or result.type == i1:
        fits = result.name_hint is None or isinstance(user, arith.AddiOp | arith.MuliOp)
    else:
        is_scalar = is_payload(user) and registers(user.results[0]) == 1
        fits = result.name_hint is None and is_scalar and same_line(op, user)
    return fits and not _is_deep(op)


def _is_deep(op: Operation, levels: int = INLINE_DEPTH) -> bool:
    """Returns true if the expression of `op` is nested deeper than `levels`."""
    owners = (value.owner for value in op.operands)
    inner = (o for o in owners if isinstance(o, Operation) and is_payload(o) and o.operands and _only_user(o) is op)
    return levels == 0 or any(_is_deep(o, levels - 1) for o in inner)


def roots(value: SSAValue) -> Iterator[SSAValue]:
    """Yields the values whose C++ variables an expression for `value` reads: for a view, those of its operands."""
    owner = value.owner
    if isinstance(owner, Operation) and is_view(owner):
        for operand in owner.operands:
            yield from roots(operand)
    else:
        yield value


def _is_barrier_or_shared_store(statement: Statement) -> bool:
    is_store = isinstance(statement, kernel.StoreOp | kernel.StMatrixOp)
    return isinstance(statement, kernel.BarrierOp) or is_store and kernel.is_shared(statement.memory.type)


class Ordering:
    """Statements of a block in the order to print them, and the last statement that reads each value."""

    def __init__(self, block: Block) -> None:
        self.block = block
        self.statements: list[Statement] = []
        self._pending: dict[int, Group] = {}
        self._open_group_of: dict[SSAValue, Group] = {}
        self._merged: set[Operation] = set()
        self._roots: dict[SSAValue, tuple[SSAValue, ...]] = {}
        for op in self.operations(block):
            if not isinstance(op, scf.YieldOp):
                self._append(op)
        self._flush([*self._pending.values()])

    @cached_property
    def last_read(self) -> dict[SSAValue, int]:
        """Value -> index of the last statement that reads it. The terminator counts as one more statement."""
        reads = {v: number for number, statement in enumerate(self.statements) for v in self._reads(statement)}
        if any(isinstance(s, kernel.WgmmaOp) and s.lhs_offset is None for s in self.statements):
            reads = self._last_reads_in_flight(reads)
        if isinstance(last := self.block.last_op, scf.YieldOp):
            reads.update(dict.fromkeys(self._reads(last), len(self.statements)))
        return reads

    def _last_reads_in_flight(self, reads: dict[SSAValue, int]) -> dict[SSAValue, int]:
        """Returns `reads`, extended by asynchronous reads: a `wgmma` reads operand registers until the wait for it."""
        in_flight = set[SSAValue]()
        for number, statement in enumerate(self.statements):
            if isinstance(statement, kernel.WgmmaOp) and statement.lhs_offset is None:
                in_flight.update(roots(statement.lhs))
            elif isinstance(statement, kernel.WgmmaWaitOp) and not statement.pending.data:
                reads |= {value: max(number, reads.get(value, 0)) for value in in_flight}
                in_flight.clear()
        return reads | dict.fromkeys(in_flight, len(self.statements))

    def operations(self, block: Block) -> Iterator[Operation]:
        """Yields the operations of a block in the order in which they become statements. Subclasses reorder them."""
        yield from block.ops

    def _reads(self, statement: Statement) -> Iterator[SSAValue]:
        ops = statement.walk() if isinstance(statement, Operation) else statement.ops
        for operand in dict.fromkeys(v for op in ops for v in op.operands):
            if operand not in self._roots:
                self._roots[operand] = tuple(roots(operand))
            yield from self._roots[operand]

    def _append(self, op: Operation) -> None:
        if op in self._merged or is_view(op):
            return
        if is_payload(op) and registers(op.results[0]) > 1:
            self._flush(self._groups_read_out_of_order(op))
            self._add(registers(op.results[0]), op)
            return
        statement = self._butterfly(op) or op if isinstance(op, kernel.ShuffleXorOp) else op
        if op.regions or op.name in POINTWISE_FENCES:
            self._flush([*self._pending.values()])
        else:
            self._flush([self._open_group_of[v] for v in self._reads(statement) if v in self._open_group_of])
        position = len(self.statements)
        if isinstance(op, kernel.LoadOp) and space_of(op.memory.type) is GLOBAL:
            # The load is outstanding while threads wait. A kernel does not write global memory that it reads.
            while position and _is_barrier_or_shared_store(self.statements[position - 1]):
                position -= 1
        self.statements.insert(position, statement)

    def _add(self, size: int, op: Operation) -> None:
        """Adds an operation to the open group of `size` registers, which is created if needed."""
        group = self._pending.setdefault(size, Group(size))
        group.ops.append(op)
        self._open_group_of.update(dict.fromkeys(op.results, group))

    def _groups_read_out_of_order(self, op: Operation) -> list[Group]:
        """Returns the open groups whose results `op` reads in another order, through views such as permutations."""
        renumbered = (r for v in op.operands if v not in self._open_group_of for r in roots(v))
        return [self._open_group_of[r] for r in renumbered if r in self._open_group_of]

    def _flush(self, groups: list[Group]) -> None:
        for group in groups:
            if self._pending.get(group.size) is group:
                self.statements.append(self._pending.pop(group.size))
                self._open_group_of = {value: g for value, g in self._open_group_of.items() if g is not group}

    def _butterfly(self, shuffle: kernel.ShuffleXorOp) -> Butterfly | None:
        """Returns the longest butterfly that starts with `shuffle`, or None if there is none."""
        masks: list[int] = []
        current, kind, combine = shuffle, None, None
        result = shuffle.source
        while True:
            user = _only_user(current)
            if user is None or user.name not in COMMUTATIVE or user.parent is not shuffle.parent:
                break
            if set(user.operands) != {current.result, current.source} or kind not in (None, user.name):
                break
            if len(masks) > 1 and current.mask.data * masks[0] != masks[1] * masks[-1]:
                break
            if len(masks) == 1 and current.mask.data not in (masks[0] * 2, masks[0] // 2):
                break
            masks.append(current.mask.data)
            kind, combine, result = user.name, user, user.results[0]
            self._merged |= {current, user}
            shuffles = [u.operation for u in result.uses if isinstance(u.operation, kernel.ShuffleXorOp)]
            if len(shuffles) != 1 or len(list(result.uses)) != 2:
                break
            current = shuffles[0]
        return None if combine is None else Butterfly(shuffle, combine, masks, result)
