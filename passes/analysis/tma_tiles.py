"""Which staged tiles can come as boxes by the tensor memory accelerator."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from xdsl.dialects import scf
from xdsl.dialects.builtin import IndexType, IntegerType
from xdsl.ir import Attribute, Block, BlockArgument, Operation, SSAValue, Use

from ...dialects import payload, tile
from ...dialects.kernel.tma import BOX_EXTENT
from ...dialects.kernel.wgmma import SWIZZLES
from ...dialects.layouts.wgmma import Boxes, boxes_along, boxes_of
from ...dialects.payload import element_type, shape_of
from ...dialects.shapes.affine import Form, Simplifier, dim, symbol
from ...dialects.shapes.extents import Extent, extents_of, least
from ...dialects.shapes.ranges import range_of_value
from ...dialects.tile.access import box_dimensions
from ...dialects.tile.warp_specialize import TmaLoadOp
from .async_copies import is_zero
from .memory_access import element_bytes, memory_type
from .swizzle import Reader, readers
from .tile_layouts import attr_of, layout_in_shared, linear_of

MOST_RANKS = 5
"""Dimensions of a buffer that boxes can be cut from."""

PITCH = 16
"""Bytes of which every row of such a buffer starts at a multiple."""

EPILOGUE_ROW = 128
"""Bytes of a part of a result along its columns: the widest row of a box."""

EPILOGUE_BUFFERS = 2
"""Scratch buffers of a kind for parts of results: one is filled while what is in the other leaves."""


@dataclass(frozen=True)
class Box:
    """A staged tile that is exactly a load of a box, how it lies in shared memory, and whether the blocks of a cluster
    load it together."""

    stage: tile.StageOp
    load: tile.LoadOp
    boxes: Boxes
    multicast: bool = False

    @property
    def type(self) -> Attribute:
        """The type of the tile in shared memory."""
        shape = shape_of(self.stage.result.type)
        layout = self.boxes.layout(shape, element_bytes(self.stage.result.type))
        return tile.tile_type(element_type(self.load.source.type), shape, attr_of(layout))

    def make(self, symbols: Sequence[SSAValue]) -> TmaLoadOp:
        """The start of the box, at `symbols`."""
        op = TmaLoadOp(self.load.source, self.load.map, symbols, self.multicast, self.type)
        op.result.name_hint = self.load.result.name_hint or self.load.source.name_hint
        return op


def find_box(stage: tile.StageOp) -> Box | str:
    """How `stage` is a box, or why it is none."""
    value = stage.source
    while isinstance(value.owner, tile.ConvertLayoutOp):
        value = value.owner.source
    load = value.owner
    if not isinstance(load, tile.LoadOp):
        return "the tile is computed from what was loaded, so it has to pass through registers"
    why = _not_a_box(load)
    if why is not None:
        return why
    boxes = _boxes_for(stage, load)
    return boxes if isinstance(boxes, str) else Box(stage, load, boxes)


def _not_a_box(load: tile.LoadOp) -> str | None:
    why = why_no_box(load)
    if why is None and load.fill is not None and not is_zero(load.fill):
        return "its padding is not zero"
    return why


def why_no_box(access: tile.LoadOp | tile.StoreOp) -> str | None:
    """Why the tile that is loaded or stored is no box of its buffer; None if it is one."""
    dimensions = box_dimensions(access.map.data)
    memory = memory_type(access.source if isinstance(access, tile.LoadOp) else access.target)
    if dimensions is None or len(dimensions) != 2:
        return "the tile is no box of its buffer"
    if any(s.type != IndexType() for s in access.symbols):
        return "its elements are gathered"
    if not all(is_index(s) for s in access.symbols):
        return "where it is loaded from depends on what was loaded"
    extents, size = extents_of(memory), element_bytes(memory)
    if len(extents) > MOST_RANKS or min(map(least, extents)) < 1:
        return f"a buffer of {len(extents)} dimensions, or one that may be empty"
    known = [n if isinstance(n, int) else 1 for n in extents]  # nothing is known to divide a symbol
    if any(prod(known[d:]) * size % PITCH for d in range(1, len(extents))):
        return f"the rows of its buffer do not start at multiples of {PITCH} bytes"
    if len(extents) - 1 not in dimensions:
        return "its rows are not contiguous in memory"
    if not _ends_with_buffer(access, extents):
        return "it is masked otherwise than by the end of its buffer"
    return None


def _ends_with_buffer(access: tile.LoadOp | tile.StoreOp, extents: Sequence[Extent]) -> bool:
    """Whether the domain of an access says no more than that its coordinates are inside of the buffer."""
    if access.domain is None:
        return True
    shape = shape_of((access.result if isinstance(access, tile.LoadOp) else access.value).type)
    simplifier = Simplifier(shape, [range_of_value(s) for s in access.symbols])
    dims, symbols = [dim(i) for i in range(len(shape))], [symbol(i) for i in range(len(access.symbols))]

    def read(expr: object) -> Form:
        return simplifier.read(expr, dims, symbols)  # pyright: ignore[reportArgumentType]

    coordinates = {read(e): n for e, n in zip(access.map.data.results, extents, strict=True)}
    for expr, (lower, upper) in zip(access.domain.affine.results, access.domain.limits, strict=True):
        form = read(expr)
        if coordinates.get(form) != upper or lower != 0:
            return False
    return True


def _boxes_for(stage: tile.StageOp, load: tile.LoadOp) -> Boxes | str:
    """How the tile lies in shared memory: as it does, if in boxes with rows along what is contiguous in memory; in such
    boxes, if those who read it read any layout: the widest that warps read without bank conflicts, or else the widest.
    """
    dimensions = box_dimensions(load.map.data)
    assert dimensions is not None
    rank, size = len(extents_of(memory_type(load.source))), element_bytes(load.result.type)
    fast, shape = dimensions.index(rank - 1), shape_of(stage.result.type)
    if shape[1 - fast] > BOX_EXTENT:
        return f"a box of {shape[1 - fast]} rows; it has at most {BOX_EXTENT}"
    if dimensions[1 - fast] > dimensions[fast]:
        return "its rows are not contiguous in memory"
    users: list[Operation] = [use.operation for use in stage.result.uses]
    if any(not isinstance(u, tile.DotOp) for u in users):
        return "it is read by other than products"
    fixed = any(isinstance(u, tile.DotOp) and u.atom is not None and u.atom.data == "wgmma" for u in users)
    if fixed:
        fitting = [boxes_of(layout_in_shared(stage.result), size)]
    else:
        fitting = [boxes_along(shape, fast, size, widest) for widest in reversed(SWIZZLES)]
    found = [b for b in fitting if b is not None and b.fast == fast]
    if not found:
        return "it lies the other way round in shared memory than in global memory, or is too small for a box"
    reading = [] if fixed else [r for use in stage.result.uses if (r := _reader(use, fast)) is not None]
    return next((b for b in found if all(r.cost(b.layout(shape, size))[1] for r in reading)), found[0])


def _reader(use: Use, fast: int) -> Reader | None:
    """How warps read an operand of a product on tensor cores that has its dimension `fast` in rows."""
    dot = use.operation
    if not isinstance(dot, tile.DotOp) or dot.atom is None or (acc := linear_of(dot.acc.type)) is None:
        return None
    along_k, across = readers(dot, acc, use.index)
    return along_k if fast == 1 - use.index else across


def is_index(value: SSAValue) -> bool:
    """Whether `value` is computed from block numbers, loop counters and constants alone."""
    if isinstance(value, BlockArgument):
        parent = value.owner.parent_op()
        return isinstance(value.type, IndexType) and (
            isinstance(parent, tile.KernelOp) or (isinstance(parent, scf.ForOp) and value.index == 0)
        )
    op = value.owner
    assert not isinstance(op, Block)
    scalar = isinstance(value.type, IndexType | IntegerType)
    pure = payload.is_payload(op) or isinstance(op, tile.AffineOp)
    return scalar and pure and all(is_index(o) for o in op.operands)
