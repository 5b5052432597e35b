"""`tile-split-epilogue`: divides the computation and store of a result (the epilogue) into parts along the columns.

A *part* is a range of columns of the stored tile, 128 bytes wide. Operations of the epilogue are cloned for each part.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from xdsl.dialects.builtin import TensorType
from xdsl.ir import Attribute, Block, Operation, SSAValue
from xdsl.ir.affine import AffineExpr, AffineMap

from ...dialects import payload, tile
from ...dialects.kernel.barriers import WARPGROUP
from ...dialects.layouts import LayoutAttr, attr_of, layout_in_registers, linear_of
from ...dialects.layouts.linear import Linear, log2
from ...dialects.layouts.mma import part_of_group
from ...dialects.payload import element_bytes, element_type, shape_of
from ...dialects.shapes.domain import DomainAttr
from ..analysis.async_copies import EPILOGUE_ROW
from ..analysis.layout_preferences import memory_layout, preference
from ..analysis.tile_layouts import route_of
from ..pass_manager import TilePass
from ..rewriting import block_of, erase, insert_before, retype

COLUMNS = 1
"""Dimension along which results are divided."""


class SplitEpiloguePass(TilePass):
    """Divides stores whose layout conversion uses shared memory, and their epilogue, into parts of a few columns.

    ```mlir
    %o = payload.cast %s : tensor<128x256xf32, #acc> -> tensor<128x256xbf16, #acc>
    %w = tile.convert_layout %o : tensor<128x256xbf16, #acc> -> tensor<128x256xbf16, #wide>
    tile.store %w, %y[d0, d1] : tensor<128x256xbf16, #wide>, memref<128x256xbf16>
    ```
    becomes
    ```mlir
    %s0 = tile.slice %s at [0, 0] : tensor<128x256xf32, #acc> -> tensor<128x64xf32, #part>
    %o0 = payload.cast %s0 : tensor<128x64xf32, #part> -> tensor<128x64xbf16, #part>
    %w0 = tile.convert_layout %o0 : tensor<128x64xbf16, #part> -> tensor<128x64xbf16, #wide_part>
    tile.store %w0, %y[d0, d1] : tensor<128x64xbf16, #wide_part>, memref<128x256xbf16>
    %s1 = tile.slice %s at [0, 64] : ...
    ...
    tile.store %w1, %y[d0, d1 + 64] : ...
    ```

    The pass runs if the schedule has `copy = tma`, on two-dimensional tiles that are stored in another layout than they
    are computed in. Each part is 128 bytes wide, and all threads must hold elements of each part. The epilogue is
    cloned for each part, back to the accumulators, whose registers `tile.slice` selects. The loads of a part are issued
    before the previous part is computed. If each warpgroup holds whole rows, the conversion stays within the warpgroup.

    **Rationale**: circular buffers occupy most of shared memory, and a conversion needs memory for its tile. Parts need
    little of it, and all use the same bytes. Loaded and computed values need registers for one part only.

    **Pipeline position**: after `tile-assign-layouts`, which inserts the conversions; before `tile-tma-epilogue`, which
    changes stores.
    """

    name = "tile-split-epilogue"
    decision = ("copy", "tma")

    def on(self, op: tile.KernelOp) -> None:
        groups: dict[tuple[Block, tuple[int, ...]], list[Stored]] = {}
        for store in [o for o in op.body.walk() if isinstance(o, tile.StoreOp)]:
            divisible = _find(store, op.warps.data)
            if isinstance(divisible, Stored):
                groups.setdefault((block_of(store), shape_of(store.value.type)), []).append(divisible)
            else:
                self.decline(store, divisible)
        for stores in groups.values():
            _split(stores, op.warps.data)


@dataclass
class Part:
    """Part of a stored tile, and the clones of the epilogue for it.

    before  operation before which the clones are inserted
    start   first column of the part
    size    number of columns
    warps   warps of the block
    clones  (value, dimension) -> the part of that value along that dimension
    """

    before: Operation
    start: int
    size: int
    warps: int
    clones: dict[tuple[SSAValue, int], SSAValue] = field(default_factory=dict[tuple[SSAValue, int], SSAValue])

    def store(self, op: tile.StoreOp, value: SSAValue) -> None:
        """Inserts the store of this part of `value`, like the store `op` of the whole tile, with a conversion before
        it."""
        part = self.of(value, COLUMNS)
        map, domain = self._moved(op.map.data, COLUMNS), self._domain(op.domain, COLUMNS)
        new = tile.StoreOp(part, op.target, map, op.symbols, domain)
        convert = tile.ConvertLayoutOp(part, self._wide(new, layout_in_registers(part, self.warps)))
        new.operands[0] = convert.result
        self._add(convert, op, value.name_hint)
        insert_before(self.before, new, source=op)

    def load_early(self, value: SSAValue) -> None:
        """Inserts the loads that this part of `value` needs."""
        for load, dim in self._loads(value, COLUMNS, set()):
            self._load(load, dim)

    def of(self, value: SSAValue, dim: int) -> SSAValue:
        """Returns the part of `value` along its dimension `dim`, cloning operations as needed."""
        if not isinstance(value.type, TensorType):
            return value
        if (value, dim) not in self.clones:
            self.clones[value, dim] = self._cloned(value, dim) or self._sliced(value, dim)
        return self.clones[value, dim]

    def _add(self, op: Operation, source: Operation, hint: str | None) -> SSAValue:
        insert_before(self.before, op, source=source)
        op.results[0].name_hint = hint
        return op.results[0]

    def _sliced(self, value: SSAValue, dim: int) -> SSAValue:
        at = [self.start if d == dim else 0 for d in range(len(shape_of(value.type)))]
        return self._add(tile.SliceOp(value, at, self._type(value, dim)), self.before, value.name_hint)

    def _cloned(self, value: SSAValue, dim: int) -> SSAValue | None:
        """Returns the part of `value` from a clone of its operation, or None if it must be sliced from the whole
        value."""
        op = value.owner
        if not isinstance(op, Operation) or op.parent is not block_of(self.before):
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
            retype(new.results[0], self._type(value, dim))
        return None if new is None else self._add(new, op, value.name_hint)

    def _broadcast(self, op: tile.BroadcastOp, dim: int) -> tile.BroadcastOp | None:
        along = [int(d) for d in op.along.get_values()]
        inner = self._inner(op, dim)
        if inner is None and dim not in along and isinstance(op.source.type, TensorType):
            return None
        source = op.source if inner is None else self.of(op.source, inner)
        return tile.BroadcastOp(source, along, self._type(op.result, dim))

    def _inner(self, op: tile.BroadcastOp, dim: int) -> int | None:
        """Returns the dimension of the source of `op` that becomes `dim` of the result, or None if there is none or it
        cannot be divided."""
        along = [int(d) for d in op.along.get_values()]
        if dim in along or not isinstance(op.source.type, TensorType):
            return None
        inner = dim - sum(1 for d in along if d < dim)
        return inner if self._part_of(op.source, inner) is not None else None

    # Loads

    def _is_load(self, op: Operation) -> tile.LoadOp | None:
        """Returns the load `op`, or the load that `op` converts, or None if it cannot be cloned for a part."""
        load = op.source.owner if isinstance(op, tile.ConvertLayoutOp) else op
        if not isinstance(load, tile.LoadOp) or load.parent is not block_of(self.before):
            return None
        converted = [isinstance(u.operation, tile.ConvertLayoutOp) for u in load.result.uses]
        gathers = any(isinstance(s.type, TensorType) for s in load.symbols)
        return None if any(converted) and (gathers or not all(converted)) else load

    def _loads(self, value: SSAValue, dim: int, seen: set[SSAValue]) -> Iterator[tuple[tile.LoadOp, int]]:
        """Yields the loads in this block that `value` depends on, each with its dimension that corresponds to `dim`."""
        op = value.owner
        if value in seen or not isinstance(op, Operation) or op.parent is not block_of(self.before):
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
        """Returns the clone of the load `op` for this part. If its result is converted, it gets the best layout for
        loading."""
        key = op.result, dim
        if key not in self.clones:
            map, domain = self._moved(op.map.data, dim), self._domain(op.domain, dim)
            element, shape = element_type(op.result.type), self._shape(op.result, dim)
            symbols = [self.of(s, dim) for s in op.symbols]
            new = tile.LoadOp(op.source, map, symbols, domain, op.fill, TensorType(element, shape))
            users = [u.operation for u in op.result.uses]
            if users and isinstance(users[0], tile.ConvertLayoutOp):
                layout = self._wide(new, self._part_of(users[0].result, dim))
            else:
                layout = self._layout(op.result, dim)
            retype(new.result, TensorType(element, shape, layout))
            self._add(new, op, op.result.name_hint)
            self.clones[key] = new.result
        return self.clones[key]

    # Types and maps

    def _part_of(self, value: SSAValue, dim: int) -> Linear | None:
        return layout_in_registers(value, self.warps).part(dim, self.size)

    def _layout(self, value: SSAValue, dim: int) -> LayoutAttr:
        part = self._part_of(value, dim)
        assert part is not None, value.type
        return attr_of(part)

    def _shape(self, value: SSAValue, dim: int) -> tuple[int, ...]:
        return tuple(self.size if d == dim else n for d, n in enumerate(shape_of(value.type)))

    def _type(self, value: SSAValue, dim: int) -> Attribute:
        shape = self._shape(value, dim)
        if linear_of(value.type) is None:
            return TensorType(element_type(value.type), shape)
        return TensorType(element_type(value.type), shape, self._layout(value, dim))

    def _wide(self, access: tile.LoadOp | tile.StoreOp, held: Linear | None) -> LayoutAttr:
        """Returns the best layout for a load or store. If warpgroups hold whole rows in `held`, each accesses its own
        rows."""
        preferred = preference(access)
        shape = shape_of((access.result if isinstance(access, tile.LoadOp) else access.value).type)
        groups = held.warp[log2(WARPGROUP) :] if held is not None and self.warps > WARPGROUP else ()
        group_shape = part_of_group(shape, groups)
        if group_shape is None:
            return attr_of(memory_layout(shape, [preferred], set(), self.warps))
        inner = memory_layout(group_shape, [preferred], set(), WARPGROUP)
        return attr_of(Linear(shape, inner.reg, inner.lane, (*inner.warp, *groups)))

    def _moved(self, map: AffineMap, dim: int) -> AffineMap:
        """Returns `map` with `start` added to its dimension `dim`."""
        dims: list[AffineExpr] = [AffineExpr.dimension(d) for d in range(map.num_dims)]
        dims[dim] += self.start
        symbols = [AffineExpr.symbol(i) for i in range(map.num_symbols)]
        return map.replace_dims_and_symbols(dims, symbols, map.num_dims, map.num_symbols)

    def _domain(self, domain: DomainAttr | None, dim: int) -> DomainAttr | None:
        return None if domain is None else DomainAttr.get(self._moved(domain.affine, dim), domain.limits)


@dataclass(frozen=True)
class Stored:
    """Store that can be divided. `value` is the tile before the conversion, and `layout` its layout."""

    store: tile.StoreOp
    value: SSAValue
    layout: Linear

    @property
    def columns(self) -> int:
        """Number of columns of a part."""
        return EPILOGUE_ROW // element_bytes(self.value.type)


def _find(store: tile.StoreOp, warps: int) -> Stored | str | None:
    """Returns the divisible store, the reason if it cannot be divided, or None if division has no benefit: the store
    needs no conversion through shared memory, or is one part."""
    convert = store.value.owner
    if not isinstance(convert, tile.ConvertLayoutOp) or convert.parent is not store.parent:
        return None
    source = layout_in_registers(convert.source, warps)
    if route_of(convert, source, layout_in_registers(convert.result, warps)) != "shared":
        return None
    stored = Stored(store, convert.source, source)
    if len(source.shape) != 2 or any(isinstance(s.type, TensorType) for s in store.symbols):
        return "expected a two-dimensional tile at addresses that are no tiles (no scatter)"
    if source.shape[COLUMNS] <= stored.columns:
        return None
    if source.part(COLUMNS, stored.columns) is None:
        return f"parts of {stored.columns} columns are not held by all threads"
    return stored


def _split(stores: Sequence[Stored], warps: int) -> None:
    """Replaces stores of one block, whose tiles have the same shape, by stores of parts. All stores of the first part
    come first, then those of the second part, and so on."""
    last = stores[-1].store
    size = min(s.columns for s in stores)
    fitting = [s for s in stores if s.layout.part(COLUMNS, size) is not None]
    parts = [Part(last, start, size, warps) for start in range(0, fitting[0].layout.shape[COLUMNS], size)]
    for s in fitting:
        parts[0].load_early(s.value)
    for part, following in [*pairwise(parts), (parts[-1], None)]:
        if following is not None:
            for s in fitting:
                following.load_early(s.value)
        for s in fitting:
            part.store(s.store, s.value)
    for s in fitting:
        convert = s.store.value.owner
        assert isinstance(convert, Operation)
        erase(s.store)
        if convert.results[0].first_use is None:
            erase(convert)
