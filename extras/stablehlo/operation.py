"""Operations of StableHLO as rules see them: typed operands and results, attributes, and regions as functions."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, cast

import numpy as np
from jaxlib.mlir import ir
from xdsl.ir import Attribute, SSAValue

from ...dialects.payload import is_float
from ...dialects.shapes.binding import Polynomial
from ...dialects.tensor.builder import Builder
from ...errors import UnsupportedError
from .types import HloType, type_of

if TYPE_CHECKING:
    from .loops import Steps

T = TypeVar("T")

_REQUIRED = object()

OUTSIDE = "compute it outside of the compiled function"
"""Remedy for an operation without a rule."""

MONOIDS = {
    "stablehlo.add": "add",
    "stablehlo.multiply": "mul",
    "stablehlo.maximum": "max",
    "stablehlo.minimum": "min",
    "stablehlo.and": "and",
    "stablehlo.or": "or",
    "stablehlo.xor": "xor",
}
"""Operation that combines two values -> reduction kind."""


class Scope(Protocol):
    """Values of the blocks around an operation (`importer.Frame`)."""

    @property
    def fast_math(self) -> bool:
        """True if exponentials and quotients may be approximated."""
        ...

    @property
    def steps(self) -> Steps | None:
        """Tensors of the step of the innermost scan that is being imported."""
        ...

    def sizes(self, value: ir.Value) -> list[Polynomial] | None:
        """Returns the elements of a small integer tensor if they are known at import, else None."""
        ...

    def bounds(self, value: Polynomial) -> tuple[int, int]:
        """Returns the smallest and the largest value that a size of the program may have."""
        ...

    def value(self, value: ir.Value) -> SSAValue:
        """Returns the tensor of a value."""
        ...

    def table(self, values: np.ndarray, type: HloType) -> SSAValue:
        """Returns a constant tensor with the elements `values`."""
        ...

    def call(self, b: Builder, name: str, op: HloOperation, values: Sequence[SSAValue]) -> list[SSAValue]:
        """Returns the results of a function of the module.

        Args:
            b: builder of the call.
            name: name of the function.
            op: the call.
            values: its arguments.
        """
        ...

    def elementwise(self, b: Builder, block: ir.Block, values: Sequence[SSAValue]) -> list[SSAValue]:
        """Returns the results of a block of scalars, applied to the elements of tensors of one shape.

        Args:
            b: builder of the operation with the block.
            block: the block.
            values: tensors for its arguments.
        """
        ...

    def inlined(self, b: Builder, block: ir.Block, values: Sequence[SSAValue]) -> list[SSAValue]:
        """Returns the results of a block.

        Args:
            b: builder of the operation with the block.
            block: the block.
            values: its arguments.
        """
        ...


@dataclass(frozen=True, eq=False)
class HloOperation:
    """An operation of StableHLO during its import.

    Attributes:
        ir: the operation in the bindings of MLIR.
        scope: values that the operation can use.
    """

    ir: ir.Operation
    scope: Scope

    @property
    def name(self) -> str:
        """Name with the dialect, such as `stablehlo.add`."""
        return self.ir.name

    @cached_property
    def operands(self) -> list[HloType]:
        """Types of the operands."""
        return [type_of(v) for v in self.ir.operands]

    @cached_property
    def results(self) -> list[HloType]:
        """Types of the results."""
        return [type_of(v) for v in self.ir.results]

    @property
    def element(self) -> Attribute:
        """Element type of the first result."""
        return self.results[0].element

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the first result. Raises UnsupportedError for a size that is known only at run time."""
        return self.results[0].shape

    @property
    def unsigned(self) -> bool:
        """True if the elements of the first operand are unsigned integers."""
        return self.operands[0].unsigned

    def refuse(self, reason: str, *, remedy: str | None = None) -> UnsupportedError:
        """Returns the error for an operation that is not supported; the importer adds its name and line."""
        return UnsupportedError(reason, remedy=remedy)

    # Attributes

    def has(self, name: str) -> bool:
        """Returns true if the operation has an attribute."""
        return name in self.ir.attributes

    def attribute(self, name: str) -> Any:
        """Returns an attribute. Raises UnsupportedError if it is missing."""
        if name not in self.ir.attributes:
            raise self.refuse(f"expected the attribute {name}, but got none")
        return self.ir.attributes[name]

    def ints(self, name: str, default: Any = _REQUIRED) -> list[int]:
        """Returns an attribute that is a list of integers.

        Args:
            name: name of the attribute.
            default: value if the operation does not have it; without a default it must have it.
        """
        if default is not _REQUIRED and not self.has(name):
            return list(default)
        attribute = self.attribute(name)
        if isinstance(attribute, ir.DenseIntElementsAttr):
            return [int(v) for v in np.array(attribute).reshape(-1)]
        return [int(v) for v in attribute]

    def table(self, name: str, default: Any = _REQUIRED) -> list[list[int]]:
        """Returns an attribute that is a matrix of integers, such as padding, as a list of rows."""
        if default is not _REQUIRED and not self.has(name):
            return [list(row) for row in default]
        return [[int(v) for v in row] for row in np.array(self.attribute(name))]

    def flags(self, name: str, default: Any = _REQUIRED) -> list[bool]:
        """Returns an attribute that is a list of booleans."""
        if default is not _REQUIRED and not self.has(name):
            return list(default)
        return [bool(v) for v in self.attribute(name)]

    def int(self, name: str, default: int | None = None) -> int:
        """Returns an attribute that is an integer."""
        if default is not None and not self.has(name):
            return default
        return int(self.attribute(name).value)

    def flag(self, name: str) -> bool:
        """Returns an attribute that is a boolean; false if it is missing."""
        return self.has(name) and bool(self.attribute(name).value)

    def word(self, name: str, default: str | None = None) -> str:
        """Returns an attribute that is a string or a word, such as `LT`."""
        if default is not None and not self.has(name):
            return default
        text = getattr(self.attribute(name), "value", None) or str(self.attribute(name))
        return re.findall(r"[\w.]+", text)[-1] if text.startswith("#") else str(text)

    def numbers(self, cls: type[T], name: str) -> T:
        """Returns an attribute as a class of `jaxlib.mlir.dialects.stablehlo`, such as `GatherDimensionNumbers`."""
        return cls(self.attribute(name))  # pyright: ignore[reportCallIssue]

    # Values and regions

    def sizes(self, operand: int) -> list[Polynomial] | None:
        """Returns the elements of a small integer operand if they are known at import, else None."""
        return self.scope.sizes(self.ir.operands[operand])

    def constants(self, operand: int) -> list[int] | None:
        """Returns the elements of a small integer operand if they are numbers at import, else None."""
        elements = self.sizes(operand)
        numbers = [p.number for p in elements or ()]
        return None if elements is None or None in numbers else [n for n in numbers if n is not None]

    def body(self, region: int = 0) -> Body:
        """Returns a region, which must have one block."""
        if region >= len(self.ir.regions) or len(self.ir.regions[region].blocks) != 1:
            raise self.refuse(f"expected one block in region {region}")
        return Body(self.ir.regions[region].blocks[0], self.scope)


@dataclass(frozen=True, eq=False)
class Body:
    """A region with one block, such as the combining function of a reduction.

    Attributes:
        block: the block.
        scope: values that it can use.
    """

    block: ir.Block
    scope: Scope

    @property
    def arguments(self) -> list[ir.Value]:
        return list(self.block.arguments)

    @property
    def operations(self) -> list[HloOperation]:
        """The operations, the terminator last."""
        return [HloOperation(o.operation, self.scope) for o in self.block.operations]

    def __call__(self, b: Builder, values: Sequence[SSAValue]) -> list[SSAValue]:
        """Returns the results of a region of scalars, applied to the elements of tensors of one shape."""
        return self.scope.elementwise(b, self.block, values)

    def inlined(self, b: Builder, values: Sequence[SSAValue]) -> list[SSAValue]:
        """Returns the results of a region for its arguments."""
        return self.scope.inlined(b, self.block, values)

    @cached_property
    def types(self) -> list[HloType]:
        """Types of the arguments."""
        return [type_of(a) for a in self.arguments]

    def kind(self, result: int = 0) -> str | None:
        """Returns the reduction kind by which a region combines two arguments to a result, or None.

        The arguments of result n are n and n plus the number of results. Conversions to a wider float and back, which
        JAX inserts for bf16, do not count.
        """
        arguments, end = self.arguments, self.operations[-1]
        count = len(end.ir.operands)
        if len(arguments) != 2 * count:
            return None
        op = _defining(end.ir.operands[result], self.scope)
        if op is None or op.name not in MONOIDS:
            return None
        operands = [_unconverted(v, self.scope) for v in op.ir.operands]
        return MONOIDS[op.name] if set(operands) == {arguments[result], arguments[result + count]} else None


def _unconverted(value: ir.Value, scope: Scope) -> ir.Value:
    """Returns the value that conversions between floats start from."""
    while not isinstance(value, ir.BlockArgument):
        op = HloOperation(cast(ir.OpView, value.owner).operation, scope)
        if op.name != "stablehlo.convert" or not all(is_float(t.element) for t in (*op.operands, *op.results)):
            break
        value = op.ir.operands[0]
    return value


def _defining(value: ir.Value, scope: Scope) -> HloOperation | None:
    """Returns the operation that computes a value, before conversions between floats, or None for an argument."""
    value = _unconverted(value, scope)
    return None if isinstance(value, ir.BlockArgument) else HloOperation(cast(ir.OpView, value.owner).operation, scope)
