"""`tile-assign-layouts`: decides which register of which thread holds which element of every tile.

Tiles that must have the same layout, because payload operations or loops connect them, form a *class* (`TileClass`). A
*link* is a reduction, broadcast or scan between a tile with more dimensions (`high`) and one with fewer (`low`). A
*preference* is the layout order and vector width that a load or store would like.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

from xdsl.dialects import arith
from xdsl.dialects.builtin import AnyFloat, StringAttr, TensorType, i1
from xdsl.ir import Operation, SSAValue

from ...dialects import payload, tile
from ...dialects.layouts import attr_of, layout_in_registers, linear_of
from ...dialects.layouts.linear import Linear, patch
from ...dialects.payload import element_type, shape_of
from ..analysis.layout_preferences import (
    Classes,
    Link,
    Preference,
    TileClass,
    coalesced,
    is_tile,
    memory_layout,
    preference,
    scan_layout,
    tensor_core_layout,
    thread_rows,
    transposed_operand_layout,
    widened,
)
from ..analysis.memory_access import element_bytes
from ..analysis.tile_layouts import route
from ..pass_manager import TilePass
from ..rewriting import insert_after, insert_before, replace, retype


class AssignLayoutsPass(TilePass):
    """Assigns a layout to every tile, which determines the thread and register of each element.

    ```mlir
    %x = tile.load %X[%i, d0] : memref<8x128xf32> -> tensor<128xf32>
    %s = tile.reduce add %x over [0] : tensor<128xf32> -> f32
    ```
    becomes, with one warp,
    ```mlir
    %x = tile.load ... -> tensor<128xf32, #l>  // #tile.layout<reg = [[1], [2]], lane = [[4], ..., [64]], warp = []>
    %s = tile.reduce add %x over [0] : tensor<128xf32, #tile.layout<...>> -> f32
    ```

    Tiles that payload operations or loops connect get the same layout:

    - The accumulator of a dot gets the layout of its tensor-core atom, or a rectangle of registers per thread.
    - A tile of fewer dimensions gets a slice of the layout of the tile that it is reduced from or broadcast to.
    - Other tiles get the layout that makes their loads and stores contiguous and 16 bytes wide.

    A `tile.convert_layout` is inserted where the tiles of a reduction or broadcast have incompatible layouts, and where
    a load or store is much faster in another layout (a transpose, or results of tensor cores). Its `via` attribute is
    the cheapest way to move the elements. Layouts that exist before the pass are not changed.

    **Rationale**: the layout determines registers, access widths, shuffles and traffic through shared memory.

    **Pipeline position**: after the passes that change tiles and accesses; before `tile-stage-dot-operands`, which
    needs the layouts of operands.
    """

    name = "tile-assign-layouts"

    def on(self, op: tile.KernelOp) -> None:
        separate_free_values(op)
        classes, warps, lanes = Classes(op), op.warps.data, op.lanes.data
        layouts = decide(op, classes)
        for link in classes.links:
            _reconcile(link, classes, layouts)
        for c in classes:
            for value in c.members:
                _retype(value, layouts[id(c)])
            if len(c.shape) > 1 and (lanes == 1 or all(dot.atom is not None for dot in c.dots)):
                _widen(c, layouts[id(c)], op)
        for convert in [o for o in op.body.walk() if isinstance(o, tile.ConvertLayoutOp) and o.via is None]:
            ends = [layout_in_registers(v, warps, lanes) for v in (convert.source, convert.result)]
            convert.properties["via"] = StringAttr(route(ends[0], ends[1], element_bytes(convert.source.type)))


def separate_free_values(kernel: tile.KernelOp) -> None:
    """Clones every tile that any thread can compute by itself, once for each use, so that its users may have different
    layouts. Such tiles are constants, broadcast scalars, indices and broadcast masks. CSE merges copies that are equal
    in the end."""
    for op in list(kernel.body.walk()):
        if isinstance(op, tile.BroadcastOp) and element_type(op.source.type) == i1:
            _separate_mask(op)
    for op in list(kernel.body.walk()):
        if op.results and op.results[0].has_more_than_one_use() and _is_free(op):
            _separate_uses(op)


def _is_free(op: Operation) -> bool:
    """Returns true if any thread can compute the tile `op` without other threads, and the tile has no layout yet."""
    if isinstance(op, tile.BroadcastOp) and is_tile(op.source):
        return False
    kinds = tile.BroadcastOp | payload.ConstantOp | payload.ExtentOp | arith.ConstantOp | tile.AffineOp
    return isinstance(op, kinds) and is_tile(op.results[0]) and linear_of(op.results[0].type) is None


def _separate_uses(op: Operation) -> None:
    for use in list(op.results[0].uses)[1:]:
        copy = op.clone()
        copy.results[0].name_hint = op.results[0].name_hint
        insert_after(op, copy)
        use.operation.operands[use.index] = copy.results[0]


def _separate_mask(op: tile.BroadcastOp) -> None:
    """Clones the mask that `op` broadcasts if the mask is computed from indices alone and has other users."""
    mask_ops = _mask_ops(op.source)
    if mask_ops is not None and any(mask_op.results[0].has_more_than_one_use() for mask_op in mask_ops):
        copies = dict[SSAValue, SSAValue]()
        insert_after(mask_ops[-1], *(mask_op.clone(copies) for mask_op in mask_ops))
        for mask_op in mask_ops:
            copies[mask_op.results[0]].name_hint = mask_op.results[0].name_hint
        op.operands[0] = copies[mask_ops[-1].results[0]]


MAX_CLONED_MASK_OPS = 16
"""Masks with more operations than this are not cloned: moving them between threads is then cheaper than recomputing."""


def _mask_ops(value: SSAValue) -> list[Operation] | None:
    """Returns the operations that compute `value`, in program order, or None if it depends on more than indices and
    constants, or has more than `MAX_CLONED_MASK_OPS` operations."""
    ops, todo = dict[Operation, None](), [value]
    while todo:
        op = todo.pop().owner
        leaf = isinstance(op, tile.AffineOp | payload.ConstantOp | payload.ExtentOp)
        if not isinstance(op, Operation) or not (leaf or isinstance(op, tile.BroadcastOp) or payload.is_payload(op)):
            return None
        if isinstance(element_type(op.results[0].type), AnyFloat) or len(ops) > MAX_CLONED_MASK_OPS:
            return None
        # Moves the operation after all of its users; the result is reversed.
        ops.pop(op, None)
        ops[op] = None
        todo += () if leaf else op.operands
    return [*reversed(ops)]


def decide(kernel: tile.KernelOp, classes: Classes) -> dict[int, Linear]:
    """Returns the layout of every class, keyed by `id` of the class.

    Classes with existing layouts are decided first, then those with dots, then by decreasing number of dimensions.
    """
    existing: dict[int, Linear] = {}
    for c in classes:
        for value in c.members:
            if linear_of(value.type) is not None:
                existing.setdefault(id(c), layout_in_registers(value, kernel.warps.data, kernel.lanes.data))
    layouts: dict[int, Linear] = {}
    for c in sorted(classes, key=lambda c: (id(c) not in existing, not c.dots, -len(c.shape))):
        layout = existing.get(id(c)) or (_accumulator(c, classes, kernel) if c.dots else _slice(c, classes, layouts))
        layouts[id(c)] = layout or _accessed(c, classes, kernel)
    return layouts


def _accumulator(c: TileClass, classes: Classes, kernel: tile.KernelOp) -> Linear:
    """Returns the layout of the accumulator of dots: that of their tensor-core atom, or a rectangle of registers per
    thread."""
    warps, lanes, dots = kernel.warps.data, kernel.lanes.data, [dot for c in classes for dot in c.dots]
    chained = any(dot.atom is not None and classes.of(dot.lhs).dots for dot in dots)
    row_in_warp = chained or any(c.dots and 1 in c.reduced for c in classes)
    if any(dot.atom is None for dot in c.dots):
        return patch(c.shape, thread_rows(classes, kernel.schedule, warps * lanes), warps, row_in_warp, lanes)
    return tensor_core_layout(c, classes, warps, row_in_warp, kernel.schedule.copy == "tma")


def _accessed(c: TileClass, classes: Classes, kernel: tile.KernelOp) -> Linear:
    """Returns the layout that suits the loads and stores of `c`, its scan, or the `wgmma` dot that reads it."""
    warps, lanes = kernel.warps.data, kernel.lanes.data
    preferences = _preferences(c, classes, warps * lanes == 1)
    layout = None if c.scanned is None or lanes == 1 else scan_layout(c, c.scanned, preferences, warps)
    if layout is None and any(dot.is_wgmma for c in classes for dot in c.dots):
        layout = transposed_operand_layout(c, preferences, warps)
    return layout or memory_layout(c.shape, preferences, c.reduced, warps, lanes)


def _slice(c: TileClass, classes: Classes, layouts: dict[int, Linear]) -> Linear | None:
    """Returns the layout of `c` as a slice of a larger tile, from which `c` is reduced or to which it is broadcast.
    Returns None if no such tile has a layout yet."""
    for link in classes.links:
        if classes.of(link.low) is c and (high := layouts.get(id(classes.of(link.high)))) is not None:
            return high.drop(link.dims)
    return None


def _preferences(c: TileClass, classes: Classes, single_thread: bool) -> list[Preference]:
    """Returns the preferences that decide the layout of a class.

    The preferences of atomic accesses come first, as these are the slowest. Without atomic accesses all accesses of `c`
    count. A class without accesses inherits the preferences of the tiles that it is broadcast from or reduced to.

    Args:
        c: the class.
        classes: all classes of the kernel.
        single_thread: whether the block is one thread. Then atomic accesses that are not contiguous are like others.
    """
    atomic = [preference(a) for a in c.accesses if isinstance(a, tile.AtomicRmwOp)]
    accessed = [wish for wish in atomic if wish.contiguous or not single_thread] or [preference(a) for a in c.accesses]
    return accessed or [*_inherited(c, classes)]


def _inherited(c: TileClass, classes: Classes) -> Iterator[Preference]:
    for link in (link for link in classes.links if classes.of(link.high) is c):
        low_dims = [d for d in range(len(c.shape)) if d not in link.dims]
        for wish in map(preference, classes.of(link.low).accesses):
            order = (*(low_dims[d] for d in wish.order), *link.dims)
            yield Preference(order, wish.vec, wish.bytes, wish.contiguous)


def _reconcile(link: Link, classes: Classes, layouts: dict[int, Linear]) -> None:
    """Inserts a conversion if the layout of the tile with fewer dimensions does not fit that of the larger tile of
    `link`."""
    low, high = layouts[id(classes.of(link.low))], layouts[id(classes.of(link.high))]
    implied = high.drop(link.dims)
    op = link.op
    if isinstance(op, tile.ScanOp):
        if low.picks(implied) is None or implied.picks(low) is None:
            _convert_carry(op, low, implied, classes)
    elif isinstance(op, tile.ReduceOp):
        if low.picks(implied) is None:
            _convert_result(op, low, implied, classes)
    elif high.without(link.dims).picks(low) is None:
        convert = tile.ConvertLayoutOp(op.source, attr_of(implied))
        convert.result.name_hint = op.source.name_hint
        insert_before(op, convert)
        op.operands[0] = convert.result


def _convert_result(op: tile.ReduceOp, layout: Linear, implied: Linear, classes: Classes) -> None:
    """Gives the result of `op` the layout `implied` by its source, and converts it to `layout` afterwards."""
    reduced = tile.ReduceOp(op.kind.data, op.source, op.dims.get_values())
    _retype(reduced.result, implied)
    convert = tile.ConvertLayoutOp(reduced.result, attr_of(layout))
    reduced.result.name_hint = op.result.name_hint
    classes.replace(op.result, convert.result)
    replace(op, reduced, convert)


def _convert_carry(op: tile.ScanOp, layout: Linear, implied: Linear, classes: Classes) -> None:
    """Converts the initial value of a scan from `layout` to the layout `implied` by its source, and its carry back."""
    before = tile.ConvertLayoutOp(op.init, attr_of(implied))
    insert_before(op, before)
    scan = tile.ScanOp(op.kind.data, op.source, before.result, op.dim.data)
    after = tile.ConvertLayoutOp(scan.carry, attr_of(layout))
    classes.replace(op.result, scan.result)
    classes.replace(op.carry, after.result)
    replace(op, scan, after, results=[scan.result, after.result])


def _widen(c: TileClass, layout: Linear, kernel: tile.KernelOp) -> None:
    """Inserts conversions for the loads and stores of `c` that are much faster in another layout than `layout`."""
    as_boxes = kernel.schedule.copy == "tma"
    wide = partial(widened, as_boxes=as_boxes) if c.dots and kernel.lanes.data > 1 else coalesced
    for access in c.accesses:
        access_layout = wide(access, layout)
        # Atomics access single elements, so contiguity does not help them.
        if access_layout is not None and not isinstance(access, tile.AtomicRmwOp):
            _convert_access(access, access_layout, layout)


def _convert_access(access: tile.LoadOp | tile.StoreOp, access_layout: Linear, layout: Linear) -> None:
    """Loads a tile in `access_layout` and converts it to `layout`; a store converts from `layout` to
    `access_layout`."""
    value = access.result if isinstance(access, tile.LoadOp) else access.value
    if isinstance(access, tile.LoadOp):
        _retype(value, access_layout)
        convert = tile.ConvertLayoutOp(value, attr_of(layout))
        value.replace_uses_with_if(convert.result, lambda use: use.operation is not convert)
        insert_after(access, convert)
    else:
        convert = tile.ConvertLayoutOp(value, attr_of(access_layout))
        access.operands[0] = convert.result
        insert_before(access, convert)
    convert.result.name_hint = value.name_hint


def _retype(value: SSAValue, layout: Linear) -> None:
    retype(value, TensorType(element_type(value.type), shape_of(value.type), attr_of(layout)))
