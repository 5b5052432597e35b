"""Rows at the kernel level: one shared buffer with a slot for each place."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from xdsl.ir import SSAValue

from ....dialects import kernel
from ....dialects.layouts.linear import Linear, Shared
from ....dialects.payload import element_bytes, element_type
from ....dialects.tile.row_cache import RowBufferLoadOp, RowBufferOp, RowBufferStoreOp, RowBufferType
from ...analysis.swizzle import Reader, choose_shared
from .emitter import Emitter, Index
from .shared_staging import load_shared, store_shared


@dataclass(frozen=True)
class Row:
    """The buffer of a row, and where the elements of a tile are in a slot of it."""

    buffer: SSAValue
    shared: Shared

    def slot(self, out: Emitter, place: Index, hint: str | None) -> SSAValue:
        """The slot of a place."""
        offset = out.value(out.mul(place, self.shared.size))
        return out.emit(kernel.SubviewOp(self.buffer, offset, self.shared.size), hint)


def make_row(out: Emitter, op: RowBufferOp, layout: Callable[[SSAValue], Linear]) -> Row:
    """Room for the row in shared memory, ordered for whoever puts its tiles there and reads them."""
    row = op.result.type
    assert isinstance(row, RowBufferType)
    users = [use.operation for use in op.result.uses]
    tiles = [
        u.value if isinstance(u, RowBufferStoreOp) else u.result
        for u in users
        if isinstance(u, RowBufferStoreOp | RowBufferLoadOp)
    ]
    readers = [Reader(held, element_bytes(row.tile)) for held in dict.fromkeys(layout(t) for t in tiles)]
    shared = choose_shared(row.shape, readers)
    buffer = out.allocate(kernel.SharedOp(element_type(row.tile), row.places.data * shared.size), _hint(op))
    return Row(buffer, shared)


def _hint(op: RowBufferOp) -> str:
    return op.result.name_hint or "row"


def keep(out: Emitter, op: RowBufferStoreOp, row: Row, value: SSAValue, layout: Linear, place: Index) -> None:
    """Emit the stores of a tile in registers into its place."""
    store_shared(out, value, layout, row.slot(out, place, op.row.name_hint), row.shared)


def kept(out: Emitter, op: RowBufferLoadOp, row: Row, layout: Linear, place: Index) -> SSAValue:
    """The tile in a place, in registers."""
    return load_shared(out, row.slot(out, place, op.row.name_hint), row.shared, layout)
