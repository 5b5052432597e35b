"""Time that one core of a CPU spends on the tiles of a nest: vector arithmetic, loads and stores, packed matmuls, and
the fixed cost of every loop and task."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

import numpy as np
from xdsl.ir import Attribute, Block, Operation, SSAValue
from xdsl.ir.affine import AffineBinaryOpExpr, AffineBinaryOpKind

from ....dialects.layouts.linear import log2
from ....dialects.loop import LoadOp, ReduceOp, ScanOp, StagedReduceOp
from ....dialects.loop.dependence import contiguous_index
from ....dialects.payload import constant_of, element_bytes, tensor_bytes
from ....dialects.shapes.extents import extents_of
from ....dialects.support.locations import ancestors
from ....dialects.tensor import MONOIDS
from ....target.model import LINE, NEAR, PAGE, TLB, Target
from ...analysis.operands import loaded_factor
from ..matmul import Matmul, Operations, own_sum_index
from ..model import SPECIAL
from ..nest_info import LoadSite, Reduction, strides
from ..points import Bools, Floats, ceil_div, largest, product, total
from ..space import last_index
from ..tiles import Tiles


class CoreTime:
    """The work of a nest on one core under schedules that have the same matmuls."""

    def __init__(self, work: Operations, tiles: Tiles, target: Target) -> None:
        assert target.core is not None
        self.work, self.info, self.tiles, self.core, self.costs = work, work.info, tiles, target.core, target.core.costs
        rates, info = target.rates, work.info
        self.fma = 2 * self.core.lanes * target.sms / rates.fma
        """Seconds of a multiply-add of vectors on one core."""
        self.vector, self.special = (self.core.lanes * target.sms / rate for rate in (rates.vector, rates.special))
        self.near = target.sms / rates.cache
        """Seconds of a byte from the level-2 cache of a core."""
        self.last = target.l2
        self.alone = {op for group in info.groups if not _is_rescaled(group[0]) for op in group}
        """The reductions whose partial results no other reduction rescales."""
        self.operands = {v: _expression(v) for p in work.products for v in p.factors}
        """The operands of matmuls, with the operations that compute them in the same loop."""
        self.result = last_index(info)
        written = sum(tensor_bytes(r.type) for r in info.nest.res)
        weights = {i: info.contiguous.get(i, 0) + (written if i is self.result else 0) for i in info.extents}
        self.order = sorted(info.extents, key=lambda i: (weights[i], weights[i] > 0 and i in info.free))[::-1]
        """The indices: those first along which most bytes are contiguous, then free ones. The lanes of a vector go
        along the first that a tile has several values of."""

    def seconds(self) -> Floats:
        """Returns the seconds that one core needs for all blocks."""
        info, tiles = self.info, self.tiles
        spent = self._operations() + self._accesses()
        loops = sum(tiles.trip_count({*g[0].body.block.args, *info.free}) for g in info.groups)
        spent = spent + tiles.blocks * (self.costs.block + self.costs.step * (loops + tiles.trip_count(info.free)))
        spent = spent + total(map(self._matmul, self.work.products), tiles.rows)
        if self.work.nested:
            spent = spent * np.where(self._nested_bytes() > self.core.l1, self.costs.spilled, 1.0)
        return spent + self._loaded()

    def exposed(self) -> Floats:
        """Returns the share of reads from memory that a core waits for. Of rows that are read twice, first to be
        reduced, the next one arrives while one is computed, but not the others of its tile."""
        sites = self.info.sites
        if all(sites[m].group == site.group for site in sites for m in site.alike):
            return np.zeros(self.tiles.rows)
        return 1 - 1 / np.maximum(1, self.tiles.elements(i for i in self.info.free if i in self.info.reduced))

    def _loaded(self) -> Floats:
        """Returns the seconds to load tiles into the caches of cores. Bytes that the next block needs, too, stay there
        if they are few."""
        tiles, spent, (neighbours, count) = self.tiles, np.zeros(self.tiles.rows), self.tiles.neighbours()
        sites = [site for n, site in enumerate(self.info.sites) if n == min(site.alike)]
        once = [self._distinct(site.op) for site in sites]
        sizes = [element_bytes(site.op.source.type) for site in sites]
        block = [tiles.within(s.indices) * share * size for s, share, size in zip(sites, once, sizes, strict=True)]
        whole = total(block, tiles.rows)
        for site, share, size, needed in zip(sites, once, sizes, block, strict=True):
            fits = self._stays(needed, whole - needed)
            stays = ~tiles.any_of(neighbours, site.indices) & fits
            each = self.near / np.where(stays, count, 1)
            if tensor_bytes(site.op.source.type) > self.core.l2 // 2:
                each = each + self._seek(site) / self._l2_reuse(site, whole - needed)
            spent = spent + tiles.visits(site.indices) * np.where(fits, share, 1.0) * size * each
        return spent

    def _stays(self, needed: Floats, others: Floats) -> Bools:
        """Returns true where bytes stay in the second cache while a block reads the bytes of `others`."""
        return (needed <= self.core.l2 // 2) | (needed + others <= self.core.l2 * 3 // 4)

    def _distinct(self, op: LoadOp) -> Floats:
        """Returns the share of different elements among those that a load reads in a block: windows overlap."""
        share, tiles = np.ones(self.tiles.rows), self.tiles
        for result in op.map.data.results:
            dims, rank = sorted(result.used_dims()), len(op.indices)
            kinds = {e.kind for e in result.dfs() if isinstance(e, AffineBinaryOpExpr)}
            if len(dims) < 2 or op.symbols or not kinds <= {AffineBinaryOpKind.Add, AffineBinaryOpKind.Mul}:
                continue
            counts, first = [tiles.within([op.indices[n]]) for n in dims], result.eval([0] * rank, [])
            gaps = [abs(result.eval([int(n == k) for k in range(rank)], []) - first) for n in dims]
            span = 1 + total((gap * (count - 1) for gap, count in zip(gaps, counts, strict=True)), tiles.rows)
            share = share * np.minimum(1.0, span / np.maximum(1, product(counts, tiles.rows)))
        return share

    def _l2_reuse(self, site: LoadSite, others: Floats) -> Floats:
        """Returns how often a load hits L2: the trip counts of the free indices that it does not depend on, if the
        bytes between two uses stay there beside the bytes of `others` that one block reads."""
        tiles, size = self.tiles, element_bytes(site.op.source.type)
        hits = np.ones(tiles.rows)
        for n, index in enumerate(self.info.free):
            if index not in site.indices:
                later = [i for i in self.info.free[n + 1 :] if i in site.indices]
                whole = product((self.info.extents[i] for i in later), tiles.rows)
                between = whole * tiles.within([i for i in site.indices if i not in later])
                hits = hits * np.where(self._stays(between * size, others), tiles.counts[index], 1)
        return hits

    def _seek(self, site: LoadSite) -> Floats:
        """Returns the seconds per byte of discontiguous reads: one seek per contiguous run, and one page walk per
        row."""
        each, size = element_bytes(site.op.source.type), tensor_bytes(site.op.source.type)
        run, row = (elements * each for elements in self._runs(site))
        few = np.minimum(1.0, run / self.costs.parallel_run)
        part = np.clip(run / PAGE, self.costs.least_seek, 1.0)
        seek = self.costs.seek * part if size > self.last // 2 else self.costs.near_seek
        return seek * few / run + (self.costs.page / row if size > TLB else 0.0)

    def _runs(self, site: LoadSite) -> tuple[Floats, Floats]:
        """Returns how many elements that a load reads follow one another in memory, without an end where the next block
        goes on: those that are read at once, and those whose pages are still known."""
        tiles, (neighbours, _) = self.tiles, self.tiles.neighbours()
        run, going, next_one, ends = np.ones(tiles.rows), np.ones(tiles.rows, dtype=np.bool_), 1, 1.0
        line = LINE // element_bytes(site.op.source.type)
        for stride, index in sorted(((s, i) for i, s in strides(site.op).items() if s), key=lambda pair: pair[0]):
            tile, extent = tiles.tile[index], self.info.extents[index]
            if stride == next_one or next_one == 1 and stride <= line:
                run = np.where(going, run * np.minimum(tile, max(1, extent)), run)
                part, next_one = going & (tile < extent), stride * extent
                ends = np.where(part & tiles.any_of(neighbours, (index,)), np.inf, ends)
                ends = np.where(~going & (tiles.steps[index] * tile > 1), 1.0, ends)
                going = going & ~part
            else:
                ends = np.where(tiles.steps[index] * tile > 1, 1.0, ends)
        group = self.info.groups[site.group] if site.group >= 0 else ()
        along = site.along
        # Columns of a tile are reduced some vectors at a time, from more rows than a core reads in turn.
        summed = {a for op in group for a in op.body.block.args}
        down = (tiles.elements(i for i in site.indices if i in summed) > self.core.streams) & (along not in summed)
        once = np.where(down, np.minimum(run, self.costs.column_vectors * self.core.lanes), run * ends)
        # The panels of a right operand are packed in turn from the same rows.
        packed = any(along in self._sides(p)[1] for p in self.work.products if p.reduction.op in group)
        return once, run * ends if packed else once

    def _nested_bytes(self) -> Floats:
        """Returns the bytes of the tiles that nested matmuls hand on, in f32."""
        held = np.zeros(self.tiles.rows)
        for p in self.work.products:
            contraction = p.reduction.contraction
            assert contraction is not None
            sides = (contraction.only_lhs, contraction.only_rhs, p.reduction.indices)
            high, wide, deep = map(self._extent, sides)
            held = held + 4 * (high * deep + deep * wide + high * wide)
        return held

    def _vectors(self, indices: Collection[SSAValue]) -> tuple[Floats, Bools]:
        """Returns how many vectors there are over `indices` in all blocks, or single elements where these do not fill a
        vector, and where they fill one."""
        tiles, lanes = self.tiles, self.core.lanes
        run, going = np.ones(tiles.rows), np.ones(tiles.rows, dtype=np.bool_)
        for index in (i for i in self.order if i in indices):
            extent = self.info.extents[index]
            run = np.where(going, run * np.minimum(tiles.tile[index], max(1, extent)), run)
            going = going & (tiles.tile[index] == extent)
        full = run >= lanes
        return tiles.visits(indices) / run * np.where(full, ceil_div(run, lanes), run), full

    def _sides(self, p: Matmul) -> tuple[set[SSAValue], set[SSAValue], Sequence[SSAValue]]:
        """Returns the indices of the rows and columns of a matmul, and its operands: a packed one has the columns."""
        contraction = p.reduction.contraction
        assert contraction is not None
        lhs, rhs = {*contraction.only_lhs}, {*contraction.only_rhs}
        packed = {self.info.free[i] for i in self.tiles.points.pack} & lhs
        return (rhs, lhs, p.factors[::-1]) if packed else (lhs, rhs, p.factors)

    def _lanes(self, indices: Collection[SSAValue]) -> dict[SSAValue, Bools]:
        """Returns where the lanes of a vector go along each of `indices`."""
        masks, left = dict[SSAValue, Bools](), np.ones(self.tiles.rows, dtype=np.bool_)
        for index in (i for i in self.order if i in indices):
            masks[index] = left & (self.tiles.tile[index] > 1)
            left = left & ~masks[index]
        return masks

    def _operations(self) -> Floats:
        """Returns the seconds of all operations except for matmuls, loads and stores."""
        around = {r.op: r for r in self.info.reductions}
        spent = np.zeros(self.tiles.rows)
        for counted in self.work.others:
            op = counted.op
            count, full = self._vectors(counted.indices)
            again = self._repeats(op, counted.indices)
            name = MONOIDS[op.kind.data].combiner(op.source.type).name if isinstance(op, ScanOp) else op.name
            one = self.special if name in SPECIAL else self.vector
            if isinstance(op, ScanOp):
                along = self.tiles.any_of(self._lanes(counted.indices), (op.index,))
                one = one * np.where(along, 2 * log2(self.core.lanes) + 2, 1)
            spent = spent + again * count * np.where(full, one, self.costs.scalar * self.vector)
            if isinstance(op, ReduceOp):
                spent = spent + again * self._folds(around[op])
        return spent

    def _repeats(self, op: Operation, indices: Iterable[SSAValue]) -> Floats:
        """Returns how often chunks of the reductions around an operation compute it again.

        An operation is computed in the loop over the last index that it depends on. Loops around that one repeat it
        where they run over indices that it does not depend on. The operations of a reduction are repeated with it.
        """
        again, needed, steps = np.ones(self.tiles.rows), {*indices}, self.tiles.steps
        groups = {op: group for group in self.info.groups for op in group}
        around = {r.op: r.around for r in self.info.reductions}
        for outer in (o for o in ancestors(op) if isinstance(o, ReduceOp)):
            summed, inside = [*outer.body.block.args], np.zeros(self.tiles.rows, dtype=np.bool_)
            for index in reversed(summed):
                if index in needed:
                    inside = inside | (steps[index] > 1)
                else:
                    again = again * np.where(inside, steps[index], 1)
            if not needed.isdisjoint(summed):
                needed = {i for stage in groups[outer] for i in around[stage]}
        return again

    def _folds(self, r: Reduction) -> Floats:
        """Returns the seconds to reduce vectors to numbers, or to keep sums of columns.

        Vectors are reduced at the end, in a tile of sums until then, or chunk by chunk where other reductions need
        them. Where lanes do not go along the sum, the sums of columns of a chunk are kept, or more of them than there
        are registers."""
        tiles, summed, core, costs = self.tiles, r.indices, self.core, self.costs
        indices = {*r.around, *summed}
        visits, chunk, steps = tiles.visits(indices), self._extent(summed), tiles.trip_count(summed)
        rows = tiles.elements(i for i in indices if i not in summed)
        across = visits / chunk * costs.fold
        if r.op in self.alone:
            # The sums are read and written in the next cache, 4 bytes each time.
            far = np.where(4 * chunk * rows > core.l1, 8 * self.near, 0.0)
            each = 2 * costs.access / core.lanes * self.vector + far
            kept = visits * each * np.where(steps > 1, 1 + 1 / steps, 0.0)
            across = across / steps + kept + np.where(steps > 1, visits / (chunk * rows) * costs.chunk, 0.0)
        across = np.where(chunk < core.lanes, visits * costs.gathered * self.vector, across)
        loads = np.where(rows > core.lanes * core.registers / 4, 2 * costs.access, 0.0)
        down = visits / chunk / core.lanes * self.vector * np.where(chunk > 1, costs.spread, loads)
        return np.where(tiles.any_of(self._lanes(indices), summed), across, down)

    def _accesses(self) -> Floats:
        """Returns the seconds of loads and stores, except for operands that matmuls read in memory."""
        tiles, costs, free = self.tiles, self.costs, self.info.free
        factors = {load: p for p in self.work.products for load in _read_in_place(p)}
        spent = np.zeros(tiles.rows)
        for site in self.info.sites:
            if site.op in factors:
                once = self._gathered(site, factors[site.op])
            else:
                along, tile, symbols = site.along, self._tile_of(site), bool(site.op.symbols)
                near = self._near(site, tile)
                once = self._access(site.indices, tile, along, site.op.source.type, symbols, near)
            spent = spent + self._repeats(site.op, site.indices) * once
        for result in self.info.nest.res:
            spent = spent + self._access(free, free, self.result, result.type)
        if tiles.points.pack and all(free[i] is not self.result for i in tiles.points.pack):
            turned = costs.turned / self.core.lanes * self.vector  # the columns of a tile are the result's rows
            spent = spent + tiles.visits(free) * turned
        rows = [r for r in self.info.reductions if r.contraction is None]
        held = 8 * largest((tiles.elements({*r.around, *r.indices}) for r in rows), tiles.rows)  # read, and computed
        return spent * np.where(held > self.core.l2, costs.l2_tiles, np.where(held > self.core.l1, costs.l1_tiles, 1.0))

    def _gathered(self, site: LoadSite, p: Matmul) -> Floats:
        """Returns the seconds to load an operand of a matmul element by element where a tile of it is no matrix with
        strides."""
        outer = next((side for side in self._sides(p)[:2] if not side.isdisjoint(site.indices)), set[SSAValue]())
        packed = any(self.info.free[i] in outer for i in self.tiles.points.pack)
        each = (self.costs.gathered + self.costs.checked) * self.vector
        strided = is_strided(site.op, (outer, p.reduction.indices), packed, self.tiles)
        return np.where(strided, 0.0, each * self.tiles.visits(site.indices))

    def _near(self, site: LoadSite, tile_of: Collection[SSAValue]) -> Bools:
        """Returns where a load reads every other element in memory with the lanes of a vector, in either direction.
        Such a vector is printed as two loads and a permutation."""
        gaps = strides(site.op)
        every_other = [i for i in tile_of if gaps.get(i) in (2, -2)]
        if not every_other:
            return np.zeros(self.tiles.rows, dtype=np.bool_)
        lanes = self._lanes(tile_of)
        return np.any([lanes[i] & (self.tiles.tile[i] >= self.core.lanes) for i in every_other], axis=0)

    def _tile_of(self, site: LoadSite) -> Collection[SSAValue]:
        """Returns the indices of the tile that a load is for, with an element for each value of them."""
        if site.group < 0:
            return self.info.free
        for operand, ops in self.operands.items():
            if site.op in ops:
                return self.info.dependence.of(operand)
        first = self.info.groups[site.group][0]
        r = next(r for r in self.info.reductions if r.op is first)
        indices = {*r.around, *r.indices}
        return indices if {*site.indices} <= indices else site.indices

    def _access(
        self,
        indices: Collection[SSAValue],
        tile_of: Collection[SSAValue],
        along: SSAValue | None,
        tensor: Attribute,
        computed: bool = False,
        near: Bools | bool = False,
    ) -> Floats:
        """Returns the seconds to load or store elements.

        Args:
            indices: indices of the elements.
            tile_of: indices of the tile.
            along: index along which the elements are contiguous.
            tensor: type of the tensor.
            computed: whether some coordinates are data.
            near: where every other element is read.
        """
        tiles, costs, lanes = self.tiles, self.costs, self.core.lanes
        if along is None or along not in indices:
            return self._vectors(indices)[0] * costs.access * self.vector
        count, full = self._vectors(tile_of)
        extent, tile = self.info.extents[along], tiles.tile[along]
        rows_follow = next((n for n in reversed(extents_of(tensor)) if n != 1), 1) == self.info.sizes[along]
        whole = (tile >= lanes) | (rows_follow & (tile == extent)) | (self._extent(indices) == 1)
        first = self._lanes(tile_of)
        there = (first[along] | ~tiles.any_of(first, tile_of)) & whole
        vectors = self._vectors(indices)[0]
        spread = tiles.elements(i for i in tile_of if i not in indices) > 1
        masked = np.where(self._ragged(tile_of) & full, costs.masked, 0.0) * np.where(spread, vectors, count)
        plain = costs.access * count + masked
        ends = np.any([self.info.extents[i] % tiles.tile[i] != 0 for i in tile_of], axis=0)
        checked = ends & (~first[along] | computed)  # a row of neighbours has one check
        each = np.where(checked, costs.gathered + costs.checked, costs.gathered)
        each = np.where(near, costs.near / lanes, each)
        pairs = ((self.info.extents[i], tiles.tile[i]) for i in tile_of)
        padding = product((ceil_div(n, t) * t / max(1, n) for n, t in pairs), tiles.rows)
        turned = np.where(full & (tile >= lanes), costs.turned / lanes, each * padding) * tiles.visits(tile_of)
        copied = np.where(spread & there, 2 * costs.access * vectors, 0.0)
        same = tiles.any_of(first, tile_of) & ~tiles.any_of(first, indices)  # one number for all lanes
        return np.where(same, costs.access * vectors, np.where(there, plain, turned) + copied) * self.vector

    def _ragged(self, indices: Collection[SSAValue]) -> Bools:
        """Returns where several rows of a tile over `indices` end inside of it. A loop over one row, or over whole
        rows, ends with these, and so does one that reduces rows of whole vectors."""
        tiles, ordered = self.tiles, [i for i in self.info.extents if i in indices]
        several = ragged = np.zeros(tiles.rows, dtype=np.bool_)
        for n, index in enumerate(ordered):
            extent, inside = self.info.extents[index], tiles.elements(ordered[n + 1 :])
            whole = extent * inside % self.core.lanes == 0 if index in self.info.reduction_indices else False
            ragged = ragged | several & (extent % tiles.tile[index] != 0) & ~np.asarray(whole)
            several = several | (tiles.tile[index] > 1)
        return ragged

    def _extent(self, indices: Iterable[SSAValue]) -> Floats:
        """Returns the elements of a tile over `indices`, without padding."""
        return product((np.minimum(self.tiles.tile[i], self.info.extents[i]) for i in indices), self.tiles.rows)

    def _matmul(self, p: Matmul) -> Floats:
        """Returns the seconds of a matmul: panels of its right operand are packed, and rows of the left one walk over
        each."""
        tiles, core, costs, lanes = self.tiles, self.core, self.costs, self.core.lanes
        packed = {self.info.free[i] for i in tiles.points.pack}
        lhs, rhs, factors = self._sides(p)
        by_columns = self._by_columns(factors[0], lhs)
        high, wide, deep = map(self._extent, (lhs, rhs, p.reduction.indices))
        count = tiles.visits({*p.indices}) / np.maximum(1, high * wide * deep)
        vectors = np.where(tiles.elements(rhs) >= 2 * lanes, 2, 1)
        (left, right), along = map(_contiguous, factors), own_sum_index(self.info, p)
        rate = core.bf16_rate if p.of_bf16 else 1.0
        size, by_tiles = 2 if rate > 1 else 4, rate > 2
        tall, most = tiles.elements(lhs), core.amx_rows if by_tiles else core.tile_rows
        padded: Floats = ceil_div(tall, ceil_div(tall, most))
        even: Floats = ceil_div(high, core.column_rows)  # blocks of rows, with as many in each
        uneven: Floats = ceil_div(high, padded)
        rows, blocks = np.where(by_columns, high / even, padded), np.where(by_columns, even, uneven)
        panels = ceil_div(wide, vectors * lanes) * self._padding_overhead(rhs, vectors * lanes)
        step = np.maximum(np.maximum(rows * vectors, rows + vectors), core.fma_in_flight) * self.fma / rate
        fma = panels * blocks * (deep * step + rows * vectors * costs.sum * self.fma)
        pack = costs.gathered * lanes  # of a vector of the right operand
        if right is None or right in rhs or packed:
            pack = costs.pack
        elif right is along:
            pack = np.where(vectors > 1, costs.far_turn, costs.turn)
        order = panels * vectors * deep * pack * size / 4
        in_place = (right in rhs) & (tall <= most) | bool(packed & rhs) & (wide == vectors * lanes)
        order = np.where(in_place & (not p.of_bf16), 0.0, order)  # in bf16 it is packed in any case
        if left is not None and left is not along:
            order = order + np.where(by_columns, 0.0, high * deep * costs.gathered)
        # Bytes from the next cache: the left operand is read once more, and AMX waits for whole registers of it.
        again = np.where(by_tiles | (4 * high * deep > core.l2 / 2), size * panels * high * deep, 0.0)
        again = again + np.where(4 * tall * wide > core.l1, 4 * high * wide, 0.0)
        panel = size * deep * vectors * lanes
        beside = panel * (1 + most / (vectors * lanes))  # with the rows that walk over it
        lost = 1.0 if by_tiles else costs.far_panel
        again = again + np.where(beside > core.l1, panels * blocks * panel * lost, 0.0)
        by_element = 2 * costs.scalar * high * wide * deep * self.vector
        narrow = tiles.elements(rhs) < lanes
        whole = fma + order * self.fma + again * self.near
        if p.reduction.op not in self.alone:  # the sums so far are rescaled
            steps = tiles.trip_count(p.reduction.indices)
            whole = whole + np.where(steps > 1, 2 * costs.access * tall * wide / lanes * self.vector, 0.0)
        return count * (costs.product + np.where(narrow, by_element, whole))

    def _by_columns(self, factor: SSAValue, lhs: Collection[SSAValue]) -> Bools:
        """Returns true where the rows of a left operand are so near in memory that columns are read there."""
        tiles, load = self.tiles, loaded_factor(factor)
        near, outer = np.zeros(tiles.rows, dtype=np.bool_), np.ones(tiles.rows, dtype=np.bool_)
        gaps = strides(load) if load is not None else dict[SSAValue, int]()
        for index in reversed([i for i in self.info.extents if i in lhs and i in gaps]):
            near = near | outer & (tiles.tile[index] > 1) & (0 < gaps[index] <= NEAR)
            outer = outer & (tiles.tile[index] == 1)
        return near

    def _padding_overhead(self, columns: Collection[SSAValue], width: Floats) -> Floats:
        """Returns computed panels of `width` columns over useful ones: the last tile of a dimension is padded to a
        whole panel."""
        overhead = np.ones(self.tiles.rows)
        for i in columns:
            extent, tile = self.info.extents[i], np.minimum(self.tiles.tile[i], self.info.extents[i])
            inside = self.tiles.elements(columns) / self.tiles.tile[i]
            last = ceil_div(extent % tile * inside, width)
            overhead = overhead * (extent // tile + last / ceil_div(tile * inside, width)) * tile / extent
        return overhead


def _is_rescaled(stage: ReduceOp) -> bool:
    """Returns true if a reduction runs together with others that rescale its partial results."""
    around = stage.parent_op()
    return isinstance(around, StagedReduceOp) and len([*around.rescale.block.ops]) > 1


def _read_in_place(p: Matmul) -> list[Operation | Block | None]:
    """Returns the loads of operands that a matmul reads in memory: of its type, or both of bf16, which it widens."""
    return [loaded_factor(f) if p.of_bf16 else f.owner for f in p.factors]


def _expression(value: SSAValue) -> set[Operation]:
    """Returns the operations of one body that compute a value."""
    ops, todo = set[Operation](), [value]
    while todo:
        op = todo.pop().owner
        if isinstance(op, Operation) and op not in ops and op.parent is value.owner.parent:
            ops.add(op)
            todo += op.operands
    return ops


def _contiguous(factor: SSAValue) -> SSAValue | None:
    """Returns the index along which an operand of a matmul is contiguous; None if it is computed."""
    load = loaded_factor(factor)
    return None if load is None else contiguous_index(load)


def is_strided(load: LoadOp, sides: Sequence[Collection[SSAValue]], packed: bool, tiles: Tiles) -> Bools:
    """Returns true where a tile of an operand is a matrix with one stride for its rows and one for its columns.

    Several indices that a tile has along one side must follow one another in memory without padding. A bound counts
    either rows or columns: the window of a convolution in a chunk and pixels in the same tile share a bound.

    Args:
        load: Load of the operand.
        sides: Indices of the rows and of the columns of the matrix.
        packed: Whether a packed copy is read, which has no bounds and whose last index is that of the panels.
        tiles: Tiles of the schedules.
    """
    plain = not load.symbols and (load.fill is None or constant_of(load.fill) == 0)
    strided, gaps = np.full(tiles.rows, packed or plain), strides(load)
    bounded = () if packed or load.domain is None else load.domain.affine.results
    bounds = [{load.indices[d] for d in b.used_dims()} for b in bounded]
    for side in sides:
        inside, whole = np.zeros(tiles.rows, dtype=np.bool_), np.ones(tiles.rows, dtype=np.bool_)
        length = np.zeros(tiles.rows)
        for index in reversed([i for i in tiles.info.extents if i in side and i in gaps]):
            tile, extent = tiles.tile[index], tiles.info.extents[index]
            several = tile > 1
            unbounded = (extent % tile == 0) & (not any(index in bound for bound in bounds))
            follows = whole & unbounded & (packed | (gaps[index] == length))
            strided &= ~(several & inside) | follows
            whole = np.where(several, whole & unbounded & (tile == extent), whole)
            length = np.where(several, gaps[index] * tile, length)
            inside = inside | several
    rows, columns = sides
    for bound in bounds:
        strided &= (tiles.elements(bound & {*rows}) == 1) | (tiles.elements(bound & {*columns}) == 1)
    return strided
