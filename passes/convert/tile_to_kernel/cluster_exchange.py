"""What blocks of a cluster tell each other: each puts its part into its own shared memory, and reads that of all."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from xdsl.ir import SSAValue

from ....dialects import kernel
from ....dialects.layouts.linear import LANE_BITS, Linear
from ....dialects.payload import element_bytes
from ....dialects.support.locations import refused
from ....dialects.tile.row_cache import ClusterAllGatherOp
from ...analysis.swizzle import Reader, choose_shared
from .emitter import Emitter
from .shared_staging import load_shared, stage


def peers(
    out: Emitter, op: ClusterAllGatherOp, values: Sequence[SSAValue], layout: Callable[[SSAValue], Linear]
) -> list[SSAValue]:
    """Emit the exchange of `values`, vectors of registers: all stores come before all loads, so that one barrier of the
    cluster is enough. `layout` gives that of a tile."""
    staged = [_stage(out, op, i, value, layout) for i, value in enumerate(values)]
    found: list[SSAValue] = []
    for (buffer, shared), result in zip(staged, op.res, strict=True):
        held = layout(result)
        if any(basis[0] for basis in held.reg):
            raise refused(op, "a thread would hold what several blocks have; it reads from one")
        rank, _ = out.thread_bits([basis[0] for basis in (*held.lane, *held.warp)])
        peer = out.emit(kernel.MapaOp(buffer, out.value(rank)), "peer")
        found.append(load_shared(out, peer, shared, _scalar_as_tile(held.without([0]))))
    return found


def _stage(out: Emitter, op: ClusterAllGatherOp, number: int, value: SSAValue, layout: Callable[[SSAValue], Linear]):
    """The shared buffer of one tile, filled, and how the tile lies in it."""
    source, result = op.tiles[number], op.res[number]
    held, size = _scalar_as_tile(layout(source)), element_bytes(value.type)
    shared = choose_shared(held.shape, [Reader(held, size), Reader(_scalar_as_tile(layout(result).without([0])), size)])
    return stage(out, value, held, shared, source.name_hint), shared


def _scalar_as_tile(layout: Linear) -> Linear:
    """The layout, of a tile of one element where it is that of a scalar."""
    if layout.shape:
        return layout
    return Linear((1,), ((0,),) * len(layout.reg), ((0,),) * LANE_BITS, ((0,),) * len(layout.warp))
