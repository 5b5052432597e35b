"""Tensor cores in the kernel dialect: matrices from shared memory into the registers of a warp, and their product.

The unit is a matrix of 8 rows of 16 bytes: eight 16-bit elements each, or four f32. A warp holds it with four bytes a
lane: lane t has word t % 4 of row t / 4, which is elements 2 * (t % 4) and the next one, or one f32. Operands and
results of a matrix product are made of these. Of an f32 a product takes what a tf32 has: the last 13 bits do not count.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from operator import le

from xdsl import irdl
from xdsl.dialects.builtin import IndexType, IntAttr, MemRefType, UnitAttr, VectorType, bf16, f16, f32, f64
from xdsl.ir import Attribute, SSAValue
from xdsl.traits import MemoryReadEffect
from xdsl.utils.exceptions import VerifyException

from ..layouts import Bases
from ..payload import element_bytes, element_type, shape_of
from ..support.assembly import NO_NUMBERS, NUMBERS, FormattedOp, WritingOp
from .memory import is_shared
from .registers import RegisterDotOp

ROWS = 8
"""Rows of a matrix."""

ROW_BYTES = 16
"""Bytes of a row of a matrix."""

WORD_BYTES = 4
"""Bytes of a matrix that one lane holds."""


def word_elements(t: Attribute) -> int:
    return WORD_BYTES // element_bytes(t)


@dataclass(frozen=True)
class MmaAtom:
    """One instruction of tensor cores that a warp executes, `mma.sync`: the type of the operands' elements, in CUDA and
    in PTX, the shape m x n x k, and the type of the accumulator. Who holds what of it is `layouts.mma.fragments`."""

    element: Attribute
    c_type: str
    ptx_type: str
    k: int
    m: int = 16
    n: int = 8
    accumulator: Attribute = f32

    @property
    def shape(self) -> str:
        """The shape as PTX writes it, m16n8k16."""
        return f"m{self.m}n{self.n}k{self.k}"

    @property
    def instruction(self) -> str:
        types = f"{self.accumulator}.{self.ptx_type}.{self.ptx_type}.{self.accumulator}"
        return f"mma.sync.aligned.{self.shape}.row.col.{types}"

    @property
    def word(self) -> int:
        """Elements that lie side by side along k in the registers of a lane."""
        return max(1, WORD_BYTES // element_bytes(self.element))

    @property
    def matrix_orders(self) -> tuple[bool, ...]:
        """How `kernel.ldmatrix` can load the operands: as they lie in memory (False), transposed (True)."""
        size = element_bytes(self.element)
        return (False, True) if size == 2 else (False,) if size == WORD_BYTES else ()

    @property
    def row_bits(self) -> int:
        """Bits of a register of the accumulator that number rows: eight rows are those of the lanes."""
        return (self.m // ROWS).bit_length() - 1

    @property
    def registers(self) -> tuple[int, int]:
        """Elements of the left and of the right operand that a lane holds."""
        return self.m * self.k // 32, self.k * self.n // 32


MMA_ATOMS = (
    MmaAtom(bf16, "bf16", "bf16", k=16),
    MmaAtom(f16, "f16", "f16", k=16),
    MmaAtom(f32, "float", "tf32", k=8),
    MmaAtom(f64, "double", "f64", k=4, m=8, accumulator=f64),
)
"""The atoms; of several of one type the first that fits into a tile multiplies it."""


def mma_atom(t: Attribute, shape: tuple[int, int, int] | None = None) -> MmaAtom | None:
    """Returns the first atom for elements of the type `t` that fits into a product of `shape`, m x n x k, or None."""
    atoms = (atom for atom in MMA_ATOMS if atom.element == element_type(t))
    return next((a for a in atoms if shape is None or all(map(le, (a.m, a.n, a.k), shape))), None)


def least_depth(t: Attribute) -> int:
    """Returns the smallest k of the atoms for elements of the type `t`, of which there is one."""
    return min(atom.k for atom in MMA_ATOMS if atom.element == t)


class MatrixRows(FormattedOp):
    """Matrices in shared memory that a whole warp moves, `count` (1, 2 or 4) at a time.

    In every step, lane 8 * m + r gives the place of row r of matrix m, eight consecutive elements; lanes of a matrix
    that is not there give none. A step's place is the origin plus (with `xor`: exclusive or) the steps of the set bits
    of its number. Register 2 * (count * step + m) + e of lane t is element 2 * (t % 4) + e of row t / 4 of matrix m;
    with `trans` element t / 4 of row 2 * (t % 4) + e. Of f32 a row is four elements, and register count * step + m of
    lane t is element t % 4 of row t / 4; they cannot be transposed.
    """

    memory = irdl.operand_def(irdl.base(MemRefType))
    origin = irdl.operand_def(IndexType())
    steps = irdl.prop_def(NUMBERS, default_value=NO_NUMBERS)
    count = irdl.prop_def(IntAttr)
    trans = irdl.opt_prop_def(UnitAttr)
    xor = irdl.opt_prop_def(UnitAttr)

    # The rows as an access like that of a `kernel.load`: every lane moves eight elements in each step.

    @property
    def coordinates(self) -> tuple[SSAValue, ...]:
        return (self.origin,)

    @property
    def row(self) -> int:
        return ROW_BYTES // element_bytes(self.memory.type)

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
        return IntAttr(self.row)

    @property
    def bounds(self) -> tuple[tuple[int, int], ...]:
        return ()

    @property
    def check_steps(self) -> Bases:
        return ((),) * len(self.reg_bases)

    def verify_matrices(self, t: Attribute) -> None:
        """Check the operation against the type of its registers. Raises `VerifyException`."""
        if not is_shared(self.memory.type):
            raise VerifyException("matrices lie in shared memory")
        atom = mma_atom(t)
        if atom is None or not atom.matrix_orders or element_type(self.memory.type) != element_type(t):
            raise VerifyException(f"rows of {self.memory.type} and {t}: both hold bf16, or f16, or f32")
        if self.trans is not None and True not in atom.matrix_orders:
            raise VerifyException("matrices of f32 cannot be transposed")
        if self.count.data not in (1, 2, 4):
            raise VerifyException(f"1, 2 or 4 matrices at a time, not {self.count.data}")
        if shape_of(t) != (word_elements(t) * self.count.data << len(self.steps),):
            raise VerifyException(f"{self.count.data} matrices in each of {1 << len(self.steps)} steps")
        if any(int(s) % self.row for s in self.steps.get_values()):
            raise VerifyException("rows are aligned to 16 bytes")


@irdl.irdl_op_definition
class LdMatrixOp(MatrixRows):
    """Matrices from shared memory into registers, by a whole warp.

    ```
    %a = kernel.ldmatrix count 4 %s[%0] xor steps [512] : memref<4096xbf16, "shared"> -> vector<16xbf16>
    ```
    """

    name = "kernel.ldmatrix"
    result = irdl.result_def(irdl.base(VectorType))
    traits = irdl.traits_def(MemoryReadEffect())
    assembly_format = (
        "`count` custom<Int>($count) (`trans` $trans^)? $memory `` `[` $origin `]` (`xor` $xor^)? (`steps` $steps^)?"
        " attr-dict `:` type($memory) `->` type($result)"
    )

    def __init__(self, memory: SSAValue, origin: SSAValue, steps: Sequence[int], *, count: int = 4, **flags: bool):
        element = element_type(memory.type)
        result = VectorType(element, [word_elements(element) * count << len(steps)])
        super().__init__(count, memory=memory, origin=origin, steps=steps, result=result, **flags)

    def verify_(self) -> None:
        self.verify_matrices(self.result.type)


@irdl.irdl_op_definition
class StMatrixOp(MatrixRows, WritingOp):
    """Registers into matrices in shared memory, by a whole warp (sm_90 and later).

    ```
    kernel.stmatrix count 4 %v, %s[%0] xor steps [16, 32] : vector<32xbf16>, memref<4096xbf16, "shared">
    ```
    """

    name = "kernel.stmatrix"
    value = irdl.operand_def(irdl.base(VectorType))
    assembly_format = (
        "`count` custom<Int>($count) (`trans` $trans^)? $value `,` $memory `` `[` $origin `]` (`xor` $xor^)?"
        " (`steps` $steps^)? attr-dict `:` type($value) `,` type($memory)"
    )

    def verify_(self) -> None:
        self.verify_matrices(self.value.type)


@irdl.irdl_op_definition
class MmaOp(RegisterDotOp):
    """Products of a warp on tensor cores: acc + lhs * rhs for every pair of an m x k block of `lhs` and a k x n block
    of `rhs`, by the `mma.sync` of their type (`MMA_ATOMS`). Blocks of f32 are multiplied as tf32.

    Blocks follow each other in the registers of an operand, and a lane holds of each what the PTX ISA says of the
    instruction's fragments (`layouts.mma.fragments`). In a register r of the accumulator lane t holds column
    2 * (t % 4) + bit 0 of r and row t / 4 (+ 8 if bit `rows[0]` is set, where m is 16) of the product of block i, whose
    bits are the further `rows`, and block j, whose bits are `cols`.

    ```
    %c = kernel.mma %a, %b, %acc rows [1, 3] cols [2] : vector<16xbf16>, vector<8xbf16>, vector<16xf32>
    ```
    """

    name = "kernel.mma"

    @property
    def atom(self) -> MmaAtom:
        """The instruction. Raises `VerifyException` if there is none for these types and registers."""
        (lhs,), (rhs,) = (shape_of(v.type) for v in (self.lhs, self.rhs))
        rows, cols = len(self.rows), len(self.cols)
        atoms = [atom for atom in MMA_ATOMS if atom.element == element_type(self.lhs.type)]
        if not atoms or element_type(self.rhs.type) != element_type(self.lhs.type):
            types = ", ".join(str(atom.element) for atom in MMA_ATOMS)
            raise VerifyException(f"the operands are both of one type of {types}")
        needed: list[str] = []
        for atom in atoms:
            if (blocks := rows - atom.row_bits) >= 0:
                a, b = atom.registers[0] << blocks, atom.registers[1] << cols
                if (lhs, rhs) == (a, b):
                    return atom
                needed.append(f"{a} and {b}")
        if not needed:
            raise VerifyException(f"no bit of rows numbers the halves of the {atoms[0].m} rows of {atoms[0].shape}")
        given = f"rows {list(self.rows.get_values())} and cols {list(self.cols.get_values())}"
        raise VerifyException(f"{given} need {' or '.join(needed)} registers")

    def verify_(self) -> None:
        rows, cols = list(self.rows.get_values()), list(self.cols.get_values())
        (registers,) = shape_of(self.acc.type)
        if sorted(rows + cols) != list(range(1, registers.bit_length() - 1)):
            raise VerifyException(f"rows {rows} and cols {cols} do not number {registers} registers in pairs")
        if element_type(self.acc.type) != self.atom.accumulator:
            raise VerifyException(f"the accumulator and the result are {self.atom.accumulator}")
