"""Functions that select one of two pairs of a value and an index.

They only have comparisons, operations on truth values and selects. So their results depend on the order of the
arguments alone. `selection_of` evaluates a function for each order, and compares the results with a maximum or minimum.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from math import inf, nan
from typing import TYPE_CHECKING, Any

from ...dialects.payload import is_float

if TYPE_CHECKING:
    from jaxlib.mlir import ir

    from .operation import Body, HloOperation

_COMPARE = {
    "EQ": lambda x, y: x == y,
    "NE": lambda x, y: x != y,
    "LT": lambda x, y: x < y,
    "LE": lambda x, y: x <= y,
    "GT": lambda x, y: x > y,
    "GE": lambda x, y: x >= y,
}

_TRUTH = {
    "stablehlo.and": lambda x, y: x and y,
    "stablehlo.or": lambda x, y: x or y,
    "stablehlo.xor": lambda x, y: x != y,
}


@dataclass(frozen=True)
class Selection:
    """Order by which pairs of a value and an index are selected. NaN is before all other values.

    Attributes:
        kind: `max` or `min` of the values.
        smallest_index: whether the smallest index of equal values is selected, else the largest.
    """

    kind: str
    smallest_index: bool

    def results(self, x: float, i: int, y: float, j: int) -> list[tuple[float, int]]:
        # Pairs that may be the result for (x, i) and (y, j).
        if x != x or y != y:
            # Which index of two NaN is selected depends on the order of the reduction.
            return [(v, k) for v, k in ((x, i), (y, j)) if v != v]
        if x == y:
            return [(x, min(i, j) if self.smallest_index else max(i, j))]
        return [(x, i) if (x > y) == (self.kind == "max") else (y, j)]


def selection_of(body: Body) -> Selection | None:
    """Returns the order by which a region with two pairs as arguments selects one of them, or None if it is another
    function."""
    if len(body.arguments) != 4:
        return None
    values: tuple[float, ...] = (-1, 0, 1)
    if is_float(body.types[0].element):
        values = (-inf, 0, inf, nan)
    candidates = [Selection(kind, smallest) for kind in ("max", "min") for smallest in (True, False)]
    for x, y in product(values, repeat=2):
        for i, j in product(range(3), repeat=2):
            result = _evaluated(body, (x, y, i, j))
            if result is None:
                return None
            key = repr(result)
            candidates = [c for c in candidates if any(repr(r) == key for r in c.results(x, i, y, j))]
    return candidates[0] if candidates else None


def _evaluated(body: Body, arguments: tuple[float, ...]) -> tuple[float, int] | None:
    """Returns the results of a region, or None if it has an operation of another kind.

    Args:
        body: region with the arguments x, y, i and j, in the order of `stablehlo.reduce`: x, i, y, j.
        arguments: x, y, i, j.
    """
    x, y, i, j = arguments
    values: dict[ir.Value, Any] = dict(zip(body.arguments, (x, i, y, j), strict=True))
    *operations, end = body.operations
    for op in operations:
        operands = [values.get(v) for v in op.ir.operands]
        if any(v is None for v in operands):
            return None
        result = _result(op, operands)
        if result is None:
            return None
        values[op.ir.results[0]] = result
    results = [values.get(v) for v in end.ir.operands]
    first, second = results if len(results) == 2 else (None, None)
    return None if first is None or second is None else (first, second)


def _result(op: HloOperation, operands: list[Any]) -> Any:
    """Returns the result of an operation, or None if it is no comparison, operation on truth values, or select."""
    is_truth = all(type(v) is bool for v in operands)
    if op.name == "stablehlo.compare" and op.word("compare_type", "SIGNED") != "TOTALORDER":
        return bool(_COMPARE[op.word("comparison_direction")](*operands))
    if op.name == "stablehlo.select" and type(operands[0]) is bool:
        return operands[1] if operands[0] else operands[2]
    if op.name in _TRUTH and is_truth:
        return _TRUTH[op.name](*operands)
    return not operands[0] if op.name == "stablehlo.not" and is_truth else None
