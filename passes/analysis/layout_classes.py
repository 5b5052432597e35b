"""Which tiles of a kernel have one layout: what the payload and loops tie together, and how the groups are related."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from xdsl.dialects import scf
from xdsl.dialects.builtin import TensorType
from xdsl.ir import Operation, SSAValue
from xdsl.utils.disjoint_set import DisjointSet

from ...dialects import payload, tile
from ...dialects.payload import shape_of
from ...dialects.tile.row_cache import RowBufferLoadOp, RowBufferOp, RowBufferStoreOp

Access = tile.LoadOp | tile.StoreOp | tile.AtomicRmwOp


def is_tile(value: SSAValue) -> bool:
    """Whether `value` has dimensions, and so a layout."""
    return isinstance(value.type, TensorType)


@dataclass(frozen=True)
class Link:
    """`op` reduces the tile `high` along `dims` to `low`, or repeats `low` along them as `high`."""

    op: tile.ReduceOp | tile.BroadcastOp
    low: SSAValue
    high: SSAValue
    dims: tuple[int, ...]


@dataclass
class TileClass:
    """Tiles that have the same layout, in the order in which they appear."""

    members: list[SSAValue] = field(default_factory=list[SSAValue])
    accesses: list[Access] = field(default_factory=list[Access])
    dots: list[tile.DotOp] = field(default_factory=list[tile.DotOp])
    reduced: set[int] = field(default_factory=set[int])

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of every member."""
        return shape_of(self.members[0].type)


class Classes:
    """The classes of all tiles of a kernel and the links between them."""

    def __init__(self, kernel: tile.KernelOp) -> None:
        members: dict[SSAValue, None] = {}
        self._sets = DisjointSet[SSAValue]()
        self.links: list[Link] = []
        ops = list(kernel.body.walk())
        for op in ops:
            for group in _groups(op):
                for v in group:
                    if v not in members:
                        members[v] = None
                        self._sets.add(v)
                    self._sets.union_left(group[0], v)
            if isinstance(op, tile.ReduceOp) and is_tile(op.result):
                self.links.append(Link(op, op.result, op.source, op.dims.get_values()))
            if isinstance(op, tile.BroadcastOp) and is_tile(op.source):
                self.links.append(Link(op, op.source, op.result, op.along.get_values()))
        self._classes: dict[SSAValue, TileClass] = {}
        for value in members:
            self._classes.setdefault(self._sets.find(value), TileClass()).members.append(value)
        for op in ops:
            self._describe(op)

    def _describe(self, op: Operation) -> None:
        if isinstance(op, tile.LoadOp) and is_tile(op.result):
            self.of(op.result).accesses.append(op)
        elif isinstance(op, tile.StoreOp | tile.AtomicRmwOp) and is_tile(op.value):
            self.of(op.value).accesses.append(op)
        elif isinstance(op, tile.DotOp):
            self.of(op.acc).dots.append(op)
        elif isinstance(op, tile.ReduceOp):
            self.of(op.source).reduced.update(op.dims.get_values())

    def __iter__(self) -> Iterator[TileClass]:
        return iter(self._classes.values())

    def of(self, value: SSAValue) -> TileClass:
        """The class of a tile."""
        return self._classes[self._sets.find(value)]

    def replace(self, old: SSAValue, new: SSAValue) -> None:
        """Let `new`, which has its layout already, stand for `old`, which is about to go away."""
        members = self.of(old).members
        members[members.index(old)] = new


def _groups(op: Operation) -> Iterator[list[SSAValue]]:
    """Groups of tiles that `op` ties to one layout; every result of `op` is in one."""
    if isinstance(op, scf.ForOp):
        last = op.body.block.last_op
        assert isinstance(last, scf.YieldOp)
        for values in zip(op.iter_args, op.body.block.args[1:], last.operands, op.results, strict=True):
            if is_tile(values[0]):
                yield list(values)
    elif isinstance(op, tile.DotOp):
        yield [op.acc, op.result]
    elif isinstance(op, Access):
        value = op.result if isinstance(op, tile.LoadOp) else op.value
        if is_tile(value):
            yield [value, *(s for s in op.symbols if is_tile(s))]
    elif isinstance(op, RowBufferOp):  # who puts a tile into shared memory is who reads it back
        users = [use.operation for use in op.result.uses]
        yield [
            u.value if isinstance(u, RowBufferStoreOp) else u.result
            for u in users
            if isinstance(u, RowBufferStoreOp | RowBufferLoadOp)
        ]
    elif payload.is_payload(op):
        values = [v for v in (*op.operands, *op.results) if is_tile(v)]
        if values:
            yield values
    else:
        for v in (*op.operands, *op.results):
            if is_tile(v):
                yield [v]
