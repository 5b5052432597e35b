"""Element types that PyTorch's kernels refuse, on the CPU as on CUDA, though its capture lets them through.

Found by `python benchmarks/coverage.py --dtypes types`, which calls every operator with the types that it does not
list as its own.
"""

from __future__ import annotations

from collections.abc import Collection

from xdsl.dialects.builtin import i1
from xdsl.ir import Attribute, SSAValue

from ....dialects.payload import element_type, is_float, is_float8
from ....dialects.torch import Value
from ....errors import UnsupportedError

FLOATS_ONLY = frozenset(
    """_adaptive_avg_pool2d _adaptive_avg_pool3d adaptive_avg_pool1d adaptive_avg_pool2d adaptive_avg_pool3d
    adaptive_max_pool1d adaptive_max_pool2d adaptive_max_pool3d hardshrink leaky_relu logcumsumexp var""".split()
)
"""Operators, or overloads, of floats: no integers, no truth values."""

FLOAT_RESULTS = frozenset("_log_softmax _softmax log_softmax softmax".split())
"""Operators whose result is of floats."""

NO_TRUTHS = frozenset(
    """addbmm addcmul addmm addmv argmax argmin avg_pool1d avg_pool2d avg_pool3d baddbmm bmm bucketize ceil conv1d
    conv2d conv3d convolution floor index_reduce linear matmul max_pool1d max_pool2d max_pool2d_with_indices
    max_pool3d max_pool3d_with_indices mm relu round searchsorted threshold topk trunc""".split()
)
"""Operators of numbers: their first tensor holds no truth values."""

NO_TRUTHS_RESULT = frozenset(("arange", "clamp", "clamp_max", "clamp_min", "pow"))
"""Operators whose result holds no truth values."""


def check_types(overload: str, arguments: Collection[Value], result: Attribute) -> None:
    """Raise UnsupportedError for element types that PyTorch refuses."""
    name = overload.partition(".")[0]
    first = next((element_type(v.type) for v in arguments if isinstance(v, SSAValue)), result)
    if overload == "pow.Scalar" and first == i1 and any(isinstance(v, bool) for v in arguments):
        raise UnsupportedError("PyTorch has no kernel for truth values")
    if first != result and name in FLOAT_RESULTS:
        first = result  # converted first
    if not (is_float(first) or is_float8(first)) and {name, overload} & (FLOATS_ONLY | FLOAT_RESULTS):
        raise UnsupportedError(f"PyTorch has no kernel for {first}")
    if i1 in (first if name in NO_TRUTHS else None, result if name in NO_TRUTHS_RESULT else None):
        raise UnsupportedError("PyTorch has no kernel for truth values")
