"""Softmax, log-softmax and scaled dot-product attention. They are computed in f32, and the result is rounded."""

from __future__ import annotations

from collections.abc import Sequence
from math import exp, log2, sqrt

from xdsl.dialects import arith, math
from xdsl.dialects.arith import FastMathFlagsAttr
from xdsl.dialects.builtin import f32, i1
from xdsl.dialects.utils import FastMathFlag
from xdsl.ir import Attribute, SSAValue

from ....dialects import payload
from ....dialects.payload import element_type
from ....dialects.shapes.extents import extents_of, fixed, least
from ....dialects.tensor.builder import Builder, broadcast_shape, dims, normal_dim, work_type
from ....dialects.tensor.contraction import contract
from ....errors import ShapeError
from .random import dropped
from .registry import decomposes


def shifted_exp(
    b: Builder, x: SSAValue, over: Sequence[int], *, may_hide: bool = False, cancels: bool = False
) -> tuple[SSAValue, SSAValue, SSAValue]:
    """Computes exp(x - max(x)), its sum, and the maximum.

    In f32, the exponential is exp2((x - max(x)) * log2(e)). It may be approximate (flag `afn`): exponentials are at
    most 1, and the error is no larger than the error of rounding x.

    The maximum is subtracted before the multiplication. Otherwise x * log2(e) could overflow for large masks, and would
    be rounded relative to x. The difference is exact near the maximum, and infinite only where the exponential is 0.

    Args:
        b: Builder of the operator.
        x: Exponents.
        over: Dimensions of the maximum and of the sum.
        may_hide: True if all elements of a row may be masked. Exponentials are then 0 and not NaN.
        cancels: True if the exponentials are divided by their sum, so that a common factor of a row cancels. The
            exponent then gets the flag `contract`: `tile-fuse-fma` may compute it as fma(x, log2(e), -m)
            with m = max(x) * log2(e). The rounding of m is an error that is the same for the whole row.

    Returns:
        The exponentials, their sum, and the maximum.
    """
    wide = element_type(x.type) != f32
    y, factor = (x, 1.0) if wide else _without_factor(b, x)
    highest = frame = b.reduce("max", y, over)
    if may_hide:
        frame = b.select(b.cmp("eq", highest, float("-inf")), b.like(highest, 0), highest)
    difference = b.sub(y, b.keep(frame, over, extents_of(x.type)))
    if wide:
        e = b.exp(difference)
    else:
        permit = FastMathFlag.ALLOW_CONTRACT if cancels else None
        power = b.scaled(difference, factor * log2(exp(1)), permit=permit)
        e = b.insert(math.Exp2Op(power, FastMathFlagsAttr((FastMathFlag.APPROX_FUNC,))))
    return e, b.reduce("add", e, over), b.scaled(highest, factor)


def _without_factor(b: Builder, x: SSAValue) -> tuple[SSAValue, float]:
    """Returns (y, factor) with x = y * factor, so that exp(x - max(x)) = exp((y - max(y)) * factor).

    The factor is a constant by which the program multiplied last, such as the scale of attention; masks may have been
    applied after it. Returns (x, 1) if there is none, or if it is not between 2^-100 and 1. In this range both
    exponentials agree:

    - y * factor does not overflow, because factor <= 1;
    - y - max(y) overflows to -infinity only where the exponential is 0 anyway, because factor >= 2^-100;
    - max(y) * factor is exactly max(x), because rounding is monotonic.
    """
    op = x.owner
    if isinstance(op, arith.MulfOp) and isinstance(op.rhs.owner, payload.ConstantOp):
        factor = op.rhs.owner.scalar
        return (op.lhs, factor) if 2.0**-100 <= factor <= 1 else (x, 1.0)
    if isinstance(op, payload.SelectOp):
        masks = [isinstance(s.owner, payload.ConstantOp) and s.owner.scalar == float("-inf") for s in (op.lhs, op.rhs)]
        if any(masks):
            (lhs, f), (rhs, g) = [(s, 1.0) if m else _without_factor(b, s) for s, m in zip((op.lhs, op.rhs), masks)]
            return (x if f == g == 1 else b.select(op.cond, lhs, rhs)), f * g
    return x, 1.0


def _softmax_input(b: Builder, self: SSAValue, dim: int, dtype: Attribute | None) -> tuple[SSAValue, list[int]]:
    x = b.floating(self if dtype is None else b.cast(self, dtype))
    rank = len(extents_of(x.type))
    return x, [normal_dim(dim, rank)] if rank else []


@decomposes("softmax.int", "_softmax")
def softmax(b: Builder, self: SSAValue, dim: int, dtype: Attribute | None = None) -> SSAValue:
    x, over = _softmax_input(b, self, dim, dtype)
    e, total, _ = shifted_exp(b, x, over)
    # The sum is at least 1, so its inverse is neither an infinity nor too small to be exact.
    return b.div(e, b.keep(total, over, extents_of(x.type)), permit=FastMathFlag.ALLOW_RECIP)


@decomposes("log_softmax.int", "_log_softmax")
def log_softmax(b: Builder, self: SSAValue, dim: int, dtype: Attribute | None = None) -> SSAValue:
    x, over = _softmax_input(b, self, dim, dtype)
    shape = extents_of(x.type)
    _, total, highest = shifted_exp(b, x, over)
    return b.sub(b.sub(x, b.keep(highest, over, shape)), b.keep(b.log(total), over, shape))


@decomposes("scaled_dot_product_attention")
def scaled_dot_product_attention(
    b: Builder,
    query: SSAValue,
    key: SSAValue,
    value: SSAValue,
    attn_mask: SSAValue | None,
    dropout_p: float,
    is_causal: bool,
    scale: float | None,
    enable_gqa: bool,
    generator: SSAValue | None,
) -> SSAValue:
    if is_causal and attn_mask is not None:
        raise b.unsupported("is_causal", "expected a mask or is_causal, but got both")
    *_, rows, depth = extents_of(query.type)
    *_, keys, width = extents_of(value.type)
    batch = broadcast_shape([extents_of(v.type)[:-2] for v in ((query,) if enable_gqa else (query, key, value))])
    groups = _group_size(query, key, value) if enable_gqa else (1, 1)
    element = work_type(b.result_element)
    q, k, v = (b.cast(t, element) for t in (query, key, value))
    n = len(batch)
    scores_space = [*batch, rows, keys, depth]
    q, k, v = (_with_heads(b, x, group) for x, group in zip((q, k, v), (1, *groups), strict=True))
    leading = {x: range(n - len(extents_of(x.type)) + 2, n) for x in (q, k, v)}
    scores = contract(b, q, [*leading[q], n, n + 2], k, [*leading[k], n + 1, n + 2], scores_space, 1)
    factor = scale if scale is not None else 1 / sqrt(depth) if depth else 1.0
    scores = _masked(b, scores, factor, attn_mask, is_causal)
    p, total, _ = shifted_exp(b, scores, [n + 1], may_hide=attn_mask is not None, cancels=True)
    if dropout_p != 0:
        p, _ = dropped(b, p, dropout_p, generator)
    if b.result_element != element:
        # PyTorch's own kernels round the weights, chunk by chunk, before they multiply the values. `reassoc` permits
        # the rounding relative to the maximum of a chunk.
        p = b.cast(b.insert(payload.CastOp(p, b.result_element, reassoc=True)), element)
    space = [*batch, rows, width, keys]
    o = contract(b, p, [*range(n + 1), n + 2], v, [*leading[v], n + 2, n + 1], space, 1)
    # The result is normalised after the second matmul, so that the sum can be computed chunk by chunk. The sum is at
    # least 1, or 0 for a row without visible keys: the result of such a row is 0, as in PyTorch.
    if attn_mask is not None or least(keys) == 0:
        total = b.select(b.cmp("eq", total, 0), b.like(total, 1), total)
    return b.div(o, b.keep(total, [n + 1], extents_of(o.type)), permit=FastMathFlag.ALLOW_RECIP)


def _group_size(query: SSAValue, key: SSAValue, value: SSAValue) -> tuple[int, int]:
    """Returns the number of query heads that share a head of the keys, and of the values."""
    shapes = [extents_of(t.type) for t in (query, key, value)]
    if min(map(len, shapes)) < 3:
        raise ShapeError(
            "expected tensors with a dimension of heads, but got fewer than 3 dimensions", argument="enable_gqa"
        )
    heads, key_heads, value_heads = (s[-3] for s in shapes)
    if heads % max(key_heads, 1) or heads % max(value_heads, 1):
        raise ShapeError(
            f"expected {heads} query heads to be a multiple of the heads of keys and values, but got {key_heads} and "
            f"{value_heads}",
            argument="enable_gqa",
        )
    return heads // max(key_heads, 1), heads // max(value_heads, 1)


def _with_heads(b: Builder, x: SSAValue, group: int) -> SSAValue:
    """Returns keys or values with each head repeated `group` times."""
    shape = list(extents_of(x.type))
    if group == 1:
        return x
    exprs = dims(len(shape))
    exprs[-3] = exprs[-3] // group
    shape[-3] = fixed(shape[-3]) * group
    return b.map(x, exprs, shape)


def _masked(b: Builder, scores: SSAValue, factor: float, mask: SSAValue | None, is_causal: bool) -> SSAValue:
    """Returns the scores times the factor, with -infinity where they are masked.

    A boolean mask is added as 0 or -infinity: a masked NaN stays NaN, and a masked +infinity becomes NaN, as in
    PyTorch. With `is_causal`, the scores of later keys are replaced, as in PyTorch's fused kernels."""
    shape = extents_of(scores.type)
    low = b.like(scores, float("-inf"))
    if is_causal:
        rank = len(shape)
        seen = b.cmp("le", b.iota(rank - 1, shape), b.iota(rank - 2, shape))
        return b.select(seen, b.scaled(scores, factor), low)
    if mask is None:
        return b.scaled(scores, factor)
    if element_type(mask.type) != i1:
        return b.add(b.scaled(scores, factor), b.broadcast(b.cast(mask, element_type(scores.type)), shape))
    bias = b.select(b.broadcast(mask, shape), b.like(scores, 0), low)
    # A positive factor does not change a bias of 0 or -infinity. So the multiplication can be last, where
    # `_without_factor` finds the factor.
    return b.scaled(b.add(scores, bias), factor) if factor > 0 else b.add(b.scaled(scores, factor), bias)
