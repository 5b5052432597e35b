"""Rows in the tile dialect: tiles that a block keeps in shared memory between two loops over them.

A ring is a queue between two roles; a row has a place for each tile, and the block that put a tile there reads it back,
as often as it likes. A place says which tile it is, so the loops that read need not go through them in any order.
"""

from __future__ import annotations

from xdsl.dialects.builtin import IndexType, IntAttr, TensorType
from xdsl.ir import Attribute, ParametrizedAttribute, SSAValue, TypeAttribute
from xdsl.irdl import (
    IRDLOperation,
    base,
    irdl_attr_definition,
    irdl_op_definition,
    operand_def,
    result_def,
    traits_def,
)
from xdsl.parser import AttrParser
from xdsl.printer import Printer
from xdsl.traits import MemoryReadEffect, MemoryWriteEffect
from xdsl.utils.exceptions import VerifyException

from .payload import element_type, shape_of


@irdl_attr_definition
class RowType(ParametrizedAttribute, TypeAttribute):
    """Room for `places` tiles in shared memory: `!tile.row<13 of tensor<4096xf32>>`.

    Who holds the tiles in registers is not part of it: their layouts are chosen later.
    """

    name = "tile.row"
    places: IntAttr
    tile: Attribute

    @staticmethod
    def get(places: int, tile: Attribute) -> RowType:
        """Room for so many tiles like `tile`, whatever its layout."""
        return RowType(IntAttr(places), TensorType(element_type(tile), shape_of(tile)))

    def verify(self) -> None:
        if self.places.data < 1:
            raise VerifyException(f"a row has at least one place, not {self.places.data}")
        if shape_of(self.tile) == () or self.tile != TensorType(element_type(self.tile), self.shape):
            raise VerifyException(f"a row holds tiles without a layout, not {self.tile}")

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of each tile."""
        return shape_of(self.tile)

    @classmethod
    def parse_parameters(cls, parser: AttrParser) -> list[Attribute]:
        with parser.in_angle_brackets():
            places = parser.parse_integer()
            parser.parse_keyword("of")
            return [IntAttr(places), parser.parse_type()]

    def print_parameters(self, printer: Printer) -> None:
        with printer.in_angle_brackets():
            printer.print_string(f"{self.places.data} of ")
            printer.print_attribute(self.tile)


@irdl_op_definition
class RowOp(IRDLOperation):
    """A new row; what is in its places is undefined.

    ```
    %r = tile.row : !tile.row<13 of tensor<4096xf32>>
    ```
    """

    name = "tile.row"
    result = result_def(base(RowType))
    traits = traits_def(MemoryWriteEffect())
    assembly_format = "attr-dict `:` type($result)"

    def __init__(self, row: RowType):
        super().__init__(result_types=[row])


@irdl_op_definition
class KeepOp(IRDLOperation):
    """Put a tile into a place of a row.

    ```
    tile.keep %x, %r[%k] : tensor<4096xf32>, !tile.row<13 of tensor<4096xf32>>
    ```
    """

    name = "tile.keep"
    value = operand_def(base(TensorType))
    row = operand_def(base(RowType))
    place = operand_def(IndexType())
    traits = traits_def(MemoryWriteEffect())
    assembly_format = "$value `,` $row `` `[` $place `]` attr-dict `:` type($value) `,` type($row)"

    def __init__(self, value: SSAValue, row: SSAValue, place: SSAValue):
        super().__init__(operands=[value, row, place])

    def verify_(self) -> None:
        _verify_tile(self.row.type, self.value.type)


@irdl_op_definition
class KeptOp(IRDLOperation):
    """The tile in a place of a row, which must have been put there.

    ```
    %y = tile.kept %r[%k] : !tile.row<13 of tensor<4096xf32>> -> tensor<4096xf32>
    ```
    """

    name = "tile.kept"
    row = operand_def(base(RowType))
    place = operand_def(IndexType())
    result = result_def(base(TensorType))
    traits = traits_def(MemoryReadEffect())
    assembly_format = "$row `` `[` $place `]` attr-dict `:` type($row) `->` type($result)"

    def __init__(self, row: SSAValue, place: SSAValue, result_type: Attribute):
        super().__init__(operands=[row, place], result_types=[result_type])

    def verify_(self) -> None:
        _verify_tile(self.row.type, self.result.type)


def _verify_tile(row: Attribute, tile: Attribute) -> None:
    assert isinstance(row, RowType)
    if (shape_of(tile), element_type(tile)) != (row.shape, element_type(row.tile)):
        raise VerifyException(f"{tile} is no tile of {row}")


ROW_OPS = [RowOp, KeepOp, KeptOp]
"""The operations of this file, for the dialect."""
