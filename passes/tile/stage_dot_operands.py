"""`tile-stage-dot-operands`: stages the operands of dots in shared memory and chooses their layouts there.

Operands of `wgmma` are stored as TMA tiles: rows of at most 128 bytes, swizzled as `kernel.wgmma` reads them. Several
TMA tiles next to each other hold wider operands.
"""

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
    """Stages the operands of every `tile.dot` in shared memory.

    ```mlir
    %n = tile.dot %a, %b, %acc : tensor<64x16xf32, #a>, tensor<16x64xf32, #b> -> tensor<64x64xf32, #c>
    ```
    becomes
    ```mlir
    %0 = tile.stage %a : tensor<64x16xf32, #a> -> tensor<64x16xf32, #tile.shared<offset = [[1, 0], ...]>>
    %1 = tile.stage %b : tensor<16x64xf32, #b> -> tensor<16x64xf32, #tile.shared<offset = [[0, 1], ...]>>
    %n = tile.dot %0, %1, %acc : ...
    ```

    The layout in shared memory (order of dimensions and swizzle) is the one with the fewest wavefronts for one write of
    the tile and its reads by the dot. A left operand of a tensor-core dot stays in registers if each thread already
    holds the elements that it multiplies (attention weights), or if shuffles within a warp can move them there
    (attention weights as tf32). Kernels of one thread per block (`lanes 1`, on the CPU) are not changed.

    **Rationale**: many threads need each element of an operand. Shared memory distributes it, up to 16 bytes at a time.

    **Pipeline position**: after `tile-assign-layouts`, which determines the threads that write and read an element.
    `kernel-allocate-shared` checks later that all buffers fit.
    """

    name = "tile-stage-dot-operands"
    inside = tile.DotOp

    def on(self, op: tile.KernelOp) -> None:
        if op.lanes.data == 1:
            return
        # An operand is staged once for each layout that dots need.
        staged: dict[tuple[SSAValue, SharedAttr], tile.StageOp] = {}
        for dot in [o for o in op.body.walk() if isinstance(o, tile.DotOp)]:
            acc = layout_in_registers(dot.acc, op.warps.data)
            for i, operand in enumerate((dot.lhs, dot.rhs)):
                if is_in_shared(operand.type):
                    continue
                held = layout_in_registers(operand, op.warps.data)
                if dot.atom is not None and i == 0 and (lhs := _lhs_in_registers(dot, acc, held)) is not None:
                    dot.operands[0] = lhs
                    continue
                shared = attr_of(_shared(dot, i, acc, held, op.warps.data))
                stage = staged.get((operand, shared)) or _stage(operand, shared)
                staged[operand, shared] = stage
                dot.operands[i] = stage.result


def _shared(dot: tile.DotOp, i: int, acc: Linear, held: Linear, warps: int) -> Shared:
    """Returns the layout in shared memory of operand `i` of `dot`, which threads write from the layout `held`."""
    size, depth = element_bytes(dot.operands[i].type), shape_of(dot.lhs.type)[1]
    writer = Reader(held, size)
    if dot.atom is None:
        return choose_shared(held.shape, [writer, Reader(operand_layout(acc, i, depth), size, depth)])
    return _in_tma_tiles(dot, i, acc, warps) if dot.is_wgmma else _for_mma(dot, i, acc, writer)


def _for_mma(dot: tile.DotOp, i: int, acc: Linear, writer: Reader) -> Shared:
    along_k, across = readers(dot, acc, i)
    by_order = [[along_k], [across]] if i == 0 else [[across], [along_k]]
    return choose_shared(writer.layout.shape, [writer], by_order=by_order)


def _lhs_in_registers(op: tile.DotOp, acc: Linear, held: Linear) -> SSAValue | None:
    """Returns the left operand in registers, or None if it must be staged.

    It stays in registers if each thread holds the elements that it multiplies, or if it is computed from another dot
    and shuffles can move the elements there.
    """
    if held_fragments(op, acc, held) is not None:
        return op.lhs
    target = fragment(acc, 0, held.shape[1], atom_of(op))
    if not _is_from_dot(op.lhs) or route(held, target, element_bytes(op.lhs.type)) != "shuffles":
        return None
    convert = tile.ConvertLayoutOp(op.lhs, attr_of(target), "shuffles")
    convert.result.name_hint = op.lhs.name_hint
    insert_before(op, convert)
    return convert.result


def _is_from_dot(value: SSAValue) -> bool:
    """Returns true if `value` is the result of a dot, or computed from one by elementwise operations."""
    op = value.owner
    if isinstance(op, Block) or isinstance(op, tile.DotOp):
        return isinstance(op, tile.DotOp)
    return is_payload(op) and any(_is_from_dot(operand) for operand in op.operands)


def _in_tma_tiles(op: tile.DotOp, operand: int, acc: Linear, warps: int) -> Shared:
    """Returns the layout in shared memory of an operand of a `wgmma` dot, which consists of TMA tiles.

    The rows of the tiles run along the dimension that is cheaper to write. Both operands have the same row width, the
    widest that fits both. `operand` is 0 for the left and 1 for the right operand.
    """
    chosen: dict[int, Boxes] = {}
    for i, value in ((1, op.rhs), (0, op.lhs)):
        shape, size, existing = shape_of(value.type), element_bytes(value.type), shared_of(value.type)
        if existing is not None:
            tma_tiles = boxes_of(existing, size)
        else:
            held = layout_in_registers(value, warps)
            if i == 0 and held_fragments(op, acc, held) is not None:
                continue
            writer = Reader(held, size)
            # A row must not be wider than the columns of one wgmma.
            panel = size * 2 * acc.registers if i == 1 else max(SWIZZLES)
            widest = {1 - i: max(SWIZZLES), i: min(panel, max(SWIZZLES))}
            # wgmma reads 4-byte elements only along k. Along m, one TMA tile must hold all rows of a warpgroup.
            along_k = size == WORD_BYTES or (i == 0 and chosen[1].swizzle < max(SWIZZLES))
            fast_dims = (1 - i,) if along_k else (1 - i, i)
            fitting = [b for fast in fast_dims if (b := boxes_along(shape, fast, size, widest[fast])) is not None]
            tma_tiles = min(fitting, key=lambda b: writer.cost(b.layout(shape, size))[0], default=None)
        if tma_tiles is None:
            raise refused(op, f"operand {i} of shape {list(shape)} does not fit into TMA tiles")
        chosen[i] = tma_tiles
    value, selected = op.operands[operand], chosen[operand]
    shape, size = shape_of(value.type), element_bytes(value.type)
    boxes = boxes_along(shape, selected.fast, size, min(b.swizzle for b in chosen.values()))
    assert boxes is not None
    return boxes.layout(shape, size)


def _stage(value: SSAValue, shared: SharedAttr) -> tile.StageOp:
    """Inserts a `tile.stage` directly after the definition of `value`, outside of loops that do not change it."""
    stage = tile.StageOp(value, shared)
    stage.result.name_hint = f"{value.name_hint}_shared" if value.name_hint else None
    if isinstance(value.owner, Block):
        insert_at_start(value.owner, stage)
    else:
        insert_after(value.owner, stage)
    return stage
