"""Eight-bit floats become the bytes they are stored as."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import ml_dtypes
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

MOVES = frozenset({"payload.select", "tensor.index_map", "tensor.gather", "func.call", "func.return"})
"""What may be done to eight-bit floats besides conversions: bytes are moved like any others."""


@dataclass(frozen=True)
class Format:
    """`mantissa` bits, and the smallest `exponent` of a normal number.

    From `largest` on numbers become `top`, which is the code of infinity if there is one.
    """

    mantissa: int
    exponent: int
    largest: float
    top: int
    infinite: bool

    @property
    def shift(self) -> int:
        """How many more bits of mantissa f32 has."""
        return 23 - self.mantissa


FORMATS = {
    "f8E4M3FN": Format(mantissa=3, exponent=-6, largest=448.0, top=0x7E, infinite=False),
    "f8E5M2": Format(mantissa=2, exponent=-14, largest=65536.0, top=0x7C, infinite=True),
}
"""Open Compute Project, "8-bit Floating Point Specification" (2023). E4M3 has no infinities, and PyTorch converts to
the largest number instead; E5M2 is the scheme of IEEE."""

_NAN = 0x7F
_F32_EXPONENT = -126
"""The smallest exponent of a normal number of f32."""


def encode(b: Builder, x: SSAValue, form: Format) -> SSAValue:
    """The bytes of f32 `x`, rounded to nearest even."""
    size = b.minimum(b.abs(x), b.like(x, form.largest))
    small = b.cast(b.math(math.RoundEvenOp, b.scaled(size, 2.0 ** (form.mantissa - form.exponent))), i32)
    # The bits of f32 with another exponent, of which those behind the mantissa are rounded off: what is half or more of
    # the last one carries, into the exponent, too.
    bits = b.insert(arith.BitcastOp(size, small.type))
    odd = b.both(b.math(arith.ShRSIOp, bits, b.like(bits, form.shift)), b.like(bits, 1))
    half = (1 << form.shift - 1) - 1 - (form.exponent - _F32_EXPONENT << 23)
    code = b.math(arith.ShRSIOp, b.plus(b.add(bits, odd), half), b.like(bits, form.shift))
    code = b.select(b.cmp("lt", size, 2.0**form.exponent), small, code)
    code = b.select(b.isnan(x), b.like(code, _NAN), code)
    negative = b.cmp("lt", b.math(math.CopySignOp, b.like(x, 1.0), x), 0)
    return b.cast(b.select(negative, b.plus(code, 0x80), code), UINT8)


def decode(b: Builder, bits: SSAValue, form: Format) -> SSAValue:
    """The f32 numbers that `bits` stand for."""
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
    """Write eight-bit floats as the bytes they are stored as, and their conversions as arithmetic.

    What: a `payload.cast` between such a float and f32 becomes the arithmetic of encoding (rounding to nearest even)
    or decoding; constants are encoded here; every other value of such a type is of `ui8` from then on. Only moves may
    be left: whatever computes on them is refused.
    Why: they are storage types that no target computes on outside of tensor cores. As bytes every level below, every
    executor and every target handles them, with the same rounding.
    Why here: after `convert-torch-to-tensor`, which converts operands to f32 before it computes; fusion then sees what
    encoding and decoding cost.

    ```mlir
    %y = payload.cast %x : tensor<4xf8E5M2> -> tensor<4xf32>
    ```
    becomes arithmetic that begins
    ```mlir
    %0 = payload.cast %x : tensor<4xui8> -> tensor<4xi32>
    %1 = payload.cmp ge %0, %2 : tensor<4xi32>
    ```
    """

    name = "tensor-emulate-float8"
    needs: ClassVar[Mapping[str, int]] = {"f8E4M3FN|f8E5M2": 1}

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        found = [o for o in op.walk() if any(is_float8(v.type) for v in (*o.operands, *o.results))]
        for inner in found:
            if not isinstance(inner, payload.CastOp) and inner.name not in MOVES:
                kind = next(element_type(v.type) for v in (*inner.operands, *inner.results) if is_float8(v.type))
                raise refused(inner, f"computes on {kind}, which is for storage only", UnsupportedError)
        casts = [(o, o.operand.type, o.result.type) for o in found if isinstance(o, payload.CastOp)]
        for cast, source, target in casts:
            _expand(cast, source, target)
        for function in [f for f in op.walk() if isinstance(f, func.FuncOp)]:
            for block in function.body.blocks:
                _retype([*block.args, *(r for inner in block.walk() for r in inner.results)])
            inputs, outputs = function.function_type.inputs.data, function.function_type.outputs.data
            types = [_bits(t) for t in inputs], [_bits(t) for t in outputs]
            function.function_type = FunctionType.from_lists(*types)


def _bits(t: Attribute) -> Attribute:
    return with_element(t, UINT8) if is_float8(t) else t


def _retype(values: list[SSAValue]) -> None:
    for value in values:
        if is_float8(value.type):
            Rewriter.replace_value_with_new_type(value, _bits(value.type))


def _expand(op: payload.CastOp, source: Attribute, target: Attribute) -> None:
    """Replace a conversion from or to an eight-bit float; `source` may have become bytes by now."""
    if isinstance(op.operand.owner, payload.ConstantOp) and is_float8(target):
        return Rewriter.replace_op(op, _constant(op.operand.owner, target))
    if is_float8(source) == is_float8(target) or f32 not in (element_type(source), element_type(target)):
        raise refused(op, f"converts {source} to {target}", UnsupportedError)
    b = Builder(location=op.location)
    if is_float8(source):
        result = decode(b, op.operand, FORMATS[str(element_type(source))])
    else:
        result = encode(b, op.operand, FORMATS[str(element_type(target))])
    Rewriter.replace_op(op, b.ops, [result])


def _constant(op: payload.ConstantOp, target: Attribute) -> Operation:
    """The bytes of a constant."""
    form = FORMATS[str(element_type(target))]
    dtype = ml_dtypes.float8_e5m2 if form.infinite else ml_dtypes.float8_e4m3fn
    number = np.float32(op.value.value.data)  # pyright: ignore
    number = number if form.infinite else np.clip(number, -form.largest, form.largest)
    with np.errstate(all="ignore"):
        return payload.ConstantOp(int(number.astype(dtype).view(np.uint8)), _bits(target))
