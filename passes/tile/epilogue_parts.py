"""One part of the tiles of a block: what a store of it needs, computed for that part alone."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from xdsl.dialects.builtin import TensorType
from xdsl.ir import Attribute, Block, Operation, SSAValue
from xdsl.ir.affine import AffineExpr, AffineMap

from ...dialects import payload, tile
from ...dialects.kernel.warp_specialize import WARPGROUP
from ...dialects.layouts.attributes import LayoutAttr
from ...dialects.layouts.linear import Linear, log2
from ...dialects.layouts.wgmma import part_of_group
from ...dialects.payload import element_type, shape_of
from ...dialects.shapes.domain import DomainAttr
from ...dialects.tile.async_copy import SliceOp
from ..analysis.layout_preferences import memory_layout, preference
from ..analysis.tile_layouts import attr_of, layout_in_registers, linear_of
from ..rewriting import insert_before

Key = tuple[SSAValue, int]


@dataclass
class Part:
    """`size` of the elements of all tiles along the dimension `dim` of what is stored, from `start` on.

    New operations go in front of `before`. What cannot be computed for a part is taken out of the whole.
    """

    before: Operation
    dim: int
    start: int
    size: int
    warps: int
    known: dict[Key, SSAValue] = field(default_factory=dict[Key, SSAValue])

    def store(self, op: tile.StoreOp, value: SSAValue) -> None:
        """Store this part of `value` as `op` stores the whole, converted to a layout of its own."""
        part = self.of(value, self.dim)
        new = tile.StoreOp(
            part, op.target, self._moved(op.map.data, self.dim), op.symbols, self._domain(op.domain, self.dim)
        )
        convert = tile.ConvertLayoutOp(part, self._wide(new, self._layout_of(part)))
        new.operands[0] = convert.result
        self._add(convert, op, value.name_hint)
        self._add(new, op)

    def load_early(self, value: SSAValue) -> None:
        """Start loading what this part of `value` will be computed from."""
        for load, dim in self._loads(value, self.dim, set()):
            self._load(load, dim)

    def of(self, value: SSAValue, dim: int) -> SSAValue:
        """This part of a tile, along its dimension `dim`."""
        if not isinstance(value.type, TensorType):
            return value
        if (value, dim) not in self.known:
            self.known[value, dim] = self._computed(value, dim) or self._taken(value, dim)
        return self.known[value, dim]

    @property
    def _block(self) -> Block:
        assert self.before.parent is not None
        return self.before.parent

    def _add(self, op: Operation, source: Operation, hint: str | None = None) -> SSAValue | None:
        insert_before(self.before, op, source=source)
        for result in op.results:
            result.name_hint = hint
        return op.results[0] if op.results else None

    def _taken(self, value: SSAValue, dim: int) -> SSAValue:
        at = [self.start if d == dim else 0 for d in range(len(shape_of(value.type)))]
        op = SliceOp(value, at, self._type(value, dim))
        self._add(op, self.before, value.name_hint)
        return op.result

    def _computed(self, value: SSAValue, dim: int) -> SSAValue | None:
        """This part, computed for itself; None if it has to be taken out of the whole."""
        op = value.owner
        if not isinstance(op, Operation) or op.parent is not self._block:
            return None
        if (load := self._is_load(op)) is not None:
            loaded = self._load(load, dim)
            if op is load:
                return loaded
            return self._add(tile.ConvertLayoutOp(loaded, self._layout(value, dim)), op, value.name_hint)
        new: Operation | None = None
        if isinstance(op, tile.AffineOp):
            new = tile.AffineOp(self._moved(op.map.data, dim), op.symbols, self._type(value, dim))
        elif isinstance(op, tile.BroadcastOp):
            new = self._broadcast(op, dim)
        elif payload.is_payload(op) and len(op.results) == 1:
            new = op.clone({v: self.of(v, dim) for v in op.operands})
            new.results[0]._type = self._type(value, dim)  # pyright: ignore[reportPrivateUsage, reportAttributeAccessIssue]
        return None if new is None else self._add(new, op, value.name_hint)

    def _broadcast(self, op: tile.BroadcastOp, dim: int) -> tile.BroadcastOp | None:
        along = [int(d) for d in op.along.get_values()]
        inner = self._inner(op, dim)
        if inner is None and dim not in along and isinstance(op.source.type, TensorType):
            return None
        source = op.source if inner is None else self.of(op.source, inner)
        return tile.BroadcastOp(source, along, self._type(op.result, dim))

    def _inner(self, op: tile.BroadcastOp, dim: int) -> int | None:
        """Which dimension of the source runs along `dim`, if parts of it are held by all threads."""
        along = [int(d) for d in op.along.get_values()]
        if dim in along or not isinstance(op.source.type, TensorType):
            return None
        inner = dim - sum(1 for d in along if d < dim)
        return inner if self._part_of(op.source, inner) is not None else None

    # Loads

    def _is_load(self, op: Operation) -> tile.LoadOp | None:
        """The load that `op` is, or converts, if it can be made for a part."""
        load = op.source.owner if isinstance(op, tile.ConvertLayoutOp) else op
        if not isinstance(load, tile.LoadOp) or load.parent is not self._block:
            return None
        converted = [isinstance(u.operation, tile.ConvertLayoutOp) for u in load.result.uses]
        gathers = any(isinstance(s.type, TensorType) for s in load.symbols)
        return None if any(converted) and (gathers or not all(converted)) else load

    def _loads(self, value: SSAValue, dim: int, seen: set[SSAValue]) -> Iterator[tuple[tile.LoadOp, int]]:
        """The loads that `value` is computed from here, part by part along its dimension `dim`."""
        op = value.owner
        if value in seen or not isinstance(op, Operation) or op.parent is not self._block:
            return
        seen.add(value)
        if (load := self._is_load(op)) is not None:
            yield load, dim
        elif isinstance(op, tile.BroadcastOp):
            if (inner := self._inner(op, dim)) is not None:
                yield from self._loads(op.source, inner, seen)
        elif payload.is_payload(op):
            for v in op.operands:
                yield from self._loads(v, dim, seen)

    def _load(self, op: tile.LoadOp, dim: int) -> SSAValue:
        """This part of what is loaded; in a layout for loading, if it is converted afterwards."""
        key = op.result, dim
        if key not in self.known:
            map, domain = self._moved(op.map.data, dim), self._domain(op.domain, dim)
            shape = self._shape(op.result, dim)
            bare = TensorType(element_type(op.result.type), shape)
            symbols = [self.of(s, dim) for s in op.symbols]
            new = tile.LoadOp(op.source, map, symbols, domain, op.fill, bare)
            users = [u.operation for u in op.result.uses]
            if users and isinstance(users[0], tile.ConvertLayoutOp):
                layout = self._wide(new, self._part_of(users[0].result, dim))
            else:
                layout = self._layout(op.result, dim)
            new.result._type = TensorType(bare.element_type, shape, layout)  # pyright: ignore
            self._add(new, op, op.result.name_hint)
            self.known[key] = new.result
        return self.known[key]

    # Types and places

    def _part_of(self, value: SSAValue, dim: int) -> Linear | None:
        return layout_in_registers(value, self.warps).part(dim, self.size)

    def _layout_of(self, value: SSAValue) -> Linear:
        return layout_in_registers(value, self.warps)

    def _layout(self, value: SSAValue, dim: int) -> LayoutAttr:
        part = self._part_of(value, dim)
        assert part is not None, value.type
        attr = attr_of(part)
        assert isinstance(attr, LayoutAttr)
        return attr

    def _shape(self, value: SSAValue, dim: int) -> tuple[int, ...]:
        return tuple(self.size if d == dim else n for d, n in enumerate(shape_of(value.type)))

    def _type(self, value: SSAValue, dim: int) -> Attribute:
        shape = self._shape(value, dim)
        if linear_of(value.type) is None:
            return TensorType(element_type(value.type), shape)
        return TensorType(element_type(value.type), shape, self._layout(value, dim))

    def _wide(self, access: tile.LoadOp | tile.StoreOp, held: Linear | None) -> LayoutAttr:
        """A layout for an access of memory. Where each warpgroup holds whole rows in `held`, it accesses the same."""
        wish = preference(access)
        shape = shape_of((access.result if isinstance(access, tile.LoadOp) else access.value).type)
        groups = held.warp[log2(WARPGROUP) :] if held is not None and self.warps > WARPGROUP else ()
        own = part_of_group(shape, groups)
        if own is not None:
            inner = memory_layout(own, [wish], set(), WARPGROUP)
            found = Linear(shape, inner.reg, inner.lane, (*inner.warp, *groups))
        else:
            found = memory_layout(shape, [wish], set(), self.warps)
        attr = attr_of(found)
        assert isinstance(attr, LayoutAttr)
        return attr

    def _shift(self, rank: int, dim: int) -> list[AffineExpr]:
        return [
            AffineExpr.dimension(d) + self.start if d == dim and self.start else AffineExpr.dimension(d)
            for d in range(rank)
        ]

    def _moved(self, map: AffineMap, dim: int) -> AffineMap:
        """`map` with its dimension `dim` counted from the start of this part."""
        dims = self._shift(map.num_dims, dim)
        symbols = [AffineExpr.symbol(i) for i in range(map.num_symbols)]
        results = tuple(e.replace_dims_and_symbols(dims, symbols) for e in map.results)
        return AffineMap(map.num_dims, map.num_symbols, results)

    def _domain(self, domain: DomainAttr | None, dim: int) -> DomainAttr | None:
        return None if domain is None else DomainAttr.get(self._moved(domain.affine, dim), domain.limits)
