"""The payload dialect: scalar operations that upstream `arith` and `math` lack on shaped types.

The *payload* of a program is its scalar computation. It uses the same ops at all levels below torch. Only the type
shows the level: `tensor<16x64xf32>` (tensor), `f32` (loop), `tensor<128x64xf32, #layout>` (tile), `vector<32xf32>`
(kernel).

Most of the payload is upstream `arith` and `math`. In xDSL 0.74, comparisons, selects, conversions and constants do not
support shaped types (`arith.cmpf` on tensors yields a scalar `i1`, dense -inf does not round-trip). This dialect has
these operations and a few that are missing upstream.

`retyped(op, operands, container)` lowers the payload from one level to the next.
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Sequence
from math import prod
from typing import ClassVar, TypeAlias

from xdsl.dialects import arith, builtin
from xdsl.dialects.builtin import (
    AnyFloat,
    BoolAttr,
    Float32Type,
    FloatAttr,
    IndexType,
    IntegerAttr,
    IntegerType,
    StringAttr,
    UnitAttr,
    i1,
)
from xdsl.dialects.utils import EnumAttribute
from xdsl.ir import Attribute, Dialect, Operation, SpacedOpaqueSyntaxAttribute, SSAValue
from xdsl.irdl import irdl_attr_definition, irdl_op_definition, operand_def, opt_prop_def, prop_def, result_def
from xdsl.parser import Parser
from xdsl.printer import Printer
from xdsl.utils.exceptions import VerifyException
from xdsl.utils.str_enum import StrEnum

from ..shapes.binding import DerivedAttr
from ..shapes.domain import DomainAttr
from ..shapes.extents import CountAttr, ExtentsAttr, SymbolAttr, extents_of, static, typical
from ..support.assembly import SAME_TYPE, DerivedTypes, ElementwiseOp, PureOp

Scalar: TypeAlias = builtin.AnyFloat | builtin.IntegerType | builtin.IndexType


def element_type(t: Attribute) -> Attribute:
    """Returns the scalar type inside `t`: `f32` for `tensor<4xf32>`, `vector<4xf32>`, `memref<4xf32>` and `f32`."""
    if isinstance(t, builtin.TensorType | builtin.VectorType | builtin.MemRefType):
        return t.element_type  # pyright: ignore[reportUnknownVariableType, reportUnknownMemberType]
    return t


def with_element(t: Attribute, element: Attribute) -> Attribute:
    """Returns `t` with another element type: `tensor<4xi1, #l>` for (`tensor<4xf32, #l>`, `i1`), `i1` for (`f32`,
    `i1`)."""
    if isinstance(t, builtin.TensorType):
        return builtin.TensorType(element, t.get_shape(), t.encoding)  # pyright: ignore[reportUnknownMemberType]
    if isinstance(t, builtin.VectorType):
        return builtin.VectorType(element, t.get_shape())
    return element


def shape_of(t: Attribute) -> tuple[int, ...]:
    """Returns the shape of a tensor or vector type, `()` for a scalar. Raises ExtentError for a symbol (see
    `extents_of`)."""
    return static(extents_of(t)) if isinstance(t, builtin.TensorType | builtin.VectorType) else ()  # pyright: ignore[reportUnknownArgumentType]


def element_bytes(t: Attribute) -> int:
    """Returns the bytes of one element of `t` in memory. An i1 has one byte, a complex number two floats."""
    e = element_type(t)
    assert isinstance(e, builtin.CompileTimeFixedBitwidthType), e
    return e.compile_time_size


def tensor_bytes(t: Attribute) -> int:
    """Returns the bytes of a tensor of type `t` in memory; an estimate if a size is symbolic."""
    return prod(map(typical, extents_of(t))) * element_bytes(t)


def same_elements(a: Attribute, b: Attribute) -> bool:
    """Returns true if two tensor or memref types have equal element types and numbers of elements."""
    return element_type(a) == element_type(b) and _count(a) == _count(b)


def _count(t: Attribute) -> tuple[int, Counter[SymbolAttr]]:
    """Returns the product of the static extents, and the symbolic ones."""
    extents = extents_of(t)
    symbols = Counter(e for e in extents if isinstance(e, SymbolAttr))
    return prod(e for e in extents if isinstance(e, int)), symbols


def is_tensor(t: Attribute) -> bool:
    """Returns true if `t` is a tensor type: a tensor or a tile."""
    return isinstance(t, builtin.TensorType)


def is_vector(t: Attribute) -> bool:
    """Returns true if `t` is a vector type: registers of a thread."""
    return isinstance(t, builtin.VectorType)


def is_float(t: Attribute) -> bool:
    """Returns true if the element type of `t` is a float of any width."""
    return isinstance(element_type(t), builtin.AnyFloat)


def is_float8(t: Attribute) -> bool:
    """Returns true if the element type of `t` is an eight-bit float, which is stored as a byte below the torch
    level."""
    return isinstance(element_type(t), builtin.Float8E4M3FNType | builtin.Float8E5M2Type)


def is_low_precision(t: Attribute) -> bool:
    """Returns true if the element type of `t` is a float narrower than 32 bits: a storage type, not one to compute
    in."""
    e = element_type(t)
    return isinstance(e, builtin.AnyFloat) and e.bitwidth < 32


class Predicate(StrEnum):
    """Comparison of two values.

    On floats, all predicates except `ne` are false if an operand is NaN. Integers are signed. On `i1`, false < true.
    """

    EQ = "eq"
    NE = "ne"
    LT = "lt"
    LE = "le"
    GT = "gt"
    GE = "ge"


@irdl_attr_definition
class PredicateAttr(EnumAttribute[Predicate], SpacedOpaqueSyntaxAttribute):
    """Attribute of a comparison: `#payload<predicate lt>`."""

    name = "payload.predicate"


@irdl_op_definition
class ConstantOp(PureOp):
    """Returns a scalar constant, or a value of any payload type with that scalar in all elements.

    ```
    %eps = payload.constant 1.0e-6 : f32
    %low = payload.constant 0xff800000 : tensor<4x8xf32>      // -inf, by its bits
    ```

    Attributes:
        value: the number.

    Constraints: the constant has the element type of the result.
    """

    name = "payload.constant"
    value = prop_def(FloatAttr | IntegerAttr)
    result = result_def()

    def __init__(self, value: float | int | bool | FloatAttr | IntegerAttr, result_type: Attribute):
        e = element_type(result_type)
        if not isinstance(value, FloatAttr | IntegerAttr):
            value = scalar_attr(value, e)
        super().__init__(value=value, result=result_type)

    @property
    def scalar(self) -> float | int:
        """Returns the constant as a Python number (`i1` as 0 or 1)."""
        if isinstance(self.value, IntegerAttr) and self.value.type == i1:
            return abs(self.value.value.data)
        return self.value.value.data

    def verify_(self) -> None:
        if self.value.type != element_type(self.result.type):
            raise VerifyException(
                f"expected a constant of the element type of {self.result.type}, but got {self.value.type}"
            )

    @classmethod
    def parse(cls, parser: Parser) -> ConstantOp:
        at = parser.pos
        bits = parser._current_token.text.startswith("0x")  # pyright: ignore[reportPrivateUsage]
        number = parser.parse_number(allow_boolean=True)
        attrs = parser.parse_optional_attr_dict()
        parser.parse_punctuation(":")
        result_type = parser.parse_type()
        e = element_type(result_type)
        if isinstance(e, AnyFloat) and isinstance(number, int) and not isinstance(number, bool):
            if not bits:
                parser.raise_error(
                    f"expected a constant of type {e} with a point, as {number}.0, or as bits, 0x..., but got {number}",
                    at,
                )
            if number >= 1 << 8 * e.size:
                parser.raise_error(f"expected at most {8 * e.size} bits of {e}, but got {number:#x}", at)
            number = e.unpack(number.to_bytes(e.size, "little"), 1)[0]
        op = cls(scalar_attr(number, e), result_type)
        op.attributes.update(attrs)
        return op

    def print(self, printer: Printer) -> None:
        printer.print_string(" ")
        if isinstance(self.value, FloatAttr):
            printer.print_float(self.value.value.data, self.value.type)  # pyright: ignore[reportArgumentType]
        elif self.value.type == i1:
            printer.print_string("true" if self.scalar else "false")
        else:
            printer.print_string(str(self.value.value.data))
        printer.print_op_attributes(self.attributes)
        printer.print_string(" : ")
        printer.print_attribute(self.result.type)


def scalar_attr(value: float | int | bool, element: Attribute) -> FloatAttr | IntegerAttr:
    """Returns `value` as an attribute of the scalar type `element`. Floats are rounded; overflow becomes an
    infinity."""
    if isinstance(element, AnyFloat):
        try:
            return FloatAttr(float(value), element)
        except (OverflowError, struct.error):
            return FloatAttr(float("inf") if value > 0 else float("-inf"), element)
    if element == i1:
        return BoolAttr.from_bool(bool(value))
    if isinstance(element, IntegerType | IndexType):
        return IntegerAttr(int(value), element)  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
    raise VerifyException(f"expected a float, integer or index type of a constant, but got {element}")


def constant_of(value: SSAValue) -> float | int | None:
    """Returns the number that all elements of `value` have if it is a constant, or None."""
    op = value.owner
    if isinstance(op, ConstantOp):
        return op.scalar
    if isinstance(op, arith.ConstantOp) and isinstance(op.value, FloatAttr | IntegerAttr):
        return op.value.value.data
    return None


@irdl_op_definition
class ExtentOp(PureOp):
    """Returns the value of a symbolic size, as a scalar or in all elements of a value of integer or index type.

    ```
    %n = payload.extent #payload.symbol<s0[1:1001]> : i64
    ```

    Attributes:
        symbol: the size.

    Constraints: the element type is an integer or index.
    """

    name = "payload.extent"
    symbol = prop_def(SymbolAttr)
    result = result_def()
    assembly_format = "qualified($symbol) attr-dict `:` type($result)"

    def verify_(self) -> None:
        if not isinstance(element_type(self.result.type), IntegerType | IndexType):
            raise VerifyException(f"expected an integer or index type, but got {self.result.type}")


class ConditionOf(DerivedTypes):
    """Assembly directive: prints the type of a value and derives the type of the condition."""

    def types_from(self, t: Attribute, parser: Parser) -> Sequence[Attribute]:
        return (with_element(t, i1),)


@irdl_op_definition
class CmpOp(PureOp):
    """Compares two values of one type elementwise. The result has the same container with element type `i1`.

    ```
    %c = payload.cmp lt %a, %b : tensor<4xf32>      // tensor<4xi1>
    ```

    Attributes:
        predicate: comparison of `lhs` with `rhs`.
    """

    name = "payload.cmp"
    custom_directives = (ConditionOf,)
    predicate = prop_def(PredicateAttr)
    lhs = operand_def(SAME_TYPE)
    rhs = operand_def(SAME_TYPE)
    result = result_def()
    assembly_format = "$predicate $lhs `,` $rhs attr-dict `:` custom<ConditionOf>(type($lhs), type($result))"

    def __init__(self, predicate: str | Predicate | PredicateAttr, lhs: SSAValue, rhs: SSAValue):
        super().__init__(predicate, lhs, rhs, with_element(lhs.type, i1))

    def verify_(self) -> None:
        if self.result.type != with_element(self.lhs.type, i1):
            raise VerifyException(
                f"expected the result type {with_element(self.lhs.type, i1)}, but got {self.result.type}"
            )


@irdl_op_definition
class SelectOp(PureOp):
    """Selects elementwise: `%c ? %a : %b`. Both values are computed.

    ```
    %r = payload.select %c, %a, %b : tensor<4xf32>      // %c : tensor<4xi1>
    ```

    Operands:
        cond: the condition.
        lhs: value where it is true.
        rhs: value where it is false.

    Constraints: the condition has the container of the values, with element type `i1`.
    """

    name = "payload.select"
    custom_directives = (ConditionOf,)
    cond = operand_def()
    lhs = operand_def(SAME_TYPE)
    rhs = operand_def(SAME_TYPE)
    result = result_def(SAME_TYPE)
    assembly_format = "$cond `,` $lhs `,` $rhs attr-dict `:` custom<ConditionOf>(type($result), type($cond))"

    def verify_(self) -> None:
        if self.cond.type != with_element(self.lhs.type, i1):
            raise VerifyException(
                f"expected a condition with the container of {self.lhs.type}, but got {self.cond.type}"
            )


@irdl_op_definition
class CastOp(PureOp):
    """Converts between scalar types elementwise, as C and PyTorch's `to(dtype)` do.

    ```
    %y = payload.cast %x : tensor<4xf32> -> tensor<4xbf16>
    %z = payload.cast %x reassoc : tensor<4xf32> -> tensor<4xbf16>
    ```

    - float to float: rounds to nearest even.
    - float to integer: truncates toward zero.
    - integer to float: rounds.
    - integer to wider integer: sign-extends (`i1` counts as 0 or 1); to narrower integer: wraps.
    - anything to `i1`: `x != 0`.

    Attributes:
        reassoc: permits to multiply the result of the conversion instead of its operand. So a sum in chunks may round
            the terms of each chunk before it rescales them, as PyTorch's attention kernels do.

    Constraints: shapes are equal; `reassoc` needs floats.
    """

    name = "payload.cast"
    operand = operand_def()
    reassoc = opt_prop_def(UnitAttr)
    result = result_def()
    assembly_format = "$operand (`reassoc` $reassoc^)? attr-dict `:` type($operand) `->` type($result)"

    def __init__(self, operand: SSAValue, element: Attribute, *, reassoc: bool = False):
        """`element` is the scalar type to convert to, or a type that contains it."""
        super().__init__(operand, reassoc, with_element(operand.type, element_type(element)))

    def verify_(self) -> None:
        if with_element(self.operand.type, i1) != with_element(self.result.type, i1):
            raise VerifyException(
                f"expected a result with the shape of {self.operand.type}, but got {self.result.type}"
            )
        if self.reassoc is not None and not (is_float(self.operand.type) and is_float(self.result.type)):
            raise VerifyException(f"expected floats with `reassoc`, but got {self.operand.type} and {self.result.type}")


class _FloatBinaryOp(PureOp):
    lhs = operand_def(SAME_TYPE)
    rhs = operand_def(SAME_TYPE)
    result = result_def(SAME_TYPE)
    assembly_format = "$lhs `,` $rhs attr-dict `:` type($result)"
    INTEGERS: ClassVar = ""

    def verify_(self) -> None:
        if not is_float(self.lhs.type):
            kind = self.name.removeprefix("payload.")
            raise VerifyException(f"expected floats as operands of {kind}, but got {self.lhs.type}{self.INTEGERS}")


@irdl_op_definition
class FmodOp(_FloatBinaryOp):
    """Returns the remainder of truncating division, with the sign of the dividend, as C's `fmod`.

    ```
    %r = payload.fmod %a, %b : f32
    ```

    Constraints: the operands are floats.
    """

    name = "payload.fmod"
    INTEGERS: ClassVar = "; for integers use arith.remsi"


@irdl_op_definition
class LogAddExpOp(_FloatBinaryOp):
    """Returns log(exp(lhs) + exp(rhs)) without overflow: the sum of numbers that are stored as logarithms.

    ```
    %r = payload.logaddexp %a, %b : f32
    ```

    -inf represents zero.

    Constraints: the operands are floats.
    """

    name = "payload.logaddexp"


@irdl_op_definition
class RoundTf32Op(PureOp):
    """Rounds f32 to tf32, with 10 bits of fraction, in an f32. Ties round away from zero (PTX `cvt.rna.tf32`).

    ```
    %r = payload.round_tf32 %a : tensor<4xf32>
    ```

    Tensor cores ignore the other 13 bits of an operand, so without this op it is truncated.

    Constraints: the element type is f32.
    """

    name = "payload.round_tf32"
    operand = operand_def(SAME_TYPE)
    result = result_def(SAME_TYPE)
    assembly_format = "$operand attr-dict `:` type($result)"

    def verify_(self) -> None:
        if not isinstance(element_type(self.operand.type), Float32Type):
            raise VerifyException(f"expected f32 to round to tf32, but got {self.operand.type}")


@irdl_op_definition
class CombineBf16x3Op(PureOp):
    """Returns the sum of three parts of an f32, in descending order of magnitude. The sum is exact.

    ```
    %x = payload.combine_bf16x3 %first, %second, %third : f32
    ```

    The second part is the rest after the first one, the third the rest after both. So later parts are known to be
    small, unlike the operands of plain additions, and matmuls of some pairs of parts need not be computed.

    Constraints: the element type is f32.
    """

    name = "payload.combine_bf16x3"
    first = operand_def(SAME_TYPE)
    second = operand_def(SAME_TYPE)
    third = operand_def(SAME_TYPE)
    result = result_def(SAME_TYPE)
    assembly_format = "$first `,` $second `,` $third attr-dict `:` type($result)"

    def verify_(self) -> None:
        if not isinstance(element_type(self.result.type), Float32Type):
            raise VerifyException(f"expected parts of f32, but got {self.result.type}")


@irdl_op_definition
class AssertOp(PureOp):
    """Returns the integer `value` elementwise if the condition holds; otherwise stops the program with a message.

    ```
    %j = payload.assert %i where %legal, "aten.embedding: an index is outside [0, 100)" at "model.py:7" : tensor<5xi64>
    ```

    The message includes the integer. Because users read the integer through the assertion, it is cloned, moved and
    hoisted like other payload, and unused assertions are erased. It is also computed in lanes outside of a tensor
    (tails, borders). A pass that creates such lanes must make the condition true there.

    Operands:
        value: integer that is returned.
        condition: the program stops where it is false (`where`).

    Attributes:
        message: text of the error.
        place: source line (`at`), optional. It is part of the computation: kernels that differ in it are different.

    Constraints: the value is an integer or index; the condition has its container, with element type `i1`.
    """

    name = "payload.assert"
    custom_directives = (ConditionOf,)
    value = operand_def(SAME_TYPE)
    condition = operand_def()
    message = prop_def(StringAttr)
    place = opt_prop_def(StringAttr)
    result = result_def(SAME_TYPE)
    assembly_format = (
        "$value `where` $condition `,` $message (`at` $place^)? attr-dict"
        " `:` custom<ConditionOf>(type($value), type($condition))"
    )

    @property
    def text(self) -> str:
        """Returns the message, preceded by its source line."""
        return self.message.data if self.place is None else f"{self.place.data}: {self.message.data}"

    def verify_(self) -> None:
        if not isinstance(element_type(self.value.type), IntegerType | IndexType):
            raise VerifyException(f"expected an integer or index to assert, but got {self.value.type}")
        if self.condition.type != with_element(self.value.type, i1):
            raise VerifyException(
                f"expected a condition with the container of {self.value.type}, but got {self.condition.type}"
            )


def is_payload(op: Operation) -> bool:
    """Returns true if `op` is elementwise scalar computation, the same at all levels below torch."""
    is_upstream = op.name.startswith(("payload.", "arith.", "math."))
    return (is_upstream or isinstance(op, ElementwiseOp)) and not op.regions


def retyped(op: Operation, operands: Sequence[SSAValue], container: Attribute) -> Operation:
    """Returns a copy of the payload operation `op` on other operands, with results in another container.

    Args:
        op: the operation.
        operands: operands of the new level.
        container: a payload type of the new level, whose element type is ignored: `f32` for scalars, `tensor<4x8xf32,
            #l>` for tiles, `vector<8xf32>` for registers.
    """
    types = [with_element(container, element_type(r.type)) for r in op.results]
    new = type(op).create(
        operands=operands,
        result_types=types,
        properties=dict(op.properties),
        attributes=dict(op.attributes),
        location=op.location,
    )
    for old, result in zip(op.results, new.results, strict=True):
        result.name_hint = old.name_hint
    return new


Payload = Dialect(
    "payload",
    [ConstantOp, ExtentOp, CmpOp, SelectOp, CastOp, FmodOp, LogAddExpOp, RoundTf32Op, CombineBf16x3Op, AssertOp],
    [PredicateAttr, DomainAttr, SymbolAttr, ExtentsAttr, CountAttr, DerivedAttr],
)
