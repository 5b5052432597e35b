"""Cost model of one CPU core: the seconds that the core needs for all blocks of a nest.

A block is one task, run by one thread. The time of a nest is the sum of these parts:

| part | method |
|---|---|
| vector arithmetic, reductions of vectors | `_operations` |
| loads and stores of vectors in the L1 cache | `_accesses` |
| matmuls, with the packing of their operands | `_matmul` |
| bytes that move into the caches of the core | `_loaded` |
| start of each block and each loop iteration | `seconds` |

The cost of a step (one load of a vector, one start of a loop) is a field of `CoreCosts` in `target/model.py`, in vector
operations or in seconds; `self.vector` converts vector operations to seconds. Every method computes many schedules at
once: a number is an array with one entry for each schedule.

Terms: the *lanes* of a vector are its f32 elements. A *panel* is a packed part of the right operand of a matmul, one or
two vectors wide (BLIS). A *run* is a piece of memory that a load reads without a gap. The *chunk* of a reduction index
is its tile extent.
"""

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
    """Time of a nest on one core, for schedules that compute the same contractions as matmuls.

    Attributes:
        work: operations of the nest, divided into matmuls and others.
        info: indices, reductions and accesses of the nest.
        tiles: tile extents and trip counts of the schedules.
        core: sizes of the vectors and caches of a core.
        costs: costs of single steps (`CoreCosts`).
        fma: seconds of one multiply-add of vectors.
        vector: seconds of one arithmetic operation of vectors.
        special: seconds of one division, exponential, … of vectors (`SPECIAL`).
        near: seconds of one byte from the L2 cache.
        last: bytes of the last-level cache.
        alone: reductions whose partial results no other reduction rescales.
        operands: operand of a matmul -> the operations that compute it in the loop of the matmul.
        result: last free index with several values; results are contiguous along it.
        order: all indices, sorted by the bytes that are contiguous along them, most bytes first. The lanes of a vector
            are along the first index in this order along which the tile has more than one value.
    """

    def __init__(self, work: Operations, tiles: Tiles, target: Target) -> None:
        assert target.core is not None
        self.work, self.info, self.tiles, self.core, self.costs = work, work.info, tiles, target.core, target.core.costs
        rates, info = target.rates, work.info
        self.fma = 2 * self.core.lanes * target.sms / rates.fma
        self.vector, self.special = (self.core.lanes * target.sms / rate for rate in (rates.vector, rates.special))
        self.near = target.sms / rates.cache
        self.last = target.l2
        self.alone = {op for group in info.groups if not _is_rescaled(group[0]) for op in group}
        self.operands = {v: _expression(v) for p in work.products for v in p.factors}
        self.result = last_index(info)
        written = sum(tensor_bytes(r.type) for r in info.nest.res)
        weights = {i: info.contiguous.get(i, 0) + (written if i is self.result else 0) for i in info.extents}
        self.order = sorted(info.extents, key=lambda i: (weights[i], weights[i] > 0 and i in info.free))[::-1]

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
        """Returns the share of the time for reads from memory in which the core waits, between 0 and 1.

        If no two loops of a block read the same tensor, the share is 0: all reads overlap with computation. Otherwise
        (softmax reads a row to reduce it, and again to scale it) only the reads of one row of the tile overlap with
        computation, so the share is 1 - 1 / rows.
        """
        sites = self.info.sites
        if all(sites[m].group == site.group for site in sites for m in site.similar):
            return np.zeros(self.tiles.rows)
        return 1 - 1 / np.maximum(1, self.tiles.elements(i for i in self.info.free if i in self.info.reduced))

    def _loaded(self) -> Floats:
        """Returns the seconds to load tiles into the caches of the core.

        Bytes that consecutive blocks have in common are loaded once if they fit in L2. Tensors larger than half of L2
        also cost a seek for each discontiguous read.
        """
        tiles, spent, (neighbours, count) = self.tiles, np.zeros(self.tiles.rows), self.tiles.neighbours()
        sites = [site for n, site in enumerate(self.info.sites) if n == min(site.similar)]
        shares = [self._distinct(site.op) for site in sites]
        sizes = [element_bytes(site.op.source.type) for site in sites]
        block = [tiles.within(s.indices) * share * size for s, share, size in zip(sites, shares, sizes, strict=True)]
        block_bytes = total(block, tiles.rows)
        for site, share, size, site_bytes in zip(sites, shares, sizes, block, strict=True):
            fits = self._stays(site_bytes, block_bytes - site_bytes)
            stays = ~tiles.any_of(neighbours, site.indices) & fits
            seconds_per_byte = self.near / np.where(stays, count, 1)
            if tensor_bytes(site.op.source.type) > self.core.l2 // 2:
                seconds_per_byte = seconds_per_byte + self._seek(site) / self._l2_reuse(site, block_bytes - site_bytes)
            spent = spent + tiles.visits(site.indices) * np.where(fits, share, 1.0) * size * seconds_per_byte
        return spent

    def _stays(self, reused: Floats, others: Floats) -> Bools:
        """Returns true where `reused` bytes stay in L2 while a block reads `others` further bytes.

        They stay if they fill at most half of L2, or at most three quarters together with the other bytes.
        """
        return (reused <= self.core.l2 // 2) | (reused + others <= self.core.l2 * 3 // 4)

    def _distinct(self, op: LoadOp) -> Floats:
        """Returns distinct elements over read elements of a load in one block.

        The ratio is below 1 for overlapping windows: `%x[%i + %r]` with tiles of 8 and 3 reads 24 elements, 10 of which
        are distinct.
        """
        share, tiles = np.ones(self.tiles.rows), self.tiles
        for result in op.map.data.results:
            dims, rank = sorted(result.used_dims()), len(op.indices)
            kinds = {e.kind for e in result.dfs() if isinstance(e, AffineBinaryOpExpr)}
            if len(dims) < 2 or op.symbols or not kinds <= {AffineBinaryOpKind.Add, AffineBinaryOpKind.Mul}:
                continue
            counts, origin = [tiles.within([op.indices[n]]) for n in dims], result.eval([0] * rank, [])
            gaps = [abs(result.eval([int(n == k) for k in range(rank)], []) - origin) for n in dims]
            span = 1 + total((gap * (count - 1) for gap, count in zip(gaps, counts, strict=True)), tiles.rows)
            share = share * np.minimum(1.0, span / np.maximum(1, product(counts, tiles.rows)))
        return share

    def _l2_reuse(self, site: LoadSite, others: Floats) -> Floats:
        """Returns how many times blocks use the bytes of a load while these stay in L2.

        This is the product of the block counts along free indices that the load does not depend on. An index counts if
        the bytes that the load reads between two uses stay in L2.

        Args:
            site: the load.
            others: bytes that other loads of one block read.
        """
        tiles, size = self.tiles, element_bytes(site.op.source.type)
        hits = np.ones(tiles.rows)
        for n, index in enumerate(self.info.free):
            if index not in site.indices:
                inner = [i for i in self.info.free[n + 1 :] if i in site.indices]
                whole = product((self.info.extents[i] for i in inner), tiles.rows)
                between = whole * tiles.within([i for i in site.indices if i not in inner])
                hits = hits * np.where(self._stays(between * size, others), tiles.counts[index], 1)
        return hits

    def _seek(self, site: LoadSite) -> Floats:
        """Returns the seconds per byte that discontiguous reads add: one seek per run, and one page walk per row.

        A seek costs less for a run shorter than a page. Runs below `costs.parallel_run` bytes overlap. A tensor that
        fits in half of the last-level cache has the cheaper `near_seek`, and one within `TLB` no page walks.
        """
        element, size = element_bytes(site.op.source.type), tensor_bytes(site.op.source.type)
        run, row = (elements * element for elements in self._runs(site))
        overlap = np.minimum(1.0, run / self.costs.parallel_run)
        page_share = np.clip(run / PAGE, self.costs.least_seek, 1.0)
        seek = self.costs.seek * page_share if size > self.last // 2 else self.costs.near_seek
        return seek * overlap / run + (self.costs.page / row if size > TLB else 0.0)

    def _runs(self, site: LoadSite) -> tuple[Floats, Floats]:
        """Returns the lengths of a run and of a row of a load, in elements.

        A run is read without an interruption; each run costs a seek. A row is contiguous in memory, but may be read in
        several runs; each row costs a page walk. Both are infinite where the next block continues the read.
        """
        tiles, (neighbours, _) = self.tiles, self.tiles.neighbours()
        run, going, next_stride, ends = np.ones(tiles.rows), np.ones(tiles.rows, dtype=np.bool_), 1, 1.0
        line = LINE // element_bytes(site.op.source.type)
        for stride, index in sorted(((s, i) for i, s in strides(site.op).items() if s), key=lambda pair: pair[0]):
            tile, extent = tiles.tile[index], self.info.extents[index]
            if stride == next_stride or next_stride == 1 and stride <= line:
                run = np.where(going, run * np.minimum(tile, max(1, extent)), run)
                part, next_stride = going & (tile < extent), stride * extent
                ends = np.where(part & tiles.any_of(neighbours, (index,)), np.inf, ends)
                ends = np.where(~going & (tiles.steps[index] * tile > 1), 1.0, ends)
                going = going & ~part
            else:
                ends = np.where(tiles.steps[index] * tile > 1, 1.0, ends)
        group = self.info.groups[site.group] if site.group >= 0 else ()
        along = site.along
        # A reduction down columns reads a few vectors of each row of its chunk. The core can stream from
        # `core.streams` rows at once. If the chunk has more rows, a run has only these few vectors.
        summed = {a for op in group for a in op.body.block.args}
        down = (tiles.elements(i for i in site.indices if i in summed) > self.core.streams) & (along not in summed)
        once = np.where(down, np.minimum(run, self.costs.column_vectors * self.core.lanes), run * ends)
        # All panels of a right operand are packed one after another from the same rows, so a row counts.
        packed = any(along in self._sides(p)[1] for p in self.work.products if p.reduction.op in group)
        return once, run * ends if packed else once

    def _nested_bytes(self) -> Floats:
        """Returns the bytes of the f32 operands and results of all matmuls in one block."""
        nbytes = np.zeros(self.tiles.rows)
        for p in self.work.products:
            contraction = p.reduction.contraction
            assert contraction is not None
            sides = (contraction.only_lhs, contraction.only_rhs, p.reduction.indices)
            rows, columns, depth = map(self._extent, sides)
            nbytes = nbytes + 4 * (rows * depth + depth * columns + rows * columns)
        return nbytes

    def _vectors(self, indices: Collection[SSAValue]) -> tuple[Floats, Bools]:
        """Returns the vectors over `indices` in all blocks, and a mask of the schedules whose tiles fill a vector.

        Where contiguous elements of a tile do not fill a vector, single elements are counted.
        """
        tiles, lanes = self.tiles, self.core.lanes
        run, going = np.ones(tiles.rows), np.ones(tiles.rows, dtype=np.bool_)
        for index in (i for i in self.order if i in indices):
            extent = self.info.extents[index]
            run = np.where(going, run * np.minimum(tiles.tile[index], max(1, extent)), run)
            going = going & (tiles.tile[index] == extent)
        full = run >= lanes
        return tiles.visits(indices) / run * np.where(full, ceil_div(run, lanes), run), full

    def _sides(self, p: Matmul) -> tuple[set[SSAValue], set[SSAValue], Sequence[SSAValue]]:
        """Returns the indices of the rows, the indices of the columns, and both operands of a matmul.

        If the left operand is packed (decision `pack`), the sides are exchanged: a packed operand has the columns.
        """
        contraction = p.reduction.contraction
        assert contraction is not None
        lhs, rhs = {*contraction.only_lhs}, {*contraction.only_rhs}
        packed = {self.info.free[i] for i in self.tiles.points.pack} & lhs
        return (rhs, lhs, p.factors[::-1]) if packed else (lhs, rhs, p.factors)

    def _lanes(self, indices: Collection[SSAValue]) -> dict[SSAValue, Bools]:
        """Returns for each of `indices` a mask of the schedules whose vectors have their lanes along it."""
        masks, undecided = dict[SSAValue, Bools](), np.ones(self.tiles.rows, dtype=np.bool_)
        for index in (i for i in self.order if i in indices):
            masks[index] = undecided & (self.tiles.tile[index] > 1)
            undecided = undecided & ~masks[index]
        return masks

    def _operations(self) -> Floats:
        """Returns the seconds of all operations except for matmuls, loads and stores."""
        reductions = {r.op: r for r in self.info.reductions}
        spent = np.zeros(self.tiles.rows)
        for counted in self.work.others:
            op = counted.op
            count, full = self._vectors(counted.indices)
            repeats = self._repeats(op, counted.indices)
            name = MONOIDS[op.kind.data].combiner(op.source.type).name if isinstance(op, ScanOp) else op.name
            cost = self.special if name in SPECIAL else self.vector
            if isinstance(op, ScanOp):
                # A scan along the lanes takes a shift and an operation for each power of two.
                along = self.tiles.any_of(self._lanes(counted.indices), (op.index,))
                cost = cost * np.where(along, 2 * log2(self.core.lanes) + 2, 1)
            spent = spent + repeats * count * np.where(full, cost, self.costs.scalar * self.vector)
            if isinstance(op, ReduceOp):
                spent = spent + repeats * self._folds(reductions[op])
        return spent

    def _repeats(self, op: Operation, indices: Iterable[SSAValue]) -> Floats:
        """Returns how many times chunk loops of the enclosing reductions compute an operation, in place of once.

        An operation is computed in the loop over the last index that it depends on. An enclosing loop
        over any other index repeats it. An operation in a reduction repeats with the reduction.

        Args:
            op: the operation.
            indices: indices that the operation depends on.
        """
        repeats, needed, steps = np.ones(self.tiles.rows), {*indices}, self.tiles.steps
        groups = {op: group for group in self.info.groups for op in group}
        outer_indices = {r.op: r.outer_indices for r in self.info.reductions}
        for outer in (o for o in ancestors(op) if isinstance(o, ReduceOp)):
            summed, inside = [*outer.body.block.args], np.zeros(self.tiles.rows, dtype=np.bool_)
            for index in reversed(summed):
                if index in needed:
                    inside = inside | (steps[index] > 1)
                else:
                    repeats = repeats * np.where(inside, steps[index], 1)
            if not needed.isdisjoint(summed):
                needed = {i for stage in groups[outer] for i in outer_indices[stage]}
        return repeats

    def _folds(self, r: Reduction) -> Floats:
        """Returns the seconds of a reduction in addition to its operations on vectors.

        If the lanes of vectors are along the reduction (`across`), each vector of partial results must be reduced to a
        number: once after the loop, or in every chunk where other reductions rescale the result. Otherwise (`down`)
        each lane reduces a column, and partial results are loaded and stored if they do not fit in registers.
        """
        tiles, summed, core, costs = self.tiles, r.indices, self.core, self.costs
        indices = {*r.outer_indices, *summed}
        visits, chunk, steps = tiles.visits(indices), self._extent(summed), tiles.trip_count(summed)
        rows = tiles.elements(i for i in indices if i not in summed)
        across = visits / chunk * costs.fold
        if r.op in self.alone:
            # A tile of partial results that exceeds L1 is read and written in L2: 4 bytes each.
            from_l2 = np.where(4 * chunk * rows > core.l1, 8 * self.near, 0.0)
            update = 2 * costs.access / core.lanes * self.vector + from_l2
            updates = visits * update * np.where(steps > 1, 1 + 1 / steps, 0.0)
            across = across / steps + updates + np.where(steps > 1, visits / (chunk * rows) * costs.chunk, 0.0)
        across = np.where(chunk < core.lanes, visits * costs.gathered * self.vector, across)
        loads = np.where(rows > core.lanes * core.registers / 4, 2 * costs.access, 0.0)
        down = visits / chunk / core.lanes * self.vector * np.where(chunk > 1, costs.spread, loads)
        return np.where(tiles.any_of(self._lanes(indices), summed), across, down)

    def _accesses(self) -> Floats:
        """Returns the seconds of loads and stores in L1. Operands that a matmul reads in place are not loaded."""
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
            # The columns of the matmul are not the contiguous index of the result, so the tile is transposed.
            spent = spent + tiles.visits(free) * costs.turned / self.core.lanes * self.vector
        rows = [r for r in self.info.reductions if r.contraction is None]
        # A reduction has a loaded and a computed tile, of 4 bytes an element each.
        tile_bytes = 8 * largest((tiles.elements({*r.outer_indices, *r.indices}) for r in rows), tiles.rows)
        in_l2 = np.where(tile_bytes > self.core.l1, costs.l1_tiles, 1.0)
        return spent * np.where(tile_bytes > self.core.l2, costs.l2_tiles, in_l2)

    def _gathered(self, site: LoadSite, p: Matmul) -> Floats:
        """Returns the seconds to gather an operand of a matmul element by element.

        They are 0 where the matmul can read the operand in place, as a matrix with constant strides (`is_strided`).
        """
        outer = next((side for side in self._sides(p)[:2] if not side.isdisjoint(site.indices)), set[SSAValue]())
        packed = any(self.info.free[i] in outer for i in self.tiles.points.pack)
        seconds_per_element = (self.costs.gathered + self.costs.checked) * self.vector
        strided = is_strided(site.op, (outer, p.reduction.indices), packed, self.tiles)
        return np.where(strided, 0.0, seconds_per_element * self.tiles.visits(site.indices))

    def _near(self, site: LoadSite, tile_of: Collection[SSAValue]) -> Bools:
        """Returns a mask of the schedules in which the lanes of a load have a stride of 2 or -2 elements.

        Such a vector is printed as two loads and a permutation.

        Args:
            site: the load.
            tile_of: indices of the tile that is loaded.
        """
        gaps = strides(site.op)
        every_other = [i for i in tile_of if gaps.get(i) in (2, -2)]
        if not every_other:
            return np.zeros(self.tiles.rows, dtype=np.bool_)
        lanes = self._lanes(tile_of)
        return np.any([lanes[i] & (self.tiles.tile[i] >= self.core.lanes) for i in every_other], axis=0)

    def _tile_of(self, site: LoadSite) -> Collection[SSAValue]:
        """Returns the indices of the tile that a load fills.

        The tile may have more indices than the load: `%bias[%j]` that is added in a tile over `%i, %j` fills that tile.
        """
        if site.group < 0:
            return self.info.free
        for operand, ops in self.operands.items():
            if site.op in ops:
                return self.info.dependence.of(operand)
        first = self.info.groups[site.group][0]
        r = next(r for r in self.info.reductions if r.op is first)
        indices = {*r.outer_indices, *r.indices}
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
        """Returns the seconds of a load or store in all blocks, with its elements in L1.

        Args:
            indices: indices that the address depends on.
            tile_of: indices of the tile that is loaded or stored.
            along: index along which the tensor is contiguous, or None.
            tensor: type of the tensor.
            computed: whether a coordinate is data, as in a gather.
            near: mask of the schedules whose lanes have a stride of two elements (`_near`).
        """
        tiles, costs, lanes = self.tiles, self.costs, self.core.lanes
        if along is None or along not in indices:
            return self._vectors(indices)[0] * costs.access * self.vector
        count, full = self._vectors(tile_of)
        extent, tile = self.info.extents[along], tiles.tile[along]
        rows_follow = next((n for n in reversed(extents_of(tensor)) if n != 1), 1) == self.info.sizes[along]
        whole = (tile >= lanes) | (rows_follow & (tile == extent)) | (self._extent(indices) == 1)
        lanes_along = self._lanes(tile_of)
        contiguous = (lanes_along[along] | ~tiles.any_of(lanes_along, tile_of)) & whole
        vectors = self._vectors(indices)[0]
        spread = tiles.elements(i for i in tile_of if i not in indices) > 1
        masked = np.where(self._ragged(tile_of) & full, costs.masked, 0.0) * np.where(spread, vectors, count)
        plain = costs.access * count + masked
        ends = np.any([self.info.extents[i] % tiles.tile[i] != 0 for i in tile_of], axis=0)
        # Contiguous elements share one bounds check; gathered ones have a check each.
        checked = ends & (~lanes_along[along] | computed)
        element = np.where(checked, costs.gathered + costs.checked, costs.gathered)
        element = np.where(near, costs.near / lanes, element)
        pairs = ((self.info.extents[i], tiles.tile[i]) for i in tile_of)
        padding = product((ceil_div(n, t) * t / max(1, n) for n, t in pairs), tiles.rows)
        turned = np.where(full & (tile >= lanes), costs.turned / lanes, element * padding) * tiles.visits(tile_of)
        copied = np.where(spread & contiguous, 2 * costs.access * vectors, 0.0)
        broadcast = tiles.any_of(lanes_along, tile_of) & ~tiles.any_of(lanes_along, indices)
        return np.where(broadcast, costs.access * vectors, np.where(contiguous, plain, turned) + copied) * self.vector

    def _ragged(self, indices: Collection[SSAValue]) -> Bools:
        """Returns a mask of the schedules that must mask vectors, because several rows of a tile are padded.

        A tile of one row needs no masks, because its loop ends with the row. A reduction whose rows are whole vectors
        needs none either.
        """
        tiles, ordered = self.tiles, [i for i in self.info.extents if i in indices]
        several = ragged = np.zeros(tiles.rows, dtype=np.bool_)
        for n, index in enumerate(ordered):
            extent, inside = self.info.extents[index], tiles.elements(ordered[n + 1 :])
            whole = extent * inside % self.core.lanes == 0 if index in self.info.reduction_indices else False
            ragged = ragged | several & (extent % tiles.tile[index] != 0) & ~np.asarray(whole)
            several = several | (tiles.tile[index] > 1)
        return ragged

    def _extent(self, indices: Iterable[SSAValue]) -> Floats:
        """Returns the number of elements of a tile over `indices`, without padding."""
        return product((np.minimum(self.tiles.tile[i], self.info.extents[i]) for i in indices), self.tiles.rows)

    def _matmul(self, p: Matmul) -> Floats:
        """Returns the seconds of a matmul in all blocks.

        The right operand of a tile is packed into panels. For each panel, blocks of rows of the left operand are
        multiplied with it; the accumulators of such a block stay in registers. The time of a tile is the sum of
        multiply-adds (`fma`), packing (`packing`, in multiply-adds) and bytes that are read from L2 again (`l2_bytes`).
        """
        tiles, core, costs, lanes = self.tiles, self.core, self.costs, self.core.lanes
        packed = {self.info.free[i] for i in tiles.points.pack}
        lhs, rhs, factors = self._sides(p)
        by_columns = self._by_columns(factors[0], lhs)
        rows_used, columns_used, depth = map(self._extent, (lhs, rhs, p.reduction.indices))
        count = tiles.visits({*p.indices}) / np.maximum(1, rows_used * columns_used * depth)
        vectors = np.where(tiles.elements(rhs) >= 2 * lanes, 2, 1)
        (lhs_along, rhs_along), along = map(_contiguous, factors), own_sum_index(self.info, p)
        rate = core.bf16_rate if p.of_bf16 else 1.0
        size, by_tiles = 2 if rate > 1 else 4, rate > 2
        tile_rows, most = tiles.elements(lhs), core.amx_rows if by_tiles else core.tile_rows
        padded: Floats = ceil_div(tile_rows, ceil_div(tile_rows, most))
        # Rows are divided into blocks. If the left operand is read by columns, the blocks are equally large. Otherwise
        # all blocks except the last one are full.
        even: Floats = ceil_div(rows_used, core.column_rows)
        uneven: Floats = ceil_div(rows_used, padded)
        rows, blocks = np.where(by_columns, rows_used / even, padded), np.where(by_columns, even, uneven)
        panels = ceil_div(columns_used, vectors * lanes) * self._padding_overhead(rhs, vectors * lanes)
        step = np.maximum(np.maximum(rows * vectors, rows + vectors), core.fma_in_flight) * self.fma / rate
        fma = panels * blocks * (depth * step + rows * vectors * costs.sum * self.fma)
        # Cost of packing one vector of the right operand, by the index along which it is contiguous.
        pack = costs.gathered * lanes
        if rhs_along is None or rhs_along in rhs or packed:
            pack = costs.pack
        elif rhs_along is along:
            pack = np.where(vectors > 1, costs.far_turn, costs.turn)
        packing = panels * vectors * depth * pack * size / 4
        in_place = (rhs_along in rhs) & (tile_rows <= most) | bool(packed & rhs) & (columns_used == vectors * lanes)
        # An operand of bf16 is packed in any case, in pairs.
        packing = np.where(in_place & (not p.of_bf16), 0.0, packing)
        if lhs_along is not None and lhs_along is not along:
            packing = packing + np.where(by_columns, 0.0, rows_used * depth * costs.gathered)
        # Bytes read from L2 again: the left operand for each panel if it exceeds half of L2, and always by AMX.
        l2_bytes = np.where(by_tiles | (4 * rows_used * depth > core.l2 / 2), size * panels * rows_used * depth, 0.0)
        l2_bytes = l2_bytes + np.where(4 * tile_rows * columns_used > core.l1, 4 * rows_used * columns_used, 0.0)
        panel = size * depth * vectors * lanes
        # L1 must hold a panel and the rows that are multiplied with it.
        panel_and_rows = panel * (1 + most / (vectors * lanes))
        exposed_share = 1.0 if by_tiles else costs.far_panel
        l2_bytes = l2_bytes + np.where(panel_and_rows > core.l1, panels * blocks * panel * exposed_share, 0.0)
        by_element = 2 * costs.scalar * rows_used * columns_used * depth * self.vector
        narrow = tiles.elements(rhs) < lanes
        by_panels = fma + packing * self.fma + l2_bytes * self.near
        if p.reduction.op not in self.alone:
            # The accumulators are loaded and stored in every chunk, to be rescaled.
            steps = tiles.trip_count(p.reduction.indices)
            by_panels = by_panels + np.where(
                steps > 1, 2 * costs.access * tile_rows * columns_used / lanes * self.vector, 0.0
            )
        return count * (costs.product + np.where(narrow, by_element, by_panels))

    def _by_columns(self, factor: SSAValue, lhs: Collection[SSAValue]) -> Bools:
        """Returns a mask of the schedules that read the left operand of a matmul by columns.

        Columns are read where neighbouring rows are at most `NEAR` elements apart in memory.

        Args:
            factor: the left operand.
            lhs: its row indices.
        """
        tiles, load = self.tiles, loaded_factor(factor)
        near, outer = np.zeros(tiles.rows, dtype=np.bool_), np.ones(tiles.rows, dtype=np.bool_)
        gaps = strides(load) if load is not None else dict[SSAValue, int]()
        for index in reversed([i for i in self.info.extents if i in lhs and i in gaps]):
            near = near | outer & (tiles.tile[index] > 1) & (0 < gaps[index] <= NEAR)
            outer = outer & (tiles.tile[index] == 1)
        return near

    def _padding_overhead(self, columns: Collection[SSAValue], width: Floats) -> Floats:
        """Returns computed panels / useful panels. The last tile of a dimension is padded to a whole panel.

        Args:
            columns: column indices of the matmul.
            width: columns of a panel.
        """
        overhead = np.ones(self.tiles.rows)
        for i in columns:
            extent, tile = self.info.extents[i], np.minimum(self.tiles.tile[i], self.info.extents[i])
            inside = self.tiles.elements(columns) / self.tiles.tile[i]
            last = ceil_div(extent % tile * inside, width)
            overhead = overhead * (extent // tile + last / ceil_div(tile * inside, width)) * tile / extent
        return overhead


def _is_rescaled(stage: ReduceOp) -> bool:
    """Returns true if a reduction is a stage of a `loop.staged_reduce` that rescales partial results."""
    staged = stage.parent_op()
    return isinstance(staged, StagedReduceOp) and len([*staged.rescale.block.ops]) > 1


def _read_in_place(p: Matmul) -> list[Operation | Block | None]:
    """Returns the owners of both operands. A matmul may read a load among them in place.

    If both operands are bf16, their casts are skipped, because the matmul widens bf16 itself.
    """
    return [loaded_factor(f) if p.of_bf16 else f.owner for f in p.factors]


def _expression(value: SSAValue) -> set[Operation]:
    """Returns the operations that compute `value`, as far as they are in the same block."""
    ops, todo = set[Operation](), [value]
    while todo:
        op = todo.pop().owner
        if isinstance(op, Operation) and op not in ops and op.parent is value.owner.parent:
            ops.add(op)
            todo += op.operands
    return ops


def _contiguous(factor: SSAValue) -> SSAValue | None:
    """Returns the index along which an operand of a matmul is contiguous, or None if the operand is computed."""
    load = loaded_factor(factor)
    return None if load is None else contiguous_index(load)


def is_strided(load: LoadOp, sides: Sequence[Collection[SSAValue]], packed: bool, tiles: Tiles) -> Bools:
    """Returns a mask of the schedules in which a tile of an operand has one row stride and one column stride.

    If a tile has several indices along its rows (or columns), these must be adjacent in memory, without padding.
    A bounds check must depend on either rows or columns. This fails in a convolution whose tile has pixels as rows and
    a part of the window as depth, because both are in one check.

    Args:
        load: load of the operand.
        sides: indices of the rows, and indices of the columns of the matrix.
        packed: whether the matmul reads a packed copy. A copy has no bounds checks, and its panels are contiguous.
        tiles: tiles of the schedules.
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
