"""`panel_fma` of functions.hpp, the matmul on packed panels, for parts of its operands."""

from __future__ import annotations

import ctypes
from itertools import product

import numpy as np
import pytest

from deplodock.backend.cpu import build, printer

ROWS, DEPTH = 3, 4

CALL = """
extern "C" void dirty() {
  volatile float stack[4096];
  for (int i = 0; i < 4096; ++i) stack[i] = __builtin_nanf("");
}
extern "C" void call(float* c, const float* a, const float* b, long top, long bottom, long left, long right,
                     long first, long last) {
  panel_fma<ROWS, COLUMNS, DEPTH>(c, a, DEPTH, 1, b, COLUMNS, 1, {{top, bottom}, {left, right}, {first, last}});
}
"""


@pytest.mark.parametrize("columns", [2, 32])
def test_parts_of_a_product(columns: int) -> None:
    """Ranges of rows, columns and depth may be empty, or end before they begin. Unwritten stack memory holds NaN."""
    text = printer.helper_section({"vector.panel_fma"}) + CALL
    for name, size in (("ROWS", ROWS), ("COLUMNS", columns), ("DEPTH", DEPTH)):
        text = text.replace(name, str(size))
    library, draw = ctypes.CDLL(str(build.build(text))), np.random.default_rng(0)
    a, b = draw.random((ROWS, DEPTH), np.float32), draw.random((DEPTH, columns), np.float32)
    sides = ((0, 0), (0, ROWS), (1, 2)), product((0, 1, columns), (-1, 0, 1, columns)), ((0, 0), (0, DEPTH), (1, 3))
    for (top, bottom), (left, right), (first, last) in product(*sides):
        c = draw.random((ROWS, columns), np.float32)
        expected = c.copy()
        if left < right:
            part = a[top:bottom, first:last] @ b[first:last, left:right]
            expected[top:bottom, left:right] += part
        numbers = map(ctypes.c_long, (top, bottom, left, right, first, last))
        library.dirty()
        library.call(*(ctypes.c_void_p(array.ctypes.data) for array in (c, a, b)), *numbers)
        np.testing.assert_allclose(c, expected, rtol=1e-5, err_msg=f"{(top, bottom, left, right, first, last)}")
