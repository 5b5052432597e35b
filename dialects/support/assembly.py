"""Assembly-format directives that the dialects share, and op builders derived from op definitions.

An operation that lists `DIRECTIVES` as its `custom_directives` uses them in its `assembly_format`:

| directive | text |
|---|---|
| `custom<Int>($n)` | an `IntAttr`, `4` |
| `custom<Bases>($regs)` | basis vectors, `[[0, 1], [8, 0]]` |
| `custom<Extents>($extents)` | numbers and symbols, `[16, #s0]` |
| `custom<Counts>($grid)` | numbers of tiles, `[#s0 / 64, 32]` |
| `custom<Checks>($checks, $lower, $upper)` | values and their bounds, `0 <= %i < 100 and 2 <= %j < #s0` |
| `custom<Arguments>(ref($body))` | the block arguments of a region with their types, `(%x: f32)` |
| `custom<Buffers>(ref($body))` | the arguments that are not indices |
| `custom<Indices>(ref($body))` | the arguments that are indices, without types, `(%i, %j)` |
| `custom<Body>($body)` | the region itself, whose arguments precede it |
| `custom<DefinedTypes>(type($a))` | nothing: a list of operands has the types of their definitions |

The constructor of a `FormattedOp` takes operands, properties and regions by name, or by position in the order of the
format (of the declarations, without a format). The types of results follow; they may be omitted if operand constraints
determine them. Properties are Python values: numbers, words, lists of them, affine maps, enum members. `None`, and
`False` for a flag, omit an optional property:

```
ReduceRegistersOp("add", x, [0, 1])        ShuffleXorOp(x, 16)
```
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, ClassVar, cast

from xdsl.dialects import builtin
from xdsl.dialects.builtin import ArrayAttr, DenseArrayBase, IndexType, IntAttr, StringAttr, i64
from xdsl.dialects.utils import EnumAttribute
from xdsl.ir import Attribute, Operation, SSAValue
from xdsl.irdl import AnyAttr, IRDLOperation, VarConstraint, VarOperandDef, VerificationContext, traits_def
from xdsl.irdl.declarative_assembly_format import (
    AttributeVariable,
    CustomDirective,
    OptionalOperandVariable,
    ParsingState,
    PrintingState,
    RegionVariable,
    TypeDirective,
    VariadicOperandVariable,
    irdl_custom_directive,
)
from xdsl.parser import Parser, UnresolvedOperand
from xdsl.printer import Printer
from xdsl.traits import MemoryReadEffect, MemoryWriteEffect, OpTrait, Pure
from xdsl.utils.exceptions import VerifyException
from xdsl.utils.hints import isa

from ..layouts import BASES
from ..shapes.extents import COUNT, EXTENT
from .access import ACCESS_DIRECTIVES, OptionalDirective
from .attribute_format import INT, Parameter, listed


def _kind_of(element: object) -> type[Attribute]:
    return IntAttr if isinstance(element, int) else StringAttr if isinstance(element, str) else ArrayAttr


def attribute_of(value: Any, kind: type[Attribute]) -> Attribute | None:
    """Returns `value` as an attribute of class `kind`, or None for a flag that is not set. Raises TypeError."""
    if value is None or isinstance(value, Attribute):
        return value
    if kind is builtin.UnitAttr:
        return builtin.UnitAttr() if value else None
    # Packs the numbers directly, because a tile may have tens of thousands of registers.
    if kind is builtin.DenseArrayBase:
        return builtin.DenseArrayBase(builtin.i64, builtin.BytesAttr(builtin.i64.pack([*value])))
    if kind is builtin.ArrayAttr:
        return ArrayAttr([cast(Attribute, attribute_of(v, _kind_of(v))) for v in value])
    if issubclass(kind, EnumAttribute):
        value = kind.enum_type(value)
    elif kind not in (IntAttr, StringAttr, builtin.SymbolRefAttr, builtin.AffineMapAttr):
        raise TypeError(f"expected a {kind.name}, but got {value!r}")
    return cast(Any, kind)(value)


@cache
def _parameters(op: type[IRDLOperation]) -> tuple[tuple[str, ...], dict[str, type[Attribute]]]:
    """Returns the names of the parameters of an op's constructor, in order, and the attribute class of every
    property."""
    definition = op.get_irdl_definition()
    properties: dict[str, type[Attribute]] = {}
    for name, (ir_name, kind) in definition.accessor_names.items():
        if kind == "property":
            properties[name] = next(iter(definition.properties[ir_name].constr.get_bases() or ()), Attribute)
    fields = [*(name for name, _ in (*definition.operands, *definition.regions)), *properties]
    declared = [name for base in reversed(op.mro()) for name in vars(base) if name in fields]
    named = re.findall(r"(?<!type\()(?<!ref\()\$(\w+)", definition.assembly_format or "")
    results = [name for name, _ in definition.results]
    return (*dict.fromkeys([*(n for n in named if n in fields), *declared]), *results), properties


def definitions(dialect: str, names: Mapping[str, Any]) -> tuple[list[type[Operation]], list[type[Attribute]]]:
    """Returns the op classes and attribute classes of a dialect among `names`, the globals of its package."""
    members = [
        v for v in names.values() if isinstance(v, type) and str(getattr(v, "name", "")).startswith(f"{dialect}.")
    ]
    return [o for o in members if issubclass(o, Operation)], [a for a in members if issubclass(a, Attribute)]


@irdl_custom_directive
class _AttributeDirective(OptionalDirective):
    """Directive for the text of one attribute."""

    PARAMETER: ClassVar[Parameter]
    attribute: AttributeVariable

    def parse(self, parser: Parser, state: ParsingState) -> None:
        self.attribute.set(state, self.PARAMETER.read(parser))  # pyright: ignore[reportArgumentType]

    def print(self, printer: Printer, state: PrintingState, op: IRDLOperation) -> None:
        state.print_whitespace(printer)
        if (attribute := self.attribute.get(op)) is not None:
            self.PARAMETER.write(printer, attribute)


class Int(_AttributeDirective):
    """Directive for a number: `4`."""

    PARAMETER = INT


class Bases(_AttributeDirective):
    """Directive for basis vectors: `[[0, 1], [8, 0]]`."""

    PARAMETER = BASES


class Extents(_AttributeDirective):
    """Directive for extents: `[16, #s0]`."""

    PARAMETER = listed(EXTENT, Parser.Delimiter.SQUARE)


class Counts(_AttributeDirective):
    """Directive for numbers of tiles: `[#s0 / 64, 32]`."""

    PARAMETER = listed(COUNT, Parser.Delimiter.SQUARE)


@irdl_custom_directive
class Checks(OptionalDirective):
    """Directive for values with bounds: `0 <= %i < 100 and 2 <= %j < #s0`."""

    checks: VariadicOperandVariable
    lower: AttributeVariable
    upper: AttributeVariable

    def set_empty(self, state: ParsingState) -> None:
        self.checks.set(state, ())

    def parse(self, parser: Parser, state: ParsingState) -> None:
        checks, lower, upper = list[UnresolvedOperand](), list[Attribute](), list[Attribute]()
        while not checks or parser.parse_optional_keyword("and") is not None:
            lower.append(IntAttr(parser.parse_integer()))
            parser.parse_punctuation("<")
            parser.parse_punctuation("=")
            checks.append(parser.parse_unresolved_operand())
            parser.parse_punctuation("<")
            upper.append(EXTENT.read(parser))  # pyright: ignore[reportArgumentType]
        self.checks.set(state, checks)
        self.lower.set(state, ArrayAttr(lower))
        self.upper.set(state, ArrayAttr(upper))

    def print(self, printer: Printer, state: PrintingState, op: IRDLOperation) -> None:
        lower, upper = self.lower.get(op), self.upper.get(op)
        assert isa(lower, ArrayAttr[IntAttr])
        assert isa(upper, ArrayAttr[Attribute])
        state.print_whitespace(printer)

        def check(part: tuple[IntAttr, SSAValue, Attribute]) -> None:
            printer.print_string(f"{part[0].data} <= ")
            printer.print_ssa_value(part[1])
            printer.print_string(" < ")
            EXTENT.write(printer, part[2])

        printer.print_list(list(zip(lower, self.checks.get(op), upper, strict=True)), check, " and ")


def _arguments(state: ParsingState) -> list[Parser.Argument]:
    return vars(state).setdefault("arguments", [])


@irdl_custom_directive
class _ArgumentsDirective(CustomDirective, ABC):
    """Directive for block arguments of a region, before it."""

    body: RegionVariable

    def parse(self, parser: Parser, state: ParsingState) -> None:
        arguments = parser.parse_comma_separated_list(parser.Delimiter.PAREN, lambda: self.read(parser))
        _arguments(state).extend(arguments)

    def print(self, printer: Printer, state: PrintingState, op: IRDLOperation) -> None:
        state.print_whitespace(printer)
        with printer.in_parens():
            printer.print_list(self.written(self.body.get(op).block.args), lambda a: self.write(printer, a))

    def read(self, parser: Parser) -> Parser.Argument:
        return parser.parse_argument()

    def written(self, arguments: Sequence[SSAValue]) -> Sequence[SSAValue]:
        return arguments

    def write(self, printer: Printer, argument: SSAValue) -> None:
        printer.print_block_argument(argument)  # pyright: ignore[reportArgumentType]


class Arguments(_ArgumentsDirective):
    """Directive for all block arguments: `(%x: memref<4xf32>, %y: f32)`."""


class Buffers(_ArgumentsDirective):
    """Directive for the block arguments that are not indices: `(%x: memref<4xf32>)`."""

    def written(self, arguments: Sequence[SSAValue]) -> Sequence[SSAValue]:
        return [a for a in arguments if a.type != IndexType()]


class Indices(_ArgumentsDirective):
    """Directive for the block arguments that are indices: `(%i, %j)`."""

    def read(self, parser: Parser) -> Parser.Argument:
        return parser.parse_argument(expect_type=False).resolve(IndexType())

    def written(self, arguments: Sequence[SSAValue]) -> Sequence[SSAValue]:
        return [a for a in arguments if a.type == IndexType()]

    def write(self, printer: Printer, argument: SSAValue) -> None:
        printer.print_ssa_value(argument)


@irdl_custom_directive
class Body(CustomDirective):
    """Directive for a region whose arguments, if any, precede it."""

    body: RegionVariable

    def parse(self, parser: Parser, state: ParsingState) -> None:
        self.body.set(state, parser.parse_region(_arguments(state)))
        vars(state)["arguments"] = []

    def print(self, printer: Printer, state: PrintingState, op: IRDLOperation) -> None:
        state.print_whitespace(printer)
        printer.print_region(self.body.get(op), print_entry_block_args=False, print_empty_block=False)


@irdl_custom_directive
class DefinedTypes(CustomDirective):
    """Directive without text: the operands of a list, or an optional one, have the types of their definitions."""

    types: TypeDirective

    def parse(self, parser: Parser, state: ParsingState) -> None:
        assert isinstance(self.types.inner, VariadicOperandVariable | OptionalOperandVariable)
        types = list[Attribute]()
        for operand in cast(Sequence[UnresolvedOperand], state.operands[self.types.inner.index] or ()):
            values = parser.ssa_values.get(operand.operand_name, ())
            if operand.index >= len(values):
                parser.raise_error(f"unknown value %{operand.operand_name}", operand.span)
            types.append(values[operand.index].type)
        self.types.set(state, types)

    def print(self, printer: Printer, state: PrintingState, op: IRDLOperation) -> None:
        # The types are not printed, because they follow from the definitions.
        pass


@irdl_custom_directive
class DerivedTypes(CustomDirective, ABC):
    """Directive for the type of one value (`source`), from which the parser derives other types (`derived`)."""

    source: TypeDirective
    derived: TypeDirective

    def parse(self, parser: Parser, state: ParsingState) -> None:
        t = parser.parse_type()
        self.source.set(state, (t,))
        self.derived.set(state, self.types_from(t, parser))

    @abstractmethod
    def types_from(self, t: Attribute, parser: Parser) -> Sequence[Attribute]:
        """Returns the types that follow from `t`. Raises a parser error for an illegal type."""

    def print(self, printer: Printer, state: PrintingState, op: IRDLOperation) -> None:
        state.print_whitespace(printer)
        printer.print_list(self.source.get(op), printer.print_attribute)


DIRECTIVES = (Int, Bases, Extents, Counts, Checks, Arguments, Buffers, Indices, Body, DefinedTypes, *ACCESS_DIRECTIVES)
"""Directives of this file and of `access.py`."""


SAME_TYPE = VarConstraint("T", AnyAttr())
"""Constraint: all operands and results of an op that are declared with it have one type.

In `TensorType.constr(SAME_TYPE)` that type is the element type.
"""

NUMBERS = DenseArrayBase.constr(i64)
"""Constraint of a property that is a list of numbers, `[0, 2]`."""

NO_NUMBERS = DenseArrayBase.from_list(i64, [])
"""Empty list of numbers."""


class FormattedOp(IRDLOperation):
    """Base class of operations with the directives of this file and a derived constructor (see the module
    docstring)."""

    custom_directives = DIRECTIVES

    def __init__(self, *values: Any, **named: Any) -> None:
        """Creates the operation from parameters by position or by name. Raises TypeError for unknown or repeated
        parameters."""
        parameters, properties = _parameters(type(self))
        arguments = dict(zip(parameters, values, strict=False))
        if len(values) > len(parameters) or arguments.keys() & named.keys() or named.keys() - set(parameters):
            raise TypeError(f"{self.name} takes each of ({', '.join(parameters)}) once")
        arguments |= named
        definition = self.get_irdl_definition()
        operands = [
            arguments.get(name, ()) if isinstance(operand, VarOperandDef) else arguments.get(name)
            for name, operand in definition.operands
        ]
        super().__init__(
            operands=operands,
            properties={
                name: attribute_of(arguments[name], kind) for name, kind in properties.items() if name in arguments
            },
            regions=[arguments.get(name) for name, _ in definition.regions],
            result_types=[arguments[n] if n in arguments else self._infer(n, operands) for n, _ in definition.results],
        )

    def _infer(self, result: str, operands: Sequence[SSAValue | Sequence[SSAValue] | None]) -> Any:
        """Returns the type of a result, derived from the operand types. Raises TypeError if they do not determine
        it."""
        definition, context = self.get_irdl_definition(), VerificationContext()
        constraint = dict(definition.results)[result].constr
        if not constraint.can_infer(set(), length_known=True):
            for (_, operand), values in zip(definition.operands, operands, strict=True):
                operand_values = [values] if isinstance(values, SSAValue) else values or ()
                operand.constr.verify([v.type for v in operand_values], context)
        try:
            return constraint.infer(context, length=1)
        except (ValueError, VerifyException) as error:
            raise TypeError(f"{self.name}: the type of `{result}` does not follow from the operands") from error


class YieldsOwnOps(OpTrait):
    """Trait of an op whose regions yield results of ops inside them, such as the stages of `loop.staged_reduce`.

    CSE must not replace a yielded op by an equal op from outside of the region.
    """


class PureOp(FormattedOp):
    """Base class of operations without effects: unused ones are erased, equal ones are merged."""

    traits = traits_def(Pure())


@dataclass(frozen=True)
class LegalAt(OpTrait):
    """Trait of an operation of another package: `levels` at which `verify-level` accepts it."""

    levels: tuple[str, ...]


class ElementwiseOp(PureOp):
    """Base class of elementwise scalar operations of other packages.

    Like payload ops, they are legal at every level below torch, and lowerings change only the container of their
    operands and results.
    """

    traits = traits_def(LegalAt(("tensor", "loop", "tile", "kernel")))


class WritingOp(FormattedOp):
    """Base class of operations that write or allocate memory."""

    traits = traits_def(MemoryWriteEffect())


class OrderedOp(FormattedOp):
    """Base class of operations that keep their order relative to all memory accesses and waits.

    By default the text is the name of the operation.
    """

    traits = traits_def(MemoryReadEffect(), MemoryWriteEffect())
    assembly_format = "attr-dict"
