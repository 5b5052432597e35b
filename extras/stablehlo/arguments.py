"""Symbolic sizes of the arguments of `@main`.

A program with symbolic shapes has `?` in its types. JAX writes the relations of these sizes as assertions at the
start of `@main`: `get_dimension_size`, arithmetic, a comparison, and a `custom_call @shape_assertion`. The sizes that
the user has named are passed to a function whose arguments have the attribute `jax.global_constant`.

`argument_extents` solves the assertions. Equations express sizes by others, inequalities narrow the range of a size,
and each call checks all other ones.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import reduce
from typing import TYPE_CHECKING, Any, cast

from jaxlib.mlir import ir
from xdsl.ir import Block

from ...dialects.shapes.binding import CONDITION, Polynomial, constant, divided, plus, times, variable
from ...dialects.shapes.extents import Extent, SymbolAttr, tensor_of
from ...errors import UnsupportedError
from .operation import HloOperation
from .sizes import coefficients
from .types import HloType, type_of

if TYPE_CHECKING:
    from .importer import Frame

LARGEST = 1 << 20
"""Largest value of a size without a declared maximum."""

LARGEST_DIFFERENCE = 1 << 62
"""Largest difference of two sizes that an assertion compares."""

Relation = tuple[str, Polynomial]
"""Assertion about a polynomial: `EQ` or `GE` of it and 0."""


def argument_extents(frame: Frame, block: ir.Block) -> list[tuple[Extent, ...]]:
    """Returns the extents of the arguments of `@main`, and sets the symbols of the program.

    Args:
        frame: frame of `@main` for this purpose.
        block: the block of `@main`.

    Raises:
        UnsupportedError: an assertion is not supported.
    """
    types = [type_of(a) for a in block.arguments]
    if all(t.is_static for t in types):
        return [t.shape for t in types]
    return _Solver(frame, block, types).extents()


class _Solver:
    """Solver of the assertions. A size of an argument is a variable `dim0`, `dim1`, ... until its meaning is known.

    Attributes:
        dims: names of the variables of each argument, None for a number.
        meaning: variable -> polynomial of the final variables.
        ranges: final variable -> smallest and largest value.
    """

    def __init__(self, frame: Frame, block: ir.Block, types: list[HloType]) -> None:
        self.frame, self.block, self.types = frame, block, types
        self.table = frame.importer.sizes
        self.dims = list[list[Extent]]()
        self.meaning = dict[str, Polynomial]()
        self.ranges = dict[str, tuple[int, int]]()
        for t in types:
            self.dims.append([self._provisional() if n is None else n for n in t.dims])

    def _provisional(self) -> SymbolAttr:
        name = f"dim{len(self.ranges)}"
        self.ranges[name] = self.table.ranges[name] = 1, LARGEST
        return SymbolAttr.get(name, 1, LARGEST)

    def extents(self) -> list[tuple[Extent, ...]]:
        """Returns the extents of all arguments."""
        scratch = Block(arg_types=[tensor_of(t.element, d) for t, d in zip(self.types, self.dims, strict=True)])
        self.frame.values.update(zip(self.block.arguments, scratch.args, strict=True))
        relations = self._relations()
        self._name_sizes()
        further = [r for relation in relations if (r := self._solved(*relation)) is not None]
        self.frame.values.clear()
        self.frame.evaluated.clear()
        self.table.renew()
        free = dict.fromkeys(n for n in self.ranges if n not in self.meaning)
        extents = {n: SymbolAttr.get(n, *self.ranges[n]) for n in free}
        self.table.ranges.update({n: self.ranges[n] for n in free})
        for symbol in extents.values():
            self.table.algebra.of(symbol)
        for number, (kind, value) in enumerate(further):
            most = 0 if kind == "EQ" else LARGEST_DIFFERENCE
            self.table.define(self._final(value), f"{CONDITION}{number}", 0, most)
        return [tuple(n if isinstance(n, int) else self._extent(n) for n in dims) for dims in self.dims]

    def _extent(self, provisional: SymbolAttr) -> Extent:
        return self.table.algebra.extent(self._final(variable(provisional.hint)))

    def _final(self, value: Polynomial) -> Polynomial:
        """Returns a polynomial in which no variable has a meaning."""
        while (after := substituted(value, self.meaning)) != value:
            value = after
        return value

    def _relations(self) -> list[Relation]:
        """Returns the assertions of `@main`."""
        relations = list[Relation]()
        for operation in self.block.operations:
            op = HloOperation(operation.operation, self.frame)
            if op.name != "stablehlo.custom_call" or op.word("call_target_name") != "shape_assertion":
                continue
            test = HloOperation(cast(ir.OpView, op.ir.operands[0].owner).operation, self.frame)
            sides = [self.frame.sizes(v) for v in test.ir.operands]
            direction = test.word("comparison_direction") if test.name == "stablehlo.compare" else ""
            if direction not in ("EQ", "GE", "LE", "GT", "LT") or sides[0] is None or sides[1] is None:
                raise UnsupportedError("expected an assertion that compares sizes", operator=op.name)
            x, y = (sides[0][0], sides[1][0]) if direction in ("EQ", "GE", "GT") else (sides[1][0], sides[0][0])
            difference = plus(x, y, -1)
            if direction in ("GT", "LT"):
                difference = plus(difference, constant(-1))
            relations.append(("EQ" if direction == "EQ" else "GE", difference))
        return relations

    def _name_sizes(self) -> None:
        """Replaces variables by the sizes that the user has named."""
        for operation in self.block.operations:
            op = HloOperation(operation.operation, self.frame)
            if op.name != "func.call":
                continue
            callee = self.frame.importer.functions[ir.FlatSymbolRefAttr(op.attribute("callee")).value]
            attributes: Any = callee.attributes["arg_attrs"] if "arg_attrs" in callee.attributes else []
            for value, attribute in zip(op.ir.operands, attributes, strict=False):
                match = re.search(r'jax\.global_constant = "(\w+)"', str(attribute))
                sizes = None if match is None else self.frame.sizes(value)
                if match is not None and sizes is not None:
                    self._define(match[1].lower(), sizes[0])

    def _define(self, name: str, value: Polynomial) -> None:
        """Makes `name` the variable for a polynomial of one variable: `dim`, or the quotient `(dim + c) / k`."""
        if name in self.ranges or len(value.terms) != 1 or len(value.terms[0][0]) != 1 or value.terms[0][1] != 1:
            return
        atom, factor = value.terms[0][0][0], 1
        inner = value
        if atom[0] == "div":
            inner, factor = atom[1], atom[2]
        dim = next((a[0][1] for a, _ in inner.terms if a and a[0][0] == "size"), None)
        linear = None if dim is None else coefficients(inner, dim)
        if dim is None or linear is None or linear[0] != 1:
            return
        self.ranges[name] = self.table.ranges[name] = 1, LARGEST // factor
        self.meaning[dim] = plus(times(variable(name), constant(factor)), constant(-linear[1]))

    def _solved(self, kind: str, value: Polynomial) -> Relation | None:
        """Uses an assertion, and returns None, or returns an assertion that each call must check."""
        value = self._final(value)
        if value.number is not None:
            if (value.number == 0) if kind == "EQ" else (value.number >= 0):
                return None
            raise UnsupportedError("expected shapes that satisfy the assertions of the program, but none do")
        for atoms, coefficient in value.terms:
            if len(atoms) != 1 or atoms[0][0] != "size" or len(value.terms) > 2:
                continue
            name = atoms[0][1]
            others = plus(value, variable(name), -coefficient)
            if kind == "EQ" and abs(coefficient) == 1 and name.startswith("dim"):
                self.meaning[name] = times(others, constant(-coefficient))
                return None
            if kind == "GE" and others.number is not None:
                low, high = self.ranges[name]
                if coefficient > 0:
                    low = max(low, -(others.number // coefficient))
                else:
                    high = min(high, others.number // -coefficient)
                if low > high:
                    raise UnsupportedError("expected shapes that satisfy the assertions of the program, but none do")
                self.ranges[name] = low, high
                return None
        return kind, value


def substituted(value: Polynomial, meaning: Mapping[str, Polynomial]) -> Polynomial:
    """Returns a polynomial with polynomials in place of variables."""

    def of_atom(atom: tuple) -> Polynomial:
        if atom[0] == "size":
            return meaning.get(atom[1], variable(atom[1]))
        if atom[0] in ("div", "mod"):
            return divided(atom[0], substituted(atom[1], meaning), atom[2])
        raise UnsupportedError(f"the size {value} is not supported")

    products = [reduce(times, map(of_atom, atoms), constant(coefficient)) for atoms, coefficient in value.terms]
    return reduce(plus, products, constant(0))
