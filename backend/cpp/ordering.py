"""In which order, and in what groups, the operations of a block become statements.

Pointwise operations on equally many registers are gathered into groups that print as one unrolled loop. A group waits
until something needs a result of it, so loads that stand between pointwise operations move in front of the group: that
is legal because a group only reads and writes registers, and good because loads then start early. Loads from global
memory also move in front of barriers. Operations that only
rename or renumber (constants, picks, index arithmetic used once) are no statements: they print where they are used.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TypeAlias

import numpy as np
from xdsl.dialects import arith, scf
from xdsl.dialects.builtin import DenseArrayBase, IndexType, i1
from xdsl.ir import Block, Operation, SSAValue

from ...dialects.kernel import (
    AsyncAccumulatorsType,
    BarrierOp,
    ShuffleRegistersOp,
    ShuffleXorOp,
    StMatrixOp,
    WgmmaOp,
    WgmmaWaitOp,
    is_shared,
)
from ...dialects.kernel.memory import GLOBAL, LoadOp, StoreOp, space_of
from ...dialects.payload import is_payload, shape_of
from ...dialects.support.locations import file_line_of, location_of

ORDERED = frozenset(
    f"kernel.{name}"
    for name in (
        "barrier cluster_barrier group_barrier fence_async mbar_arrive mbar_expect mbar_wait accumulators "
        "wgmma wgmma_fence wgmma_wait"
    ).split()
)
"""What no pointwise group moves across: what threads wait at, and what orders registers before products."""

VIEWS = frozenset(
    "payload.constant payload.extent arith.constant kernel.splat kernel.indices kernel.extract kernel.shared".split()
)
"""What prints where its result is used, as registers in another order do."""

INLINE_DEPTH = 5
"""Expressions nested deeper than this get a name."""

COMBINING = frozenset(
    f"arith.{name}" for name in ("addf mulf maximumf minimumf addi muli maxsi minsi andi ori xori").split()
)
"""Operations that may stand in a butterfly: both operands are alike."""


@dataclass(eq=False)
class Group:
    """Pointwise operations on `size` > 1 registers; none reads another register of a result of the same group."""

    size: int
    ops: list[Operation] = field(default_factory=list[Operation])


@dataclass
class Butterfly:
    """`v = combine(v, the v of the lane that differs by mask)` for each of `masks` in turn."""

    source: SSAValue
    shuffle: ShuffleXorOp
    combine: Operation
    masks: list[int]
    result: SSAValue


Statement: TypeAlias = Operation | Group | Butterfly


def registers(value: SSAValue) -> int:
    """How many registers a value is; a scalar is one."""
    shape = shape_of(value.type.registers if isinstance(value.type, AsyncAccumulatorsType) else value.type)
    return shape[0] if shape else 1


def is_view(op: Operation) -> bool:
    """Whether `op` prints where its result is used, instead of as a statement."""
    if isinstance(op, ShuffleRegistersOp):
        return linear_steps(op.registers) is not None
    return op.name in VIEWS or is_inlined(op)


@lru_cache(256)
def linear_steps(array: DenseArrayBase) -> tuple[int, tuple[int, ...]] | None:
    """(first, step of every bit) of numbers that are such a sum over the bits of their positions; None if they are
    none. A tile of a core may have tens of thousands of registers, and every reader of it asks."""
    numbers = np.array(array.get_values())
    if len(numbers) & (len(numbers) - 1):
        return None
    steps = [int(numbers[1 << b] - numbers[0]) for b in range(len(numbers).bit_length() - 1)]
    for b, step in enumerate(steps):
        if (numbers[1 << b : 2 << b] != numbers[: 1 << b] + step).any():
            return None
    return int(numbers[0]), tuple(steps)


def moved(register: int, steps: Sequence[int]) -> int:
    """Where a register goes, by how far each bit of its number moves it."""
    return sum(step for b, step in enumerate(steps) if register >> b & 1)


def same_line(a: Operation, b: Operation) -> bool:
    """Whether two operations come from the same line of the same file, or both from nowhere known."""
    places = [file_line_of(location_of(op)) for op in (a, b)]
    return len({None if p is None else (p.filename, p.line) for p in places}) == 1


def _only_user(op: Operation) -> Operation | None:
    uses = list(op.results[0].uses) if len(op.results) == 1 else []
    return uses[0].operation if len(uses) == 1 else None


def is_inlined(op: Operation) -> bool:
    """Whether a scalar computation is short enough, and used once, so that it prints inside its user.

    Index arithmetic and conditions always; other scalars only if they have no name and are of the same source line.
    """
    if not is_payload(op) or registers(op.results[0]) != 1:
        return False
    user = _only_user(op)
    if user is None or user.parent is not op.parent or isinstance(user, scf.ForOp | scf.YieldOp):
        return False
    if not isinstance(op.results[0].type, IndexType) and op.results[0].type != i1:
        named = op.results[0].name_hint is not None
        scalar_user = is_payload(user) and registers(user.results[0]) == 1
        if named or not scalar_user or not same_line(op, user):
            return False
    elif op.results[0].name_hint is not None and not isinstance(user, arith.AddiOp | arith.MuliOp):
        return False
    return _depth(op) <= INLINE_DEPTH


def _depth(op: Operation) -> int:
    depth, todo = 0, [(op, 1)]
    while todo:
        current, level = todo.pop()
        depth = max(depth, level)
        if level > INLINE_DEPTH:
            break
        for value in current.operands:
            owner = value.owner
            if isinstance(owner, Operation) and is_payload(owner) and owner.operands and _only_user(owner) is current:
                todo.append((owner, level + 1))
    return depth


def roots(value: SSAValue) -> Iterator[SSAValue]:
    """The values with a place of their own that reading `value` reads, through views."""
    owner = value.owner
    if isinstance(owner, Operation) and is_view(owner):
        for operand in owner.operands:
            yield from roots(operand)
    else:
        yield value


class Ordering:
    """The statements of a block, in the order to print them, and the last statement that reads each value."""

    def __init__(self, block: Block) -> None:
        self.statements: list[Statement] = []
        self._pending: dict[int, Group] = {}
        self._maker: dict[SSAValue, Group] = {}
        self._taken: set[Operation] = set()
        self._roots: dict[SSAValue, tuple[SSAValue, ...]] = {}
        for op in self.operations(block):
            if not isinstance(op, scf.YieldOp):
                self._place(op)
        self._flush(list(self._pending.values()))
        self.last_read = self._last_reads()
        if isinstance(block.last_op, scf.YieldOp):
            self.last_read.update(dict.fromkeys(self._reads(block.last_op), len(self.statements)))

    def _last_reads(self) -> dict[SSAValue, int]:
        """Returns the number of the last statement that reads each value. A product of a warpgroup reads its registers
        until the wait for it."""
        reads, in_flight = dict[SSAValue, int](), set[SSAValue]()
        for number, statement in enumerate(self.statements):
            reads.update(dict.fromkeys(self._reads(statement), number))
            if isinstance(statement, WgmmaOp) and statement.lhs_offset is None:
                in_flight.update(roots(statement.lhs))
            elif isinstance(statement, WgmmaWaitOp) and not statement.pending.data:
                reads.update(dict.fromkeys(in_flight, number))
                in_flight.clear()
        reads.update(dict.fromkeys(in_flight, len(self.statements)))
        return reads

    def operations(self, block: Block) -> Iterator[Operation]:
        """The operations of a block in the order in which they are placed."""
        yield from block.ops

    def _reads(self, statement: Statement) -> Iterator[SSAValue]:
        """The values with places that a statement reads, also inside its regions."""
        if isinstance(statement, Butterfly):
            operands = [statement.source]
        else:
            ops = statement.ops if isinstance(statement, Group) else statement.walk()
            operands = [operand for op in ops for operand in op.operands]
        for operand in dict.fromkeys(operands):
            if (found := self._roots.get(operand)) is None:
                found = self._roots[operand] = tuple(roots(operand))
            yield from found

    def _place(self, op: Operation) -> None:
        if op in self._taken or is_view(op):
            return
        butterfly = self._butterfly(op) if isinstance(op, ShuffleXorOp) else None
        statement = op if butterfly is None else butterfly
        needed = [self._maker[v] for v in self._reads(statement) if v in self._maker]
        if butterfly is None and is_payload(op) and registers(op.results[0]) > 1:
            size = registers(op.results[0])
            direct = [self._maker.get(v) for v in op.operands]
            renumbered = [
                self._maker[r] for v in op.operands if v not in self._maker for r in roots(v) if r in self._maker
            ]
            self._flush([g for g in needed if g not in direct] + renumbered)
            self._add(self._pending.setdefault(size, Group(size)), op)
            return
        if isinstance(op, LoadOp) and space_of(op.memory.type) is GLOBAL:
            self._flush(needed)
            self.statements.insert(self._early(op), op)
            return
        everything = op.regions or op.name in ORDERED
        self._flush(list(self._pending.values()) if everything else needed)
        self.statements.append(statement)

    def _add(self, group: Group, op: Operation) -> None:
        group.ops.append(op)
        self._maker.update(dict.fromkeys(op.results, group))

    def _early(self, load: Operation) -> int:
        """Where a load from global memory goes: in front of the barriers and shared stores before it.

        Nothing that a kernel reads from global memory is written by it, so the load may move; its latency then passes
        while the threads wait for each other.
        """
        position = len(self.statements)
        while position:
            before = self.statements[position - 1]
            shared_store = isinstance(before, StoreOp | StMatrixOp) and is_shared(before.memory.type)
            if not shared_store and not isinstance(before, BarrierOp):
                break
            position -= 1
        return position

    def _flush(self, groups: list[Group]) -> None:
        for group in groups:
            if self._pending.get(group.size) is group:
                del self._pending[group.size]
                self.statements.append(group)
                for op in group.ops:
                    for result in op.results:
                        del self._maker[result]

    def _butterfly(self, shuffle: ShuffleXorOp) -> Butterfly | None:
        """The longest butterfly that starts at `shuffle`, with masks that double or halve."""
        masks: list[int] = []
        current, kind, combine = shuffle, None, None
        result = source = shuffle.source
        while True:
            user = _only_user(current)
            if user is None or user.name not in COMBINING or user.parent is not shuffle.parent:
                break
            if set(user.operands) != {current.result, current.source} or kind not in (None, user.name):
                break
            if len(masks) > 1 and current.mask.data * masks[0] != masks[1] * masks[-1]:
                break
            if len(masks) == 1 and current.mask.data not in (masks[0] * 2, masks[0] // 2):
                break
            masks.append(current.mask.data)
            kind, combine, result = user.name, user, user.results[0]
            self._taken |= {current, user}
            shuffles = [u.operation for u in result.uses if isinstance(u.operation, ShuffleXorOp)]
            if len(shuffles) != 1 or len(list(result.uses)) != 2:
                break
            current = shuffles[0]
        return None if combine is None else Butterfly(source, shuffle, combine, masks, result)
