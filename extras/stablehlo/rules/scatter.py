"""Rule of scatters: writes of windows at computed positions (`dialects/tensor/writes.py`).

A window that is not entirely inside the operand is dropped, as XLA does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce

from jaxlib.mlir.dialects import stablehlo
from xdsl.dialects.builtin import i1, i64
from xdsl.ir import SSAValue
from xdsl.ir.affine import AffineDimExpr, AffineExpr

from ....dialects.payload import element_type
from ....dialects.shapes.extents import extents_of, static
from ....dialects.tensor import ReductionKind
from ....dialects.tensor.builder import Bound, dims
from ....dialects.tensor.views import gathered, inside, permuted, reshape_to, shifted
from ....dialects.tensor.writes import Writes, read_last
from ..registry import Builder, HloOperation, rule
from . import integers


@dataclass(frozen=True)
class _Windows:
    """Positions of the windows of a scatter. Updates have dimensions of windows and dimensions of indices."""

    shape: Sequence[int]
    """Shape of the operand."""
    space: Sequence[int]
    """Shape of the updates."""
    window: dict[int, int]
    """Dimension of the operand -> dimension of the updates along which its windows extend."""
    batch: dict[int, int]
    """Dimension of the operand -> dimension of the updates whose index is the position."""
    starts: dict[int, SSAValue]
    """Dimension of the operand -> start of the window of each update, with the shape `space`."""
    fixed_starts: dict[int, int]
    """Dimension of the operand -> start of all windows, if it is known at import."""

    def size(self, d: int) -> int:
        """Returns the size of the windows along a dimension of the operand."""
        return self.space[self.window[d]] if d in self.window else 1

    def legal(self, b: Builder) -> SSAValue | None:
        """Returns a mask of the updates whose windows are inside the operand, or None if a test of the positions is
        enough."""
        if all(self.size(d) == 1 for d in self.starts):
            return None
        tests = [
            b.both(b.cmp("ge", v, 0), b.cmp("le", v, self.shape[d] - self.size(d))) for d, v in self.starts.items()
        ]
        return reduce(b.both, tests)

    def writes(self, b: Builder) -> Writes:
        """Returns the positions of all updates."""
        legal = self.legal(b)
        at: list[AffineExpr] = []
        indices: list[SSAValue] = []
        for d in range(len(self.shape)):
            if d in self.batch:
                at.append(AffineExpr.dimension(self.batch[d]))
            elif d in self.starts:
                place = self.starts[d]
                if self.size(d) > 1:
                    place = b.add(place, b.iota(self.window[d], self.space))
                at.append(AffineExpr.symbol(len(indices)))
                indices.append(place if legal is None else b.select(legal, place, b.like(place, -1)))
            elif d in self.window:
                at.append(AffineExpr.dimension(self.window[d]))
            else:
                at.append(AffineExpr.symbol(len(indices)))
                indices.append(b.constant(0, self.space, i64))
        addressed = {e.position for e in at if isinstance(e, AffineDimExpr)}
        return Writes(self.space, at, indices, [d for d in range(len(self.space)) if d not in addressed])


def _windows(b: Builder, op: HloOperation, x: SSAValue, indices: SSAValue, updates: SSAValue) -> _Windows:
    """Returns the positions of the windows.

    Args:
        b: Builder of the operation.
        op: The operation.
        x: Operand.
        indices: Starts of the windows.
        updates: Values of the windows.
    """
    numbers = op.numbers(stablehlo.ScatterDimensionNumbers, "scatter_dimension_numbers")
    shape, space, table = (static(extents_of(v.type)) for v in (x, updates, indices))
    in_window = list(numbers.update_window_dims)
    outer = [d for d in range(len(space)) if d not in in_window]
    batching, vector = list(numbers.input_batching_dims), numbers.index_vector_dim
    inserted = {*numbers.inserted_window_dims, *batching}
    # Dimension of the indices -> dimension of the updates. The coordinates of an index have none.
    update_dim = dict(zip([d for d in range(len(table)) if d != vector], outer, strict=True))
    batch = {d: update_dim[i] for d, i in zip(batching, numbers.scatter_indices_batching_dims, strict=True)}
    window = dict(zip([d for d in range(len(shape)) if d not in inserted], in_window, strict=True))
    start_dims = list(numbers.scattered_dims_to_operand_dims)
    wide = integers.extended(b, indices) if op.operands[1].unsigned else b.cast(indices, i64)
    starts = dict[int, SSAValue]()
    for c, d in enumerate(start_dims):
        at = [AffineExpr.constant(c) if i == vector else AffineExpr.dimension(update_dim[i]) for i in range(len(table))]
        starts[d] = b.map(wide, at, space)
    values = op.constants(1) if all(n == 1 for i, n in enumerate(table) if i != vector) else None
    fixed_starts = dict(zip(start_dims, values, strict=True)) if values is not None else {}
    return _Windows(shape, space, window, batch, starts, fixed_starts)


@rule("stablehlo.scatter")
def scatter(b: Builder, op: HloOperation, *operands: SSAValue) -> Sequence[SSAValue] | SSAValue:
    count = len(operands) // 2
    if count != 1:
        raise op.refuse(
            f"expected one operand, but got {count}", remedy="scatter each of them, with `unique_indices=True`"
        )
    x, indices, updates = operands
    if 0 in extents_of(updates.type) or 0 in op.shape:
        return x
    windows = _windows(b, op, x, indices, updates)
    kind = _kind(op)
    if kind is None or kind != "set" and _is_one_window(windows):
        # Combines the present values, and writes the results.
        if not op.flag("unique_indices") and not _is_one_window(windows):
            raise op.refuse("expected unique indices for this function of values", remedy="pass unique_indices=True")
        present = _read(b, x, windows)
        (updates,), kind = op.body()(b, [present, updates]), "set"
    if kind == "set":
        return _one_window(b, x, updates, windows) if _is_one_window(windows) else _set(b, x, updates, windows)
    if op.unsigned and kind in ("max", "min"):
        x, updates = (integers.ordered(b, v, True) for v in (x, updates))
        return integers.ordered(b, _combined(b, x, updates, windows, kind), True)
    return _combined(b, x, updates, windows, kind)


def _kind(op: HloOperation) -> str | None:
    """Returns the reduction kind of the region, "set" if it returns the update, or None for another function."""
    body = op.body()
    if (kind := body.kind()) is not None:
        return kind
    *steps, end = body.operations
    if not steps and list(end.ir.operands) == [body.arguments[1]]:
        return "set"
    return None


def _is_one_window(windows: _Windows) -> bool:
    """Returns true if there is one window for each index of the batch dimensions."""
    used = {*windows.window.values(), *windows.batch.values()}
    return all(n == 1 for d, n in enumerate(windows.space) if d not in used)


def _combined(b: Builder, x: SSAValue, updates: SSAValue, windows: _Windows, kind: str) -> SSAValue:
    element = element_type(x.type)
    result = windows.writes(b).scatter(b, ReductionKind(kind), b.working(x), b.working(updates))
    return b.cast(result, element)


def _read(b: Builder, x: SSAValue, windows: _Windows) -> SSAValue:
    """Returns the present value at the position of each update; an arbitrary one for an illegal position."""
    writes = windows.writes(b)
    return gathered(b, x, writes.at, windows.space, writes.indices)


def _one_window(b: Builder, x: SSAValue, updates: SSAValue, windows: _Windows) -> SSAValue:
    """Returns `x` with one window replaced for each index of the batch dimensions: each element of `x` reads the
    update at its distance from the start of the window."""
    shape, index = windows.shape, dims(len(windows.shape))
    at: list[AffineExpr] = [AffineExpr.constant(0)] * len(windows.space)
    for d, u in windows.batch.items():
        at[u] = index[d]
    # Starts are the same for all updates, except along the batch dimensions.
    if len(windows.fixed_starts) == len(windows.starts):
        if any(not 0 <= s <= shape[d] - windows.size(d) for d, s in windows.fixed_starts.items()):
            return x
        bounds = list[Bound]()
        for d in range(len(shape)):
            if d in windows.batch:
                continue
            distance = shifted(index[d], -windows.fixed_starts.get(d, 0))
            if d in windows.window:
                at[windows.window[d]] = distance
            if windows.size(d) != shape[d]:
                bounds.append((distance, 0, windows.size(d)))
        written = b.map(updates, at, shape, bounds)
        if not bounds:
            return written
        return b.select(inside(b, shape, bounds), written, x)
    hit = b.constant(True, shape, i1)
    places = list[SSAValue]()
    for d in range(len(shape)):
        if d in windows.batch:
            continue
        distance, size = b.iota(d, shape), windows.size(d)
        if d in windows.starts:
            # The start is the same for all elements of a window.
            first = [AffineExpr.constant(0)] * len(windows.space)
            for e, u in windows.batch.items():
                first[u] = index[e]
            start = b.map(windows.starts[d], first, shape)
            distance = b.sub(distance, start)
            if size > 1:
                hit = b.both(hit, b.both(b.cmp("ge", start, 0), b.cmp("le", start, shape[d] - size)))
        hit = b.both(hit, b.both(b.cmp("ge", distance, 0), b.cmp("lt", distance, size)))
        if size > 1:
            at[windows.window[d]] = AffineExpr.symbol(len(places))
            places.append(distance)
    written = gathered(b, updates, at, shape, places)
    return b.select(hit, written, x)


def _set(b: Builder, x: SSAValue, updates: SSAValue, windows: _Windows) -> SSAValue:
    """Returns `x` with windows replaced. Of several writes to one element, the last one remains."""
    writes = windows.writes(b)
    whole = [d for d in range(len(windows.shape)) if d not in windows.batch and isinstance(writes.at[d], AffineDimExpr)]
    # The number of the last write does not depend on the dimensions that windows cover from their first element.
    ignored = [windows.window[d] for d in whole]
    remaining = [d for d in range(len(windows.space)) if d not in ignored]
    numbers = {d: n for n, d in enumerate(remaining)}
    space = [windows.space[d] for d in remaining]
    index = [
        AffineExpr.constant(0) if d in ignored else AffineExpr.dimension(numbers[d]) for d in range(len(windows.space))
    ]
    addressed = [d for d in range(len(windows.shape)) if d not in whole]
    at = [
        AffineExpr.dimension(numbers[e.position]) if isinstance(e, AffineDimExpr) else e
        for e in (writes.at[d] for d in addressed)
    ]
    over = [numbers[d] for d in writes.over]
    places = [b.map(v, index, space) for v in writes.indices]
    last = Writes(space, at, places, over).last(b, [windows.shape[d] for d in addressed])
    ends = [(AffineExpr.dimension(d), 0, windows.size(d)) for d in whole if windows.size(d) != windows.shape[d]]
    last = b.map(last, [AffineExpr.dimension(d) for d in addressed], windows.shape, ends, -1)
    # The updates with the dimensions of several writes as one, which is the number of the write.
    order = [*writes.over, *(d for d in range(len(windows.space)) if d not in writes.over)]
    rows = permuted(b, updates, order)
    count = b.count(windows.space[d] for d in writes.over)
    rows = reshape_to(b, rows, [count, *(windows.space[d] for d in order[len(writes.over) :])])
    operand_dim = {e.position: d for d, e in enumerate(writes.at) if isinstance(e, AffineDimExpr)}
    read_at = [AffineExpr.symbol(0), *(AffineExpr.dimension(operand_dim[d]) for d in order[len(writes.over) :])]
    return read_last(b, x, last, rows, read_at)
