"""Appending kernel ops, and index arithmetic that computes nothing twice.

While it is being built an index is a Python `int` or a value; constants fold on the way. An index that depends only on
who the thread is goes to the head of the kernel, any other to where it is first needed.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeAlias, TypeVar

from xdsl.dialects import arith, scf
from xdsl.dialects.builtin import IndexType, LocationAttr, UnitAttr, UnknownLoc
from xdsl.ir import Block, Operation, Region, SSAValue

from ....dialects import kernel, payload
from ....dialects.layouts.linear import LANE_BITS, is_disjoint
from ....dialects.shapes.extents import Count, SymbolAttr

Index: TypeAlias = SSAValue | int

_OpT = TypeVar("_OpT", bound=Operation)
_BINARY = {
    "add": arith.AddiOp,
    "mul": arith.MuliOp,
    "and": arith.AndIOp,
    "xor": arith.XOrIOp,
    "shr": arith.ShRUIOp,
    "div": arith.DivUIOp,
    "rem": arith.RemUIOp,
}


class Emitter:
    """Builds the body of one `kernel.func`, op by op."""

    def __init__(self, entry: Block, grid: Sequence[Count], warps: int) -> None:
        self.entry = entry
        self.grid = tuple(grid)
        self.warp_bits = warps.bit_length() - 1
        self.location: LocationAttr = UnknownLoc()
        self._blocks = [entry]
        self._memo: list[dict[object, SSAValue]] = [{}]
        self._head: Operation | None = None
        self._uniform: set[SSAValue] = set()

    @property
    def block(self) -> Block:
        """The block that ops are appended to."""
        return self._blocks[-1]

    @contextmanager
    def inside(self, block: Block) -> Generator[None]:
        """Append to `block`, a region of the op being built; what is computed there is forgotten afterwards."""
        self._blocks.append(block)
        self._memo.append({})
        yield
        self._blocks.pop()
        self._memo.pop()

    @contextmanager
    def when(self, condition: SSAValue) -> Generator[None]:
        """Append to what is done where the condition holds."""
        body = Block()
        with self.inside(body):
            yield
            self.add_op(scf.YieldOp())
        self.add_op(scf.IfOp(condition, [], Region(body)))

    def accumulate(
        self, start: SSAValue, end: int, step: int, hint: str | None, add: Callable[[SSAValue, SSAValue], SSAValue]
    ) -> SSAValue:
        """A loop from 0 to `end`, to be unrolled, which carries a value: `add` takes counter and value to the next."""
        body = Block(arg_types=[IndexType(), start.type])
        loop = scf.ForOp(self.value(0), self.value(end), self.value(step), [start], body)
        k, carried = body.args
        k.name_hint, carried.name_hint = "kk", hint or "acc"
        with self.inside(body):
            self.add_op(scf.YieldOp(add(k, carried)))
        loop.attributes["unroll"] = UnitAttr()
        return self.emit(loop, hint)

    def add_op(self, op: _OpT, hint: str | None = None) -> _OpT:
        """Append `op`, with the location of what is being lowered and, for its result, a name."""
        op.location = self.location
        if hint is not None:
            op.results[0].name_hint = hint
        self.block.add_op(op)
        return op

    def emit(self, op: Operation, hint: str | None = None) -> SSAValue:
        """Append `op` and return its only result."""
        return self.add_op(op, hint).results[0]

    def _at_head(self, key: object, op: Operation) -> SSAValue:
        if self._head is not None:
            self.entry.insert_op_after(op, self._head)
        elif self.entry.first_op is not None:
            self.entry.insert_op_before(op, self.entry.first_op)
        else:
            self.entry.add_op(op)
        self._head = op
        self._memo[0][key] = op.results[0]
        self._uniform.add(op.results[0])
        return op.results[0]

    def allocate(self, op: kernel.SharedOp, hint: str) -> SSAValue:
        """A shared buffer, at the head of the kernel."""
        op.location = self.location
        op.result.name_hint = hint
        return self._at_head(op, op)

    def at_head(self, op: Operation, hint: str) -> SSAValue:
        """The result of `op`, which depends on nothing but arguments of the kernel, at the head of the kernel."""
        op.location = self.location
        op.results[0].name_hint = hint
        return self._at_head(op, op)

    def value(self, index: Index) -> SSAValue:
        """The index as a value of type `index`."""
        if isinstance(index, SSAValue):
            return index
        if (known := self._memo[0].get(index)) is not None:
            return known
        return self._at_head(index, payload.ConstantOp(index, IndexType()))

    def id(self, kind: str) -> SSAValue:
        """The number of this `thread`, `lane`, `warp` or `block`."""
        if (known := self._memo[0].get(kind)) is not None:
            return known
        return self._at_head(kind, kernel.IdOp(kind))

    def _binary(self, name: str, a: Index, b: Index) -> SSAValue:
        if isinstance(a, int):
            a, b = (b, a) if name in ("add", "mul", "and", "xor") else (a, b)
        lhs, rhs = self.value(a), self.value(b)
        key = (name, lhs, rhs)
        for memo in reversed(self._memo):
            if (known := memo.get(key)) is not None:
                return known
        op = _BINARY[name](lhs, rhs, IndexType()) if name == "shr" else _BINARY[name](lhs, rhs)
        if lhs in self._uniform and rhs in self._uniform:
            return self._at_head(key, op)
        self._memo[-1][key] = result = self.emit(op)
        return result

    def add(self, a: Index, b: Index) -> Index:
        """`a + b`"""
        if isinstance(a, int) and isinstance(b, int):
            return a + b
        return b if a == 0 else a if b == 0 else self._binary("add", a, b)

    def mul(self, a: Index, b: Index) -> Index:
        """`a * b`"""
        if isinstance(a, int) and isinstance(b, int):
            return a * b
        if a == 0 or b == 0:
            return 0
        return b if a == 1 else a if b == 1 else self._binary("mul", a, b)

    def xor(self, a: Index, b: Index) -> Index:
        """`a ^ b`, for a and b that are not negative."""
        if isinstance(a, int) and isinstance(b, int):
            return a ^ b
        return b if a == 0 else a if b == 0 else self._binary("xor", a, b)

    def div(self, a: Index, divisor: Index) -> Index:
        """`a floordiv divisor`, for an a that is not negative."""
        if isinstance(a, int) and isinstance(divisor, int):
            return a // divisor
        if divisor == 1:
            return a
        if isinstance(divisor, int) and divisor & (divisor - 1) == 0:
            return self._binary("shr", a, divisor.bit_length() - 1)
        return self._binary("div", a, divisor)

    def rem(self, a: Index, divisor: Index) -> Index:
        """`a mod divisor`, for an a that is not negative."""
        if isinstance(a, int) and isinstance(divisor, int):
            return a % divisor
        if divisor == 1:
            return 0
        if isinstance(divisor, int) and divisor & (divisor - 1) == 0:
            return self._binary("and", a, divisor - 1)
        return self._binary("rem", a, divisor)

    def sum(self, terms: Sequence[Index]) -> Index:
        """The sum of `terms`; those that are the same for the whole kernel are added first, at its head."""
        head = [t for t in terms if isinstance(t, int) or t in self._uniform]
        total: Index = 0
        for t in (*head, *(t for t in terms if isinstance(t, SSAValue) and t not in self._uniform)):
            total = self.add(total, t)
        return total

    def name(self, index: Index, hint: str) -> Index:
        """Give a computed index a name, if it has none."""
        if isinstance(index, SSAValue) and index.name_hint is None:
            index.name_hint = hint
        return index

    def block_indices(self, used: Sequence[bool]) -> list[Index]:
        """This block's position along every extent of the grid, where used; the last one runs fastest."""
        found: list[Index] = []
        inner: Index = 1
        for i in reversed(range(len(self.grid))):
            outer = any(n != 1 for n in self.grid[:i])
            index: Index = 0
            if used[i] and self.grid[i] != 1:
                index = self.div(self.id("block"), inner)
                index = self.rem(index, self.count(self.grid[i])) if outer else index
            found.append(index)
            inner = self.mul(inner, self.count(self.grid[i])) if outer else inner
        return found[::-1]

    def count(self, count: Count) -> Index:
        """How many tiles there are."""
        if isinstance(count, int):
            return count
        return self.div(self.add(self.size(count.symbol), count.tile.data - 1), count.tile.data)

    def size(self, symbol: SymbolAttr) -> SSAValue:
        """The value of a size known only at run time."""
        if (known := self._memo[0].get(symbol)) is not None:
            return known
        op = payload.ExtentOp(symbol, IndexType())
        op.result.name_hint = symbol.hint
        return self._at_head(symbol, op)

    def bits_of(self, index: Index, images: Sequence[int]) -> Index:
        """The exclusive or of `images` over the set bits of `index`, which has no further bits."""
        total: Index = 0
        for low, width, image in _runs(images):
            field = self.div(index, 1 << low)
            field = field if low + width == len(images) else self.rem(field, 1 << width)
            part = self.mul(field, image)
            total = self.add(total, part) if is_disjoint(images) else self.xor(total, part)
        return total

    def thread_bits(self, images: Sequence[int], scale: int = 1) -> tuple[Index, bool]:
        """The combination of `images` over the set bits of this thread's number (lane bits, then warp bits), times
        `scale`; and whether that combination is a plain sum.

        Runs of doubling images become a shift, a mask and a factor. Images that share bits with others are combined by
        exclusive or; then the second result is False.
        """
        runs = _runs(images)
        disjoint = is_disjoint(images)
        total: Index = 0
        for low, width, image in runs:
            part = self.mul(self.thread_field(low, width, len(images)), image * scale if disjoint else image)
            total = self.add(total, part) if disjoint else self.xor(total, part)
        return (total if disjoint else self.mul(total, scale)), disjoint

    def thread_field(self, low: int, width: int, bits: int) -> Index:
        """Bits `low` to `low + width` of the thread's number, of `bits` bits in all."""
        if low >= LANE_BITS:
            who, first, size = "warp", LANE_BITS, bits - LANE_BITS
        elif low + width <= LANE_BITS and bits > LANE_BITS:
            who, first, size = "lane", 0, LANE_BITS
        else:
            who, first, size = "thread", 0, bits
        number = self.div(self.id(who), 1 << low - first)
        return number if low - first + width == size else self.rem(number, 1 << width)


def _runs(images: Sequence[int]) -> Iterator[tuple[int, int, int]]:
    """(first bit, number of bits, first image) of maximal runs in which each image doubles the one before.

    A run is a product only where its images share no bits, which doubling of a single bit guarantees.
    """
    low = 0
    while low < len(images):
        image, width = images[low], 1
        if image == 0:
            low += 1
            continue
        single = image & (image - 1) == 0
        while single and low + width < len(images) and images[low + width] == image << width:
            width += 1
        yield low, width, image
        low += width
