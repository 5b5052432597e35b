"""Deciding which thread holds which element of every tile."""

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
    turned_factor,
    widened,
)
from ..analysis.memory_access import element_bytes
from ..analysis.tile_layouts import route
from ..pass_manager import TilePass
from ..rewriting import insert_after, insert_before, replace, retype


class AssignLayoutsPass(TilePass):
    """Give every tile a layout: which register of which thread holds which element.

    What: tiles that the payload and loops tie together get one layout. A contraction's accumulator gets a patch of
    registers a thread (as the schedule says) or what its atom on tensor cores prescribes, other tiles what makes their
    loads and stores contiguous and 16 bytes wide, and a tile of fewer dimensions the slice of the tile it is reduced
    from or broadcast into. Where the two ends of a reduction or broadcast still disagree, an access is contiguous along
    another dimension than its tile's threads are (a transpose), or tensor cores leave a thread too few neighbours for
    it, a `tile.convert_layout` moves the elements, the cheapest way there is. A layout that is there already is kept.
    Why: from a layout follow registers, access widths, shuffles and what must go through shared memory.
    Why here: the tiles and their accesses are final, and it must come before staging, which asks who holds an operand.

    ```mlir
    %x = tile.load %X[%i, d0] : memref<8x128xf32> -> tensor<128xf32>
    %s = tile.reduce add %x over [0] : tensor<128xf32> -> f32
    ```
    becomes, with one warp,
    ```mlir
    %x = tile.load ... -> tensor<128xf32, #l>  // #tile.layout<reg = [[1], [2]], lane = [[4], ..., [64]], warp = []>
    %s = tile.reduce add %x over [0] : tensor<128xf32, #tile.layout<...>> -> f32
    ```
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
    """Give every use of a tile that any thread can compute by itself (a constant, a repeated scalar, an index, what is
    repeated of a mask) its own copy, so that it ties no two layouts together. Equal copies are merged again by CSE."""
    for op in list(kernel.body.walk()):
        if isinstance(op, tile.BroadcastOp) and element_type(op.source.type) == i1:
            _separate_mask(op)
    for op in list(kernel.body.walk()):
        if op.results and op.results[0].has_more_than_one_use() and _is_free(op):
            _separate_uses(op)


def _is_free(op: Operation) -> bool:
    """Returns true if any thread can compute `op` by itself, and no layout is assigned."""
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
    """Give `op`, which repeats a mask of indices, a copy of the mask, if something else uses a part of it."""
    made = _of_indices(op.source)
    if made is not None and any(one.results[0].has_more_than_one_use() for one in made):
        copies = dict[SSAValue, SSAValue]()
        insert_after(made[-1], *(one.clone(copies) for one in made))
        for one in made:
            copies[one.results[0]].name_hint = one.results[0].name_hint
        op.operands[0] = copies[made[-1].results[0]]


MASK = 16
"""Operations of a mask that is worth computing again where that saves moving it from thread to thread."""


def _of_indices(value: SSAValue) -> list[Operation] | None:
    """The operations that compute a mask of indices alone, in their order; None if it is none, or if they are many."""
    found, todo = dict[Operation, None](), [value]
    while todo:
        op = todo.pop().owner
        leaf = isinstance(op, tile.AffineOp | payload.ConstantOp | payload.ExtentOp)
        if not isinstance(op, Operation) or not (leaf or isinstance(op, tile.BroadcastOp) or payload.is_payload(op)):
            return None
        if isinstance(element_type(op.results[0].type), AnyFloat) or len(found) > MASK:
            return None
        found.pop(op, None)
        found[op] = None  # behind all that use it
        todo += () if leaf else op.operands
    return [*reversed(found)]


def decide(kernel: tile.KernelOp, classes: Classes) -> dict[int, Linear]:
    """The layout of every class, by its `id`; those with the strongest wishes and most dimensions first."""
    given: dict[int, Linear] = {}
    for c in classes:
        for value in c.members:
            if linear_of(value.type) is not None:
                given.setdefault(id(c), layout_in_registers(value, kernel.warps.data, kernel.lanes.data))
    layouts: dict[int, Linear] = {}
    for c in sorted(classes, key=lambda c: (id(c) not in given, not c.dots, -len(c.shape))):
        layout = given.get(id(c)) or (_accumulator(c, classes, kernel) if c.dots else _slice(c, classes, layouts))
        layouts[id(c)] = layout or _accessed(c, classes, kernel)
    return layouts


def _accumulator(c: TileClass, classes: Classes, kernel: tile.KernelOp) -> Linear:
    """The layout of the accumulator of contractions: a patch of registers a thread, or that of their atom."""
    warps, lanes, dots = kernel.warps.data, kernel.lanes.data, [dot for c in classes for dot in c.dots]
    chained = any(dot.atom is not None and classes.of(dot.lhs).dots for dot in dots)
    row_in_warp = chained or any(c.dots and 1 in c.reduced for c in classes)
    if any(dot.atom is None for dot in c.dots):
        return patch(c.shape, thread_rows(classes, kernel.schedule, warps * lanes), warps, row_in_warp, lanes)
    return tensor_core_layout(c, classes, warps, row_in_warp, kernel.schedule.copy == "tma")


def _accessed(c: TileClass, classes: Classes, kernel: tile.KernelOp) -> Linear:
    """The layout that the accesses of `c` prefer, or a scan of it, or a product that it is an operand of."""
    warps, lanes = kernel.warps.data, kernel.lanes.data
    wishes = _wishes(c, classes, warps * lanes == 1)
    layout = None if c.scanned is None or lanes == 1 else scan_layout(c, c.scanned, wishes, warps)
    if layout is None and any(dot.is_wgmma for c in classes for dot in c.dots):
        layout = turned_factor(c, wishes, warps)
    return layout or memory_layout(c.shape, wishes, c.reduced, warps, lanes)


def _slice(c: TileClass, classes: Classes, layouts: dict[int, Linear]) -> Linear | None:
    """The slice of the first larger tile with a layout that `c` is reduced from or broadcast into."""
    for link in classes.links:
        if classes.of(link.low) is c and (high := layouts.get(id(classes.of(link.high)))) is not None:
            return high.drop(link.dims)
    return None


def _wishes(c: TileClass, classes: Classes, alone: bool) -> list[Preference]:
    """What the accesses of `c` prefer, atomic ones before others, which take longer (those of a thread that is `alone`
    only if they are contiguous); if it has none, those of the tiles it is broadcast from or reduced to."""
    atomic = [preference(a) for a in c.accesses if isinstance(a, tile.AtomicRmwOp)]
    own = [wish for wish in atomic if wish.contiguous or not alone] or [preference(a) for a in c.accesses]
    return own or [*_inherited(c, classes)]


def _inherited(c: TileClass, classes: Classes) -> Iterator[Preference]:
    for link in (link for link in classes.links if classes.of(link.high) is c):
        kept = [d for d in range(len(c.shape)) if d not in link.dims]
        for wish in map(preference, classes.of(link.low).accesses):
            order = (*(kept[d] for d in wish.order), *link.dims)
            yield Preference(order, wish.vec, wish.bytes, wish.contiguous)


def _reconcile(link: Link, classes: Classes, layouts: dict[int, Linear]) -> None:
    """Insert a conversion where the small end of `link` is not held by the threads that the large end implies."""
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


def _convert_result(op: tile.ReduceOp, own: Linear, implied: Linear, classes: Classes) -> None:
    """Let `op` end in the layout `implied` by that of its source, and convert its result to `own`."""
    reduced = tile.ReduceOp(op.kind.data, op.source, op.dims.get_values())
    _retype(reduced.result, implied)
    convert = tile.ConvertLayoutOp(reduced.result, attr_of(own))
    reduced.result.name_hint = op.result.name_hint
    classes.replace(op.result, convert.result)
    replace(op, reduced, convert)


def _convert_carry(op: tile.ScanOp, own: Linear, implied: Linear, classes: Classes) -> None:
    """Let `op` start with, and end in, the layout `implied` by that of its source; `own` is the one of the carry."""
    before = tile.ConvertLayoutOp(op.init, attr_of(implied))
    insert_before(op, before)
    scan = tile.ScanOp(op.kind.data, op.source, before.result, op.dim.data)
    after = tile.ConvertLayoutOp(scan.carry, attr_of(own))
    classes.replace(op.result, scan.result)
    classes.replace(op.carry, after.result)
    replace(op, scan, after, results=[scan.result, after.result])


def _widen(c: TileClass, layout: Linear, kernel: tile.KernelOp) -> None:
    """Insert conversions where accesses of `c` are worth a layout other than that of the tile."""
    as_boxes = kernel.schedule.copy == "tma"
    wide = partial(widened, as_boxes=as_boxes) if c.dots and kernel.lanes.data > 1 else coalesced
    for access in c.accesses:
        own = wide(access, layout)
        if own is not None and not isinstance(access, tile.AtomicRmwOp):  # which goes element by element
            _detour(access, own, layout)


def _detour(access: tile.LoadOp | tile.StoreOp, own: Linear, layout: Linear) -> None:
    """Load a tile as `own` and convert it to `layout`, or store it the other way round."""
    value = access.result if isinstance(access, tile.LoadOp) else access.value
    if isinstance(access, tile.LoadOp):
        _retype(value, own)
        convert = tile.ConvertLayoutOp(value, attr_of(layout))
        value.replace_uses_with_if(convert.result, lambda use: use.operation is not convert)
        insert_after(access, convert)
    else:
        convert = tile.ConvertLayoutOp(value, attr_of(own))
        access.operands[0] = convert.result
        insert_before(access, convert)
    convert.result.name_hint = value.name_hint


def _retype(value: SSAValue, layout: Linear) -> None:
    retype(value, TensorType(element_type(value.type), shape_of(value.type), attr_of(layout)))
