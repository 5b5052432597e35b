"""How the factors of matrix products reach shared memory: at once, or several chunks ahead of their use."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from math import prod

import numpy as np
from xdsl.dialects.builtin import Float32Type, TensorType
from xdsl.ir import Block, Operation, SSAValue
from xdsl.ir.affine import AffineConstantExpr, AffineDimExpr

from ...dialects import loop, payload
from ...dialects.payload import element_bytes, element_type
from ...dialects.shapes.extents import extents_of
from ..analysis.operand_types import parts_of
from ..analysis.tma_tiles import PITCH
from .matmul import Matmul, is_tf32, lies_along_k
from .points import Bools, Floats, Points, product
from .tiles import Tiles

PART_BYTES = 6
"""Bytes of the three parts that an f32 number is split into on its way to shared memory."""


@dataclass(frozen=True)
class Staged:
    """Bytes of the factors of products in shared memory: `early` of those that can be copied ahead of their use, for
    each stage, `late` of the others, and in how many chunks a block goes through the former at most."""

    early: Floats
    late: Floats
    chunks: Floats

    def bytes(self, points: Points) -> Floats:
        """Bytes of shared memory under schedules."""
        return self.early * (points.stages if points.copy != "sync" else 1) + self.late


def staged(tiles: Tiles, products: list[Matmul]) -> Staged:
    """What the products keep in shared memory."""
    info, points, rows = tiles.info, tiles.points, tiles.rows
    narrow = points.atom != "fma"
    inner = {r.op for r in info.reductions if r.contraction is not None}
    early, late, most = np.zeros(rows), np.zeros(rows), np.zeros(rows)
    for p in products:
        for factor in p.factors:
            tf32 = narrow and is_tf32(p, points.f32_matmul_precision)
            if narrow and is_kept(factor, inner):
                continue
            loads = loads_of(factor, narrow and not tf32)
            indices = info.dependence.of(factor)
            each = sum(element_bytes(load.source.type) for load in loads) if loads else 4
            size = tiles.elements(indices) * each
            chunks = tiles.trip_count(i for i in indices if i not in tiles.counts)
            if narrow and points.f32_matmul_precision == "bf16x3" and any(map(is_wide, loads)):
                late = late + size * PART_BYTES // 4
            else:
                ahead = (chunks > 1) & bool(loads)
                early, most = early + size * ahead, np.maximum(most, chunks * ahead)
                late = late + size * ~ahead
    return Staged(early, late, most)


def is_kept(factor: SSAValue, products: Collection[Operation]) -> bool:
    """Whether a factor is computed from the sums of another product (weights of attention): tensor cores take it from
    the registers of the threads that have these."""
    seen, todo = set[SSAValue](), [factor]
    while todo:
        value = todo.pop()
        op = value.owner
        if op in products:
            return True
        if value not in seen and not isinstance(op, Block | loop.LoadOp) and payload.is_payload(op):
            seen.add(value)
            todo.extend(op.operands)
    return False


def is_wide(load: loop.LoadOp) -> bool:
    """Whether a load is of f32."""
    return isinstance(element_type(load.result.type), Float32Type)


def loads_of(factor: SSAValue, narrow: bool) -> list[loop.LoadOp]:
    """The load that a factor is, behind a widening if the product is of narrow factors, or the loads of its parts; none
    if it is computed."""
    op = factor.owner
    if narrow and (parts := parts_of(factor)) is not None:
        found = [part.owner for part in parts]
        return [op for op in found if isinstance(op, loop.LoadOp)]
    if narrow and isinstance(op, payload.CastOp):
        op = op.operand.owner
    return [op] if isinstance(op, loop.LoadOp) else []


def operand_loads(products: Iterable[Matmul]) -> list[loop.LoadOp]:
    """The loads that operands of products are, on tensor cores."""
    return list(dict.fromkeys(op for p in products for f in p.factors for op in loads_of(f, narrow=True)))


def loads_by_tma(products: list[Matmul], precision: str) -> bool:
    """Whether some factor is read as boxes: as it lies in memory, with rows that start at multiples of 16 bytes; of
    f32, if all lie along what is summed."""
    found = [(p, load) for p in products for f in p.factors for load in loads_of(f, narrow=True)]
    if precision == "bf16x3":  # what is to be split on its way is no box
        found = [(p, load) for p, load in found if not is_wide(load)]
    turned = any(is_tf32(p, precision) and not lies_along_k(p, load) for p, load in found)
    return not turned and any(_is_box(load) for _, load in found)


def _is_box(load: loop.LoadOp) -> bool:
    source = load.source.type
    assert isinstance(source, TensorType)
    extents = extents_of(source)  # pyright: ignore[reportUnknownArgumentType]
    known = [n for n in extents if isinstance(n, int)]
    results = load.map.data.results
    plain = all(isinstance(e, AffineDimExpr | AffineConstantExpr) for e in results)
    if len(known) < len(extents) or not plain or load.symbols or not isinstance(results[-1], AffineDimExpr):
        return False
    size = element_bytes(load.source.type)
    return all(prod(known[d:]) * size % PITCH == 0 for d in range(1, len(known)))


def reused_bytes(tiles: Tiles) -> Floats:
    """Bytes of what `cache_rows = shared` keeps: tiles of several chunks, each of which more than one loop reads."""
    info, kept = tiles.info, np.zeros(tiles.rows)
    looped: list[Bools] = []
    for place in info.sites:
        several = [tiles.steps[i] > 1 for i in place.indices]
        unknown = [s for i, s in zip(place.indices, several, strict=True) if not isinstance(info.sizes[i], int)]
        none = np.zeros(tiles.rows, dtype=np.bool_)
        looped.append(np.logical_or.reduce([none, *several]) & ~np.logical_or.reduce([none, *unknown]))
    for n, place in enumerate(info.sites):
        first, shared = looped[n], np.zeros(tiles.rows, dtype=np.bool_)
        for m in place.alike:
            if m != n:
                other = info.sites[m]
                same = looped[m] & tiles.same(place, other)
                first = first & ~same if m < n else first
                shared |= same if other.group != place.group else False
        size = product((tiles.tile[i] * tiles.steps[i] for i in place.indices), tiles.rows)
        kept += np.where(first & shared, size * element_bytes(place.op.source.type), 0)
    return kept
