"""How long the cores of a CPU work on the blocks of a nest: vectors of its operations, loads and stores, its products
of panels, and what it takes to get from one loop or block to the next."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

import numpy as np
from xdsl.ir import Attribute, Block, Operation, SSAValue
from xdsl.ir.affine import AffineBinaryOpExpr, AffineBinaryOpKind

from ...dialects.layouts.linear import log2
from ...dialects.loop import ReduceOp, ScanOp, StagedReduceOp
from ...dialects.loop.dependence import contiguous_index
from ...dialects.payload import element_bytes, tensor_bytes
from ...dialects.shapes.extents import extents_of
from ...dialects.support.locations import ancestors
from ...dialects.tensor import MONOIDS
from ...target.model import LINE, NEAR, PAGE, TLB, Core, Target
from ..analysis.packed_operands import loaded_factor
from .compute import Arithmetic
from .matmul import Matmul, own_sum_index
from .nest_info import LoadSite, NestInfo, Reduction, strides
from .points import Bools, Floats, Ints, ceil_div, largest, product, total
from .roofline import SPECIAL
from .strided_operands import is_strided
from .tiles import Tiles

SHORT = 128
"""Bytes below which several pieces of memory are read at the same time."""

BESIDE = 4
"""Vectors of columns that are reduced at the same time."""

TILE_ROWS = 32
"""Rows of the result that products of bf16 keep in two registers of AMX at once."""

LATENCY = 8
"""Sums that a core has to have in flight, as vectors, so that no multiply-add waits for the one before."""


class CoreTime:
    """The work of a nest on a target whose blocks are single threads, for all schedules that have the same matrix
    products."""

    def __init__(self, info: NestInfo, arithmetic: Arithmetic, core: Core, target: Target) -> None:
        self.info, self.arithmetic, self.core, self.costs = info, arithmetic, core, core.costs
        rates = target.rates
        self.fma = 2 * core.lanes * target.sms / rates.fma
        """Seconds of a multiply-add of vectors on one core."""
        self.vector, self.special = (core.lanes * target.sms / rate for rate in (rates.vector, rates.special))
        self.near = target.sms / rates.cache
        """Seconds of a byte from the level-2 cache of a core."""
        self.last, self.fits = target.l2, footprint(info) <= target.l2 // 2
        """Whether the last cache of the cores holds all that is read and written."""
        self.alone = {op for group in info.groups if not _is_rescaled(group[0]) for op in group}
        """The reductions that no others need chunk by chunk."""
        self.operands = {v: _expression(v) for p in arithmetic.products for v in p.factors}
        """The operands of products, with the operations that compute them in the same loop."""
        self.result = next((i for i in reversed(info.free) if info.extents[i] > 1), None)
        written = sum(tensor_bytes(r.type) for r in info.nest.res)
        weights = {i: info.contiguous.get(i, 0) + (written if i is self.result else 0) for i in info.extents}
        self.order = sorted(info.extents, key=lambda i: (weights[i], weights[i] > 0 and i in info.free))[::-1]
        """The indices, those along which most bytes are contiguous first, of equals those that are not summed over: the
        lanes of a vector go along the first that a tile has several of."""

    def seconds(self, tiles: Tiles) -> Floats:
        """Seconds that one core would need for all blocks."""
        info = self.info
        found = self._operations(tiles) + self._accesses(tiles)
        loops = sum(tiles.trip_count({*g[0].body.block.args, *info.free}) for g in info.groups)
        found = found + tiles.blocks * (self.costs.block + self.costs.step * (loops + tiles.trip_count(info.free)))
        found = found + total((self._product(p, tiles) for p in self.arithmetic.products), tiles.rows)
        return found * np.where(self._held(tiles) > self.core.l1, self.costs.spilled, 1.0) + self._loaded(tiles)

    def _loaded(self, tiles: Tiles) -> Floats:
        """Seconds to load what blocks need into the caches of their cores: what the next block needs too is still
        there, if it is little."""
        found, (neighbours, count) = np.zeros(tiles.rows), tiles.neighbours()
        sites = [site for n, site in enumerate(self.info.sites) if n == min(site.alike)]
        once = [self._distinct(site, tiles) for site in sites]
        sizes = [element_bytes(site.op.source.type) for site in sites]
        block = [tiles.within(s.indices) * share * size for s, share, size in zip(sites, once, sizes, strict=True)]
        whole = total(block, tiles.rows)
        for site, share, size, own in zip(sites, once, sizes, block, strict=True):
            fits = self._stays(own, whole - own)
            stays = ~tiles.any_of(neighbours, site.indices) & fits
            again = self._again(site, whole - own, tiles)
            each = self.near / np.where(stays, count, 1) + self._seek(site, tiles) / again
            found = found + tiles.visits(site.indices) * np.where(fits, share, 1.0) * size * each
        return found

    def _stays(self, own: Floats, others: Floats) -> Bools:
        """Returns true where bytes stay in the second cache while a block reads the bytes of `others`."""
        return (own <= self.core.l2 // 2) | (own + others <= self.core.l2 * 3 // 4)

    def _distinct(self, site: LoadSite, tiles: Tiles) -> Floats:
        """Returns the share of different elements among those that a load reads in a block: windows overlap."""
        share, op = np.ones(tiles.rows), site.op
        for result in op.map.data.results:
            own, rank = sorted(result.used_dims()), len(op.indices)
            kinds = {e.kind for e in result.dfs() if isinstance(e, AffineBinaryOpExpr)}
            if len(own) < 2 or op.symbols or not kinds <= {AffineBinaryOpKind.Add, AffineBinaryOpKind.Mul}:
                continue
            counts, first = [tiles.within([op.indices[n]]) for n in own], result.eval([0] * rank, [])
            gaps = [abs(result.eval([int(n == k) for k in range(rank)], []) - first) for n in own]
            span = 1 + total((gap * (count - 1) for gap, count in zip(gaps, counts, strict=True)), tiles.rows)
            share = share * np.minimum(1.0, span / np.maximum(1, product(counts, tiles.rows)))
        return share

    def _again(self, site: LoadSite, others: Floats, tiles: Tiles) -> Floats:
        """How often what a load reads is read while it is in the second cache of a core: by blocks along an index on
        which it does not depend, if there is room for all that is read between two of them, beside the bytes of
        `others` that one block reads."""
        found, size, own = np.ones(tiles.rows), element_bytes(site.op.source.type), [*site.indices]
        for n, index in enumerate(self.info.free):
            if index not in own:
                later = [i for i in self.info.free[n + 1 :] if i in own]
                whole = product((self.info.extents[i] for i in later), tiles.rows)
                between = whole * tiles.within([i for i in own if i not in later])
                found = found * np.where(self._stays(between * size, others), tiles.counts[index], 1)
        return found

    def _seek(self, site: LoadSite, tiles: Tiles) -> Floats:
        """Seconds for each byte of a load to begin to read elsewhere than where the last read ended."""
        each, size = element_bytes(site.op.source.type), tensor_bytes(site.op.source.type)
        if size <= self.core.l2 // 2:
            return np.zeros(tiles.rows)
        run, row = (found * each for found in self._runs(site, tiles))
        few = np.minimum(1.0, run / SHORT)
        seek = self.costs.seek * np.clip(run / PAGE, 0.25, 1.0) if size > self.last // 2 else self.costs.near_seek
        return seek * few / run + (self.costs.page / row if size > TLB else 0.0)

    def exposed(self, tiles: Tiles) -> Floats:
        """The share of what is read from memory that is waited for: of rows that are read twice, first to be reduced,
        the next one comes while one is computed, but not the others of its tile."""
        sites = self.info.sites
        if all(sites[m].group == site.group for site in sites for m in site.alike):
            return np.zeros(tiles.rows)
        return 1 - 1 / np.maximum(1, tiles.elements(i for i in self.info.free if i in self.info.reduced))

    def _held(self, tiles: Tiles) -> Floats:
        """Bytes of the tiles that products inside of each other hand on, in f32."""
        held = np.zeros(tiles.rows)
        for p in self.arithmetic.products if self.arithmetic.nested else ():
            found = p.reduction.contraction
            assert found is not None
            high, wide, deep = (self._extent(i, tiles) for i in (found.only_lhs, found.only_rhs, p.reduction.indices))
            held = held + 4 * (high * deep + deep * wide + high * wide)
        return held

    def _vectors(self, indices: Collection[SSAValue], tiles: Tiles) -> tuple[Floats, Bools]:
        """How many vectors, or single elements where these do not fill one, there are over `indices` in all blocks
        together; and where they fill one."""
        lanes, run, going = self.core.lanes, np.ones(tiles.rows), np.ones(tiles.rows, dtype=np.bool_)
        for index in (i for i in self.order if i in indices):
            extent = self.info.extents[index]
            run = np.where(going, run * np.minimum(tiles.tile[index], max(1, extent)), run)
            going = going & (tiles.tile[index] == extent)
        full = run >= lanes
        return tiles.visits(indices) / run * np.where(full, ceil_div(run, lanes), run), full

    def _runs(self, site: LoadSite, tiles: Tiles) -> tuple[Floats, Floats]:
        """How many elements that a load reads follow one another in memory: of a tile, and without an end where the
        next block goes on. Those that are read at once, and those of which the pages are still known."""
        neighbours, _ = tiles.neighbours()
        run, going, next_one, ends = np.ones(tiles.rows), np.ones(tiles.rows, dtype=np.bool_), 1, 1.0
        line = LINE // element_bytes(site.op.source.type)
        for stride, index in sorted(((s, i) for i, s in strides(site.op).items() if s), key=lambda found: found[0]):
            tile, extent = tiles.tile[index], self.info.extents[index]
            if stride == next_one or next_one == 1 and stride <= line:
                run = np.where(going, run * np.minimum(tile, max(1, extent)), run)
                part, next_one = going & (tile < extent), stride * extent
                ends = np.where(part & tiles.any_of(neighbours, (index,)), np.inf, ends)
                ends = np.where(~going & (tiles.steps[index] * tile > 1), 1.0, ends)
                going = going & ~part
            else:
                ends = np.where(tiles.steps[index] * tile > 1, 1.0, ends)
        once = np.where(self._down(site, tiles), np.minimum(run, BESIDE * self.core.lanes), run * ends)
        return once, run * ends if self._is_packed(site, tiles) else once

    def _down(self, site: LoadSite, tiles: Tiles) -> Bools:
        """Where columns of a tile are reduced, some vectors of them at a time, and what a load reads lies by rows, more
        of them than a core reads in turn."""
        group = self.info.groups[site.group] if site.group >= 0 else ()
        own = {a for op in group for a in op.body.block.args}
        by_rows = contiguous_index(site.op) not in own
        return (tiles.elements(i for i in site.indices if i in own) > self.core.streams) & by_rows

    def _is_packed(self, site: LoadSite, tiles: Tiles) -> bool:
        """Whether a load is of the right operand of a product: its panels are packed in turn from the same rows."""
        group = self.info.groups[site.group] if site.group >= 0 else ()
        products = [p for p in self.arithmetic.products if p.reduction.op in group]
        return any(contiguous_index(site.op) in self._sides(p, tiles)[1] for p in products)

    def _sides(self, p: Matmul, tiles: Tiles) -> tuple[set[SSAValue], set[SSAValue], Sequence[SSAValue]]:
        """The indices of the rows and columns of a product's result, and its factors: what is copied before has the
        columns."""
        found = p.reduction.contraction
        assert found is not None
        lhs, rhs = {*found.only_lhs}, {*found.only_rhs}
        copied = {self.info.free[i] for i in tiles.points.pack} & lhs
        return (rhs, lhs, p.factors[::-1]) if copied else (lhs, rhs, p.factors)

    def _lanes(self, indices: Collection[SSAValue], tiles: Tiles) -> dict[SSAValue, Bools]:
        """Where the lanes of a vector go along each of `indices`."""
        found, left = dict[SSAValue, Bools](), np.ones(tiles.rows, dtype=np.bool_)
        for index in (i for i in self.order if i in indices):
            found[index] = left & (tiles.tile[index] > 1)
            left = left & ~found[index]
        return found

    def _operations(self, tiles: Tiles) -> Floats:
        """Seconds of everything but products of panels, loads and stores."""
        around = {r.op: r for r in self.info.reductions}
        found = np.zeros(tiles.rows)
        for counted in self.arithmetic.others:
            count, full = self._vectors(counted.indices, tiles)
            again = self._repeats(counted.op, counted.indices, tiles)
            name = counted.op.name
            if isinstance(counted.op, ScanOp):
                name = MONOIDS[counted.op.kind.data].combiner(counted.op.source.type).name
            one = self.special if name in SPECIAL else self.vector
            if isinstance(counted.op, ScanOp):
                along = tiles.any_of(self._lanes(counted.indices, tiles), (counted.op.index,))
                one = one * np.where(along, 2 * log2(self.core.lanes) + 2, 1)
            found = found + again * count * np.where(full, one, self.costs.scalar * self.vector)
            if isinstance(counted.op, ReduceOp):
                found = found + again * self._folds(around[counted.op], tiles)
        return found

    def _repeats(self, op: Operation, indices: Iterable[SSAValue], tiles: Tiles) -> Floats:
        """Returns how often chunks of the reductions around an operation compute it again.

        An operation is computed in the loop over the last index that it depends on. Loops around that one repeat it
        where they run over indices that it does not depend on. The operations of a reduction are repeated with it.
        """
        again, needed = np.ones(tiles.rows), {*indices}
        groups = {op: group for group in self.info.groups for op in group}
        around = {r.op: r.around for r in self.info.reductions}
        for outer in (o for o in ancestors(op) if isinstance(o, ReduceOp)):
            own, inside = [*outer.body.block.args], np.zeros(tiles.rows, dtype=np.bool_)
            for index in reversed(own):
                if index in needed:
                    inside = inside | (tiles.steps[index] > 1)
                else:
                    again = again * np.where(inside, tiles.steps[index], 1)
            if not needed.isdisjoint(own):
                needed = {i for stage in groups[outer] for i in around[stage]}
        return again

    def _folds(self, r: Reduction, tiles: Tiles) -> Floats:
        """Seconds to reduce vectors to numbers, which is done at the end, in a tile of sums until then, or chunk by
        chunk where other reductions need it; or, along what are not lanes, to keep the sums of columns of a chunk, or
        more of them than there are registers."""
        indices, own, core = {*r.around, *r.indices}, r.indices, self.core
        lanes, visits = self._lanes(indices, tiles), tiles.visits(indices)
        chunk, steps = self._extent(own, tiles), tiles.trip_count(own)
        rows = tiles.elements(i for i in indices if i not in own)
        across = visits / chunk * self.costs.fold
        if r.op in self.alone:
            far = np.where(
                4 * chunk * rows > core.l1, 8 * self.near, 0.0
            )  # sums are read and written in the next cache
            each = 2 * self.costs.access / core.lanes * self.vector + far
            kept = visits * each * np.where(steps > 1, 1 + 1 / steps, 0.0)
            across = across / steps + kept + np.where(steps > 1, visits / (chunk * rows) * self.costs.chunk, 0.0)
        across = np.where(chunk < core.lanes, visits * self.costs.gathered * self.vector, across)
        loads = np.where(rows > core.lanes * core.registers / 4, 2 * self.costs.access, 0.0)
        down = visits / chunk / core.lanes * self.vector * np.where(chunk > 1, self.costs.spread, loads)
        return np.where(tiles.any_of(lanes, own), across, down)

    def _accesses(self, tiles: Tiles) -> Floats:
        """Seconds of loads and stores, but of factors that products read where they lie."""
        factors = {load: p for p in self.arithmetic.products for load in _read_in_place(p)}
        found = np.zeros(tiles.rows)
        for site in self.info.sites:
            if site.op in factors:
                spent = self._gathered(site, factors[site.op], tiles)
            else:
                along, tile = contiguous_index(site.op), self._tile_of(site)
                near = self._near(site, tile, tiles)
                spent = self._access(site.indices, tile, along, site.op.source.type, tiles, bool(site.op.symbols), near)
            found = found + self._repeats(site.op, site.indices, tiles) * spent
        for result in self.info.nest.res:
            found = found + self._access(self.info.free, self.info.free, self.result, result.type, tiles)
        if tiles.points.pack and all(self.info.free[i] is not self.result for i in tiles.points.pack):
            turned = self.costs.turned / self.core.lanes * self.vector  # the columns of a tile are the result's rows
            found = found + tiles.visits(self.info.free) * turned
        rows = [r for r in self.info.reductions if r.contraction is None]
        held = 8 * largest((tiles.elements({*r.around, *r.indices}) for r in rows), tiles.rows)  # read, and computed
        return found * np.where(held > self.core.l2, 3.0, np.where(held > self.core.l1, 1.2, 1.0))

    def _gathered(self, site: LoadSite, p: Matmul, tiles: Tiles) -> Floats:
        """Seconds to load an operand of a product element by element where a tile of it is no matrix with strides."""
        outer = next((side for side in self._sides(p, tiles)[:2] if not side.isdisjoint(site.indices)), set[SSAValue]())
        copied = any(self.info.free[i] in outer for i in tiles.points.pack)
        each = (self.costs.gathered + self.costs.checked) * self.vector
        strided = is_strided(site.op, (outer, p.reduction.indices), copied, tiles)
        return np.where(strided, 0.0, each * tiles.visits(site.indices))

    def _near(self, site: LoadSite, tile_of: Collection[SSAValue], tiles: Tiles) -> Bools:
        """Returns, for each schedule, whether a load reads every other element in memory with the lanes of a vector, in
        either direction. Such a vector is printed as two loads and a permutation.

        Args:
            site: load.
            tile_of: indices of the tile that is loaded.
            tiles: tiles of the schedules.
        """
        gaps = strides(site.op)
        every_other = [i for i in tile_of if gaps.get(i) in (2, -2)]
        if not every_other:
            return np.zeros(tiles.rows, dtype=np.bool_)
        lanes = self._lanes(tile_of, tiles)
        return np.any([lanes[i] & (tiles.tile[i] >= self.core.lanes) for i in every_other], axis=0)

    def _tile_of(self, site: LoadSite) -> Collection[SSAValue]:
        """The indices of the tiles that what is loaded is used for, in which it is loaded for each element."""
        if site.group < 0:
            return self.info.free
        for operand, ops in self.operands.items():
            if site.op in ops:
                return self.info.dependence.of(operand)
        first = self.info.groups[site.group][0]
        r = next(r for r in self.info.reductions if r.op is first)
        return found if {*site.indices} <= (found := {*r.around, *r.indices}) else site.indices

    def _access(
        self,
        indices: Collection[SSAValue],
        tile_of: Collection[SSAValue],
        along: SSAValue | None,
        tensor: Attribute,
        tiles: Tiles,
        computed: bool = False,
        near: Bools | bool = False,
    ) -> Floats:
        """Seconds to load or store elements of `tensor` over `indices`, which are neighbours along `along`, in tiles
        over `tile_of`; at coordinates of which some are `computed` from data, or every other element where `near`."""
        if along is None or along not in indices:
            return self._vectors(indices, tiles)[0] * self.costs.access * self.vector
        count, full = self._vectors(tile_of, tiles)
        lanes, extent, tile = self.core.lanes, self.info.extents[along], tiles.tile[along]
        rows_follow = next((n for n in reversed(extents_of(tensor)) if n != 1), 1) == self.info.sizes[along]
        whole = (tile >= lanes) | (rows_follow & (tile == extent)) | (self._extent(indices, tiles) == 1)
        first = self._lanes(tile_of, tiles)
        there = (first[along] | ~tiles.any_of(first, tile_of)) & whole
        own, spread = self._vectors(indices, tiles)[0], tiles.elements(i for i in tile_of if i not in indices) > 1
        masked = np.where(self._ragged(tile_of, tiles) & full, self.costs.masked, 0.0) * np.where(spread, own, count)
        plain = self.costs.access * count + masked
        ends = np.any([self.info.extents[i] % tiles.tile[i] != 0 for i in tile_of], axis=0)
        checked = ends & (~first[along] | computed)  # a row of neighbours has one check
        each = np.where(checked, self.costs.gathered + self.costs.checked, self.costs.gathered)
        each = np.where(near, self.costs.near / lanes, each)
        padding = product((ceil_div(n, t) * t / max(1, n) for n, t in self._pairs(tile_of, tiles)), tiles.rows)
        turned = np.where(full & (tile >= lanes), self.costs.turned / lanes, each * padding) * tiles.visits(tile_of)
        copied = np.where(spread & there, 2 * self.costs.access * own, 0.0)
        same = tiles.any_of(first, tile_of) & ~tiles.any_of(first, indices)  # one number for all lanes
        return np.where(same, self.costs.access * own, np.where(there, plain, turned) + copied) * self.vector

    def _pairs(self, indices: Iterable[SSAValue], tiles: Tiles) -> list[tuple[int, Ints]]:
        """Returns the extent of each index and its tile, of which the last one may be padded."""
        return [(self.info.extents[i], tiles.tile[i]) for i in indices]

    def _ragged(self, indices: Collection[SSAValue], tiles: Tiles) -> Bools:
        """Where a tile over `indices` has several rows that end inside of it; a loop over one row, or over whole rows,
        ends with these, and so does one that reduces rows of whole vectors."""
        several = found = np.zeros(tiles.rows, dtype=np.bool_)
        own = [i for i in self.info.extents if i in indices]
        for n, index in enumerate(own):
            extent, inside = self.info.extents[index], tiles.elements(own[n + 1 :])
            whole = extent * inside % self.core.lanes == 0 if index in self.info.reduction_indices else False
            found = found | several & (extent % tiles.tile[index] != 0) & ~np.asarray(whole)
            several = several | (tiles.tile[index] > 1)
        return found

    def _extent(self, indices: Iterable[SSAValue], tiles: Tiles) -> Floats:
        """Elements of a tile over `indices`, without padding."""
        return product((np.minimum(tiles.tile[i], self.info.extents[i]) for i in indices), tiles.rows)

    def _product(self, p: Matmul, tiles: Tiles) -> Floats:
        """Seconds of a product: panels of its right operand are packed, and rows of the left one walk over each."""
        core, lanes, packed = self.core, self.core.lanes, {self.info.free[i] for i in tiles.points.pack}
        lhs, rhs, factors = self._sides(p, tiles)
        by_columns = self._by_columns(factors[0], lhs, tiles)
        indices = {*p.reduction.around, *p.reduction.indices}
        high, wide, deep = (self._extent(i, tiles) for i in (lhs, rhs, p.reduction.indices))
        count = tiles.visits(indices) / np.maximum(1, high * wide * deep)
        vectors = np.where(tiles.elements(rhs) >= 2 * lanes, 2, 1)
        (left, right), along = map(_neighbours, factors), own_sum_index(self.info, p)
        rate = core.bf16_rate if p.of_bf16 else 1.0
        size, by_tiles = 2 if rate > 1 else 4, rate > 2
        tall, most = tiles.elements(lhs), TILE_ROWS if by_tiles else core.tile_rows
        padded: Floats = ceil_div(tall, ceil_div(tall, most))
        even: Floats = ceil_div(high, core.column_rows)  # blocks of rows, with as many in each
        uneven: Floats = ceil_div(high, padded)
        rows, blocks = np.where(by_columns, high / even, padded), np.where(by_columns, even, uneven)
        panels = ceil_div(wide, vectors * lanes) * self._ends(rhs, vectors * lanes, tiles)
        step = np.maximum(np.maximum(rows * vectors, rows + vectors), LATENCY) * self.fma / rate
        fma = panels * blocks * (deep * step + rows * vectors * self.costs.sum * self.fma)
        order = panels * vectors * deep * self._to_pack(right, rhs, along, vectors, packed) * size / 4
        in_place = (right in rhs) & (tall <= most) | bool(packed & rhs) & (wide == vectors * lanes)
        order = np.where(in_place & (not p.of_bf16), 0.0, order)  # in bf16 it is packed in any case
        if left is not None and left is not along:
            order = order + np.where(by_columns, 0.0, high * deep * self.costs.gathered)
        # Bytes from the next cache: what is left is read once more, and waited for where whole registers of it are.
        again = np.where(by_tiles | (4 * high * deep > core.l2 / 2), size * panels * high * deep, 0.0)
        again = again + np.where(4 * tall * wide > core.l1, 4 * high * wide, 0.0)
        panel = size * deep * vectors * lanes
        beside = panel * (1 + most / (vectors * lanes))  # with the rows that walk over it
        lost = 1.0 if by_tiles else 0.25  # of a panel that has no room there: the sums of AMX take less time
        again = again + np.where(beside > core.l1, panels * blocks * panel * lost, 0.0)
        by_element = 2 * self.costs.scalar * high * wide * deep * self.vector
        narrow = tiles.elements(rhs) < lanes
        whole = fma + order * self.fma + again * self.near
        if p.reduction.op not in self.alone:  # the sums so far are rescaled
            steps = tiles.trip_count(p.reduction.indices)
            whole = whole + np.where(steps > 1, 2 * self.costs.access * tall * wide / lanes * self.vector, 0.0)
        return count * (self.costs.product + np.where(narrow, by_element, whole))

    def _by_columns(self, factor: SSAValue, lhs: Collection[SSAValue], tiles: Tiles) -> Bools:
        """Returns true where the rows of a left operand are so near in memory that columns are read there."""
        load, found = loaded_factor(factor), np.zeros(tiles.rows, dtype=np.bool_)
        outer, gaps = np.ones(tiles.rows, dtype=np.bool_), strides(load) if load is not None else dict[SSAValue, int]()
        for index in reversed([i for i in self.info.extents if i in lhs and i in gaps]):
            found = found | outer & (tiles.tile[index] > 1) & (0 < gaps[index] <= NEAR)
            outer = outer & (tiles.tile[index] == 1)
        return found

    def _ends(self, columns: Collection[SSAValue], width: Floats, tiles: Tiles) -> Floats:
        """How many panels of so many columns all tiles have, over how many they would have if the last tile along a
        dimension were as full as the others: it ends anywhere in a panel, which is computed as a whole."""
        found = np.ones(tiles.rows)
        for i in columns:
            extent, tile = self.info.extents[i], np.minimum(tiles.tile[i], self.info.extents[i])
            inside = tiles.elements(columns) / tiles.tile[i]
            last = ceil_div(extent % tile * inside, width)
            found = found * (extent // tile + last / ceil_div(tile * inside, width)) * tile / extent
        return found

    def _to_pack(
        self,
        along: SSAValue | None,
        columns: Collection[SSAValue],
        sum_index: SSAValue,
        vectors: Floats,
        packed: object,
    ) -> Floats | float:
        """Vector operations to put a vector of a right operand, whose neighbours lie `along` an index, into a panel."""
        if along is None or along in columns or packed:
            return self.costs.pack
        if along is sum_index:
            return np.where(vectors > 1, self.costs.far_turn, self.costs.turn)
        return self.costs.gathered * self.core.lanes


def _is_rescaled(stage: ReduceOp) -> bool:
    """Whether a reduction runs together with others, which what it has so far changes."""
    around = stage.parent_op()
    return isinstance(around, StagedReduceOp) and len([*around.rescale.block.ops]) > 1


def _read_in_place(p: Matmul) -> list[Operation | Block | None]:
    """The loads of factors that a product reads where they lie: of its own type, or both of bf16, which it widens."""
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


def _neighbours(factor: SSAValue) -> SSAValue | None:
    """The index along which neighbours of a factor of a product are neighbours in memory; None if it is computed."""
    load = loaded_factor(factor)
    return None if load is None else contiguous_index(load)


def footprint(info: NestInfo) -> int:
    """Bytes of all that a nest reads and writes."""
    read = {op.source: tensor_bytes(op.source.type) for op in info.loads}
    return sum(read.values()) + sum(tensor_bytes(r.type) for r in info.nest.res)
