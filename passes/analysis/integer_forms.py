"""Reads index arithmetic as affine forms (`dialects/shapes/affine.py`), at the loop level and at the tile level.

A form is a sum of terms: `%i * 4 + %j + 1`, over dims (positions in a tile, or loop indices) and symbols (scalars).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence

from xdsl.dialects import arith
from xdsl.dialects.builtin import IndexType, IntegerType
from xdsl.ir import BlockArgument, SSAValue

from ...dialects import loop, payload, tile
from ...dialects.payload import element_type, is_float
from ...dialects.shapes.affine import Form, Simplifier, add, constant, dim
from ...dialects.shapes.extents import SymbolAttr
from ...dialects.shapes.ranges import constant_index


class FormReader(ABC):
    """Reader of integers that are computed from constants, positions in a tile, and leaves that a subclass defines.

    Attributes:
        simplifier: ranges of dims and symbols.
        shape: shape of the tile whose positions are the dims of a form.
        known: forms that were read before, by value and `dims` (see `of`).
    """

    def __init__(self, simplifier: Simplifier, shape: Sequence[int] = ()) -> None:
        self.simplifier = simplifier
        self.shape = shape
        self.known: dict[tuple[SSAValue, tuple[int, ...]], Form | None] = {}

    @abstractmethod
    def leaf(self, value: SSAValue | SymbolAttr) -> Form | None:
        """Returns the form of an integer that is not computed by operations the reader knows, or None."""

    def of(self, value: SSAValue, dims: tuple[int, ...] = ()) -> Form | None:
        """Returns the form of an integer value.

        Args:
            value: a scalar or a tile.
            dims: numbers of the form's dims that stand for the dimensions of the tile; empty for a scalar.

        Returns:
            The form, or None if the value is not affine or may overflow in its type.
        """
        if (value, dims) not in self.known:
            form, kind = None, element_type(value.type)
            if isinstance(kind, IndexType | IntegerType):
                form = self._computed(value, dims) or self.leaf(value)
            wraps = form and isinstance(kind, IntegerType) and not self.simplifier.fits(form, element_type(value.type))
            self.known[value, dims] = None if wraps else form
        return self.known[value, dims]

    def all(self, values: Iterable[SSAValue], dims: tuple[int, ...] = ()) -> list[Form] | None:
        """Returns the forms of all values, or None if a value has no form. `dims`: as in `of`."""
        forms = [self.of(v, dims) for v in values]
        affine = [f for f in forms if f is not None]
        return affine if len(affine) == len(forms) else None

    def _computed(self, value: SSAValue, dims: tuple[int, ...]) -> Form | None:
        if (number := constant_index(value)) is not None:
            return constant(number)
        match value.owner:
            case payload.ExtentOp() as op:
                return self.leaf(op.symbol)
            case payload.CastOp() as op:
                return None if is_float(op.operand.type) else self.of(op.operand, dims)
            case tile.AffineOp() as op:
                positions = [dim(d) if self.shape[d] > 1 else constant(0) for d in dims]
                symbols = self.all(op.symbols)
                return None if symbols is None else self.simplifier.read(op.map.data.results[0], positions, symbols)
            case tile.BroadcastOp() as op:
                along = op.along.get_values()
                return self.of(op.source, tuple(d for i, d in enumerate(dims) if i not in along))
            case tile.ConvertLayoutOp() as op:
                return self.of(op.source, dims)
            case arith.AddiOp() | arith.SubiOp() | arith.MuliOp() | arith.FloorDivSIOp() | arith.RemSIOp() as op:
                both = self.all(op.operands, dims)
                return None if both is None else self.simplifier.computed(op.name, *both)
            case _:
                return None


class Forms(FormReader):
    """Reader of the integers of a nest, as affine forms over its indices. Dim i of a form is `indices[i]`."""

    def __init__(self) -> None:
        super().__init__(Simplifier())
        self.indices: list[SSAValue] = []

    def identify(self, value: SSAValue, other: SSAValue) -> None:
        """Reads the loop index `value` as the index `other` from now on."""
        self.known[value, ()] = self.of(other)

    def leaf(self, value: SSAValue | SymbolAttr) -> Form | None:
        parent = value.block.parent_op() if isinstance(value, BlockArgument) else None
        if not isinstance(value, BlockArgument) or not isinstance(parent, loop.NestOp | loop.ReduceOp):
            return None
        form = dim(len(self.indices))
        self.simplifier.set_range(form.terms[0][0], parent.sizes[value.index])
        self.indices.append(value)
        return form

    def difference(self, op: payload.CmpOp) -> Form | None:
        """Returns `lhs - rhs` of a comparison of integers, or None if it is not affine or compares floats."""
        if is_float(op.lhs.type):
            return None
        both = self.all((op.lhs, op.rhs))
        return None if both is None else add(both[0], both[1], -1)

    def constraints(self, op: loop.LoadOp) -> list[tuple[Form, int, int]]:
        """Returns the static bounds in the domain of a load, as (form, lower bound, exclusive upper bound).

        The list is empty if the domain depends on other values than loop indices.
        """
        if op.domain is None or op.symbols:
            return []
        if (indices := self.all(op.indices)) is None:
            return []
        ends = zip(op.domain.affine.results, op.domain.limits, strict=True)
        return [(self.simplifier.read(expr, indices), lo, hi) for expr, (lo, hi) in ends if isinstance(hi, int)]
