"""Which boxes the blocks of a cluster load together: those that all of them need alike."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from xdsl.dialects import scf
from xdsl.dialects.builtin import IntAttr

from ...dialects import tile
from ...dialects.kernel.tma import SWIZZLED_ALIGNMENT
from ...dialects.payload import element_bytes, shape_of
from ..remarks import emit_remark
from .cluster_uniformity import Alike
from .tma_tiles import Box


def share(kernel: tile.KernelOp, boxes: Sequence[Box], blocks: int, name: str) -> list[Box]:
    """The boxes, some of them to be loaded together by clusters of so many blocks, which `kernel` then has; if there
    are none, remarks in the name of the pass `name` say why."""
    if not kernel.has_clusters_of(blocks):
        emit_remark(kernel, name, f"the last extent of the grid is no multiple of clusters of {blocks}")
        return list(boxes)
    alike = Alike(kernel, blocks)
    found: list[Box] = []
    for box in boxes:
        why = _unshared(kernel, alike, box, blocks)
        if why is not None:
            emit_remark(box.stage, name, why)
        found.append(replace(box, multicast=why is None))
    if any(b.multicast for b in found):
        kernel.cluster = IntAttr(blocks)
    return found


def _unshared(kernel: tile.KernelOp, alike: Alike, box: Box, blocks: int) -> str | None:
    """Why the blocks of a cluster cannot load a box together."""
    if not all(alike.same(s) for s in box.load.symbols):
        return "the blocks of a cluster need different boxes"
    around = box.stage.parent_op()
    while around is not None and around is not kernel:
        if isinstance(around, scf.ForOp) and not alike.same_trips(around):
            return "the blocks of a cluster need the box in different iterations"
        around = around.parent_op()
    shape = shape_of(box.stage.result.type)
    row_bytes = box.boxes.row * element_bytes(box.stage.result.type)
    if not divides(shape[1 - box.boxes.fast], row_bytes, blocks):
        return f"a box of {shape[1 - box.boxes.fast]} rows has no {blocks} parts that start where its swizzle does"
    return None


def divides(rows: int, row_bytes: int, blocks: int) -> bool:
    """Whether boxes of so many rows split into equal parts for the blocks of a cluster: each has to start where the
    exclusive or of the swizzle starts over."""
    return rows % blocks == 0 and rows // blocks * row_bytes % SWIZZLED_ALIGNMENT == 0
