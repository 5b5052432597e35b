"""The payload dialect: the scalar operations that upstream `arith` and `math` lack on shaped types.

Scalar computation is written once and survives from the tensor level to CUDA; only the *type* says at which level a
value lives: `tensor<16x64xf32>` (tensor), `f32` (loop), `tensor<128x64xf32, #layout>` (tile), `vector<32xf32>`
(kernel).
Most of it is upstream `arith`/`math`. In xDSL 0.74 comparison, selection, conversion and constants fall short on shaped
types (`arith.cmpf` on tensors yields a scalar `i1`, dense -inf does not round-trip); this dialect holds exactly those.

Lowering the payload between levels is one operation: `retyped(op, operands, container)`.
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
    """The scalar type inside `t`: `f32` of `tensor<4xf32>`, `vector<4xf32>`, `memref<4xf32>` and `f32`."""
    if isinstance(t, builtin.TensorType | builtin.VectorType | builtin.MemRefType):
        return t.element_type  # pyright: ignore[reportUnknownVariableType, reportUnknownMemberType]
    return t


def with_element(t: Attribute, element: Attribute) -> Attribute:
    """`t` with another scalar inside: `tensor<4xi1, #l>` of (`tensor<4xf32, #l>`, `i1`), and `i1` of (`f32`, `i1`)."""
    if isinstance(t, builtin.TensorType):
        return builtin.TensorType(element, t.get_shape(), t.encoding)  # pyright: ignore[reportUnknownMemberType]
    if isinstance(t, builtin.VectorType):
        return builtin.VectorType(element, t.get_shape())
    return element


def shape_of(t: Attribute) -> tuple[int, ...]:
    """The shape of a tensor or vector type; `()` for a scalar. Raises ExtentError for a size known only at run
    time: `extents_of` is for places that take those."""
    return static(extents_of(t)) if isinstance(t, builtin.TensorType | builtin.VectorType) else ()  # pyright: ignore[reportUnknownArgumentType]


def element_bytes(t: Attribute) -> int:
    """The size in memory of one element of `t`; a boolean takes a byte, a complex number two floats."""
    e = element_type(t)
    assert isinstance(e, builtin.CompileTimeFixedBitwidthType), e
    return e.compile_time_size


def tensor_bytes(t: Attribute) -> int:
    """The size in memory of a whole tensor of type `t`; an estimate where a size is known only at run time."""
    return prod(map(typical, extents_of(t))) * element_bytes(t)


def same_elements(a: Attribute, b: Attribute) -> bool:
    """Whether tensors or memrefs of the types `a` and `b` have as many elements of the same type, so that one can be
    seen as the other."""
    return element_type(a) == element_type(b) and _count(a) == _count(b)


def _count(t: Attribute) -> tuple[int, Counter[SymbolAttr]]:
    """The product of the extents of `t` that are numbers, and the others."""
    extents = extents_of(t)
    symbols = Counter(e for e in extents if isinstance(e, SymbolAttr))
    return prod(e for e in extents if isinstance(e, int)), symbols


def is_tensor(t: Attribute) -> bool:
    """Whether `t` is a tensor type: a tensor, or a tile."""
    return isinstance(t, builtin.TensorType)


def is_vector(t: Attribute) -> bool:
    """Whether `t` is a vector type: registers of a thread."""
    return isinstance(t, builtin.VectorType)


def is_float(t: Attribute) -> bool:
    """Whether the scalar inside `t` is a float of any width."""
    return isinstance(element_type(t), builtin.AnyFloat)


def is_float8(t: Attribute) -> bool:
    """Whether the scalar inside `t` is a float of eight bits, which below the torch level is stored as a byte."""
    return isinstance(element_type(t), builtin.Float8E4M3FNType | builtin.Float8E5M2Type)


def is_low_precision(t: Attribute) -> bool:
    """Whether the scalar inside `t` is a float narrower than 32 bits: a storage type, on which nothing is computed."""
    e = element_type(t)
    return isinstance(e, builtin.AnyFloat) and e.bitwidth < 32


class Predicate(StrEnum):
    """How two values are compared. On floats all but `ne` are false when an operand is NaN; integers are signed, on
    `i1` false < true."""

    EQ = "eq"
    NE = "ne"
    LT = "lt"
    LE = "le"
    GT = "gt"
    GE = "ge"


@irdl_attr_definition
class PredicateAttr(EnumAttribute[Predicate], SpacedOpaqueSyntaxAttribute):
    """`#payload<predicate lt>`"""

    name = "payload.predicate"


@irdl_op_definition
class ConstantOp(PureOp):
    """The same scalar everywhere in a value of any payload type.

    ```
    %eps = payload.constant 1.0e-6 : f32
    %low = payload.constant 0xff800000 : tensor<4x8xf32>      // -inf, by its bits
    ```
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
        """The constant as a Python number (`i1` as 0 or 1)."""
        if isinstance(self.value, IntegerAttr) and self.value.type == i1:
            return abs(self.value.value.data)
        return self.value.value.data

    def verify_(self) -> None:
        if self.value.type != element_type(self.result.type):
            raise VerifyException(f"constant of type {self.value.type} in a result of type {self.result.type}")

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
                    f"a constant of type {e} is written with a point, as {number}.0, or as bits, 0x...", at
                )
            if number >= 1 << 8 * e.size:
                parser.raise_error(f"{number:#x} has more bits than {e}", at)
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
    """`value` as an attribute of the scalar type `element`; a float is rounded to it (overflow gives an infinity)."""
    if isinstance(element, AnyFloat):
        try:
            return FloatAttr(float(value), element)
        except (OverflowError, struct.error):
            return FloatAttr(float("inf") if value > 0 else float("-inf"), element)
    if element == i1:
        return BoolAttr.from_bool(bool(value))
    if isinstance(element, IntegerType | IndexType):
        return IntegerAttr(int(value), element)  # pyright: ignore[reportUnknownVariableType, reportUnknownArgumentType]
    raise VerifyException(f"no constant of type {element}")


def constant_of(value: SSAValue) -> float | int | None:
    """Returns the number that `value` is everywhere, or None if no constant says so."""
    op = value.owner
    if isinstance(op, ConstantOp):
        return op.scalar
    if isinstance(op, arith.ConstantOp) and isinstance(op.value, FloatAttr | IntegerAttr):
        return op.value.value.data
    return None


@irdl_op_definition
class ExtentOp(PureOp):
    """The value of a size that is known only at run time, everywhere in a value of any integer or index payload type.

    ```
    %n = payload.extent #payload.symbol<s0[1:1001]> : i64
    ```
    """

    name = "payload.extent"
    symbol = prop_def(SymbolAttr)
    result = result_def()
    assembly_format = "qualified($symbol) attr-dict `:` type($result)"

    def verify_(self) -> None:
        if not isinstance(element_type(self.result.type), IntegerType | IndexType):
            raise VerifyException(f"a size is an integer or an index, not {self.result.type}")


class ConditionOf(DerivedTypes):
    """The type of a value; that of the condition follows from it."""

    def types_from(self, t: Attribute, parser: Parser) -> Sequence[Attribute]:
        return (with_element(t, i1),)


@irdl_op_definition
class CmpOp(PureOp):
    """Elementwise comparison of two values of one type; the result has the same container with element `i1`.

    ```
    %c = payload.cmp lt %a, %b : tensor<4xf32>      // tensor<4xi1>
    ```
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
            raise VerifyException(f"comparing {self.lhs.type} gives {with_element(self.lhs.type, i1)}")


@irdl_op_definition
class SelectOp(PureOp):
    """`%c ? %a : %b`, elementwise; both sides are computed. The condition has the container of the values.

    ```
    %r = payload.select %c, %a, %b : tensor<4xf32>      // %c : tensor<4xi1>
    ```
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
            raise VerifyException(f"the condition of a select of {self.lhs.type} is {self.cond.type}")


@irdl_op_definition
class CastOp(PureOp):
    """Conversion between scalar types, elementwise, with C's meaning as PyTorch's `to(dtype)` has it.

    float to float rounds to nearest even; float to integer truncates toward zero; integer to float rounds; a wider
    integer is sign-extended (`i1` counts as 0 or 1), a narrower one wraps; anything to `i1` is `x != 0`.

    `reassoc` is a permission: floats may be rounded before or after they are scaled, whatever is easier to compute. So
    the terms of a sum that is computed in chunks may be rounded chunk by chunk.

    ```
    %y = payload.cast %x : tensor<4xf32> -> tensor<4xbf16>
    %z = payload.cast %x reassoc : tensor<4xf32> -> tensor<4xbf16>
    ```
    """

    name = "payload.cast"
    operand = operand_def()
    reassoc = opt_prop_def(UnitAttr)
    result = result_def()
    assembly_format = "$operand (`reassoc` $reassoc^)? attr-dict `:` type($operand) `->` type($result)"

    def __init__(self, operand: SSAValue, element: Attribute, *, reassoc: bool = False):
        """`element` is the scalar type to convert to."""
        super().__init__(operand, reassoc, with_element(operand.type, element_type(element)))

    def verify_(self) -> None:
        if with_element(self.operand.type, i1) != with_element(self.result.type, i1):
            raise VerifyException(f"casts {self.operand.type} to {self.result.type}: the shapes differ")
        if self.reassoc is not None and not (is_float(self.operand.type) and is_float(self.result.type)):
            raise VerifyException(f"{self.operand.type} is not rounded to {self.result.type}")


class _FloatBinaryOp(PureOp):
    lhs = operand_def(SAME_TYPE)
    rhs = operand_def(SAME_TYPE)
    result = result_def(SAME_TYPE)
    assembly_format = "$lhs `,` $rhs attr-dict `:` type($result)"
    INTEGERS: ClassVar = ""

    def verify_(self) -> None:
        if not is_float(self.lhs.type):
            kind = self.name.removeprefix("payload.")
            raise VerifyException(f"{kind} of {self.lhs.type}: only floats{self.INTEGERS}")


@irdl_op_definition
class FmodOp(_FloatBinaryOp):
    """C's `fmod`: the remainder of a truncating division, with the sign of the dividend.

    ```
    %r = payload.fmod %a, %b : f32
    ```
    """

    name = "payload.fmod"
    INTEGERS: ClassVar = " (integers have arith.remsi)"


@irdl_op_definition
class LogAddExpOp(_FloatBinaryOp):
    """log(exp(lhs) + exp(rhs)) without overflow: addition of numbers that are stored as logarithms. -inf is the zero.

    ```
    %r = payload.logaddexp %a, %b : f32
    ```
    """

    name = "payload.logaddexp"


@irdl_op_definition
class RoundTf32Op(PureOp):
    """The nearest number with 10 bits of fraction (tf32), still in f32; halves go away from zero: `cvt.rna.tf32`.

    What tensor cores multiply of an f32: they ignore the other 13 bits, so that without this a factor is cut.

    ```
    %r = payload.round_tf32 %a : tensor<4xf32>
    ```
    """

    name = "payload.round_tf32"
    operand = operand_def(SAME_TYPE)
    result = result_def(SAME_TYPE)
    assembly_format = "$operand attr-dict `:` type($result)"

    def verify_(self) -> None:
        if not isinstance(element_type(self.operand.type), Float32Type):
            raise VerifyException(f"rounds {self.operand.type} to tf32: only f32")


@irdl_op_definition
class CombineBf16x3Op(PureOp):
    """The sum of three numbers of which each is what the ones before it leave of an f32: the largest first.

    Adding them is exact. What is known beside a sum is how small the later ones are, so that products of some pairs of
    parts need not be computed.

    ```
    %x = payload.combine_bf16x3 %first, %second, %third : f32
    ```
    """

    name = "payload.combine_bf16x3"
    first = operand_def(SAME_TYPE)
    second = operand_def(SAME_TYPE)
    third = operand_def(SAME_TYPE)
    result = result_def(SAME_TYPE)
    assembly_format = "$first `,` $second `,` $third attr-dict `:` type($result)"

    def verify_(self) -> None:
        if not isinstance(element_type(self.result.type), Float32Type):
            raise VerifyException(f"joins parts to {self.result.type}: only f32 has some")


@irdl_op_definition
class AssertOp(PureOp):
    """The integer itself, elementwise, where the condition holds; where it does not, the program stops and says the
    message and the integer.

    The integer goes through, so that whatever needs it needs the assertion: it is cloned, moved and hoisted as any
    other payload, and what nobody needs is not asserted. The condition has the container of the integer. It is also
    computed where there is no element, in lanes behind the end of a tensor and in front of a border: whoever makes such
    lanes lets it hold there.

    ```
    %j = payload.assert %i where %legal, "aten.embedding: an index is outside [0, 100)" at "model.py:7" : tensor<5xi64>
    ```
    The place is part of what is computed: kernels that differ in it alone say something else.
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
        """The message behind its place."""
        return self.message.data if self.place is None else f"{self.place.data}: {self.message.data}"

    def verify_(self) -> None:
        if not isinstance(element_type(self.value.type), IntegerType | IndexType):
            raise VerifyException(f"asserts something of {self.value.type}: only integers")
        if self.condition.type != with_element(self.value.type, i1):
            raise VerifyException(f"the condition on {self.value.type} is {self.condition.type}")


def is_payload(op: Operation) -> bool:
    """Whether `op` is elementwise scalar computation, written alike at all levels."""
    own = op.name.startswith(("payload.", "arith.", "math."))
    return (own or isinstance(op, ElementwiseOp)) and not op.regions


def retyped(op: Operation, operands: Sequence[SSAValue], container: Attribute) -> Operation:
    """The payload operation `op` on other operands, its results in another container.

    This is the whole lowering of the payload between two levels: `container` is any payload type of the new container
    (its element is ignored): an `f32` makes scalars, `tensor<4x8xf32, #l>` tiles, `vector<8xf32>` register arrays.
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
