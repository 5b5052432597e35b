"""Operations on registers: reductions, permutations and dots within a thread, and shuffles between lanes of a warp.

A value is `vector<NxT>`: N registers of each thread. N is a power of two, except for results of
`kernel.shuffle_registers`. Attributes such as `over [0, 1]` list bits of the register number: bit 0 pairs registers 0
and 1, 2 and 3, and so on.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from xdsl import irdl
from xdsl.dialects.builtin import IndexType, IntAttr, VectorType
from xdsl.ir import SSAValue
from xdsl.utils.exceptions import VerifyException

from ..layouts.linear import LANE_BITS, LANES
from ..payload import element_type, shape_of
from ..support.assembly import NUMBERS, SAME_TYPE, PureOp
from ..tensor import KindAttr, ReductionKind, verify_kind

_VECTOR = irdl.VarConstraint("T", irdl.base(VectorType))
"""Constraint: operands and results with the same vector type."""


@irdl.irdl_op_definition
class ShuffleXorOp(PureOp):
    """Exchanges registers with the lane whose number is this lane's number XOR `mask`.

    ```
    %t = kernel.shuffle_xor %s by 16 : vector<2xf32>
    ```

    Attributes:
        mask: number that is combined with the lane number (`by`).

    Constraints: `mask` is 1 to 31.
    """

    name = "kernel.shuffle_xor"
    source = irdl.operand_def(SAME_TYPE)
    mask = irdl.prop_def(IntAttr)
    result = irdl.result_def(SAME_TYPE)
    assembly_format = "$source `by` custom<Int>($mask) attr-dict `:` type($source)"

    def verify_(self) -> None:
        if not 0 < self.mask.data < 32:
            raise VerifyException(f"expected a mask of 1 to 31, but got {self.mask.data}")


@irdl.irdl_op_definition
class ShuffleOp(PureOp):
    """Reads registers of other lanes of the warp.

    ```
    %t = kernel.shuffle %s from %lane lane_xor [0, 2] : vector<4xf32>
    %u = kernel.shuffle %s lane_xor [1, 0] : vector<4xf32>
    ```

    Register r of the result is register r of lane `from ^ f`, where f is the XOR of the entries of `lane_xor` for the
    set bits of r. Without `from`, the lane reads from its own number; registers with f = 0 then stay.

    Operands:
        source: registers, 2^n of them.
        lane: lane number to start from (`from`), optional.

    Attributes:
        lane_xor: for each bit of the register number, a number that is combined with the lane number.

    Constraints: `lane_xor` has one entry for each bit of the register number, each 0 to 31.
    """

    name = "kernel.shuffle"
    source = irdl.operand_def(_VECTOR)
    lane = irdl.opt_operand_def(IndexType())
    lane_xor = irdl.prop_def(NUMBERS)
    result = irdl.result_def(_VECTOR)
    assembly_format = "$source (`from` $lane^)? `lane_xor` $lane_xor attr-dict `:` type($source)"

    def verify_(self) -> None:
        if shape_of(self.source.type) != (1 << len(self.lane_xor),):
            raise VerifyException(
                f"expected one lane_xor for each bit of the register number, but got {len(self.lane_xor)}"
            )
        flips = list(self.lane_xor.get_values())
        if any(not 0 <= f < LANES for f in flips):
            raise VerifyException(f"expected lane_xor of 0 to {LANES - 1}, but got {flips}")


@irdl.irdl_op_definition
class PermuteRegistersOp(PureOp):
    """Permutes the registers of each lane by its lane number.

    ```
    %t = kernel.permute_registers %s by %lane reg_xor [1, 2, 0, 0, 0] : vector<4xf32>
    ```

    Register r of the result is register r ^ f of the source, where f is the XOR of the entries of `reg_xor` for the set
    bits of the lane number.

    Operands:
        lane: lane number of the thread (`by`).

    Attributes:
        reg_xor: for each bit of the lane number, a number that is combined with the register number.

    Constraints: the number of registers is a power of two; `reg_xor` has five entries, one for each bit of the lane
    number.
    """

    name = "kernel.permute_registers"
    source = irdl.operand_def(_VECTOR)
    lane = irdl.operand_def(IndexType())
    reg_xor = irdl.prop_def(NUMBERS)
    result = irdl.result_def(_VECTOR)
    assembly_format = "$source `by` $lane `reg_xor` $reg_xor attr-dict `:` type($source)"

    def verify_(self) -> None:
        (size,) = shape_of(self.source.type)
        moves = list(self.reg_xor.get_values())
        if size & (size - 1) or len(moves) != LANE_BITS or any(not 0 <= m < size for m in moves):
            raise VerifyException(f"expected {LANE_BITS} reg_xor below {size}, a power of two, but got {moves}")


@irdl.irdl_op_definition
class ReduceRegistersOp(PureOp):
    """Reduces registers of a thread over some bits of the register number.

    ```
    %s = kernel.reduce_registers add %x over [0, 1] : vector<8xf32> -> vector<2xf32>
    ```

    The remaining bits, in order, number the registers of the result.

    Attributes:
        kind: reduction kind.
        bits: reduced bits of the register number (`over`).

    Constraints: `over` lists bits of the register number; the result has 2^(remaining bits) registers.
    """

    name = "kernel.reduce_registers"
    kind = irdl.prop_def(KindAttr)
    source = irdl.operand_def(irdl.base(VectorType))
    bits = irdl.prop_def(NUMBERS)
    result = irdl.result_def(irdl.base(VectorType))
    assembly_format = "$kind $source `over` $bits attr-dict `:` type($source) `->` type($result)"

    def __init__(self, kind: str | ReductionKind, source: SSAValue, bits: Sequence[int]):
        size = shape_of(source.type)[0] >> len(bits)
        super().__init__(kind, source, bits, VectorType(element_type(source.type), [size]))

    def verify_(self) -> None:
        (n,), bits = shape_of(self.source.type), set(self.bits.get_values())
        if any(not 0 <= b < n.bit_length() - 1 for b in bits):
            raise VerifyException(
                f"expected register bits from 0 to {n.bit_length() - 2} of {n} registers, but got {sorted(bits)}"
            )
        if shape_of(self.result.type) != (n >> len(bits),):
            raise VerifyException(
                f"expected {n >> len(bits)} registers after the reduction of {len(bits)} bits of {n} registers, but got"
                f" {self.result.type}"
            )
        verify_kind(self.kind.data, element_type(self.source.type))


@irdl.irdl_op_definition
class ScanRegistersOp(PureOp):
    """Scans registers of a thread inclusively along some bits of the register number, the lowest bit first.

    ```
    %s, %c = kernel.scan_registers add %x, %init over [0, 1] : vector<8xf32>, vector<2xf32>
    ```

    The remaining bits, in order, number the registers of `init` and `carry`.

    Operands:
        source: registers to scan.
        init: value that each scan starts from.

    Attributes:
        kind: reduction kind.
        bits: scanned bits of the register number (`over`).

    Results:
        result: the scanned registers.
        carry: last element of each scan.

    Constraints: the bits are distinct and ascending; the kind is one that scans support.
    """

    name = "kernel.scan_registers"
    C: ClassVar = irdl.VarConstraint("C", irdl.base(VectorType))
    kind = irdl.prop_def(KindAttr)
    source = irdl.operand_def(_VECTOR)
    init = irdl.operand_def(C)
    bits = irdl.prop_def(NUMBERS)
    result = irdl.result_def(_VECTOR)
    carry = irdl.result_def(C)
    assembly_format = "$kind $source `,` $init `over` $bits attr-dict `:` type($source) `,` type($init)"

    def verify_(self) -> None:
        (n,), bits, element = shape_of(self.source.type), [*self.bits.get_values()], element_type(self.source.type)
        if bits != sorted(set(bits)) or any(not 0 <= b < n.bit_length() - 1 for b in bits):
            raise VerifyException(f"expected distinct, ascending register bits of {n} registers, but got {bits}")
        if self.init.type != VectorType(element, [n >> len(bits)]):
            raise VerifyException(
                f"expected {n >> len(bits)} initial values for the scan of {len(bits)} bits of {n} registers, but got"
                f" {self.init.type}"
            )
        verify_kind(self.kind.data, element, scan=True)


@irdl.irdl_op_definition
class ShuffleRegistersOp(PureOp):
    """Selects registers: register r of the result is register `from[r]` of the source.

    ```
    %b = kernel.shuffle_registers %r from [0, 0, 1, 1] : vector<2xf32> -> vector<4xf32>
    ```

    Attributes:
        registers: for each register of the result, the register of the source (`from`).

    Constraints: `from` has one valid register number for each register of the result.
    """

    name = "kernel.shuffle_registers"
    source = irdl.operand_def(irdl.base(VectorType))
    registers = irdl.prop_def(NUMBERS)
    result = irdl.result_def(irdl.base(VectorType))
    assembly_format = "$source `from` $registers attr-dict `:` type($source) `->` type($result)"

    def __init__(self, source: SSAValue, registers: Sequence[int]):
        super().__init__(source, registers, VectorType(element_type(source.type), [len(registers)]))

    def verify_(self) -> None:
        n = shape_of(self.source.type)[0]
        picked = self.registers.get_values()
        if shape_of(self.result.type) != (len(picked),) or any(not 0 <= r < n for r in picked):
            raise VerifyException(
                f"expected the registers of {self.result.type} from 0 to {n - 1}, but got {list(picked)}"
            )


@irdl.irdl_op_definition
class SplatOp(PureOp):
    """Copies a scalar to all registers of a vector.

    ```
    %v = kernel.splat %s : f32 -> vector<8xf32>
    ```
    """

    name = "kernel.splat"
    source = irdl.operand_def()
    result = irdl.result_def(irdl.base(VectorType))
    assembly_format = "$source attr-dict `:` type($source) `->` type($result)"

    def __init__(self, source: SSAValue, size: int):
        super().__init__(source, VectorType(source.type, [size]))

    def verify_(self) -> None:
        if element_type(self.result.type) != self.source.type:
            raise VerifyException(f"expected registers of {self.source.type}, but got {self.result.type}")


@irdl.irdl_op_definition
class ExtractOp(PureOp):
    """Returns one register as a scalar.

    ```
    %s = kernel.extract %v[0] : vector<1xf32>
    ```

    Attributes:
        register: number of the register.
    """

    name = "kernel.extract"
    source = irdl.operand_def(VectorType.constr(SAME_TYPE))
    register = irdl.prop_def(IntAttr, default_value=IntAttr(0))
    result = irdl.result_def(SAME_TYPE)
    assembly_format = "$source `` `[` custom<Int>($register) `]` attr-dict `:` type($source)"

    def verify_(self) -> None:
        if not 0 <= self.register.data < shape_of(self.source.type)[0]:
            raise VerifyException(f"expected a register of {self.source.type}, but got {self.register.data}")


@irdl.irdl_op_definition
class IndicesOp(PureOp):
    """Returns an index for every register: the base plus the step of every set bit of the register number.

    ```
    %k = kernel.indices %base steps [1, 2, 64] : vector<8xindex>
    ```

    Register 5 (binary 101) of the example is %base + 1 + 64.

    Operands:
        origin: index of register 0.

    Attributes:
        steps: for each bit of the register number, its step.
    """

    name = "kernel.indices"
    origin = irdl.operand_def(IndexType())
    steps = irdl.prop_def(NUMBERS)
    result = irdl.result_def(irdl.base(VectorType))
    assembly_format = "$origin `steps` $steps attr-dict `:` type($result)"

    def __init__(self, origin: SSAValue, steps: Sequence[int]):
        super().__init__(origin, steps, VectorType(IndexType(), [1 << len(steps)]))

    def verify_(self) -> None:
        if self.result.type != VectorType(IndexType(), [1 << len(self.steps.get_values())]):
            raise VerifyException(
                f"expected one step for each bit of the register number of {self.result.type}, but got"
                f" {len(self.steps.get_values())} steps"
            )


class RegisterDotOp(PureOp):
    """Base class of dots with operands in registers.

    rows: bits of the accumulator's register number that select its row, from the lowest bit of the row. In
        `kernel.outer_fma` with `rows [3, 4]`, bits 3 and 4 select one of the four registers of `lhs`.
    cols: the same for its column and the registers of `rhs`.
    lhs, rhs: left and right operand.
    acc: accumulator.
    """

    lhs = irdl.operand_def(irdl.base(VectorType))
    rhs = irdl.operand_def(irdl.base(VectorType))
    acc = irdl.operand_def(_VECTOR)
    rows = irdl.prop_def(NUMBERS)
    cols = irdl.prop_def(NUMBERS)
    result = irdl.result_def(_VECTOR)
    assembly_format = (
        "$lhs `,` $rhs `,` $acc `rows` $rows `cols` $cols attr-dict `:` type($lhs) `,` type($rhs) `,` type($acc)"
    )


def _verify_one_element_type(op: RegisterDotOp | PanelFmaOp) -> None:
    elements = list(dict.fromkeys(element_type(v.type) for v in op.operands))
    if len(elements) > 1:
        raise VerifyException(
            f"expected one element type of operands and accumulator, but got {' and '.join(map(str, elements))}"
        )


@irdl.irdl_op_definition
class OuterFmaOp(RegisterDotOp):
    """Adds the outer product of two vectors of registers to the accumulator, by fused multiply-adds.

    ```
    %c = kernel.outer_fma %a, %b, %acc rows [3, 4, 5] cols [0, 1, 2] : vector<8xf32>, vector<8xf32>, vector<64xf32>
    ```

    Register r of the result is acc[r] + lhs[i] * rhs[j]: bit `rows[p]` of r is bit p of i, bit `cols[q]` of r is bit q
    of j.

    Constraints: `rows` and `cols` together list all bits of the accumulator's register number; all operands have one
    element type.
    """

    name = "kernel.outer_fma"

    def verify_(self) -> None:
        rows, cols = list(self.rows.get_values()), list(self.cols.get_values())
        (a,), (b,), (c,) = (shape_of(v.type) for v in (self.lhs, self.rhs, self.acc))
        if sorted(rows + cols) != list(range(c.bit_length() - 1)) or a != 1 << len(rows) or b != 1 << len(cols):
            raise VerifyException(
                f"expected rows and cols that number {c} registers from {a} and {b}, but got {rows} and {cols}"
            )
        _verify_one_element_type(self)


@irdl.irdl_op_definition
class PanelFmaOp(PureOp):
    """Adds a matmul of row-major matrices in the registers of one thread to the accumulator (on the CPU).

    ```
    %c = kernel.panel_fma %a, %b, %acc depth 64 : vector<1024xf32>, vector<4096xf32>, vector<1024xf32>
    ```

    The result is acc[i, j] + sum over k of lhs[i, k] * rhs[k, j], with fused multiply-adds; the sum over k is computed
    first. The "registers" are an array in the cache. The printer chooses the register blocking, with k innermost.
    Operands that were converted from bf16 may be multiplied in pairs along k, with the rounding of the processor's
    instruction.

    Operands:
        lhs: left operand [m, depth].
        rhs: right operand [depth, n].
        acc: accumulator [m, n].

    Attributes:
        depth: extent of k.

    Constraints: the sizes of the operands match; all operands have one element type.
    """

    name = "kernel.panel_fma"
    lhs = irdl.operand_def(irdl.base(VectorType))
    rhs = irdl.operand_def(irdl.base(VectorType))
    acc = irdl.operand_def(_VECTOR)
    depth = irdl.prop_def(IntAttr)
    result = irdl.result_def(_VECTOR)
    assembly_format = (
        "$lhs `,` $rhs `,` $acc `depth` custom<Int>($depth) attr-dict `:` type($lhs) `,` type($rhs) `,` type($acc)"
    )

    @property
    def extents(self) -> tuple[int, int]:
        """Returns the number of rows and of columns."""
        (lhs,), (rhs,) = shape_of(self.lhs.type), shape_of(self.rhs.type)
        return lhs // self.depth.data, rhs // self.depth.data

    def verify_(self) -> None:
        (a,), (b,), (c,), depth = *(shape_of(v.type) for v in (self.lhs, self.rhs, self.acc)), self.depth.data
        if depth < 1 or a % depth or b % depth or (a // depth) * (b // depth) != c:
            raise VerifyException(
                f"expected operands of depth {depth} for a product of {c} numbers, but got {a} and {b} numbers"
            )
        _verify_one_element_type(self)
