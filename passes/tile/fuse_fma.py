"""`tile-fuse-fma`: turns `(x - m) * c` with a constant `c` into one multiply-add."""

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

MAX_EXACT_PRODUCT = 2.0**28
"""Bound of `abs(m * c)` for which the fused form is used with `c` itself. The rounding error of an f32 product below it
is at most 2^3."""

LEAST_FACTOR = 2.0**-100
"""Least constant factor that is fused. With smaller ones, products of different numbers could underflow to equal
ones."""


class FuseFmaPass(TilePass):
    """Fuses a difference that is multiplied by a constant into one multiply-add.

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

    The multiplication must have the flag `contract`, and the constant `c` must be at least 2^-100 and less than 2. The
    factor `f` is `c` if `abs(m * c) < 2^28`. Otherwise (also for NaN) it is the greatest power of two that is at most
    `c`, so that `m * f` is exact.

    A difference `(a - b) * c` with the flag `reassoc` rescales sums of exponentials to another maximum. It becomes
    `a * c - b * c`, so that it has the same rounding errors as the exponentials.

    **Rationale**: an element needs one instruction instead of two before its exponential. The rounding error of `m * c`
    scales all exponentials of a row by the same number, and the division by their sum cancels it. The error is large
    for products of 2^28 and more. There the exponential is 1 for the maximum and below 2^-15 for all smaller numbers,
    with either factor.

    **Pipeline position**: before `tile-assign-layouts`, which assigns the layouts of the new tiles. Kernels for the CPU
    (one lane) are not changed, as an exponential takes as long as ten multiplications there.
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
    """Replaces `product` by a multiply-add if the right side of `difference` is a broadcast row."""
    broadcast = difference.rhs.owner
    if not isinstance(broadcast, tile.BroadcastOp):
        return
    row = broadcast.source
    exact, power = (payload.ConstantOp(v, row.type) for v in (factor, 2.0 ** floor(log2(factor))))
    _, small, checks = _rounded(row, exact.result)
    chosen = payload.SelectOp(small, exact.result, power.result)
    shift = arith.MulfOp(row, chosen.result)
    negated = arith.NegfOp(shift.result)
    rows = (chosen.result, negated.result)
    factors, shifts = (tile.BroadcastOp(v, broadcast.along, broadcast.result.type) for v in rows)
    insert_after(broadcast, exact, power, *checks, chosen, shift, negated, factors, shifts)
    replace(product, math.FmaOp(difference.lhs, factors.result, shifts.result))


def _distribute(product: arith.MulfOp, difference: arith.SubfOp) -> None:
    """Replaces `(a - b) * c` by `a * c - b * c` for elements where both products are below `MAX_EXACT_PRODUCT`."""
    (a, small_a, checks_a), (b, small_b, checks_b) = (_rounded(v, product.rhs) for v in difference.operands)
    both, moved = arith.AndIOp(small_a, small_b), arith.SubfOp(a, b)
    whole = arith.MulfOp(difference.result, product.rhs)
    chosen = payload.SelectOp(both.result, moved.result, whole.result)
    replace(product, *checks_a, *checks_b, both, moved, whole, chosen)


def _rounded(row: SSAValue, factor: SSAValue) -> tuple[SSAValue, SSAValue, list[Operation]]:
    """Returns `row * factor`, the mask of elements below `MAX_EXACT_PRODUCT`, and the operations that compute both."""
    product, limit = arith.MulfOp(row, factor), payload.ConstantOp(MAX_EXACT_PRODUCT, row.type)
    size = math.AbsFOp(product.result)
    small = payload.CmpOp("lt", size.result, limit.result)
    return product.result, small.result, [product, limit, size, small]
