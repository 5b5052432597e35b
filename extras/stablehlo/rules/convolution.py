"""Rule of convolutions, as contractions over windows (`dialects/tensor/windows.py`)."""

from __future__ import annotations

from collections.abc import Sequence

from jaxlib.mlir.dialects import stablehlo
from xdsl.ir import SSAValue

from ....dialects.shapes.extents import extents_of, static
from ....dialects.tensor.builder import work_type
from ....dialects.tensor.views import permuted, reshape_to
from ....dialects.tensor.windows import contract_windows, dilated
from ..registry import Builder, HloOperation, rule


@rule("stablehlo.convolution")
def convolution(b: Builder, op: HloOperation, x: SSAValue, w: SSAValue) -> SSAValue:
    numbers = op.numbers(stablehlo.ConvDimensionNumbers, "dimension_numbers")
    spatial = list(numbers.input_spatial_dimensions)
    x = permuted(b, x, [numbers.input_batch_dimension, numbers.input_feature_dimension, *spatial])
    kernel = [numbers.kernel_output_feature_dimension, numbers.kernel_input_feature_dimension]
    w = permuted(b, w, [*kernel, *numbers.kernel_spatial_dimensions])
    groups, batches = op.int("feature_group_count", 1), op.int("batch_group_count", 1)
    if batches > 1:
        x, groups = _batches_as_features(b, x, batches), batches
    n, ones = len(spatial), [1] * len(spatial)
    windows = [
        dilated(extent, op.shape[d], size, stride=stride, low=low, spacing=spacing, dilation=dilation, reverse=reverse)
        for extent, size, d, stride, (low, _), spacing, dilation, reverse in zip(
            static(extents_of(x.type))[2:],
            static(extents_of(w.type))[2:],
            numbers.output_spatial_dimensions,
            op.ints("window_strides", ones),
            op.table("padding", [[0, 0]] * n),
            op.ints("lhs_dilation", ones),
            op.ints("rhs_dilation", ones),
            op.flags("window_reversal", [False] * n),
            strict=True,
        )
    ]
    y = contract_windows(b, x, w, windows, groups, False, work_type(op.element))
    result = [numbers.output_batch_dimension, numbers.output_feature_dimension, *numbers.output_spatial_dimensions]
    return b.cast(permuted(b, y, [result.index(d) for d in range(n + 2)]), op.element)


def _batches_as_features(b: Builder, x: SSAValue, groups: int) -> SSAValue:
    """Returns an input whose batch groups are feature groups: [g * n, c, ...] becomes [n, g * c, ...]."""
    batch, features, *spatial = static(extents_of(x.type))
    split = reshape_to(b, x, [groups, batch // groups, features, *spatial])
    order: Sequence[int] = [1, 0, 2, *range(3, 3 + len(spatial))]
    return reshape_to(b, permuted(b, split, order), [batch // groups, groups * features, *spatial])
