"""Integers of a program as affine forms (`dialects/shapes/affine.py`), at the loop level and at the tile level."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence

from xdsl.dialects import arith
from xdsl.dialects.builtin import IndexType, IntegerType
from xdsl.ir import SSAValue

from ...dialects import payload, tile
from ...dialects.payload import element_type, is_float
from ...dialects.shapes.affine import Form, Simplifier, constant, dim
from ...dialects.shapes.extents import SymbolAttr
from ...dialects.shapes.ranges import constant_index


class FormReader(ABC):
    """Reads what is computed from constants, positions in a tile of `shape` (dims of the forms) and leaves."""

    def __init__(self, simplifier: Simplifier, shape: Sequence[int] = ()) -> None:
        self.simplifier = simplifier
        self.shape = shape
        self.known: dict[tuple[SSAValue, tuple[int, ...]], Form | None] = {}

    @abstractmethod
    def leaf(self, value: SSAValue | SymbolAttr) -> Form | None:
        """The form of an integer of which nothing says how it is computed; None if there is none."""

    def of(self, value: SSAValue, dims: tuple[int, ...] = ()) -> Form | None:
        """The form of `value`, a scalar or a tile whose own dimensions are `dims` of the whole one; None if it is no
        affine expression, or arithmetic in its type could wrap."""
        if (value, dims) not in self.known:
            found, kind = None, element_type(value.type)
            if isinstance(kind, IndexType | IntegerType):
                found = self._computed(value, dims) or self.leaf(value)
            fits = (
                found is None
                or not isinstance(kind, IntegerType)
                or self.simplifier.fits(found, element_type(value.type))
            )
            self.known[value, dims] = found if fits else None
        return self.known[value, dims]

    def all(self, values: Iterable[SSAValue], dims: tuple[int, ...] = ()) -> list[Form] | None:
        """The forms of all values; None if one of them has none."""
        found = [self.of(v, dims) for v in values]
        known = [f for f in found if f is not None]
        return known if len(known) == len(found) else None

    def _computed(self, value: SSAValue, dims: tuple[int, ...]) -> Form | None:
        if (number := constant_index(value)) is not None:
            return constant(number)
        match value.owner:
            case payload.ExtentOp() as op:
                return self.leaf(op.symbol)
            case payload.CastOp() as op:
                return None if is_float(op.operand.type) else self.of(op.operand, dims)
            case tile.AffineOp() as op:
                own = [dim(d) if self.shape[d] > 1 else constant(0) for d in dims]
                symbols = self.all(op.symbols)
                return None if symbols is None else self.simplifier.read(op.map.data.results[0], own, symbols)
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
