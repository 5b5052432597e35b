"""Parsing and printing of accesses: coordinates, domains and index expressions with inline operands.

An op stores an affine map and its operands. The text shows the operands in place of the map's dimensions and symbols:

| level | dimension of the map | symbol of the map |
|---|---|---|
| tensor | `d0`, a dimension of the result | `%i`, a tensor of indices |
| loop | `%i`, an index of a nest or reduction | `symbol(%n)`, computed from data |
| tile | `d0`, a dimension of the tile | `%i`, an index, or a tile of them |

```
tile.load %x[%i * 128 + d0, %k * 64 + d1] where 0 <= %k * 64 + d1 < 250 else %zero
```

The parser orders the operands by their definitions, drops unused ones and merges repeated ones. So parsed text is
printed unchanged.

The classes at the end of the file are directives of xDSL's declarative assembly format.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from xdsl.dialects.builtin import AffineMapAttr, AnyFloat, IndexType, IntAttr, IntegerType, ShapedType
from xdsl.ir import Attribute, SSAValue
from xdsl.ir.affine import (
    AffineBinaryOpExpr,
    AffineBinaryOpKind as Kind,
    AffineConstantExpr,
    AffineDimExpr,
    AffineExpr,
    AffineMap,
    AffineSymExpr,
)
from xdsl.irdl import IRDLOperation, VerificationContext
from xdsl.irdl.declarative_assembly_format import (
    AttributeVariable,
    CustomDirective,
    OperandVariable,
    ParsingState,
    PrintingState,
    RegionVariable,
    TypeDirective,
    VariadicOperandVariable,
    irdl_custom_directive,
)
from xdsl.parser import Parser, UnresolvedOperand
from xdsl.parser.affine_parser import AffineParser
from xdsl.printer import Printer
from xdsl.utils.exceptions import VerifyException
from xdsl.utils.lexer import Span

from ..shapes.domain import DomainAttr
from ..shapes.extents import EXTENT, Extent, parse_extent

Variable = VariadicOperandVariable | OperandVariable


class Writer:
    """Printer of affine expressions with few parentheses.

    Args:
        printer: printer for the text.
        dims: values to print in place of dimensions, or None to print `d0`.
        symbols: values to print in place of symbols.
    """

    def __init__(self, printer: Printer, dims: Sequence[SSAValue] | None, symbols: Sequence[SSAValue] = ()) -> None:
        self.printer, self.dims, self.symbols = printer, dims, symbols

    def list(self, exprs: Sequence[AffineExpr]) -> None:
        """Prints expressions in square brackets."""
        with self.printer.in_square_brackets():
            self.printer.print_list(exprs, self.expr)

    def expr(self, e: AffineExpr) -> None:
        """Prints one expression."""
        if not isinstance(e, AffineBinaryOpExpr):
            self._leaf(e)
        elif e.kind != Kind.Add:
            self._product(e)
        elif (negated := _negated(e.lhs)) is not None and isinstance(e.rhs, AffineConstantExpr) and e.rhs.value > 0:
            self._operation(e.rhs, "-", negated)
        elif (negated := _negated(e.rhs)) is not None:
            self._operation(e.lhs, "-", negated)
        else:
            self._operation(e.lhs, "+", e.rhs)

    def _operation(self, lhs: AffineExpr, sign: str, rhs: AffineExpr) -> None:
        self.expr(lhs)
        self.printer.print_string(f" {sign} ")
        if isinstance(rhs, AffineBinaryOpExpr) and rhs.kind == Kind.Add:
            self._factor(rhs)
        else:
            self.expr(rhs)

    def _product(self, e: AffineBinaryOpExpr) -> None:
        if e.kind == Kind.Mul and e.rhs == AffineConstantExpr(-1):
            self.printer.print_string("-")
            return self._factor(e.lhs)
        self._factor(e.lhs)
        self.printer.print_string(f" {e.kind.get_token()} ")
        self._factor(e.rhs)

    def _factor(self, e: AffineExpr) -> None:
        if isinstance(e, AffineBinaryOpExpr):
            with self.printer.in_parens():
                self.expr(e)
        else:
            self._leaf(e)

    def _leaf(self, e: AffineExpr) -> None:
        if isinstance(e, AffineDimExpr) and self.dims is not None and e.position < len(self.dims):
            self.printer.print_ssa_value(self.dims[e.position])
        elif isinstance(e, AffineSymExpr) and e.position < len(self.symbols):
            if self.dims is not None:
                self.printer.print_string("symbol(")
            self.printer.print_ssa_value(self.symbols[e.position])
            if self.dims is not None:
                self.printer.print_string(")")
        else:
            self.printer.print_string(str(e))


def _negated(e: AffineExpr) -> AffineExpr | None:
    """Returns `-e` if `e` is a negative number or a multiple by a negative number, or None."""
    if isinstance(e, AffineConstantExpr):
        return AffineConstantExpr(-e.value) if e.value < 0 else None
    if isinstance(e, AffineBinaryOpExpr) and e.kind == Kind.Mul and isinstance(e.rhs, AffineConstantExpr):
        factor = -e.rhs.value
        if factor > 0:
            return e.lhs if factor == 1 else AffineBinaryOpExpr(Kind.Mul, e.lhs, AffineConstantExpr(factor))
    return None


class _Reader(ABC):
    """Base class of parsers of affine expressions."""

    def __init__(self, parser: Parser) -> None:
        self.parser = parser

    @abstractmethod
    def leaf(self) -> AffineExpr | None:
        """Parses a dimension or a symbol. Returns None at a number, a sign or a parenthesis."""

    def expr(self) -> AffineExpr:
        parser, start = self.parser, self.parser.pos
        affine = AffineParser(parser._parser_state)  # pyright: ignore[reportPrivateUsage]
        try:
            return affine._parse_affine_expr(self.leaf)  # pyright: ignore[reportPrivateUsage]
        except (NotImplementedError, ZeroDivisionError):
            parser.raise_error(
                "expected an affine expression, which multiplies and divides indices by numbers only", start, parser.pos
            )

    def list(self) -> list[AffineExpr]:
        return self.parser.parse_comma_separated_list(Parser.Delimiter.SQUARE, self.expr)


@dataclass
class _Operands:
    """Operands parsed in place of dimensions or of symbols, in the order of use.

    variable: operand list of the op in which they are stored, or None if the op has no operands of this kind.
    values: (name of the value, number of the result) -> parsed operand.
    """

    variable: Variable | None
    values: dict[tuple[str, int], UnresolvedOperand] = field(default_factory=dict[tuple[str, int], UnresolvedOperand])

    def number(self, operand: UnresolvedOperand) -> int:
        """Returns the position of an operand among the distinct ones, by its first use."""
        key = (operand.operand_name, operand.index)
        self.values.setdefault(key, operand)
        return list(self.values).index(key)

    def sorted(self, parser: Parser) -> list[tuple[str, int]]:
        """Returns the operands in the order of their definitions."""
        if len(self.values) < 2:
            return list(self.values)
        names, definition_order = {name for name, _ in self.values}, dict[str, int]()
        for position, name in enumerate(reversed(parser.ssa_values)):
            if name in names:
                definition_order[name] = -position
                if len(definition_order) == len(names):
                    break
        return sorted(self.values, key=lambda key: (definition_order.get(key[0], 0), key[1]))

    def store(self, parser: Parser, state: ParsingState, order: Sequence[tuple[str, int]]) -> None:
        """Stores the operands in the op that is being parsed.

        Args:
            parser: the parser.
            state: state of the op.
            order: the operands in the order in which the op has them.
        """
        if self.variable is None:
            return
        constraint = state.op_type.get_irdl_definition().operands[self.variable.index][1].constr
        for operand in self.values.values():
            name, values = operand.operand_name, parser.ssa_values.get(operand.operand_name, ())
            if operand.index >= len(values):
                parser.raise_error(f"unknown value %{name}", operand.span)
            try:
                constraint.verify([values[operand.index].type], VerificationContext())
            except VerifyException:
                parser.raise_error(
                    f"expected an index, but got %{name} of type {values[operand.index].type}", operand.span
                )
        operands = [self.values[key] for key in order]
        if isinstance(self.variable, OperandVariable):
            if len(operands) != 1:
                parser.raise_error(f"expected an expression of one value, but got {len(operands)}")
            self.variable.set(state, operands[0])
        else:
            self.variable.set(state, operands)
        self.variable.set_types(state, [parser.ssa_values[o.operand_name][o.index].type for o in operands])


class _Access(_Reader):
    """Access that is being parsed: its coordinates, its domain and their operands."""

    def __init__(
        self, parser: Parser, state: ParsingState, map: AttributeVariable, variables: Sequence[Variable | None]
    ) -> None:
        super().__init__(parser)
        self.state, self.map = state, map
        self.dims, self.symbols = (_Operands(v) for v in variables)
        self.results: Sequence[AffineExpr] = ()
        self.domain: AttributeVariable | None = None
        self.constraints: list[tuple[int, AffineExpr, Extent]] = []
        self.rank = 0
        # Dimensions that the text writes as `d0`, with their first use.
        self.numbers: dict[int, Span] = {}
        vars(state)["access"] = self

    @staticmethod
    def of(state: ParsingState) -> _Access:
        """Returns the access of the op that is being parsed, for directives after the coordinates."""
        return vars(state)["access"]

    def leaf(self) -> AffineExpr | None:
        parser = self.parser
        if (operand := parser.parse_optional_unresolved_operand()) is not None:
            if self.dims.variable is not None:
                return AffineDimExpr(self.dims.number(operand))
            if self.symbols.variable is None:
                parser.raise_error(f"expected a dimension such as d0, but got {operand.span.text}", operand.span)
            return AffineSymExpr(self.symbols.number(operand))
        start = parser.pos
        word = parser.parse_optional_identifier()
        if word is None:
            return None
        span = Span(start, start + len(word), parser.lexer.input)
        if word == "symbol" and self.symbols.variable is not None:
            with parser.in_parens():
                return AffineSymExpr(self.symbols.number(parser.parse_unresolved_operand()))
        if self.dims.variable is not None:
            parser.raise_error(f"expected an index such as %i, but got {word}", span)
        if not re.fullmatch(r"d\d+", word):
            parser.raise_error(f"expected a dimension such as d0, or a value such as %i, but got {word}", span)
        self.numbers.setdefault(int(word[1:]), span)
        return AffineDimExpr(int(word[1:]))

    def constraint(self) -> tuple[int, AffineExpr, Extent]:
        """Parses `0 <= expr < 100`."""
        lower = self.parser.parse_integer()
        self.parser.parse_punctuation("<")
        self.parser.parse_punctuation("=")
        expr = self.expr()
        self.parser.parse_punctuation("<")
        upper = parse_extent(self.parser)
        return lower, expr, upper.data if isinstance(upper, IntAttr) else upper

    def read_domain(self, domain: AttributeVariable) -> None:
        """Parses `0 <= expr < 100 and 0 <= expr < #s0`."""
        self.domain = domain
        if self.parser.parse_optional_keyword("true") is None:
            self.constraints.append(self.constraint())
            while self.parser.parse_optional_keyword("and") is not None:
                self.constraints.append(self.constraint())

    def store(self) -> None:
        """Stores the parsed map, domain and operands in the op."""
        dims, symbols = self.dims.sorted(self.parser), self.symbols.sorted(self.parser)
        new_dims = [AffineExpr.dimension(dims.index(key)) for key in self.dims.values]
        new_symbols = [AffineExpr.symbol(symbols.index(key)) for key in self.symbols.values]
        rank = self.rank if self.dims.variable is None else len(dims)

        def map_of(exprs: Iterable[AffineExpr]) -> AffineMap:
            renumbered = (e.replace_dims_and_symbols(new_dims, new_symbols) for e in exprs)
            return AffineMap(rank, len(symbols), tuple(renumbered))

        self.map.set(self.state, AffineMapAttr(map_of(self.results)))
        if self.domain is not None:
            bounds = [(lo, hi) for lo, _, hi in self.constraints]
            self.domain.set(self.state, DomainAttr.get(map_of(e for _, e, _ in self.constraints), bounds))
        self.dims.store(self.parser, self.state, dims)
        self.symbols.store(self.parser, self.state, symbols)

    def ranked(self, t: Attribute) -> None:
        """Sets the number of dimensions from the type of the tile or tensor.

        The type follows the access in the text, so the access is stored a second time.
        """
        scalar, used = isinstance(t, AnyFloat | IntegerType | IndexType), max(self.numbers, default=-1) + 1
        self.rank = len(t.get_shape()) if isinstance(t, ShapedType) else 0 if scalar else used
        for number, span in self.numbers.items():
            if number >= self.rank:
                self.parser.raise_error(f"expected a dimension of {t}, but got d{number}", span)
        self.store()


class _NestIndices(_Reader):
    """Parser of affine expressions in an operation's header, before the region whose block arguments they use."""

    def __init__(self, parser: Parser, arguments: Sequence[Parser.Argument]) -> None:
        super().__init__(parser)
        self.names = [a.name.text for a in arguments]

    def leaf(self) -> AffineExpr | None:
        operand = self.parser.parse_optional_unresolved_operand()
        if operand is None:
            return None
        if operand.span.text not in self.names:
            self.parser.raise_error(
                f"expected one of {', '.join(self.names)}, but got {operand.span.text}", operand.span
            )
        return AffineDimExpr(self.names.index(operand.span.text))


def _values(variable: Variable, op: IRDLOperation) -> Sequence[SSAValue]:
    values = variable.get(op)
    return [values] if isinstance(values, SSAValue) else list(values)


def _map_of(variable: AttributeVariable, op: IRDLOperation) -> AffineMap:
    attribute = variable.get(op)
    assert isinstance(attribute, AffineMapAttr)
    return attribute.data


class _Coordinates(CustomDirective):
    """Directive for the coordinates of an access, `[expr, expr]`."""

    map: AttributeVariable

    def variables(self) -> tuple[Variable | None, Variable | None]:
        """Returns the operand lists for dimensions and for symbols, each None if the op has none."""
        return getattr(self, "indices", None), getattr(self, "symbols", None)

    def parse(self, parser: Parser, state: ParsingState) -> None:
        access = _Access(parser, state, self.map, self.variables())
        access.results = self.read(access)
        access.store()

    def print(self, printer: Printer, state: PrintingState, op: IRDLOperation) -> None:
        state.print_whitespace(printer)
        dims, symbols = (None if v is None else _values(v, op) for v in self.variables())
        self.write(Writer(printer, dims, symbols or ()), _map_of(self.map, op).results)

    def read(self, access: _Access) -> Sequence[AffineExpr]:
        return access.list()

    def write(self, writer: Writer, results: Sequence[AffineExpr]) -> None:
        writer.list(results)


@irdl_custom_directive
class View(_Coordinates):
    """Directive for coordinates of dimensions only: `[d1, d0 - 1]`."""

    map: AttributeVariable


@irdl_custom_directive
class Access(_Coordinates):
    """Directive for coordinates of dimensions and values: `[%i * 128 + d0, %k]`."""

    map: AttributeVariable
    symbols: VariadicOperandVariable
    types: TypeDirective


class Expression(Access):
    """Directive for one expression of dimensions and values: `%i * 128 + d0`."""

    def read(self, access: _Access) -> Sequence[AffineExpr]:
        return (access.expr(),)

    def write(self, writer: Writer, results: Sequence[AffineExpr]) -> None:
        writer.printer.print_list(results, writer.expr)


@irdl_custom_directive
class LoopAccess(_Coordinates):
    """Directive for coordinates of indices and values computed from data: `[%i, %k + symbol(%n)]`."""

    map: AttributeVariable
    indices: VariadicOperandVariable
    symbols: VariadicOperandVariable


@irdl_custom_directive
class Row(_Coordinates):
    """Directive for one coordinate that depends on one value: `[%t mod 2]`."""

    map: AttributeVariable
    indices: OperandVariable


class OptionalDirective(CustomDirective, ABC):
    """Base class of directives for an optional attribute (the first variable). Without it, the group around it is
    omitted."""

    def is_present(self, op: IRDLOperation) -> bool:
        return next(iter(vars(self).values())).is_present(op)

    def is_anchorable(self) -> bool:
        return True


@irdl_custom_directive
class Domain(OptionalDirective):
    """Directive for the domain of an access, after its coordinates: `0 <= %i * 128 + d0 < 250 and ...`."""

    domain: AttributeVariable

    def parse(self, parser: Parser, state: ParsingState) -> None:
        access = _Access.of(state)
        access.read_domain(self.domain)
        access.store()

    def print(self, printer: Printer, state: PrintingState, op: IRDLOperation) -> None:
        state.print_whitespace(printer)
        domain = self.domain.get(op)
        assert isinstance(domain, DomainAttr)
        writer = Writer(printer, getattr(op, "indices", None), getattr(op, "symbols", ()))

        def constraint(bound: tuple[int, AffineExpr, Attribute]) -> None:
            printer.print_string(f"{bound[0]} <= ")
            writer.expr(bound[1])
            printer.print_string(" < ")
            EXTENT.write(printer, bound[2])

        lower = [lo.data for lo in domain.lower]
        printer.print_list(list(zip(lower, domain.affine.results, domain.upper, strict=True)), constraint, " and ")
        if not lower:
            printer.print_string("true")


@irdl_custom_directive
class Ranked(CustomDirective):
    """Directive for the type of the tile or tensor that has the dimensions `d0`, `d1`, … of the access."""

    element: TypeDirective

    def parse(self, parser: Parser, state: ParsingState) -> None:
        t = parser.parse_type()
        self.element.set(state, (t,))
        _Access.of(state).ranked(t)

    def print(self, printer: Printer, state: PrintingState, op: IRDLOperation) -> None:
        state.print_whitespace(printer)
        printer.print_list(self.element.get(op), printer.print_attribute)


@irdl_custom_directive
class ResultMap(OptionalDirective):
    """Directive for coordinates of the indices that are a region's arguments: `[%i * 64 + %j, %k]`."""

    map: AttributeVariable
    body: RegionVariable

    def parse(self, parser: Parser, state: ParsingState) -> None:
        reader = _NestIndices(parser, vars(state).get("arguments", ()))
        results = reader.list()
        self.map.set(state, AffineMapAttr(AffineMap(len(reader.names), 0, tuple(results))))

    def print(self, printer: Printer, state: PrintingState, op: IRDLOperation) -> None:
        state.print_whitespace(printer)
        Writer(printer, self.body.get(op).block.args).list(_map_of(self.map, op).results)


ACCESS_DIRECTIVES = (View, Access, LoopAccess, Row, Expression, Domain, Ranked, ResultMap)
"""Directives of this file."""
