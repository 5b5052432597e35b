"""Putting the operands of contractions into shared memory."""

from __future__ import annotations

from xdsl.ir import Block, SSAValue

from ...dialects import tile
from ...dialects.kernel.copies import SWIZZLES
from ...dialects.kernel.mma import WORD_BYTES
from ...dialects.layouts import SharedAttr, attr_of, is_in_shared, layout_in_registers, shared_of
from ...dialects.layouts.linear import Linear, Reader, Shared, choose_shared, operand_layout
from ...dialects.layouts.mma import Boxes, boxes_along, boxes_of, fragment
from ...dialects.payload import is_payload, shape_of
from ...dialects.support.locations import refused
from ..analysis.memory_access import element_bytes
from ..analysis.tile_layouts import atom_of, held_fragments, readers, route
from ..pass_manager import TilePass
from ..rewriting import insert_after, insert_at_start, insert_before


class StageDotOperandsPass(TilePass):
    """Put the operands of every `tile.dot` into shared memory.

    What: a `tile.stage` after each operand, with the order of dimensions and the swizzle for which writing the tile
    once and reading it slice by slice takes the fewest wavefronts of shared memory. A left operand on tensor cores
    stays in registers if each thread holds just what it multiplies (the weights of attention), or if the lanes of each
    warp can exchange it for that (those of f32, multiplied as tf32). What warpgroups multiply
    lies in boxes: rows of at most 128 bytes, swizzled as `kernel.wgmma` reads them.
    Why: each element of an operand is needed by many threads; shared memory brings it to them, and is read 16 bytes at
    a time where its layout allows. The operands of a kernel of one thread (`lanes 1`) stay where they are: in its
    registers, which are the cache of a core.
    Why here: who writes and who reads is known once the tiles have layouts. Whether all of it fits is asked by
    `kernel-allocate-shared`, which knows what lives at the same time.

    ```mlir
    %n = tile.dot %a, %b, %acc : tensor<64x16xf32, #a>, tensor<16x64xf32, #b> -> tensor<64x64xf32, #c>
    ```
    becomes
    ```mlir
    %0 = tile.stage %a : tensor<64x16xf32, #a> -> tensor<64x16xf32, #tile.shared<offset = [[1, 0], ...]>>
    %1 = tile.stage %b : tensor<16x64xf32, #b> -> tensor<16x64xf32, #tile.shared<offset = [[0, 1], ...]>>
    %n = tile.dot %0, %1, %acc : ...
    ```
    """

    name = "tile-stage-dot-operands"
    inside = tile.DotOp

    def on(self, op: tile.KernelOp) -> None:
        if op.lanes.data == 1:
            return
        staged: dict[tuple[SSAValue, SharedAttr], tile.StageOp] = {}  # equal tiles that are read alike are staged once
        for dot in [o for o in op.body.walk() if isinstance(o, tile.DotOp)]:
            acc = layout_in_registers(dot.acc, op.warps.data)
            for i, operand in enumerate((dot.lhs, dot.rhs)):
                if is_in_shared(operand.type):
                    continue
                held = layout_in_registers(operand, op.warps.data)
                if dot.atom is not None and i == 0 and (kept := _kept(dot, acc, held)) is not None:
                    dot.operands[0] = kept
                    continue  # computed by the threads that multiply it
                shared = attr_of(_shared(dot, i, acc, held, op.warps.data))
                stage = staged.get((operand, shared)) or _stage(operand, shared)
                staged[operand, shared] = stage
                dot.operands[i] = stage.result


def _shared(dot: tile.DotOp, i: int, acc: Linear, held: Linear, warps: int) -> Shared:
    """Returns the layout in shared memory of operand `i` of `dot`, which is written as `held`."""
    size, depth = element_bytes(dot.operands[i].type), shape_of(dot.lhs.type)[1]
    writer = Reader(held, size)
    if dot.atom is None:
        return choose_shared(held.shape, [writer, Reader(operand_layout(acc, i, depth), size, depth)])
    return _in_boxes(dot, i, acc, warps) if dot.is_wgmma else _in_matrices(dot, i, acc, writer)


def _in_matrices(dot: tile.DotOp, i: int, acc: Linear, writer: Reader) -> Shared:
    along_k, across = readers(dot, acc, i)
    by_order = [[along_k], [across]] if i == 0 else [[across], [along_k]]
    return choose_shared(writer.layout.shape, [writer], by_order=by_order)


def _kept(op: tile.DotOp, acc: Linear, held: Linear) -> SSAValue | None:
    """The left operand if each thread holds just what it multiplies, or if threads of a warp, which have it from
    another product, can exchange it for that; else None."""
    if held_fragments(op, acc, held) is not None:
        return op.lhs
    wanted = fragment(acc, 0, held.shape[1], atom_of(op))
    if not _is_product(op.lhs) or route(held, wanted, element_bytes(op.lhs.type)) != "shuffles":
        return None
    convert = tile.ConvertLayoutOp(op.lhs, attr_of(wanted), "shuffles")
    convert.result.name_hint = op.lhs.name_hint
    insert_before(op, convert)
    return convert.result


def _is_product(value: SSAValue) -> bool:
    """Whether a tile is computed, element by element, from the result of a product."""
    op = value.owner
    if isinstance(op, Block) or isinstance(op, tile.DotOp):
        return isinstance(op, tile.DotOp)
    return is_payload(op) and any(_is_product(operand) for operand in op.operands)


def _in_boxes(op: tile.DotOp, operand: int, acc: Linear, warps: int) -> Shared:
    """How an operand of a product of warpgroups lies: in boxes with rows along the dimension that its writers prefer,
    as wide as those of both operands can be."""
    chosen: dict[int, Boxes] = {}
    for i, value in ((1, op.rhs), (0, op.lhs)):
        shape, size, there = shape_of(value.type), element_bytes(value.type), shared_of(value.type)
        if there is not None:
            found = boxes_of(there, size)
        else:
            held = layout_in_registers(value, warps)
            if i == 0 and held_fragments(op, acc, held) is not None:
                continue
            writer = Reader(held, size)
            panel = size * 2 * acc.registers if i == 1 else max(SWIZZLES)  # a warpgroup multiplies whole panels
            widest = {1 - i: max(SWIZZLES), i: min(panel, max(SWIZZLES))}
            # f32 lie along k; and all rows that a warpgroup multiplies are in one panel of a left operand.
            along_k = size == WORD_BYTES or (i == 0 and chosen[1].swizzle < max(SWIZZLES))
            ways = (1 - i,) if along_k else (1 - i, i)
            fitting = [b for fast in ways if (b := boxes_along(shape, fast, size, widest[fast])) is not None]
            found = min(fitting, key=lambda b: writer.cost(b.layout(shape, size))[0], default=None)
        if found is None:
            raise refused(op, f"operand {i} of {list(shape)} does not fit into boxes")
        chosen[i] = found
    value, own = op.operands[operand], chosen[operand]
    shape, size = shape_of(value.type), element_bytes(value.type)
    boxes = boxes_along(shape, own.fast, size, min(b.swizzle for b in chosen.values()))
    assert boxes is not None
    return boxes.layout(shape, size)


def _stage(value: SSAValue, shared: SharedAttr) -> tile.StageOp:
    """Stage `value` where it is defined, so that it is done as rarely as possible."""
    stage = tile.StageOp(value, shared)
    stage.result.name_hint = f"{value.name_hint}_shared" if value.name_hint else None
    if isinstance(value.owner, Block):
        insert_at_start(value.owner, stage)
    else:
        insert_after(value.owner, stage)
    return stage
