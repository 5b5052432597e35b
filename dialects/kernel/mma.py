"""Tensor cores in the kernel dialect: matrices from shared memory into the registers of a warp, and their product.

The unit is a matrix of 8 rows of 16 bytes: eight 16-bit elements each, or four f32. A warp holds it with four bytes a
lane: lane t has word t % 4 of row t / 4, which is elements 2 * (t % 4) and the next one, or one f32. Operands and
results of a matrix product are made of these. Of an f32 a product takes what a tf32 has: the last 13 bits do not count.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from xdsl.dialects.builtin import (
    BFloat16Type,
    DenseArrayBase,
    Float16Type,
    Float32Type,
    IndexType,
    IntAttr,
    MemRefType,
    UnitAttr,
    VectorType,
    i64,
)
from xdsl.ir import Attribute, SSAValue
from xdsl.irdl import base, irdl_op_definition, operand_def, opt_prop_def, prop_def, result_def, traits_def
from xdsl.traits import MemoryReadEffect, MemoryWriteEffect
from xdsl.utils.exceptions import VerifyException

from ..layouts.attributes import Bases
from ..payload import element_bytes, element_type, shape_of
from ..support.assembly import FormattedOp
from .memory import is_shared
from .registers import RegisterDotOp

ROWS = 8
"""Rows of a matrix."""

ROW_BYTES = 16
"""Bytes of a row of a matrix."""

WORD_BYTES = 4
"""Bytes of a matrix that one lane holds."""


def row_elements(t: Attribute) -> int:
    """Elements of a row of a matrix of `t`."""
    return ROW_BYTES // element_bytes(t)


def word_elements(t: Attribute) -> int:
    """Elements of a matrix of `t` that one lane holds."""
    return WORD_BYTES // element_bytes(t)


@dataclass(frozen=True)
class MmaAtom:
    """One instruction of tensor cores that a warp executes, `mma.sync`: the type of the operands' elements, in CUDA and
    in PTX, and the shape m x n x k. The accumulator is f32."""

    element: type[Attribute]
    c_type: str
    ptx_type: str
    k: int
    m: int = 16
    n: int = 8

    @property
    def shape(self) -> str:
        """The shape as PTX writes it, m16n8k16."""
        return f"m{self.m}n{self.n}k{self.k}"

    @property
    def instruction(self) -> str:
        """The PTX instruction, without its operands."""
        return f"mma.sync.aligned.{self.shape}.row.col.f32.{self.ptx_type}.{self.ptx_type}.f32"


MMA_ATOMS = (
    MmaAtom(BFloat16Type, "bf16", "bf16", 16),
    MmaAtom(Float16Type, "f16", "f16", 16),
    MmaAtom(Float32Type, "float", "tf32", 8),
)
"""The atoms, one for each type of operands. Their rows of k are two rows of a matrix: 32 bytes."""


def mma_atom(t: Attribute) -> MmaAtom | None:
    """The atom that multiplies elements of the type `t`, if there is one."""
    return next((atom for atom in MMA_ATOMS if isinstance(element_type(t), atom.element)), None)


def is_factor(t: Attribute) -> bool:
    """Whether tensor cores multiply what is of type `t`."""
    return mma_atom(t) is not None


class MatrixRows(FormattedOp):
    """Matrices in shared memory that a whole warp moves, `count` (1, 2 or 4) at a time.

    In every step, lane 8 * m + r gives the place of row r of matrix m, eight consecutive elements; lanes of a matrix
    that is not there give none. A step's place is the origin plus (with `xor`: exclusive or) the steps of the set bits
    of its number. Register 2 * (count * step + m) + e of lane t is element 2 * (t % 4) + e of row t / 4 of matrix m;
    with `trans` element t / 4 of row 2 * (t % 4) + e. Of f32 a row is four elements, and register count * step + m of
    lane t is element t % 4 of row t / 4; they cannot be transposed.
    """

    memory = operand_def(base(MemRefType))
    origin = operand_def(IndexType())
    steps = prop_def(DenseArrayBase.constr(i64), default_value=DenseArrayBase.from_list(i64, []))
    count = prop_def(IntAttr)
    trans = opt_prop_def(UnitAttr)
    xor = opt_prop_def(UnitAttr)

    # The rows as an access like that of a `kernel.load`: every lane moves eight elements in each step.

    @property
    def coordinates(self) -> tuple[SSAValue, ...]:
        """The place of register 0."""
        return (self.origin,)

    @property
    def row(self) -> int:
        """Elements of a row."""
        return row_elements(element_type(self.memory.type))

    @property
    def registers(self) -> int:
        """Elements that a lane's rows have, in all steps."""
        return self.row << len(self.steps)

    @property
    def reg_bases(self) -> Bases:
        """For every bit of the number of such an element, its step."""
        inside = ((1 << i,) for i in range(self.row.bit_length() - 1))
        return (*inside, *((int(s),) for s in self.steps.get_values()))

    @property
    def vec(self) -> IntAttr:
        """A row moves at once."""
        return IntAttr(self.row)

    @property
    def bounds(self) -> tuple[tuple[int, int], ...]:
        """There is nothing to check."""
        return ()

    @property
    def check_steps(self) -> Bases:
        """There is nothing to check."""
        return ((),) * len(self.reg_bases)

    def verify_matrices(self, t: Attribute) -> None:
        """Check the operation against the type of its registers. Raises `VerifyException`."""
        if not is_shared(self.memory.type):
            raise VerifyException("matrices lie in shared memory")
        if not is_factor(t) or element_type(self.memory.type) != element_type(t):
            raise VerifyException(f"rows of {self.memory.type} and {t}: both hold bf16, or f16, or f32")
        if self.trans is not None and word_elements(t) == 1:
            raise VerifyException("matrices of f32 cannot be transposed")
        if self.count.data not in (1, 2, 4):
            raise VerifyException(f"1, 2 or 4 matrices at a time, not {self.count.data}")
        if shape_of(t) != (word_elements(t) * self.count.data << len(self.steps),):
            raise VerifyException(f"{self.count.data} matrices in each of {1 << len(self.steps)} steps")
        if any(int(s) % self.row for s in self.steps.get_values()):
            raise VerifyException("rows are aligned to 16 bytes")


@irdl_op_definition
class LdMatrixOp(MatrixRows):
    """Matrices from shared memory into registers, by a whole warp.

    ```
    %a = kernel.ldmatrix count 4 %s[%0] xor steps [512] : memref<4096xbf16, "shared"> -> vector<16xbf16>
    ```
    """

    name = "kernel.ldmatrix"
    result = result_def(base(VectorType))
    traits = traits_def(MemoryReadEffect())
    assembly_format = (
        "`count` custom<Int>($count) (`trans` $trans^)? $memory `` `[` $origin `]` (`xor` $xor^)? (`steps` $steps^)?"
        " attr-dict `:` type($memory) `->` type($result)"
    )

    def __init__(self, memory: SSAValue, origin: SSAValue, steps: Sequence[int], *, count: int = 4, **flags: bool):
        """`flags` are `trans` and `xor`."""
        element = element_type(memory.type)
        result = VectorType(element, [word_elements(element) * count << len(steps)])
        super().__init__(count, memory=memory, origin=origin, steps=steps, result=result, **flags)

    def verify_(self) -> None:
        self.verify_matrices(self.result.type)


@irdl_op_definition
class StMatrixOp(MatrixRows):
    """Registers into matrices in shared memory, by a whole warp (sm_90 and later).

    ```
    kernel.stmatrix count 4 %v, %s[%0] xor steps [16, 32] : vector<32xbf16>, memref<4096xbf16, "shared">
    ```
    """

    name = "kernel.stmatrix"
    value = operand_def(base(VectorType))
    traits = traits_def(MemoryWriteEffect())
    assembly_format = (
        "`count` custom<Int>($count) (`trans` $trans^)? $value `,` $memory `` `[` $origin `]` (`xor` $xor^)?"
        " (`steps` $steps^)? attr-dict `:` type($value) `,` type($memory)"
    )

    def verify_(self) -> None:
        self.verify_matrices(self.value.type)


@irdl_op_definition
class MmaOp(RegisterDotOp):
    """Products of a warp's matrices on tensor cores: acc + lhs * rhs for every pair of a 16 x 16 block of `lhs` and a
    16 x 8 block of `rhs`, summed in f32. Blocks of f32, multiplied as tf32, are 16 x 8 and 8 x 8.

    Block i of `lhs` has registers 8 * i to 8 * i + 7; in register e, lane t holds row t / 4 (+ 8 if bit 1 of e is set)
    and k = 2 * (t % 4) + bit 0 of e (+ 8 if bit 2 is set). Block j of `rhs` has registers 4 * j to 4 * j + 3: column
    t / 4 and k = 2 * (t % 4) + bit 0 (+ 8 if bit 1 is set). In a register r of the accumulator lane t holds column
    2 * (t % 4) + bit 0 of r and row t / 4 (+ 8 if bit `rows[0]` is set) of the product of block i, whose bits are the
    further `rows`, and block j, whose bits are `cols`.

    Of f32, block i of `lhs` has registers 4 * i to 4 * i + 3: row t / 4 (+ 8 if bit 0 of e is set) and k = t % 4 (+ 4
    if bit 1 is set); block j of `rhs` has registers 2 * j and 2 * j + 1: column t / 4 and k = t % 4 (+ 4 if bit 0 is).

    ```
    %c = kernel.mma %a, %b, %acc rows [1, 3] cols [2] : vector<16xbf16>, vector<8xbf16>, vector<16xf32>
    ```
    """

    name = "kernel.mma"

    def verify_(self) -> None:
        rows, cols = list(self.rows.get_values()), list(self.cols.get_values())
        (a,), (b,), (c,) = (shape_of(v.type) for v in (self.lhs, self.rhs, self.acc))
        if not rows or sorted(rows + cols) != list(range(1, c.bit_length() - 1)):
            raise VerifyException(f"rows {rows} and cols {cols} do not number {c} registers in pairs")
        if not is_factor(self.lhs.type) or element_type(self.rhs.type) != element_type(self.lhs.type):
            raise VerifyException("the operands are both bf16, or f16, or f32")
        least = 2 * word_elements(self.lhs.type)
        if a != least << len(rows) or b != least << len(cols):
            needed = f"{least << len(rows)} and {least << len(cols)}"
            raise VerifyException(f"rows {rows} and cols {cols} need {needed} registers")
        if not isinstance(element_type(self.acc.type), Float32Type):
            raise VerifyException("the accumulator and the result are f32")
