"""A difference times a constant as one multiply-add: `tile-fuse-fma`."""

from __future__ import annotations

from collections.abc import Mapping
from math import floor, log2
from typing import ClassVar

from xdsl.dialects import arith, math
from xdsl.dialects.utils import FastMathFlag
from xdsl.ir import Operation, SSAValue

from ...dialects import payload, tile
from ...dialects.payload import constant_of
from ..pass_manager import TilePass
from ..rewriting import erase_unneeded, insert_after, replace

LIMIT = 2.0**28
"""Products of a row value with the factor that are below this have a rounding of at most 2^3."""

LEAST_FACTOR = 2.0**-100
"""Factors below this could make numbers of a product that differ equal."""


class FuseFmaPass(TilePass):
    """Fuse the product of a difference and a constant into one multiply-add.

    What: `(x - broadcast(m)) * c` becomes `fma(x, f, -(m * f))`, if the product has the flag `contract` and 0 < c < 2.
    The factor `f` is `c` unless `m * c` is 2^28 or more, or no number. Then it is the greatest power of two that is at
    most `c`, with which `m * f` is exact. Differences `(a - b) * c` of two rows have the flag `reassoc` if they move
    sums of such exponents from one row to another. They become `a * c - b * c`, with the same roundings.
    Why: an element takes one instruction in place of two, and its exponential takes one as well. The rounding of
    `m * c` multiplies all exponentials of a row by the same number, which a division by their sum cancels. From 2^28
    on it is not small any more, but then exponentials of different numbers are 1 and less than 2^-15 with either
    factor.
    Why here: rows are still broadcast by operations, and the layouts of what is inserted are assigned next. For lanes
    of a GPU: on a CPU an exponential takes as long as ten multiplications.

    ```mlir
    %b = tile.broadcast %m along [1] : tensor<64xf32> -> tensor<64x32xf32>
    %d = arith.subf %x, %b : tensor<64x32xf32>
    %y = arith.mulf %d, %c fastmath<contract> : tensor<64x32xf32>
    ```
    becomes
    ```mlir
    %r = arith.mulf %m, %c_row : tensor<64xf32>
    %a = math.absf %r : tensor<64xf32>
    %small = payload.cmp lt %a, %limit : tensor<64xf32>
    %f = payload.select %small, %c_row, %power : tensor<64xf32>
    %s = arith.mulf %m, %f : tensor<64xf32>
    %n = arith.negf %s : tensor<64xf32>
    %y = math.fma %x, %f_broadcast, %n_broadcast : tensor<64x32xf32>
    ```
    """

    name = "tile-fuse-fma"
    inside = arith.MulfOp
    needs: ClassVar[Mapping[str, int]] = {"arith.subf": 1}

    def on(self, op: tile.KernelOp) -> None:
        if op.lanes.data == 1:
            return
        products = [(o, o.lhs.owner) for o in op.body.walk() if isinstance(o, arith.MulfOp)]
        for product, difference in products:
            factor = constant_of(product.rhs)
            if isinstance(difference, arith.SubfOp) and factor is not None and LEAST_FACTOR <= factor < 2:
                if FastMathFlag.ALLOW_CONTRACT in product.fastmath.data:
                    _fuse(product, difference, float(factor))
                elif FastMathFlag.REASSOC in product.fastmath.data:
                    _distribute(product, difference)
        if any(isinstance(difference, arith.SubfOp) for _, difference in products):
            erase_unneeded(op.body)


def _fuse(product: arith.MulfOp, difference: arith.SubfOp, factor: float) -> None:
    """Replace `product` by a multiply-add if one side of the difference is repeated."""
    repeated = difference.rhs.owner
    if not isinstance(repeated, tile.BroadcastOp):
        return
    row = repeated.source
    exact, power = (payload.ConstantOp(v, row.type) for v in (factor, 2.0 ** floor(log2(factor))))
    _, small, checks = _rounded(row, exact.result)
    chosen = payload.SelectOp(small, exact.result, power.result)
    shift = arith.MulfOp(row, chosen.result)
    negated = arith.NegfOp(shift.result)
    rows = (chosen.result, negated.result)
    factors, shifts = (tile.BroadcastOp(v, repeated.along, repeated.result.type) for v in rows)
    insert_after(repeated, exact, power, *checks, chosen, shift, negated, factors, shifts)
    replace(product, math.FmaOp(difference.lhs, factors.result, shifts.result))


def _distribute(product: arith.MulfOp, difference: arith.SubfOp) -> None:
    """Replace `product` by the difference of two products, where both have the rounding that `_fuse` gives them."""
    (a, small_a, checks_a), (b, small_b, checks_b) = (_rounded(v, product.rhs) for v in difference.operands)
    both, moved = arith.AndIOp(small_a, small_b), arith.SubfOp(a, b)
    whole = arith.MulfOp(difference.result, product.rhs)
    chosen = payload.SelectOp(both.result, moved.result, whole.result)
    replace(product, *checks_a, *checks_b, both, moved, whole, chosen)


def _rounded(row: SSAValue, factor: SSAValue) -> tuple[SSAValue, SSAValue, list[Operation]]:
    """Returns `row * factor`, whether its rounding is small, and the operations that compute both."""
    product, limit = arith.MulfOp(row, factor), payload.ConstantOp(LIMIT, row.type)
    size = math.AbsFOp(product.result)
    small = payload.CmpOp("lt", size.result, limit.result)
    return product.result, small.result, [product, limit, size, small]
