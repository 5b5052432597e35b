"""State of the lowering of one kernel, and emission of kernel operations with index arithmetic.

An `Index` is a Python `int` or an SSA value, so that arithmetic on constants folds. Arithmetic on values that are
defined at the head of the kernel (thread, lane and block numbers, sizes) is emitted there, all other arithmetic where
it is needed. `cse` merges equal operations later.
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
"""Name -> constructor of the operation, and its function on Python numbers."""


class Emitter:
    """Builder of the body of one `kernel.func`.

    Attributes:
        head: block of the operations that depend only on arguments and numbers of thread and block. They come first.
        block: block that receives all other operations; the body of the innermost open loop or condition.
        grid: extents of the grid.
        warps: warps that hold tiles.
        location: location of the operation that is being lowered, which new operations get.
    """

    def __init__(self, head: Block, grid: Sequence[Count], warps: int) -> None:
        self.head = head
        self.block = Block()
        self.grid = tuple(grid)
        self.warps = warps
        self.location: LocationAttr = UnknownLoc()
        self._memo: dict[object, SSAValue] = {}

    @contextmanager
    def inside(self, block: Block) -> Generator[None]:
        """Returns a context in which operations are appended to `block`."""
        outer, self.block = self.block, block
        yield
        self.block = outer

    @contextmanager
    def when(self, condition: SSAValue) -> Generator[None]:
        """Returns a context in which operations are appended to an `scf.if` on `condition`."""
        body = Block()
        with self.inside(body):
            yield
            self.add_op(scf.YieldOp())
        self.add_op(scf.IfOp(condition, [], Region(body)))

    def accumulate(
        self, start: SSAValue, end: int, step: int, hint: str | None, add: Callable[[SSAValue, SSAValue], SSAValue]
    ) -> SSAValue:
        """Emits a loop that carries one value and has the attribute `unroll`.

        Args:
            start: value before the first iteration.
            end: end of the counter, which starts at 0.
            step: step of the counter.
            hint: name of the result.
            add: emits the body; it takes the counter and the carried value, and returns the next value.

        Returns:
            The value after the last iteration.
        """
        body = Block(arg_types=[IndexType(), start.type])
        loop = scf.ForOp(self.value(0), self.value(end), self.value(step), [start], body)
        k, carried = body.args
        k.name_hint, carried.name_hint = "kk", hint or "acc"
        with self.inside(body):
            self.add_op(scf.YieldOp(add(k, carried)))
        loop.attributes["unroll"] = UnitAttr()
        return self.emit(loop, hint)

    def add_op(self, op: _OpT, hint: str | None = None) -> _OpT:
        """Appends `op` with the current location, names its first result `hint`, and returns it."""
        op.location = self.location
        if hint is not None:
            op.results[0].name_hint = hint
        self.block.add_op(op)
        return op

    def emit(self, op: Operation, hint: str | None = None) -> SSAValue:
        """Appends `op` like `add_op`, and returns its first result."""
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
        """Emits `op` at the head of the kernel, and returns its first result.

        Args:
            op: operation that depends only on arguments of the kernel and on values at the head.
            hint: name of the result.
            key: identifies the value; a later call with an equal key returns it without emitting `op`.
        """
        op.location = self.location
        op.results[0].name_hint = hint
        return self._once(op if key is None else key, lambda: op)

    def value(self, index: Index) -> SSAValue:
        """Returns `index` as an SSA value; a number becomes a constant at the head."""
        if isinstance(index, SSAValue):
            return index
        return self._once(index, lambda: payload.ConstantOp(index, IndexType()))

    def id(self, kind: str) -> SSAValue:
        """Returns the number of the current `thread`, `lane`, `warp`, `block` or `rank`."""
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
        """Returns true if `index` is a number or is defined at the head, so it has one value per thread."""
        return isinstance(index, int) or index.owner.parent is self.head

    def add(self, a: Index, b: Index) -> Index:
        return b if a == 0 else a if b == 0 else self._binary("add", a, b)

    def mul(self, a: Index, b: Index) -> Index:
        if a == 0 or b == 0:
            return 0
        return b if a == 1 else a if b == 1 else self._binary("mul", a, b)

    def xor(self, a: Index, b: Index) -> Index:
        """Returns `a ^ b`; `a` and `b` must not be negative."""
        return b if a == 0 else a if b == 0 else self._binary("xor", a, b)

    def div(self, a: Index, divisor: Index) -> Index:
        """Returns `a floordiv divisor`; `a` must not be negative."""
        if isinstance(divisor, int) and divisor & (divisor - 1) == 0:
            return a if divisor == 1 else self._binary("shr", a, log2(divisor))
        return self._binary("div", a, divisor)

    def rem(self, a: Index, divisor: Index) -> Index:
        """Returns `a mod divisor`; `a` must not be negative."""
        if isinstance(divisor, int) and divisor & (divisor - 1) == 0:
            return 0 if divisor == 1 else self._binary("and", a, divisor - 1)
        return self._binary("rem", a, divisor)

    def sum(self, terms: Sequence[Index]) -> Index:
        """Returns the sum of `terms`. Terms at the head are added first, so that their sum is at the head, too."""
        return reduce(self.add, sorted(terms, key=self._is_uniform, reverse=True), 0)

    def block_indices(self, used: Sequence[bool]) -> list[Index]:
        """Returns the index of the current block along each extent of the grid; the last extent varies fastest.

        An index that is not `used`, or of extent 1, is 0.
        """
        indices: list[Index] = []
        inner: Index = 1
        for i in reversed(range(len(self.grid))):
            outer = any(n != 1 for n in self.grid[:i])
            index: Index = 0
            if used[i] and self.grid[i] != 1:
                index = self.div(self.id("block"), inner)
                index = self.rem(index, self.count(self.grid[i])) if outer else index
            indices.append(index)
            inner = self.mul(inner, self.count(self.grid[i])) if outer else inner
        return indices[::-1]

    def count(self, count: Count) -> Index:
        """Returns a number of tiles; one that depends on a symbolic size is computed at run time."""
        if isinstance(count, int):
            return count
        return self.div(self.add(self.size(count.symbol), count.tile.data - 1), count.tile.data)

    def size(self, symbol: SymbolAttr) -> SSAValue:
        """Returns the run-time value of a symbolic size."""
        value = self._once(symbol, lambda: payload.ExtentOp(symbol, IndexType()))
        value.name_hint = symbol.hint
        return value

    def thread_bits(self, images: Sequence[int], scale: int = 1) -> Index:
        """Returns `scale` times the XOR of the `images[i]` for which bit i of the thread's number is set.

        The number has the bits of the lane, then the bits of the warp. For example, images [4, 8, 16] are `thread * 4`
        in a block of eight threads.
        """
        return self._combined(images, lambda low, width: self.thread_field(low, width, len(images)), scale)

    def bits_of(self, index: Index, images: Sequence[int]) -> Index:
        """Returns the XOR of the `images[i]` for which bit i of `index` is set; `index` has `len(images)` bits."""
        return self._combined(images, lambda low, width: self._field(index, low, width, len(images)))

    def _combined(self, images: Sequence[int], field: Callable[[int, int], Index], scale: int = 1) -> Index:
        """Returns `scale` times the XOR of the `images[i]` for which bit i of a number is set.

        Bits whose images double from one to the next form a run, which is one multiplication. If no two images share
        bits, the parts are added instead of combined by XOR.

        Args:
            images: image of each bit.
            field: `field(low, width)` emits the bits `low` to `low + width` of the number.
            scale: factor of the result.
        """
        total: Index = 0
        disjoint = is_disjoint(images)
        for low, width, image in _runs(images):
            part = self.mul(field(low, width), image * scale if disjoint else image)
            total = self.add(total, part) if disjoint else self.xor(total, part)
        return total if disjoint else self.mul(total, scale)

    def thread_field(self, low: int, width: int, bits: int) -> Index:
        """Returns a bit field of the thread's number, computed from the lane or the warp number where possible.

        Args:
            low: first bit.
            width: number of bits in the field.
            bits: number of bits of the thread's number.
        """
        if low >= LANE_BITS:
            who, first, size = "warp", LANE_BITS, bits - LANE_BITS
        elif low + width <= LANE_BITS and bits > LANE_BITS:
            who, first, size = "lane", 0, LANE_BITS
        else:
            who, first, size = "thread", 0, bits
        return self._field(self.id(who), low - first, width, size)

    def _field(self, number: Index, low: int, width: int, bits: int) -> Index:
        """Extracts bits `low` to `low + width - 1`. At the top of a number of `bits` bits a division suffices."""
        shifted = self.div(number, 1 << low)
        return shifted if low + width == bits else self.rem(shifted, 1 << width)


def _runs(images: Sequence[int]) -> Iterator[tuple[int, int, int]]:
    """Yields maximal runs in which each image is twice the preceding one, as (first bit, number of bits, first image).

    The XOR over a run equals a multiplication only if its images share no bits. So a run of several images starts with
    an image of a single bit. Zero images are skipped.
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
    """State of the lowering of one kernel.

    Attributes:
        op: the kernel at the tile level.
        kinds: classes of the operations in `op`.
        values: value at the tile level -> its value or number at the kernel level.
        producers: warps in addition to those that hold tiles (`tile.warp_specialize`).
    """

    def __init__(self, op: tile.KernelOp) -> None:
        super().__init__(Block(arg_types=[b.type for b in op.buffers]), op.grid_shape, op.warps.data)
        self.op = op
        self.kinds = {type(inner) for inner in op.walk()}
        self.values: dict[SSAValue, Index] = {}
        self.producers = 0
        self._states: dict[object, Any] = {}
        self._layouts: dict[Attribute, Linear] = {}
        for old, new in zip(op.buffers, self.head.args, strict=True):
            self.define(old, new)

    def state(self, kind: Callable[[tile.KernelOp], _T]) -> _T:
        """Returns the state that `kind` keeps for this kernel: `kind(kernel)`, created by the first call."""
        if kind not in self._states:
            self._states[kind] = kind(self.op)
        return self._states[kind]

    def lower_block(self, block: Block) -> None:
        """Lowers the operations of `block` except its terminator.

        Raises:
            BorderError: if an operation has no lowering.
        """
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
            if (result := lowering(self, op)) is not None:
                self.define(op.results[0], result)

    def lower_payload(self, op: Operation) -> None:
        """Copies a payload operation with another container type: tiles become vectors of registers."""
        if isinstance(op.results[0].type, IndexType) and (number := constant_index(op.results[0])) is not None:
            self.values[op.results[0]] = number
            return
        tiles = [v for v in (*op.results, *op.operands) if isinstance(v.type, TensorType)]
        container = VectorType(IndexType(), [self.layout(tiles[0]).registers]) if tiles else IndexType()
        new = self.add_op(payload.retyped(op, [self.of(v) for v in op.operands], container))
        self.values.update(zip(op.results, new.results, strict=True))

    def of(self, value: SSAValue) -> SSAValue:
        """Returns the lowered `value`."""
        return self.value(self.values[value])

    def maybe(self, value: SSAValue | None) -> SSAValue | None:
        """Returns the lowered `value` of an optional operand."""
        return None if value is None else self.of(value)

    def define(self, old: SSAValue, new: Index) -> None:
        """Records `new` as the lowered `old`, and gives it the name of `old`."""
        if isinstance(new, SSAValue) and old.name_hint is not None:
            new.name_hint = old.name_hint
        self.values[old] = new

    def layout(self, value: SSAValue) -> Linear:
        """Returns the register layout of a tile; a scalar is one register, with the same value in all threads."""
        t = tile.without_flight(value.type)
        if not shape_of(t):
            return Linear((), (), ((),) * log2(self.op.lanes.data), ((),) * log2(self.warps))
        if (cached := self._layouts.get(t)) is None:
            cached = self._layouts[t] = layout_in_registers(value, self.warps, self.op.lanes.data)
        return cached

    def vector(self, value: SSAValue) -> SSAValue:
        """Returns the lowered `value` as a vector; a scalar becomes a vector of one register."""
        new = self.of(value)
        return new if isinstance(new.type, VectorType) else self.emit(kernel.SplatOp(new, 1))

    def from_vector(self, old: SSAValue, new: SSAValue) -> SSAValue:
        """Returns the lowered form of `old`, whose registers are the vector `new`: a scalar is extracted from it."""
        return new if isinstance(old.type, TensorType) else self.emit(kernel.ExtractOp(new))

    def picked(self, value: SSAValue, registers: Sequence[int], hint: str | None = None) -> SSAValue:
        """Selects registers of a vector.

        Args:
            value: the vector.
            registers: numbers of the registers in `value`.
            hint: name of the result.

        Returns:
            The vector of these registers; `value` itself if they are all its registers in order.
        """
        if tuple(registers) == tuple(range(shape_of(value.type)[0])):
            return value
        return self.emit(kernel.ShuffleRegistersOp(value, registers), hint)


ENTRY_POINT_GROUP = "deplodock.lowerings"
"""Group of entry points for third-party operations. The name of an entry point is an operation name; its object is a
function like those registered with `lowers`."""

_Rule = TypeVar("_Rule", bound=Callable[[Lowering, Any], Index | None])
_LOWERINGS: dict[type[Operation], Callable[[Lowering, Any], Index | None]] = {}


def lowers(*kinds: type[Operation]) -> Callable[[_Rule], _Rule]:
    """Returns a decorator that registers a function as the lowering of the operations `kinds`.

    The function takes the `Lowering` and the operation. It returns the lowered form of the operation's only result, or
    defines the results itself and returns None.
    """

    def register(rule: _Rule) -> _Rule:
        _LOWERINGS.update(dict.fromkeys(kinds, rule))
        return rule

    return register


class LoopState(ABC):
    """Additional values that a lowered loop carries for the outstanding copies of a pipeline.

    Such values are positions in circular buffers, such as the slot that receives the next copy.

    Attributes:
        dropped: numbers of the values carried at the tile level that the lowered loop does not carry.
    """

    dropped: Collection[int] = ()

    @abstractmethod
    def entry(self) -> list[SSAValue]:
        """Returns the values with which the loop starts."""

    @abstractmethod
    def bind(self, carried: Sequence[SSAValue], values: Sequence[SSAValue], inside: bool) -> None:
        """Records the current values of this state.

        Args:
            carried: tiles at the tile level: block arguments of the body, or results of the loop.
            values: lowered values of this state, in the order of `entry`.
            inside: true at the start of the body, false after the loop.
        """

    @abstractmethod
    def next(self, carried: Sequence[SSAValue]) -> list[SSAValue]:
        """Returns the values for the next iteration; called at the end of a body with block arguments `carried`."""

    def close(self) -> None:
        """Emits operations after the loop; none by default."""


LOOP_STATES: dict[type[Operation], Callable[[Lowering, scf.ForOp], LoopState]] = {}
"""Operation -> constructor of a state. Each loop of a kernel has the states of all operations in the kernel. The values
of the states follow the other carried values, in the order of this mapping."""
