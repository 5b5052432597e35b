"""What is being lowered, and appending kernel ops with index arithmetic.

While it is being built an index is a Python `int` or a value; constants fold on the way. An index that depends only on
who the thread is goes to the head of the kernel, any other to where it is needed; `cse` merges those that are equal.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Generator, Iterator, Sequence
from contextlib import contextmanager
from functools import reduce
from typing import Any, TypeAlias, TypeVar

from xdsl.dialects import arith, scf
from xdsl.dialects.builtin import IndexType, LocationAttr, TensorType, UnitAttr, UnknownLoc, VectorType
from xdsl.ir import Attribute, Block, Operation, Region, SSAValue

from ....dialects import kernel, payload, tile
from ....dialects.layouts import layout_in_registers
from ....dialects.layouts.linear import LANE_BITS, Linear, is_disjoint, log2
from ....dialects.payload import shape_of
from ....dialects.shapes.extents import Count, SymbolAttr
from ....dialects.shapes.ranges import constant_index
from ....dialects.support.locations import refused
from ....errors import BorderError
from ....plugins import rule_of

Index: TypeAlias = SSAValue | int

_OpT = TypeVar("_OpT", bound=Operation)
_T = TypeVar("_T")
_BINARY: dict[str, tuple[Callable[[SSAValue, SSAValue], Operation], Callable[[int, int], int]]] = {
    "add": (arith.AddiOp, int.__add__),
    "mul": (arith.MuliOp, int.__mul__),
    "and": (arith.AndIOp, int.__and__),
    "xor": (arith.XOrIOp, int.__xor__),
    "shr": (lambda a, b: arith.ShRUIOp(a, b, IndexType()), int.__rshift__),
    "div": (arith.DivUIOp, int.__floordiv__),
    "rem": (arith.RemUIOp, int.__mod__),
}
"""Name -> the op, and what it does with numbers."""


class Emitter:
    """Builds the body of one `kernel.func`, op by op: its head, the block `head`, and what comes after it. Ops are
    appended to `block`."""

    def __init__(self, head: Block, grid: Sequence[Count], warps: int) -> None:
        self.head = head
        self.block = Block()
        self.grid = tuple(grid)
        self.warps = warps
        self.location: LocationAttr = UnknownLoc()
        self._memo: dict[object, SSAValue] = {}

    @contextmanager
    def inside(self, block: Block) -> Generator[None]:
        outer, self.block = self.block, block
        yield
        self.block = outer

    @contextmanager
    def when(self, condition: SSAValue) -> Generator[None]:
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
        return self.add_op(op, hint).results[0]

    def compare(self, predicate: str, a: Index, b: Index, hint: str) -> SSAValue:
        return self.emit(payload.CmpOp(predicate, self.value(a), self.value(b)), hint)

    def _at_head(self, op: Operation) -> SSAValue:
        self.head.add_op(op)
        return op.results[0]

    def _once(self, key: object, make: Callable[[], Operation]) -> SSAValue:
        if key not in self._memo:
            self._memo[key] = self._at_head(make())
        return self._memo[key]

    def at_head(self, op: Operation, hint: str, key: object = None) -> SSAValue:
        """The result of `op`, which depends on nothing but arguments of the kernel, at the head of the kernel; of an
        earlier one with the same `key`, if that is given."""
        op.location = self.location
        op.results[0].name_hint = hint
        return self._once(op if key is None else key, lambda: op)

    def value(self, index: Index) -> SSAValue:
        if isinstance(index, SSAValue):
            return index
        return self._once(index, lambda: payload.ConstantOp(index, IndexType()))

    def id(self, kind: str) -> SSAValue:
        return self._once(kind, lambda: kernel.IdOp(kind))

    def _binary(self, name: str, a: Index, b: Index) -> Index:
        make, fold = _BINARY[name]
        if isinstance(a, int):
            if isinstance(b, int):
                return fold(a, b)
            a, b = (b, a) if name in ("add", "mul", "and", "xor") else (a, b)
        lhs, rhs = self.value(a), self.value(b)
        op = make(lhs, rhs)
        return self._at_head(op) if self._is_uniform(lhs) and self._is_uniform(rhs) else self.emit(op)

    def _is_uniform(self, index: Index) -> bool:
        """Returns true if an index is the same in the whole program of a thread."""
        return isinstance(index, int) or index.owner.parent is self.head

    def add(self, a: Index, b: Index) -> Index:
        return b if a == 0 else a if b == 0 else self._binary("add", a, b)

    def mul(self, a: Index, b: Index) -> Index:
        if a == 0 or b == 0:
            return 0
        return b if a == 1 else a if b == 1 else self._binary("mul", a, b)

    def xor(self, a: Index, b: Index) -> Index:
        """`a ^ b`, for a and b that are not negative."""
        return b if a == 0 else a if b == 0 else self._binary("xor", a, b)

    def div(self, a: Index, divisor: Index) -> Index:
        """`a floordiv divisor`, for an a that is not negative."""
        if isinstance(divisor, int) and divisor & (divisor - 1) == 0:
            return a if divisor == 1 else self._binary("shr", a, log2(divisor))
        return self._binary("div", a, divisor)

    def rem(self, a: Index, divisor: Index) -> Index:
        """`a mod divisor`, for an a that is not negative."""
        if isinstance(divisor, int) and divisor & (divisor - 1) == 0:
            return 0 if divisor == 1 else self._binary("and", a, divisor - 1)
        return self._binary("rem", a, divisor)

    def sum(self, terms: Sequence[Index]) -> Index:
        """The sum of `terms`; those that are the same for the whole kernel are added first, at its head."""
        return reduce(self.add, sorted(terms, key=self._is_uniform, reverse=True), 0)

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
        if isinstance(count, int):
            return count
        return self.div(self.add(self.size(count.symbol), count.tile.data - 1), count.tile.data)

    def size(self, symbol: SymbolAttr) -> SSAValue:
        value = self._once(symbol, lambda: payload.ExtentOp(symbol, IndexType()))
        value.name_hint = symbol.hint
        return value

    def thread_bits(self, images: Sequence[int], scale: int = 1) -> Index:
        """The exclusive or of `images` over the set bits of this thread's number (lane bits, then warp bits), times
        `scale`."""
        return self._combined(images, lambda low, width: self.thread_field(low, width, len(images)), scale)

    def bits_of(self, index: Index, images: Sequence[int]) -> Index:
        """The exclusive or of `images` over the set bits of `index`, which has no further bits."""
        return self._combined(images, lambda low, width: self._field(index, low, width, len(images)))

    def _combined(self, images: Sequence[int], field: Callable[[int, int], Index], scale: int = 1) -> Index:
        """The exclusive or of `images` over the set bits of a number, times `scale`; `field(low, width)` are some of
        its bits. Runs of doubling images are a factor; where images share no bits, the parts are added."""
        total: Index = 0
        disjoint = is_disjoint(images)
        for low, width, image in _runs(images):
            part = self.mul(field(low, width), image * scale if disjoint else image)
            total = self.add(total, part) if disjoint else self.xor(total, part)
        return total if disjoint else self.mul(total, scale)

    def thread_field(self, low: int, width: int, bits: int) -> Index:
        """Bits `low` to `low + width` of the thread's number, of `bits` bits in all."""
        if low >= LANE_BITS:
            who, first, size = "warp", LANE_BITS, bits - LANE_BITS
        elif low + width <= LANE_BITS and bits > LANE_BITS:
            who, first, size = "lane", 0, LANE_BITS
        else:
            who, first, size = "thread", 0, bits
        return self._field(self.id(who), low - first, width, size)

    def _field(self, number: Index, low: int, width: int, bits: int) -> Index:
        """Bits `low` to `low + width` of a number of `bits` bits in all."""
        shifted = self.div(number, 1 << low)
        return shifted if low + width == bits else self.rem(shifted, 1 << width)


def _runs(images: Sequence[int]) -> Iterator[tuple[int, int, int]]:
    """(first bit, number of bits, first image) of maximal runs in which each image doubles the one before.

    A run is a product only where its images share no bits, which doubling of a single bit guarantees.
    """
    low = 0
    while low < len(images):
        image, width = images[low], 1
        single = image & (image - 1) == 0
        while single and low + width < len(images) and images[low + width] == image << width:
            width += 1
        if image:
            yield low, width, image
        low += width


class Lowering(Emitter):
    """The lowering of one kernel: what every value of the tile level became."""

    def __init__(self, op: tile.KernelOp) -> None:
        super().__init__(Block(arg_types=[b.type for b in op.buffers]), op.grid_shape, op.warps.data)
        self.op = op
        self.kinds = {type(inner) for inner in op.walk()}
        self.values: dict[SSAValue, Index] = {}
        self.producers = 0
        """Warps beside those that hold tiles."""
        self._states: dict[object, Any] = {}
        self._layouts: dict[Attribute, Linear] = {}
        for old, new in zip(op.buffers, self.head.args, strict=True):
            self.define(old, new)

    def state(self, kind: Callable[[tile.KernelOp], _T]) -> _T:
        """What is remembered of this kernel by a class of records, made of the kernel when it is first asked for."""
        if kind not in self._states:
            self._states[kind] = kind(self.op)
        return self._states[kind]

    def lower_block(self, block: Block) -> None:
        """Lower the ops of `block` but its terminator."""
        for op in block.ops:
            if isinstance(op, scf.YieldOp):
                continue
            self.location = op.location
            lowering = _LOWERINGS.get(type(op))
            if lowering is None and payload.is_payload(op):
                self.lower_payload(op)
                continue
            if lowering is None and (lowering := rule_of(ENTRY_POINT_GROUP, op.name)) is None:
                raise refused(op, "has no lowering to the kernel level", BorderError)
            if (found := lowering(self, op)) is not None:
                self.define(op.results[0], found)

    def lower_payload(self, op: Operation) -> None:
        """Changes the container: tiles become vectors of registers."""
        if isinstance(op.results[0].type, IndexType) and (number := constant_index(op.results[0])) is not None:
            self.values[op.results[0]] = number
            return
        tiles = [v for v in (*op.results, *op.operands) if isinstance(v.type, TensorType)]
        container = VectorType(IndexType(), [self.layout(tiles[0]).registers]) if tiles else IndexType()
        new = self.add_op(payload.retyped(op, [self.of(v) for v in op.operands], container))
        self.values.update(zip(op.results, new.results, strict=True))

    def of(self, value: SSAValue) -> SSAValue:
        return self.value(self.values[value])

    def maybe(self, value: SSAValue | None) -> SSAValue | None:
        return None if value is None else self.of(value)

    def define(self, old: SSAValue, new: Index) -> None:
        """Remember that `old` became `new`, which takes over its name."""
        if isinstance(new, SSAValue) and old.name_hint is not None:
            new.name_hint = old.name_hint
        self.values[old] = new

    def layout(self, value: SSAValue) -> Linear:
        """The register layout of a tile; a scalar is one register that all threads have."""
        t = tile.without_flight(value.type)
        if not shape_of(t):
            return Linear((), (), ((),) * log2(self.op.lanes.data), ((),) * log2(self.warps))
        if (known := self._layouts.get(t)) is None:
            known = self._layouts[t] = layout_in_registers(value, self.warps, self.op.lanes.data)
        return known

    def vector(self, value: SSAValue) -> SSAValue:
        new = self.of(value)
        return new if isinstance(new.type, VectorType) else self.emit(kernel.SplatOp(new, 1))

    def from_vector(self, old: SSAValue, new: SSAValue) -> SSAValue:
        """What `old` becomes if `new` is the vector of its registers, also where it is a scalar."""
        return new if isinstance(old.type, TensorType) else self.emit(kernel.ExtractOp(new))

    def picked(self, value: SSAValue, registers: Sequence[int], hint: str | None = None) -> SSAValue:
        """These registers of a vector; the vector itself if they are all of it, in order."""
        if tuple(registers) == tuple(range(shape_of(value.type)[0])):
            return value
        return self.emit(kernel.ShuffleRegistersOp(value, registers), hint)


ENTRY_POINT_GROUP = "deplodock.lowerings"
"""Entry points of this group, each named as a third-party operation, are functions that lower it."""

_Rule = TypeVar("_Rule", bound=Callable[[Lowering, Any], Index | None])
_LOWERINGS: dict[type[Operation], Callable[[Lowering, Any], Index | None]] = {}


def lowers(*kinds: type[Operation]) -> Callable[[_Rule], _Rule]:
    """Let a function lower ops of these classes. It returns what their only result becomes, or defines results itself
    and returns nothing."""

    def register(rule: _Rule) -> _Rule:
        _LOWERINGS.update(dict.fromkeys(kinds, rule))
        return rule

    return register


class LoopState(ABC):
    """Values that a lowered loop carries for what is in flight, in place of some that the loop of tiles carries.

    Attributes:
        dropped: Positions of the carried values of the loop of tiles that are no longer carried.
    """

    dropped: Collection[int] = ()

    @abstractmethod
    def entry(self) -> list[SSAValue]:
        """Returns the values with which the loop starts."""

    @abstractmethod
    def bind(self, carried: Sequence[SSAValue], values: Sequence[SSAValue], inside: bool) -> None:
        """Notes the current `values`, in the body (`inside`) or after the loop, whose carried tiles are `carried`."""

    @abstractmethod
    def next(self, carried: Sequence[SSAValue]) -> list[SSAValue]:
        """Returns the values for the next iteration, at the end of the body, whose carried tiles are `carried`."""

    def close(self) -> None:
        """Emits the operations that follow the loop."""


LOOP_STATES: dict[type[Operation], Callable[[Lowering, scf.ForOp], LoopState]] = {}
"""Operation -> the state of the loops of kernels that have such an operation, in the order of the carried values."""
