"""Which staged tiles can come as boxes by the tensor memory accelerator, and which of them the blocks of a cluster load
together: those that all of them need alike."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import gcd, prod

from xdsl.dialects import scf
from xdsl.dialects.builtin import IndexType, IntAttr, IntegerType
from xdsl.ir import Attribute, Block, BlockArgument, Operation, SSAValue, Use

from ...dialects import payload, tile
from ...dialects.kernel.tma import BOX_EXTENT, SWIZZLED_ALIGNMENT
from ...dialects.kernel.wgmma import SWIZZLES
from ...dialects.layouts.wgmma import Boxes, boxes_along, boxes_of
from ...dialects.payload import element_bytes, element_type, shape_of
from ...dialects.shapes import affine
from ...dialects.shapes.affine import DIV, MOD, SYM, Simplifier, number_of
from ...dialects.shapes.extents import Extent, extents_of, least
from ...dialects.shapes.ranges import constant_index, range_of_value
from ...dialects.tile.async_copy import box_dimensions
from ...dialects.tile.warp_specialize import TmaLoadOp
from ..remarks import emit_remark
from .async_copies import is_zero, staged_load
from .memory_access import memory_type
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
    coordinates = dict(zip(simplifier.read_map(access.map.data), extents, strict=True))
    ends = zip(simplifier.read_map(access.domain.affine), access.domain.limits, strict=True)
    return all(coordinates.get(form) == upper and lower == 0 for form, (lower, upper) in ends)


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


@dataclass(frozen=True)
class Common:
    """A value that is the same in all blocks of a cluster, and a multiple of `factor`; 0 is one of 0."""

    factor: int = 1


@dataclass(frozen=True)
class Ranked:
    """A value that is N * x + rank in clusters of N, with x the same in all blocks."""


Form = Common | Ranked | None
"""How a value differs among the blocks of a cluster; None: in some other way."""


@dataclass
class Alike:
    """The forms of the index values of `kernel`, for clusters of `size` blocks along its last index."""

    kernel: tile.KernelOp
    size: int

    def of(self, value: SSAValue) -> Form:
        """The form of an index value."""
        number = constant_index(value)
        if number is not None:
            return Common(number)
        if isinstance(value, BlockArgument):
            return self._argument(value)
        op = value.owner
        assert isinstance(op, Operation)
        operands = [self.of(v) if _is_index(v.type) else None for v in op.operands]
        if isinstance(op, tile.AffineOp) and _is_index(op.result.type):
            return self._form(Simplifier().read_map(op.map.data)[0], operands)
        pure = payload.is_payload(op) and all(isinstance(f, Common) for f in operands)
        return Common() if pure and _is_index(value.type) else None

    def same(self, value: SSAValue) -> bool:
        """Whether `value` is the same in all blocks of a cluster."""
        return isinstance(self.of(value), Common)

    def same_trips(self, loop: scf.ForOp) -> bool:
        """Whether all blocks of a cluster go through a loop equally often."""
        return all(self.same(v) for v in (loop.lb, loop.ub, loop.step)) or self._strides(loop)

    def _strides(self, loop: scf.ForOp) -> bool:
        """Whether a loop starts at N * x + rank and walks in multiples of N up to one: it then ends alike."""
        up_to, step = self.of(loop.ub), self.of(loop.step)
        return isinstance(self.of(loop.lb), Ranked) and all(
            isinstance(f, Common) and f.factor % self.size == 0 for f in (up_to, step)
        )

    def _argument(self, value: BlockArgument) -> Form:
        parent = value.owner.parent_op()
        if parent is self.kernel and _is_index(value.type):
            grid = dict(zip(self.kernel.blocks, self.kernel.grid_shape, strict=True))
            last = [b for b, n in grid.items() if n != 1][-1:]
            return Ranked() if value in last else Common()
        if not isinstance(parent, scf.ForOp) or value.index:
            return None
        if self._strides(parent):
            return Ranked()
        lower, step = self.of(parent.lb), self.of(parent.step)
        if not isinstance(lower, Common) or not isinstance(step, Common):
            return None
        return Common(gcd(lower.factor, step.factor))

    def _form(self, form: affine.Form, symbols: list[Form]) -> Form:
        """How an affine expression of values that differ like `symbols` does."""
        ranked, factor = False, form.constant
        for atom, coefficient in form.terms:
            own = self._atom(atom, symbols)
            if isinstance(own, Common):
                factor = gcd(factor, coefficient * own.factor)
            elif own is None or ranked or coefficient != 1:
                return None
            else:
                ranked = True
        if not ranked:
            return Common(factor)
        return Ranked() if factor % self.size == 0 else None

    def _atom(self, atom: affine.Atom, symbols: list[Form]) -> Form:
        if atom[0] == SYM:
            return symbols[number_of(atom)]
        inner, divisor = self._form(affine.Form(atom[1], atom[2]), symbols), atom[3]
        if isinstance(inner, Ranked) and divisor % self.size == 0:
            return Common() if atom[0] == DIV else inner
        if not isinstance(inner, Common):
            return None
        if atom[0] == MOD:
            return Common(gcd(inner.factor, divisor))
        return Common(inner.factor // divisor if inner.factor % divisor == 0 else 1)


def _is_index(t: Attribute) -> bool:
    return isinstance(t, IndexType)


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
