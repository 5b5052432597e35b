"""Storing results part by part: `tile-split-epilogue`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp, TensorType
from xdsl.ir import Block, Operation, SSAValue
from xdsl.passes import ModulePass

from ...dialects import tile
from ...dialects.layouts.linear import Linear
from ...dialects.payload import element_bytes, shape_of
from ...dialects.tile.schedule import ScheduleAttr
from ..analysis.tile_layouts import layout_in_registers, way_of
from ..analysis.tma_tiles import EPILOGUE_ROW
from ..remarks import emit_remark
from ..rewriting import erase
from .epilogue_parts import Part

COLUMNS = 1
"""The dimension along which results are divided."""


@dataclass(frozen=True)
class SplitEpiloguePass(ModulePass):
    """Divide stores of converted tiles, with what is computed for them, into parts of a few columns.

    What: where a schedule says `copy = tma`, a tile of two dimensions that is stored in another layout than it is
    computed in (tensor cores leave a thread few neighbours) is stored in parts of 128 bytes along its columns, if every
    thread has its share of each part. What led to it is computed part by part as well, down to the sums of a product,
    of which each part takes its registers (`tile.slice`); what is loaded for a part is loaded while the part before it
    is computed. Where the threads of a warpgroup hold whole rows, they stay among themselves.
    Why: the conversion goes through shared memory, which rings take for the whole time: a part needs little of it, and
    the next part may use the same. What is loaded and computed beside the sums takes registers for a part only.
    Why here: layouts say what has to be converted, and nobody has looked at stores yet.

    ```mlir
    %o = payload.cast %s : tensor<128x256xf32, #acc> -> tensor<128x256xbf16, #acc>
    %w = tile.convert_layout %o : tensor<128x256xbf16, #acc> -> tensor<128x256xbf16, #wide>
    tile.store %w, %y[affine_map<(d0, d1) -> (d0, d1)>]() : tensor<128x256xbf16, #wide>, memref<128x256xbf16>
    ```
    becomes
    ```mlir
    %s0 = tile.slice %s at [0, 0] : tensor<128x256xf32, #acc> -> tensor<128x64xf32, #part>
    %o0 = payload.cast %s0 : tensor<128x64xf32, #part> -> tensor<128x64xbf16, #part>
    %w0 = tile.convert_layout %o0 : tensor<128x64xbf16, #part> -> tensor<128x64xbf16, #wide_part>
    tile.store %w0, %y[affine_map<(d0, d1) -> (d0, d1)>]() : tensor<128x64xbf16, #wide_part>, memref<128x256xbf16>
    %s1 = tile.slice %s at [0, 64] : ...
    ...
    tile.store %w1, %y[affine_map<(d0, d1) -> (d0, d1 + 64)>]() : ...
    ```
    """

    name = "tile-split-epilogue"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for kernel in op.ops:
            schedule = kernel.attributes.get("schedule")
            if isinstance(kernel, tile.KernelOp) and isinstance(schedule, ScheduleAttr) and schedule.data.copy == "tma":
                groups: dict[tuple[Block, tuple[int, ...]], list[Stored]] = {}
                for store in [o for o in kernel.body.walk() if isinstance(o, tile.StoreOp)]:
                    found = _find(store, kernel.warps.data)
                    if isinstance(found, str):
                        emit_remark(store, self.name, found)
                    elif found is not None and store.parent is not None:
                        groups.setdefault((store.parent, shape_of(store.value.type)), []).append(found)
                for stores in groups.values():
                    _split(stores, kernel.warps.data)


@dataclass(frozen=True)
class Stored:
    """A store of `value`, which is held as `layout`, behind a conversion."""

    store: tile.StoreOp
    value: SSAValue
    layout: Linear

    @property
    def columns(self) -> int:
        """Columns of a part."""
        return EPILOGUE_ROW // element_bytes(self.value.type)


def _find(store: tile.StoreOp, warps: int) -> Stored | str | None:
    """A store that can be divided, None if it needs no conversion through shared memory, or why it can't be."""
    convert = store.value.owner
    if not isinstance(convert, tile.ConvertLayoutOp) or convert.parent is not store.parent:
        return None
    source = layout_in_registers(convert.source, warps)
    if way_of(convert, source, layout_in_registers(convert.result, warps)) != "shared":
        return None
    found = Stored(store, convert.source, source)
    if len(source.shape) != 2 or any(isinstance(s.type, TensorType) for s in store.symbols):
        return "only tiles of two dimensions are stored in parts, and at places that are no tiles"
    if source.shape[COLUMNS] <= found.columns:
        return None
    if source.part(COLUMNS, found.columns) is None:
        return f"parts of {found.columns} columns are not held by all threads"
    return found


def _split(stores: Sequence[Stored], warps: int) -> None:
    """Replace stores of one block, of tiles of one shape, by stores of parts: first the first parts of all."""
    last = stores[-1].store
    block = last.parent
    assert block is not None
    size = min(s.columns for s in stores)
    fitting = [s for s in stores if s.layout.part(COLUMNS, size) is not None]
    parts = [Part(last, COLUMNS, start, size, warps) for start in range(0, fitting[0].layout.shape[COLUMNS], size)]
    for s in fitting:
        parts[0].load_early(s.value)
    for part, following in [*pairwise(parts), (parts[-1], None)]:
        for s in fitting:
            if following is not None:
                following.load_early(s.value)
        for s in fitting:
            part.store(s.store, s.value)
    for s in fitting:
        convert = s.store.value.owner
        assert isinstance(convert, Operation)
        erase(s.store)
        if convert.results[0].first_use is None:
            erase(convert)
