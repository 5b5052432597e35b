"""Exchanges of registers between the lanes of a warp, in the kernel dialect: what converts layouts."""

from __future__ import annotations

from typing import ClassVar

from xdsl.dialects.builtin import DenseArrayBase, IndexType, VectorType, i64
from xdsl.irdl import VarConstraint, base, irdl_op_definition, operand_def, opt_operand_def, prop_def, result_def
from xdsl.utils.exceptions import VerifyException

from ..layouts.linear import LANE_BITS, LANES
from ..payload import shape_of
from ..support.assembly import PureOp


@irdl_op_definition
class ShuffleOp(PureOp):
    """Registers of other lanes of the warp: register r of the result is register r of the lane `from`, whose number is
    combined by exclusive or with `lane_xor` of the set bits of r. Without `from` it is the lane itself; registers with
    no such bit stay where they are.

    ```
    %t = kernel.shuffle %s from %lane lane_xor [0, 2] : vector<4xf32>
    %u = kernel.shuffle %s lane_xor [1, 0] : vector<4xf32>
    ```
    """

    T: ClassVar = VarConstraint("T", base(VectorType))
    name = "kernel.shuffle"
    source = operand_def(T)
    lane = opt_operand_def(IndexType())
    lane_xor = prop_def(DenseArrayBase.constr(i64))
    result = result_def(T)
    assembly_format = "$source (`from` $lane^)? `lane_xor` $lane_xor attr-dict `:` type($source)"

    def verify_(self) -> None:
        if shape_of(self.source.type) != (1 << len(self.lane_xor),):
            raise VerifyException(f"one flip for each bit of the register number, not {len(self.lane_xor)}")
        flips = list(self.lane_xor.get_values())
        if any(not 0 <= f < LANES for f in flips):
            raise VerifyException(f"lane_xor {flips} of lanes 0 to {LANES - 1}")


@irdl_op_definition
class PermuteRegistersOp(PureOp):
    """Registers in an order that depends on the lane: register r of the result is register r of the source, its number
    combined by exclusive or with `reg_xor` of the set bits of the lane's number.

    ```
    %t = kernel.permute_registers %s by %lane reg_xor [1, 2, 0, 0, 0] : vector<4xf32>
    ```
    """

    T: ClassVar = VarConstraint("T", base(VectorType))
    name = "kernel.permute_registers"
    source = operand_def(T)
    lane = operand_def(IndexType())
    reg_xor = prop_def(DenseArrayBase.constr(i64))
    result = result_def(T)
    assembly_format = "$source `by` $lane `reg_xor` $reg_xor attr-dict `:` type($source)"

    def verify_(self) -> None:
        (size,) = shape_of(self.source.type)
        moves = list(self.reg_xor.get_values())
        if size & (size - 1) or len(moves) != LANE_BITS or any(not 0 <= m < size for m in moves):
            raise VerifyException(f"{moves} is no reg_xor of {size} registers for {LANE_BITS} bits of a lane")
