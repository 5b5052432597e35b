"""`tile-tma-epilogue`: stores results from shared memory by TMA."""

from __future__ import annotations

from ...dialects import tile
from ...dialects.kernel.copies import BOX_EXTENT
from ...dialects.layouts import attr_of, layout_in_registers
from ...dialects.layouts.mma import boxes_along
from ...dialects.payload import element_bytes, shape_of
from ...dialects.shapes.extents import extents_of
from ..analysis.async_copies import why_no_box
from ..analysis.memory_access import memory_type
from ..analysis.tile_layouts import route_of
from ..pass_manager import TilePass
from ..rewriting import erase, replace


class TmaEpiloguePass(TilePass):
    """Stores tiles from shared memory by TMA instead of by all threads.

    ```mlir
    %w = tile.convert_layout %o : tensor<128x64xbf16, #acc> -> tensor<128x64xbf16, #wide>
    tile.store %w, %y[d0 + %i * 128, d1] : tensor<128x64xbf16, #wide>, memref<256x64xbf16>
    ```
    becomes
    ```mlir
    %t = tile.stage %o : tensor<128x64xbf16, #acc> -> tensor<128x64xbf16, #tile.shared<...>>
    tile.tma_store %t, %y[d0 + %i * 128, d1] : tensor<128x64xbf16, #tile.shared<...>>, memref<256x64xbf16>
    ```

    If the schedule has `copy = tma`, a store whose `tile.convert_layout` would go through shared memory becomes a
    `tile.stage` in swizzled rows of at most 128 bytes, and a `tile.tma_store`, which one thread issues. A tile that is
    no TMA tile of its buffer (a rectangle with plain bounds) is stored by all threads, as before.

    **Rationale**: a TMA store needs no registers and no instructions of the other threads. They continue with the next
    tile while it runs.

    **Pipeline position**: after `tile-split-epilogue`, whose parts are small enough for TMA tiles.
    """

    name = "tile-tma-epilogue"
    decision = ("copy", "tma")

    def on(self, op: tile.KernelOp) -> None:
        for store in [o for o in op.body.walk() if isinstance(o, tile.StoreOp)]:
            self.decline(store, _stage(store, op.warps.data))


def _stage(store: tile.StoreOp, warps: int) -> str | None:
    """Replaces `store` by a TMA store. Returns the reason if it cannot; None if it did, or if the store does not go
    through shared memory."""
    convert = store.value.owner
    if not isinstance(convert, tile.ConvertLayoutOp):
        return None
    held = layout_in_registers(convert.source, warps)
    if route_of(convert, held, layout_in_registers(convert.result, warps)) != "shared":
        return None
    if (why := why_no_box(store)) is not None:
        return why
    dimensions = tile.box_dimensions(store.map.data)
    assert dimensions is not None
    shape, size = shape_of(store.value.type), element_bytes(store.value.type)
    fast = dimensions.index(len(extents_of(memory_type(store.target))) - 1)
    tma_tiles = boxes_along(shape, fast, size)
    if tma_tiles is None or shape[1 - fast] > BOX_EXTENT or not held.is_bijective:
        return "the tile is too small or too large for TMA, or several threads hold the same element"
    stage = tile.StageOp(convert.source, attr_of(tma_tiles.layout(shape, size)))
    stage.result.name_hint = convert.source.name_hint
    tma_store = tile.TmaStoreOp(stage.result, store.target, store.map.data, store.symbols)
    replace(store, stage, tma_store)
    if convert.result.first_use is None:
        erase(convert)
    return None
