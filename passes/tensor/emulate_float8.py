"""`tensor-emulate-float8`: replaces eight-bit floats by bytes, and their conversions by integer arithmetic."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import copysign, frexp, isnan
from typing import ClassVar

import numpy as np
from xdsl.context import Context
from xdsl.dialects import arith, func, math
from xdsl.dialects.builtin import FunctionType, ModuleOp, f32, i32
from xdsl.ir import Attribute, Operation, SSAValue
from xdsl.passes import ModulePass
from xdsl.rewriter import Rewriter

from ...dialects import payload
from ...dialects.payload import element_type, is_float8, with_element
from ...dialects.support.locations import refused
from ...dialects.tensor.builder import UINT8, Builder
from ...errors import UnsupportedError

MOVING_OPS = frozenset({"payload.select", "tensor.index_map", "tensor.gather", "func.call", "func.return"})
"""Operations that may have eight-bit floats as operands or results, except conversions: they only move them."""


@dataclass(frozen=True)
class Format:
    """An eight-bit floating-point format: sign, exponent, mantissa."""

    mantissa: int
    """Bits of the mantissa."""
    exponent: int
    """Exponent of the smallest normal number."""
    largest: float
    """Numbers of this magnitude and above are encoded as `top`."""
    top: int
    """Code, without sign, of infinity, or of the largest number if the format has no infinity."""
    infinite: bool
    """True if the format has infinities."""

    @property
    def shift(self) -> int:
        """Mantissa bits of f32 that the format does not have."""
        return 23 - self.mantissa


FORMATS = {
    "f8E4M3FN": Format(mantissa=3, exponent=-6, largest=448.0, top=0x7E, infinite=False),
    "f8E5M2": Format(mantissa=2, exponent=-14, largest=65536.0, top=0x7C, infinite=True),
}
"""Source: Open Compute Project, "8-bit Floating Point Specification" (2023). E4M3 has no infinities, and PyTorch
converts to the largest number instead. E5M2 follows IEEE 754."""

_NAN = 0x7F
"""Code of NaN in both formats."""
_F32_EXPONENT = -126
"""Exponent of the smallest normal f32."""


def encoded(number: float, form: Format) -> int:
    """Returns the code of a number in an eight-bit format, rounded to nearest even, as `encode` computes it."""
    if isnan(number):
        return _NAN
    size = min(abs(number), form.largest)
    # Zero and subnormal numbers have the exponent of the smallest normal number.
    exponent = max(frexp(size)[1] - 1, form.exponent) if size else form.exponent
    units = round(size / 2.0 ** (exponent - form.mantissa))
    code = (exponent - form.exponent << form.mantissa) + units
    return code | 0x80 if copysign(1.0, number) < 0 else code


def encode(b: Builder, x: SSAValue, form: Format) -> SSAValue:
    """Returns `x` encoded in an eight-bit format, rounded to nearest even.

    Args:
        b: Builder of the operations.
        x: Tensor of f32.
        form: Format of the result.

    Returns:
        Tensor of ui8 with the shape of `x`.
    """
    # Subnormal results: the code is the number in units of the smallest subnormal.
    size = b.minimum(b.abs(x), b.like(x, form.largest))
    small = b.cast(b.math(math.RoundEvenOp, b.scaled(size, 2.0 ** (form.mantissa - form.exponent))), i32)
    # Normal results: the bits of the f32, with the exponent rebiased, lose their lowest `shift` bits. Rounding adds
    # half of the last remaining bit; the carry may reach the exponent, which is right.
    bits = b.insert(arith.BitcastOp(size, small.type))
    odd = b.both(b.math(arith.ShRSIOp, bits, b.like(bits, form.shift)), b.like(bits, 1))
    half = (1 << form.shift - 1) - 1 - (form.exponent - _F32_EXPONENT << 23)
    code = b.math(arith.ShRSIOp, b.plus(b.add(bits, odd), half), b.like(bits, form.shift))
    code = b.select(b.cmp("lt", size, 2.0**form.exponent), small, code)
    code = b.select(b.isnan(x), b.like(code, _NAN), code)
    negative = b.cmp("lt", b.math(math.CopySignOp, b.like(x, 1.0), x), 0)
    return b.cast(b.select(negative, b.plus(code, 0x80), code), UINT8)


def decode(b: Builder, bits: SSAValue, form: Format) -> SSAValue:
    """Returns the f32 numbers of an eight-bit format.

    Args:
        b: Builder of the operations.
        bits: Tensor of ui8.
        form: Format of `bits`.

    Returns:
        Tensor of f32 with the shape of `bits`.
    """
    code = b.insert(payload.CastOp(bits, i32))
    negative = b.cmp("ge", code, 0x80)
    size = b.select(negative, b.plus(code, -0x80), code)
    shifted = b.math(arith.ShLIOp, size, b.like(size, form.shift))
    value = b.insert(arith.BitcastOp(shifted, with_element(size.type, f32)))
    value = b.scaled(value, 2.0 ** (form.exponent - _F32_EXPONENT))
    if form.infinite:
        value = b.select(b.cmp("eq", size, form.top), b.like(value, float("inf")), value)
    value = b.select(b.cmp("gt", size, form.top), b.like(value, float("nan")), value)
    return b.select(negative, b.neg(value), value)


@dataclass(frozen=True)
class EmulateFloat8Pass(ModulePass):
    """Replaces eight-bit floats by the bytes they are stored as, and their conversions by integer arithmetic.

    ```mlir
    %y = payload.cast %x : tensor<4xf8E5M2> -> tensor<4xf32>
    ```
    becomes arithmetic that begins
    ```mlir
    %0 = payload.cast %x : tensor<4xui8> -> tensor<4xi32>
    %1 = payload.cmp ge %0, %2 : tensor<4xi32>
    ```

    A `payload.cast` to or from f32 becomes arithmetic that encodes (rounding to nearest even) or decodes. Constants are
    encoded by this pass. All other values of such a type become `ui8`. An operation that computes on eight-bit floats
    is refused.

    **Rationale**: they are storage types; no target computes on them outside tensor cores. As bytes, every level,
    executor and target handles them, with the same rounding.

    **Pipeline position**: after `convert-torch-to-tensor`, which converts operands to f32 before it computes. Before
    fusion, which counts the operations of encoding and decoding.
    """

    name = "tensor-emulate-float8"
    needs: ClassVar[Mapping[str, int]] = {"f8E4M3FN|f8E5M2": 1}

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        float8_ops = [o for o in op.walk() if any(is_float8(v.type) for v in (*o.operands, *o.results))]
        for inner in float8_ops:
            if not isinstance(inner, payload.CastOp) and inner.name not in MOVING_OPS:
                kind = next(element_type(v.type) for v in (*inner.operands, *inner.results) if is_float8(v.type))
                why = f"computes on {kind}, which is for storage only; convert its operands to float32 first"
                raise refused(inner, why, UnsupportedError)
        casts = [(o, o.operand.type, o.result.type) for o in float8_ops if isinstance(o, payload.CastOp)]
        for cast, source, target in casts:
            _expand(cast, source, target)
        for function in [f for f in op.walk() if isinstance(f, func.FuncOp)]:
            for block in function.body.blocks:
                _retype([*block.args, *(r for inner in block.walk() for r in inner.results)])
            inputs, outputs = function.function_type.inputs.data, function.function_type.outputs.data
            types = [_as_bytes(t) for t in inputs], [_as_bytes(t) for t in outputs]
            function.function_type = FunctionType.from_lists(*types)


def _as_bytes(t: Attribute) -> Attribute:
    return with_element(t, UINT8) if is_float8(t) else t


def _retype(values: list[SSAValue]) -> None:
    for value in values:
        if is_float8(value.type):
            Rewriter.replace_value_with_new_type(value, _as_bytes(value.type))


def _expand(op: payload.CastOp, source: Attribute, target: Attribute) -> None:
    """Replaces a conversion from or to an eight-bit float. `source` and `target` are the original types: the operand
    may be bytes already."""
    if isinstance(op.operand.owner, payload.ConstantOp) and is_float8(target):
        return Rewriter.replace_op(op, _constant(op.operand.owner, target))
    if is_float8(source) == is_float8(target) or f32 not in (element_type(source), element_type(target)):
        raise refused(
            op,
            f"expected a conversion between an eight-bit float and f32, but got {source} to {target}",
            UnsupportedError,
        )
    b = Builder(location=op.location)
    if is_float8(source):
        result = decode(b, op.operand, FORMATS[str(element_type(source))])
    else:
        result = encode(b, op.operand, FORMATS[str(element_type(target))])
    Rewriter.replace_op(op, b.ops, [result])


def _constant(op: payload.ConstantOp, target: Attribute) -> Operation:
    with np.errstate(over="ignore"):
        number = float(np.float32(op.scalar))
    return payload.ConstantOp(encoded(number, FORMATS[str(element_type(target))]), _as_bytes(target))
