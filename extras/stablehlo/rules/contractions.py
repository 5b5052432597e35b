"""Rules of contractions: `dot_general`."""

from __future__ import annotations

from jaxlib.mlir.dialects import stablehlo
from xdsl.ir import SSAValue

from ....dialects.shapes.extents import extents_of
from ....dialects.tensor.builder import work_type
from ..registry import Builder, HloOperation, rule
from .elementwise import converted
from .reductions import reduce_by


@rule("stablehlo.dot_general")
def dot_general(b: Builder, op: HloOperation, x: SSAValue, y: SSAValue) -> SSAValue:
    # The dimensions of the result: batch, free ones of x, free ones of y. Operands are converted to its type.
    numbers = op.numbers(stablehlo.DotDimensionNumbers, "dot_dimension_numbers")
    x_batch, y_batch = list(numbers.lhs_batching_dimensions), list(numbers.rhs_batching_dimensions)
    x_sum, y_sum = list(numbers.lhs_contracting_dimensions), list(numbers.rhs_contracting_dimensions)
    x_shape, y_shape = extents_of(x.type), extents_of(y.type)
    x_rows = [d for d in range(len(x_shape)) if d not in (*x_batch, *x_sum)]
    y_rows = [d for d in range(len(y_shape)) if d not in (*y_batch, *y_sum)]
    order = [
        *((x_shape, d) for d in (*x_batch, *x_rows)),
        *((y_shape, d) for d in y_rows),
        *((x_shape, d) for d in x_sum),
    ]
    space = [shape[d] for shape, d in order]
    first_y, first_sum = len(x_batch) + len(x_rows), len(space) - len(x_sum)
    x_at = {d: i for i, d in enumerate((*x_batch, *x_rows))} | {d: first_sum + i for i, d in enumerate(x_sum)}
    y_at = {d: i for i, d in enumerate(y_batch)} | {d: first_y + i for i, d in enumerate(y_rows)}
    y_at |= {d: first_sum + i for i, d in enumerate(y_sum)}
    compute = work_type(op.element)
    wide = [
        converted(b, v, t.unsigned, compute, op.results[0].unsigned) for v, t in zip((x, y), op.operands, strict=True)
    ]
    placed = [b.place(v, [at[d] for d in range(len(at))], space) for v, at in zip(wide, (x_at, y_at), strict=True)]
    product = b.mul(*placed)
    return b.cast(reduce_by(b, "add", product, list(range(first_sum, len(space)))), op.element)
