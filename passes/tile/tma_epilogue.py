"""Letting results leave through shared memory as boxes: `tile-tma-epilogue`."""

from __future__ import annotations

from ...dialects import tile
from ...dialects.kernel.copies import BOX_EXTENT
from ...dialects.layouts import attr_of, layout_in_registers
from ...dialects.layouts.mma import boxes_along
from ...dialects.payload import element_bytes, shape_of
from ...dialects.shapes.extents import extents_of
from ..analysis.async_copies import why_no_box
from ..analysis.memory_access import memory_type
from ..analysis.tile_layouts import way_of
from ..pass_manager import TilePass
from ..rewriting import erase, replace


class TmaEpiloguePass(TilePass):
    """Store tiles that are boxes of their buffers from shared memory.

    What: where a schedule says `copy = tma`, a tile that has to go through shared memory to be stored, because it is
    computed in another layout, stays there: it is staged in swizzled rows of at most 128 bytes, and one thread starts
    the copy of the box. A tile that is no box of its buffer, or masked in its own way, is stored by all threads as
    before.
    Why: the way out of shared memory costs threads neither registers nor instructions, and they do not wait for it:
    they go on to the next part, or tile, while it is on its way.
    Why here: behind `tile-split-epilogue`, which has made parts that are boxes.

    ```mlir
    %w = tile.convert_layout %o : tensor<128x64xbf16, #acc> -> tensor<128x64xbf16, #wide>
    tile.store %w, %y[d0 + %i * 128, d1] : tensor<128x64xbf16, #wide>, memref<256x64xbf16>
    ```
    becomes
    ```mlir
    %t = tile.stage %o : tensor<128x64xbf16, #acc> -> tensor<128x64xbf16, #tile.shared<...>>
    tile.tma_store %t, %y[d0 + %i * 128, d1] : tensor<128x64xbf16, #tile.shared<...>>, memref<256x64xbf16>
    ```
    """

    name = "tile-tma-epilogue"
    decision = ("copy", "tma")

    def on(self, op: tile.KernelOp) -> None:
        for store in [o for o in op.body.walk() if isinstance(o, tile.StoreOp)]:
            self.decline(store, _stage(store, op.warps.data))


def _stage(store: tile.StoreOp, warps: int) -> str | None:
    """Let a tile leave as a box, or say why it does not; nothing where it need not go through shared memory."""
    convert = store.value.owner
    if not isinstance(convert, tile.ConvertLayoutOp):
        return None
    held = layout_in_registers(convert.source, warps)
    if way_of(convert, held, layout_in_registers(convert.result, warps)) != "shared":
        return None
    if (why := why_no_box(store)) is not None:
        return why
    dimensions = tile.box_dimensions(store.map.data)
    assert dimensions is not None
    shape, size = shape_of(store.value.type), element_bytes(store.value.type)
    fast = dimensions.index(len(extents_of(memory_type(store.target))) - 1)
    boxes = boxes_along(shape, fast, size)
    if boxes is None or shape[1 - fast] > BOX_EXTENT or not held.is_bijective:
        return "the tile is too small or too large for boxes, or held by several threads"
    stage = tile.StageOp(convert.source, attr_of(boxes.layout(shape, size)))
    stage.result.name_hint = convert.source.name_hint
    box = tile.TmaStoreOp(stage.result, store.target, store.map.data, store.symbols)
    replace(store, stage, box)
    if convert.result.first_use is None:
        erase(convert)
    return None
