"""Exchanges of registers between the lanes of a warp, in the kernel dialect: what converts layouts."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from xdsl.dialects.builtin import DenseArrayBase, IndexType, VectorType, i64
from xdsl.ir import SSAValue
from xdsl.irdl import (
    IRDLOperation,
    VarConstraint,
    base,
    irdl_op_definition,
    operand_def,
    opt_operand_def,
    prop_def,
    result_def,
    traits_def,
)
from xdsl.parser import Parser
from xdsl.printer import Printer
from xdsl.traits import Pure
from xdsl.utils.exceptions import VerifyException

from .linear_layout import LANE_BITS, LANES
from .payload import shape_of


@irdl_op_definition
class ShuffleOp(IRDLOperation):
    """Registers of other lanes of the warp: register r of the result is register r of the lane `from`, combined by
    exclusive or with the flips of the set bits of r. Without `from` it is the lane itself, from which registers without
    a flip are not moved.

    ```
    %t = kernel.shuffle %s from %lane flips [0, 2] : vector<4xf32>
    %u = kernel.shuffle %s flips [1, 0] : vector<4xf32>
    ```
    """

    name = "kernel.shuffle"
    source = operand_def(base(VectorType))
    lane = opt_operand_def(IndexType())
    flips = prop_def(DenseArrayBase.constr(i64))
    result = result_def(base(VectorType))
    traits = traits_def(Pure())

    def __init__(self, source: SSAValue, lane: SSAValue | None, flips: Sequence[int]):
        super().__init__(
            operands=[source, lane],
            properties={"flips": DenseArrayBase.from_list(i64, list(flips))},
            result_types=[source.type],
        )

    @property
    def flip_bits(self) -> list[int]:
        """`flips` as numbers."""
        return [int(f) for f in self.flips.get_values()]

    def verify_(self) -> None:
        if shape_of(self.source.type) != (1 << len(self.flips),):
            raise VerifyException(f"one flip for each bit of the register number, not {len(self.flips)}")
        if any(not 0 <= f < LANES for f in self.flip_bits):
            raise VerifyException(f"flips {self.flip_bits} of lanes 0 to {LANES - 1}")
        if self.source.type != self.result.type:
            raise VerifyException("a shuffle keeps the type")

    @classmethod
    def parse(cls, parser: Parser) -> ShuffleOp:
        source = parser.parse_unresolved_operand()
        lane = None
        if parser.parse_optional_keyword("from"):
            lane = parser.resolve_operand(parser.parse_unresolved_operand(), IndexType())
        parser.parse_keyword("flips")
        flips = parser.parse_comma_separated_list(parser.Delimiter.SQUARE, parser.parse_integer)
        parser.parse_punctuation(":")
        return cls(parser.resolve_operand(source, parser.parse_type()), lane, flips)

    def print(self, printer: Printer) -> None:
        printer.print_string(" ")
        printer.print_ssa_value(self.source)
        if self.lane is not None:
            printer.print_string(" from ")
            printer.print_ssa_value(self.lane)
        printer.print_string(f" flips {self.flip_bits} : ")
        printer.print_attribute(self.source.type)


@irdl_op_definition
class RenumberOp(IRDLOperation):
    """Registers in an order that depends on the lane: register r of the result is register r of the source, its number
    combined by exclusive or with the moves of the set bits of the lane's number.

    ```
    %t = kernel.renumber %s by %lane moves [1, 2, 0, 0, 0] : vector<4xf32>
    ```
    """

    T: ClassVar = VarConstraint("T", base(VectorType))
    name = "kernel.renumber"
    source = operand_def(T)
    lane = operand_def(IndexType())
    moves = prop_def(DenseArrayBase.constr(i64))
    result = result_def(T)
    traits = traits_def(Pure())
    assembly_format = "$source `by` $lane `moves` $moves attr-dict `:` type($source)"

    def __init__(self, source: SSAValue, lane: SSAValue, moves: Sequence[int]):
        super().__init__(
            operands=[source, lane],
            properties={"moves": DenseArrayBase.from_list(i64, list(moves))},
            result_types=[source.type],
        )

    @property
    def move_bits(self) -> list[int]:
        """`moves` as numbers."""
        return [int(m) for m in self.moves.get_values()]

    def verify_(self) -> None:
        (size,) = shape_of(self.source.type)
        if size & (size - 1) or len(self.move_bits) != LANE_BITS or any(not 0 <= m < size for m in self.move_bits):
            raise VerifyException(f"{self.move_bits} are no moves of {size} registers for {LANE_BITS} bits of a lane")
