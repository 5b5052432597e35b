"""The torch dialect: one op per ATen overload, with all arguments by their ATen names.

```
%2 = torch.add.Tensor(self = %0, other = %1, alpha = 1) : (tensor<16x64xf32>, tensor<64xf32>) -> tensor<16x64xf32>
%3 = torch.cat(tensors = [%2, %2], dim = -1) : (tensor<16x64xf32>, tensor<16x64xf32>) -> tensor<16x128xf32>
%4 = torch._to_copy(self = %3, dtype = bf16) : (tensor<16x128xf32>) -> tensor<16x128xbf16>
```

The op classes are generated from the schemas in `schemas.txt`; nothing here imports PyTorch. PyTorch's documentation
specifies the operators, and `convert-torch-to-tensor` lowers them to the tensor level.

Syntax of arguments:

- An omitted argument has its default. The printer omits only arguments whose default is `none` (Python's None).
- `1`, `1.0` and `true` are different scalars, as in PyTorch.
- A symbolic size may replace an integer: `size = [#batch, 64]`.
- A list of one number for an argument of type `int[N]` means N times that number.
"""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import ClassVar, TypeAlias

from xdsl import irdl
from xdsl.dialects import builtin
from xdsl.dialects.builtin import i64
from xdsl.ir import Attribute, Dialect, Operation, ParametrizedAttribute, SSAValue
from xdsl.parser import Parser, UnresolvedOperand
from xdsl.printer import Printer
from xdsl.traits import Pure
from xdsl.utils.exceptions import VerifyException

from ...errors import PluginError
from ...plugins import plugins
from ..payload import element_type
from ..shapes.extents import SymbolAttr, extents_of
from ..support.printing import float_text


@dataclass(frozen=True)
class Argument:
    """Argument of a schema.

    type: type as in the schema: `Tensor?[]`, `int[2]`, `Scalar?`.
    default: default value, if `has_default`.
    """

    name: str
    type: str
    default: object = None
    has_default: bool = False

    @cached_property
    def base(self) -> str:
        """Returns the type without suffixes: `Tensor`, `Scalar`, `int`, `float`, `bool`, `str`, `ScalarType`, …"""
        return self.type.partition("[")[0].rstrip("?")

    @cached_property
    def is_list(self) -> bool:
        return "[" in self.type

    @cached_property
    def optional(self) -> bool:
        return self.type.endswith("?")

    @cached_property
    def length(self) -> int:
        """Returns N of `int[N]`, to which a single integer is repeated, or 0 if the schema specifies no length."""
        size = self.type.partition("[")[2].partition("]")[0]
        return int(size) if size else 0

    def element(self) -> Argument:
        """Returns the element of this list argument, as an argument of the same name."""
        return Argument(self.name, self.type.partition("[")[0])


@dataclass(frozen=True)
class Schema:
    """Schema of an ATen overload.

    name: overload, such as `add.Tensor` or `relu`.
    arguments: arguments in order.
    results: types of the results.
    text: the schema as text.
    random: whether the operator draws random numbers. It then has an argument `generator`, a tensor of a key and a
        counter that determine all random numbers.
    """

    name: str
    arguments: tuple[Argument, ...]
    results: tuple[str, ...]
    text: str
    random: bool = False

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Returns the names of the arguments."""
        return tuple(a.name for a in self.arguments)


def read_schemas(text: str) -> dict[str, Schema]:
    """Returns name -> schema for the schemas in `text`, one per line in the format of `schemas.txt`."""
    lines = text.replace("\n    ", " ").split("\n")
    schemas = [read_schema(line) for line in lines if line and not line.startswith("#")]
    return {schema.name: schema for schema in schemas}


def read_schema(line: str) -> Schema:
    """Returns the schema in one line: `relu(Tensor self) -> Tensor`, preceded by `* ` if the operator is random."""
    random, text = line.startswith("* "), line.removeprefix("* ")
    head, _, results = text.rpartition(" -> ")
    name, _, parameters = head.partition("(")
    arguments = [_read_argument(p) for p in _split(parameters.removesuffix(")")) if p != "*"]
    if random and "generator" not in [a.name for a in arguments]:
        arguments.append(Argument("generator", "Generator?", None, True))
    outputs = _split(results[1:-1]) if results.startswith("(") else [results]
    return Schema(name, tuple(arguments), tuple(o.partition(" ")[0] for o in outputs), text, random)


def _split(text: str) -> list[str]:
    # Splits at the commas outside of brackets.
    parts = re.split(r",(?![^\[]*\])", text)
    return [p.strip() for p in parts if p.strip()]


def _read_argument(text: str) -> Argument:
    type, _, parameter = text.partition(" ")
    name, equals, default = parameter.partition("=")
    if not equals:
        return Argument(name, type)
    return Argument(name, type, _read_default(default, type), True)


def _read_default(text: str, type: str) -> object:
    if type.startswith("ScalarType") and text == "4":
        return i64
    if type.startswith("MemoryFormat") and text == "0":
        return "contiguous_format"
    value: object = ast.literal_eval(text)
    return float(value) if type.startswith("float") and isinstance(value, int) else value


Value: TypeAlias = "SSAValue | Attribute | str | int | float | bool | None | Sequence[Value]"
"""Python value of an argument: a tensor (SSA value), a data type (xDSL type), a number, a symbolic size (`SymbolAttr`),
a string, None, or a list of these."""

Leaf: TypeAlias = "SSAValue | UnresolvedOperand"


@irdl.irdl_attr_definition
class OperandAttr(ParametrizedAttribute):
    """Placeholder for the op's next operand in its list of arguments: `#torch.operand`."""

    name = "torch.operand"


@irdl.irdl_attr_definition
class NoneAttr(ParametrizedAttribute):
    """Python's None as an argument: `#torch.none`."""

    name = "torch.none"


_OPERAND = OperandAttr()
_NONE = NoneAttr()
_DTYPES = (
    builtin.Float8E4M3FNType,
    builtin.Float8E5M2Type,
    builtin.Float16Type,
    builtin.BFloat16Type,
    builtin.Float32Type,
    builtin.Float64Type,
    builtin.IntegerType,
)


def to_attribute(value: object, argument: Argument, operands: list[Leaf]) -> Attribute:
    """Returns an argument's value as an attribute.

    Args:
        value: the value.
        argument: the argument, whose type the value must have.
        operands: list to which tensors are appended.

    Raises:
        VerifyException: the value does not have the type.
    """
    if value is None and argument.optional:
        return _NONE
    convert = _list_attribute if argument.is_list else _scalar_attribute
    if (attribute := convert(value, argument, operands)) is None:
        raise VerifyException(f"expected a {argument.type} as argument {argument.name!r}, but got {_describe(value)}")
    return attribute


def _list_attribute(value: object, argument: Argument, operands: list[Leaf]) -> Attribute | None:
    values: list[object] = [value]
    if isinstance(value, list | tuple):
        values = [*value]  # pyright: ignore[reportUnknownArgumentType]
    elif not argument.length or not isinstance(value, int | float | SymbolAttr) or isinstance(value, bool):
        return None
    values = values * argument.length if len(values) == 1 and argument.length else values
    return builtin.ArrayAttr([to_attribute(v, argument.element(), operands) for v in values])


def _scalar_attribute(value: object, argument: Argument, operands: list[Leaf]) -> Attribute | None:
    base = argument.base
    if base in ("Tensor", "Generator") and isinstance(value, SSAValue | UnresolvedOperand):
        operands.append(value)  # pyright: ignore[reportUnknownArgumentType]
        return _OPERAND
    if isinstance(value, bool):
        return builtin.BoolAttr.from_bool(value) if base in ("bool", "Scalar") else None
    if isinstance(value, int | float) and (base == "float" or base == "Scalar" and isinstance(value, float)):
        return builtin.FloatAttr(float(value), builtin.f64)
    if isinstance(value, int) and base in ("int", "Scalar"):
        return builtin.IntegerAttr(value, i64)
    if isinstance(value, str) and base in ("str", "Layout", "Device", "MemoryFormat"):
        return builtin.StringAttr(value)
    is_size = isinstance(value, SymbolAttr) and base in ("int", "Scalar")
    return value if is_size or isinstance(value, _DTYPES) and base == "ScalarType" else None  # pyright: ignore


def _describe(value: object) -> str:
    if isinstance(value, SSAValue | UnresolvedOperand):
        return "a tensor"
    if value is None:
        return "none"
    return f"{value}"[:60]


def from_attribute(attribute: Attribute, operands: Iterator[SSAValue]) -> Value:
    """Returns the value of an argument from its attribute, the inverse of `to_attribute`. Tensors are taken from
    `operands`."""
    if isinstance(attribute, builtin.ArrayAttr):
        return [from_attribute(a, operands) for a in attribute]  # pyright: ignore
    if isinstance(attribute, OperandAttr):
        return next(operands)
    if isinstance(attribute, NoneAttr):
        return None
    if isinstance(attribute, builtin.IntegerAttr | builtin.FloatAttr):
        number = attribute.value.data
        return bool(number) if attribute.type == builtin.i1 else number  # pyright: ignore[reportUnknownMemberType]
    return attribute.data if isinstance(attribute, builtin.StringAttr) else attribute


class AtenOp(irdl.IRDLOperation):
    """Base class of all ops of the dialect.

    inputs: tensors, in the order in which the arguments mention them.
    arguments: one attribute for each argument of the schema; a tensor is represented by `#torch.operand`.
    outputs: results.

    Constraints: the arguments match the schema; all types are tensors of a supported data type.
    """

    SCHEMA: ClassVar[Schema]
    inputs = irdl.var_operand_def()
    arguments = irdl.prop_def(builtin.ArrayAttr)
    outputs = irdl.var_result_def()
    traits = irdl.traits_def(Pure())

    def __init__(self, arguments: Mapping[str, Value], result_types: Sequence[Attribute]):
        """Creates the op from arguments by ATen name; omitted ones have their default.

        Raises:
            VerifyException: an argument is unknown, missing, or has another type.
        """
        operands: list[SSAValue] = []
        attribute = _bind(self.SCHEMA, arguments, operands)  # pyright: ignore[reportArgumentType]
        super().__init__(operands=[operands], properties={"arguments": attribute}, result_types=[list(result_types)])

    @property
    def values(self) -> dict[str, Value]:
        """Returns ATen name -> value of all arguments, in the order of the schema."""
        operands = iter(self.operands)
        return {a: from_attribute(v, operands) for a, v in zip(self.SCHEMA.names, self.arguments, strict=True)}  # pyright: ignore

    def verify_(self) -> None:
        arguments = self.arguments.data  # pyright: ignore
        if len(arguments) != len(self.SCHEMA.arguments):  # pyright: ignore
            raise VerifyException(
                f"expected {len(self.SCHEMA.arguments)} arguments of {self.SCHEMA.name}, but got {len(arguments)}"
            )  # pyright: ignore
        if _count_operands(self.arguments) != len(self.operands):  # pyright: ignore
            raise VerifyException(
                f"expected {len(self.operands)} operands in the arguments, each once, but got"
                f" {_count_operands(self.arguments)}"
            )
        _bind(self.SCHEMA, self.values, [])
        for t in (*self.operand_types, *self.result_types):
            if not isinstance(t, builtin.TensorType) or not isinstance(element_type(t), _DTYPES):  # pyright: ignore
                raise VerifyException(f"expected a tensor of a supported data type, but got {t}")
            extents_of(t)  # pyright: ignore[reportUnknownArgumentType]
        expected = len(self.SCHEMA.results)
        if self.SCHEMA.results != ("Tensor[]",) and len(self.results) != expected:
            raise VerifyException(f"expected {expected} results of {self.SCHEMA.name}, but got {len(self.results)}")

    @classmethod
    def parse(cls, parser: Parser) -> AtenOp:
        pairs = parser.parse_comma_separated_list(parser.Delimiter.PAREN, lambda: _parse_pair(parser))
        attrs = parser.parse_optional_attr_dict()
        parser.parse_punctuation(":")
        at, types = parser.pos, parser.parse_function_type()
        arguments = dict(pairs)
        if len(arguments) != len(pairs):
            parser.raise_error(f"{cls.name}: expected each argument once, but got {[name for name, _ in pairs]}")
        leaves: list[Leaf] = []
        try:
            attribute = _bind(cls.SCHEMA, arguments, leaves)
        except VerifyException as error:
            parser.raise_error(f"{cls.name}: {error}")
        operands = parser.resolve_operands(leaves, types.inputs.data, at)  # pyright: ignore[reportArgumentType]
        properties = {"arguments": attribute}
        return cls.create(operands=operands, properties=properties, attributes=attrs, result_types=types.outputs.data)

    def print(self, printer: Printer) -> None:
        optional: set[str] = {a.name for a in self.SCHEMA.arguments if a.has_default and a.default is None}

        def pair(item: tuple[str, Value]) -> None:
            printer.print_string(f"{item[0]} = ")
            _print_value(printer, item[1])

        with printer.in_parens():
            shown = [(k, v) for k, v in self.values.items() if v is not None or k not in optional]
            printer.print_list(shown, pair)
        printer.print_op_attributes(self.attributes)
        printer.print_string(" : ")
        printer.print_function_type(self.operand_types, self.result_types)


def _bind(schema: Schema, values: Mapping[str, object], operands: list[Leaf]) -> builtin.ArrayAttr[Attribute]:
    unknown = [name for name in values if name not in schema.names]
    if unknown:
        raise VerifyException(f"expected one of the arguments {', '.join(schema.names)}, but got {unknown[0]!r}")
    attributes: list[Attribute] = []
    for argument in schema.arguments:
        if argument.name not in values and not argument.has_default:
            raise VerifyException(f"expected an argument {argument.name!r}, but got none")
        attributes.append(to_attribute(values.get(argument.name, argument.default), argument, operands))
    return builtin.ArrayAttr(attributes)


def _count_operands(attribute: Attribute) -> int:
    if isinstance(attribute, builtin.ArrayAttr):
        return sum(_count_operands(a) for a in attribute)  # pyright: ignore
    return int(isinstance(attribute, OperandAttr))


def _parse_pair(parser: Parser) -> tuple[str, object]:
    name = parser.parse_identifier()
    parser.parse_punctuation("=")
    return name, _parse_value(parser)


def _parse_value(parser: Parser) -> object:
    operand = parser.parse_optional_unresolved_operand()
    if operand is not None:
        return operand
    values = parser.parse_optional_comma_separated_list(parser.Delimiter.SQUARE, lambda: _parse_value(parser))
    if values is not None:
        return values
    text = parser.parse_optional_str_literal()
    if text is not None:
        return text
    for word, value in (("none", None), ("inf", math.inf), ("nan", math.nan), ("true", True), ("false", False)):
        if parser.parse_optional_keyword(word):
            return value
    negative = parser.parse_optional_punctuation("-") is not None
    if negative and parser.parse_optional_keyword("inf"):
        return -math.inf
    number = parser.parse_optional_number()
    if number is not None:
        return -number if negative else number
    symbol = parser.parse_optional_attribute()
    return parser.parse_type() if symbol is None else symbol


def _print_value(printer: Printer, value: Value) -> None:
    if isinstance(value, SSAValue):
        printer.print_ssa_value(value)
    elif isinstance(value, Attribute):
        printer.print_attribute(value)
    elif isinstance(value, str):
        printer.print_string_literal(value)
    elif isinstance(value, float):
        printer.print_string(float_text(value))
    elif isinstance(value, Sequence):
        with printer.in_square_brackets():
            printer.print_list(value, lambda v: _print_value(printer, v))
    else:
        # None, a boolean or an integer.
        printer.print_string(str(value).lower())


def _define(schema: Schema) -> type[AtenOp]:
    body = {"name": f"torch.{schema.name}", "__doc__": f"ATen `{schema.text}`", "__module__": __name__}
    cls = irdl.irdl_op_definition(type("".join(c if c.isalnum() else "_" for c in schema.name), (AtenOp,), body))
    cls.SCHEMA = schema
    return cls


ENTRY_POINT_GROUP = "deplodock.operators"
"""Entry point group of third-party operators. Each entry point names a string of schemas, one per line:
`library.name.overload(Tensor self) -> Tensor`, as PyTorch prints them except for a dot after the library."""


def _all_schemas() -> dict[str, Schema]:
    """Returns the schemas of ATen operators and of plugins. Raises PluginError if a plugin redefines an operator."""
    schemas = read_schemas(Path(__file__).with_name("schemas.txt").read_text(encoding="utf-8"))
    for plugin, load in plugins(ENTRY_POINT_GROUP, (), "set of operators").items():
        text: object = load()
        if not isinstance(text, str):
            raise PluginError(f"the operators {plugin!r} of a plugin are not text but {type(text).__name__}")
        new = read_schemas(text)
        if taken := sorted(schemas.keys() & new.keys()):
            raise PluginError(f"the operators {plugin!r} of a plugin redefine {taken[0]!r}")
        schemas |= new
    return schemas


SCHEMAS: dict[str, Schema] = _all_schemas()
"""Overload (`add.Tensor`) -> schema, for every operator of the dialect."""

OPS: dict[str, type[AtenOp]] = {name: _define(schema) for name, schema in SCHEMAS.items()}
"""Overload -> op class."""

_CLASSES: list[type[Operation]] = [*OPS.values()]

Torch = Dialect("torch", _CLASSES, [OperandAttr, NoneAttr])


def add_operators(text: str) -> None:
    """Adds operators of `torch.library` to the dialect, for this process.

    Args:
        text: schemas, one per line, as in an entry point of `deplodock.operators`.

    Raises:
        PluginError: an operator exists already with another schema.
    """
    for name, schema in read_schemas(text).items():
        if name in SCHEMAS and SCHEMAS[name].text != schema.text:
            raise PluginError(f"the operator {name!r} exists already: {SCHEMAS[name].text}")
        if name not in SCHEMAS:
            SCHEMAS[name], OPS[name] = schema, _define(schema)
            _CLASSES.append(OPS[name])
