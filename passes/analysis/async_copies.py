"""Finds the staged tiles that asynchronous copies can load: by `cp.async`, or by the tensor memory accelerator (TMA).

A *box* is the rectangular tile of a tensor that one TMA copy moves. If all blocks of a cluster need the same box, they
load it together by multicast.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import copysign, gcd, prod

from xdsl.dialects import scf
from xdsl.dialects.builtin import IndexType, IntAttr, IntegerType
from xdsl.ir import Attribute, Block, BlockArgument, Operation, SSAValue, Use

from ...dialects import payload, tile
from ...dialects.kernel.copies import BOX_EXTENT, COPY_BYTES, SWIZZLED_ALIGNMENT
from ...dialects.kernel.wgmma import SWIZZLED_ROW_BYTES
from ...dialects.layouts import LayoutAttr, SharedAttr, attr_of, layout_in_registers, layout_in_shared, linear_of
from ...dialects.layouts.linear import Linear, Reader, Shared, choose_shared, operand_layout, register_width
from ...dialects.layouts.mma import Boxes, boxes_along, boxes_of
from ...dialects.payload import constant_of, element_type, shape_of
from ...dialects.shapes.affine import Form, Simplifier, add, scale, symbol
from ...dialects.shapes.extents import Extent, SymbolAttr, extents_of, least
from ...dialects.shapes.ranges import range_of_value
from ...dialects.support.locations import ancestors
from ...dialects.tile.copies import TmaLoadOp, box_dimensions
from ..pass_manager import emit_remark
from .integer_forms import FormReader
from .layout_preferences import by_sectors, preference
from .memory_access import WIDEST, TileForms, element_bytes, memory_type, plan_access
from .tile_layouts import readers


@dataclass(frozen=True)
class Copy:
    """A staged tile that `cp.async` can load.

    stage   the staging of the tile
    load    load of the tile
    layout  layout by which threads copy it
    shared  layout of the tile in shared memory
    """

    stage: tile.StageOp
    load: tile.LoadOp
    layout: LayoutAttr
    shared: SharedAttr

    def make(self, counter: SSAValue, at: SSAValue, predicate: SSAValue | None) -> tile.StageAsyncOp:
        """Returns the asynchronous copy for an iteration of the loop.

        Args:
            counter: induction variable of the loop.
            at: number of the iteration to copy for.
            predicate: condition of the copy, or None.
        """
        load, result = self.load, self.stage.result.type
        symbols = [at if s is counter else s for s in load.symbols]
        t = tile.tile_type(element_type(load.source.type), shape_of(result), self.shared)
        return tile.StageAsyncOp(load.source, load.map, symbols, load.domain, predicate, self.layout, t)


def staged_load(stage: tile.StageOp) -> tile.LoadOp | str:
    """Returns the load whose tile `stage` stores in shared memory, or the reason why there is none."""
    value = stage.source
    while isinstance(value.owner, tile.ConvertLayoutOp):
        value = value.owner.source
    if isinstance(value.owner, tile.LoadOp):
        return value.owner
    return "the tile is computed from what was loaded, so it has to pass through registers"


def find_copy(stage: tile.StageOp, loop: scf.ForOp, warps: int) -> Copy | str:
    """Returns the `cp.async` copy that can be issued in an earlier iteration, or the reason why there is none.

    Args:
        stage: the staging of the tile, directly inside `loop`.
        loop: the loop.
        warps: warps of a block.
    """
    load = staged_load(stage)
    if isinstance(load, str):
        return load
    why = _hindrance(load, loop)
    if why is not None:
        return why
    shared = layout_in_shared(stage.result)
    layout = layout_in_registers(load.result, warps)
    width = _width(load, layout, shared)
    if width < _width(load, layout, None):
        # The tile is contiguous along one dimension in global memory and along another one in shared memory, so wide
        # vectors are impossible. Threads then copy single elements.
        wish = preference(load)
        layout = by_sectors(layout.shape, wish.order, warps, element_bytes(load.result.type))
        shared = _rearranged(stage, layout) or shared
        width = _width(load, layout, shared)
    if width * element_bytes(load.result.type) not in COPY_BYTES:
        return "its elements are not neighbours in global and in shared memory, 4 bytes at least"
    return Copy(stage, load, attr_of(layout), attr_of(shared))


def _hindrance(load: tile.LoadOp, loop: scf.ForOp) -> str | None:
    """Returns why a load cannot be an asynchronous copy in an earlier iteration, or None."""
    counter = loop.body.block.args[0]
    if counter not in load.symbols:
        return "the same tile is loaded in every iteration"
    if any(s.type != IndexType() for s in load.symbols):
        return "its elements are gathered"
    if any(s is not counter and loop.is_ancestor(s.owner) for s in load.symbols):
        return "where it is loaded from is computed inside of the loop"
    if load.fill is not None and not is_zero(load.fill):
        return "its padding is not zero"
    return None


def is_zero(value: SSAValue) -> bool:
    """Returns true if `value` is 0, and not -0.0."""
    number = constant_of(value)
    return number == 0 and copysign(1, number) > 0


def _width(load: tile.LoadOp, layout: Linear, shared: Shared | None) -> int:
    """Returns the elements of one vector access of a copy, or 0 if every element needs an address of its own.

    Args:
        load: the load.
        layout: layout by which threads copy.
        shared: layout in shared memory; None to consider global memory only.
    """
    compact = layout.compact()[0]
    access = plan_access(load, TileForms(compact, load.symbols), memory_type(load.source))
    if access.per_register:
        return 0
    if shared is None:
        return access.vec
    threads = shared.images((*compact.lane, *compact.warp))
    limit = WIDEST // element_bytes(load.result.type)
    return min(access.vec, register_width(shared.images(compact.reg), threads, limit))


def _rearranged(stage: tile.StageOp, writer: Linear) -> Shared | None:
    """Returns the best shared layout for a tile that is written by layout `writer`, or None.

    None is returned unless all users are dots on CUDA cores.
    """
    size = element_bytes(stage.result.type)
    readers = [Reader(writer, size)]
    for use in stage.result.uses:
        dot: Operation = use.operation
        if not isinstance(dot, tile.DotOp) or dot.atom is not None or use.index > 1:
            return None
        depth = shape_of(dot.lhs.type)[1]
        acc = layout_in_registers(dot.acc, writer.warps)
        read = operand_layout(acc, use.index, depth)
        readers.append(Reader(read, size, depth, elements=min(read.registers, WIDEST // size)))
    return choose_shared(writer.shape, readers)


MOST_RANKS, PITCH = 5, 16
"""Maximum number of dimensions of a TMA tensor, and the alignment of its rows in bytes (CUDA driver API)."""

EPILOGUE_ROW, EPILOGUE_BUFFERS = 128, 2
"""Bytes of a row of one part of a result in a TMA epilogue, and the number of buffers for parts: one is filled while
the other is stored."""


@dataclass(frozen=True)
class Box:
    """A staged tile that TMA can load.

    stage      the staging of the tile
    load       load of the tile
    boxes      layout of the tile in shared memory
    multicast  true if the blocks of a cluster load the tile together
    """

    stage: tile.StageOp
    load: tile.LoadOp
    boxes: Boxes
    multicast: bool = False

    @property
    def type(self) -> Attribute:
        """Type of the tile in shared memory."""
        shape = shape_of(self.stage.result.type)
        layout = self.boxes.layout(shape, element_bytes(self.stage.result.type))
        return tile.tile_type(element_type(self.load.source.type), shape, attr_of(layout))

    def make(self, symbols: Sequence[SSAValue]) -> TmaLoadOp:
        """Returns the operation that issues the copy. `symbols`: symbols of the map of the load, for one iteration."""
        op = TmaLoadOp(self.load.source, self.load.map, symbols, self.multicast, self.type)
        op.result.name_hint = self.load.result.name_hint or self.load.source.name_hint
        return op


def find_box(stage: tile.StageOp) -> Box | str:
    """Returns the box that `stage` loads, or the reason why TMA cannot load it."""
    load = staged_load(stage)
    if isinstance(load, str):
        return load
    why = why_no_box(load)
    if why is None and load.fill is not None and not is_zero(load.fill):
        why = "its padding is not zero"
    if why is not None:
        return why
    boxes = _boxes_for(stage, load)
    return boxes if isinstance(boxes, str) else Box(stage, load, boxes)


def why_no_box(access: tile.LoadOp | tile.StoreOp) -> str | None:
    """Returns the reason why TMA cannot load or store a tile, or None if it can."""
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
    # A size that is known only at run time has no known divisor but 1.
    divisors = [n if isinstance(n, int) else 1 for n in extents]
    if any(prod(divisors[d:]) * size % PITCH for d in range(1, len(extents))):
        return f"the rows of its buffer do not start at multiples of {PITCH} bytes"
    if len(extents) - 1 not in dimensions:
        return "its rows are not contiguous in memory"
    if not _ends_with_buffer(access, extents):
        return "it is masked otherwise than by the end of its buffer"
    return None


def _ends_with_buffer(access: tile.LoadOp | tile.StoreOp, extents: Sequence[Extent]) -> bool:
    """Returns true if the bounds of an access are those of its buffer, which TMA checks itself."""
    if access.domain is None:
        return True
    shape = shape_of((access.result if isinstance(access, tile.LoadOp) else access.value).type)
    simplifier = Simplifier(shape, [range_of_value(s) for s in access.symbols])
    coordinates = dict(zip(simplifier.read_map(access.map.data), extents, strict=True))
    ends = zip(simplifier.read_map(access.domain.affine), access.domain.limits, strict=True)
    return all(coordinates.get(form) == upper and lower == 0 for form, (lower, upper) in ends)


def _boxes_for(stage: tile.StageOp, load: tile.LoadOp) -> Boxes | str:
    """Returns the TMA layout of a tile in shared memory, or the reason why there is none.

    Rows are along the dimension that is contiguous in global memory. If wgmma reads the tile, its layout is fixed.
    Otherwise the widest rows without bank conflicts are chosen. If all widths have conflicts, rows are as wide as
    possible.
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
        fitting = [boxes_along(shape, fast, size, widest) for widest in reversed(SWIZZLED_ROW_BYTES)]
    layouts = [b for b in fitting if b is not None and b.fast == fast]
    if not layouts:
        return "it lies the other way round in shared memory than in global memory, or is too small for a box"
    reading = [] if fixed else [r for use in stage.result.uses if (r := _reader(use, fast)) is not None]
    return next((b for b in layouts if all(r.cost(b.layout(shape, size))[1] for r in reading)), layouts[0])


def _reader(use: Use, fast: int) -> Reader | None:
    """Returns the way in which warps read an operand that is contiguous along `fast`, or None for other users."""
    dot = use.operation
    if not isinstance(dot, tile.DotOp) or dot.atom is None or (acc := linear_of(dot.acc.type)) is None:
        return None
    along_k, across = readers(dot, acc, use.index)
    return along_k if fast == 1 - use.index else across


def is_index(value: SSAValue) -> bool:
    """Returns true if `value` is computed only from block numbers, loop counters and constants."""
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


RANK = symbol(0)
"""Symbol of the number of a block in its cluster."""


class ClusterUniformity(FormReader):
    """Analysis of the index values of a kernel that are the same in all blocks of a cluster.

    All symbols of a form are the same in the whole cluster, except for `RANK`.

    Attributes:
        kernel: the kernel.
        size: blocks of a cluster, along the last index of the grid.
    """

    def __init__(self, kernel: tile.KernelOp, size: int) -> None:
        super().__init__(Simplifier(symbols=[size]))
        self.kernel = kernel
        self.size = size
        self._symbols = 0

    def same(self, value: SSAValue) -> bool:
        """Returns true if `value` is the same in all blocks of a cluster."""
        form = self.of(value)
        return form is not None and not _depends_on_rank(form)

    def same_trips(self, loop: scf.ForOp) -> bool:
        """Returns true if a loop has the same number of iterations in all blocks of a cluster."""
        return all(self.same(v) for v in (loop.lb, loop.ub, loop.step)) or self._strides(loop)

    def _strides(self, loop: scf.ForOp) -> bool:
        """Returns true if a loop starts at N * x + rank, and its step and end are multiples of N, the cluster size.

        Its number of iterations is then the same in all blocks.
        """
        forms = self.all((loop.lb, loop.ub, loop.step))
        if forms is None:
            return False
        forms[0] = add(forms[0], RANK, -1)
        return not any(_depends_on_rank(f) or _factor(f) % self.size for f in forms)

    def leaf(self, value: SSAValue | SymbolAttr) -> Form | None:
        if isinstance(value, SymbolAttr):
            return self._unknown()
        if not isinstance(value.type, IndexType):
            return None
        if isinstance(value, BlockArgument):
            return self._argument(value)
        op = value.owner
        assert isinstance(op, Operation)
        return self._unknown() if payload.is_payload(op) and all(map(self.same, op.operands)) else None

    def _argument(self, value: BlockArgument) -> Form | None:
        parent = value.owner.parent_op()
        if parent is self.kernel:
            grid = zip(self.kernel.blocks, self.kernel.grid_shape, strict=True)
            last = [b for b, n in grid if n != 1][-1:]
            return self._ranked() if value in last else self._unknown()
        if not isinstance(parent, scf.ForOp) or value.index:
            return None
        if self._strides(parent):
            return self._ranked()
        if not self.same(parent.lb) or not self.same(parent.step):
            return None
        return self._unknown(gcd(*(_factor(f) for f in self.all((parent.lb, parent.step)) or ())))

    def _unknown(self, factor: int = 1) -> Form:
        self._symbols += 1
        return scale(symbol(self._symbols), factor)

    def _ranked(self) -> Form:
        return add(self._unknown(self.size), RANK)


def _depends_on_rank(form: Form) -> bool:
    return RANK.terms[0][0] in form.atoms()


def _factor(form: Form) -> int:
    return gcd(form.constant, *(coefficient for _, coefficient in form.terms))


def share(kernel: tile.KernelOp, boxes: Sequence[Box], blocks: int, name: str) -> list[Box]:
    """Marks the boxes that the blocks of a cluster load together, and sets the cluster of the kernel if there are any.

    Args:
        kernel: the kernel.
        boxes: its boxes.
        blocks: blocks of a cluster.
        name: name of the pass that emits remarks about boxes that are not shared.

    Returns:
        The boxes, with `multicast` set.
    """
    if not kernel.has_clusters_of(blocks):
        emit_remark(kernel, name, f"the last extent of the grid is no multiple of clusters of {blocks}")
        return list(boxes)
    uniformity = ClusterUniformity(kernel, blocks)
    reasons = [_unshared(uniformity, box, blocks) for box in boxes]
    for box, why in zip(boxes, reasons, strict=True):
        if why is not None:
            emit_remark(box.stage, name, why)
    if None in reasons:
        kernel.cluster = IntAttr(blocks)
    return [replace(box, multicast=why is None) for box, why in zip(boxes, reasons, strict=True)]


def _unshared(uniformity: ClusterUniformity, box: Box, blocks: int) -> str | None:
    """Returns the reason why the blocks of a cluster cannot load a box together, or None if they can."""
    if not all(uniformity.same(s) for s in box.load.symbols):
        return "the blocks of a cluster need different boxes"
    if not all(uniformity.same_trips(loop) for loop in ancestors(box.stage) if isinstance(loop, scf.ForOp)):
        return "the blocks of a cluster need the box in different iterations"
    shape = shape_of(box.stage.result.type)
    row_bytes = box.boxes.row * element_bytes(box.stage.result.type)
    if not divides(shape[1 - box.boxes.fast], row_bytes, blocks):
        return f"a box of {shape[1 - box.boxes.fast]} rows has no {blocks} parts that start where its swizzle does"
    return None


def divides(rows: int, row_bytes: int, blocks: int) -> bool:
    """Returns true if a box can be divided among the blocks of a cluster, at boundaries of the swizzle pattern.

    Args:
        rows: rows of the box.
        row_bytes: bytes of a row.
        blocks: blocks of the cluster.
    """
    return rows % blocks == 0 and rows // blocks * row_bytes % SWIZZLED_ALIGNMENT == 0
