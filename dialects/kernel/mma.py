"""Tensor cores of one warp: `ldmatrix`, `stmatrix` and `mma.sync`.

The unit is a *matrix* of 8 rows of 16 bytes: eight 16-bit elements or four f32 per row. A warp holds a matrix in one
32-bit register per lane: lane t has 32-bit word t % 4 of row t // 4, which is two 16-bit elements or one f32. Operands
and results of `kernel.mma` are made of such matrices. Of an f32 operand the instruction uses the tf32 part: it ignores
the last 13 bits.
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
"""Rows of a matrix (PTX ISA, ldmatrix)."""

ROW_BYTES = 16
"""Bytes of a row of a matrix (PTX ISA, ldmatrix)."""

WORD_BYTES = 4
"""Bytes of a matrix that one lane holds (PTX ISA, ldmatrix)."""


def word_elements(t: Attribute) -> int:
    """Returns the number of elements of type `t` in a 32-bit word."""
    return WORD_BYTES // element_bytes(t)


@dataclass(frozen=True)
class MmaAtom:
    """A `mma.sync` instruction. `layouts.mma.fragments` has the layouts of its operands.

    element: element type of the operands.
    c_type: that type in CUDA.
    ptx_type: that type in PTX.
    m, n, k: shape.
    accumulator: element type of the accumulator.
    """

    element: Attribute
    c_type: str
    ptx_type: str
    k: int
    m: int = 16
    n: int = 8
    accumulator: Attribute = f32

    @property
    def shape(self) -> str:
        """Returns the shape in PTX syntax, such as m16n8k16."""
        return f"m{self.m}n{self.n}k{self.k}"

    @property
    def instruction(self) -> str:
        """Returns the PTX instruction."""
        types = f"{self.accumulator}.{self.ptx_type}.{self.ptx_type}.{self.accumulator}"
        return f"mma.sync.aligned.{self.shape}.row.col.{types}"

    @property
    def word(self) -> int:
        """Returns the number of elements that are contiguous along k in a lane's registers."""
        return max(1, WORD_BYTES // element_bytes(self.element))

    @property
    def matrix_orders(self) -> tuple[bool, ...]:
        """Returns the values of `trans` that `kernel.ldmatrix` supports for the operands."""
        size = element_bytes(self.element)
        return (False, True) if size == 2 else (False,) if size == WORD_BYTES else ()

    @property
    def row_bits(self) -> int:
        """Returns the number of register bits of the accumulator that select a row: 1 if m is 16, 0 if m is 8.

        The lanes select one of 8 rows, the register bits one of m / 8 groups of 8 rows.
        """
        return (self.m // ROWS).bit_length() - 1

    @property
    def registers(self) -> tuple[int, int]:
        """Returns the number of elements of the left and of the right operand that a lane holds."""
        return self.m * self.k // 32, self.k * self.n // 32


MMA_ATOMS = (
    MmaAtom(bf16, "bf16", "bf16", k=16),
    MmaAtom(f16, "f16", "f16", k=16),
    MmaAtom(f32, "float", "tf32", k=8),
    MmaAtom(f64, "double", "f64", k=4, m=8, accumulator=f64),
)
"""Supported instructions. Of several with one element type, `mma_atom` takes the first that fits."""


def mma_atom(t: Attribute, shape: tuple[int, int, int] | None = None) -> MmaAtom | None:
    """Returns the first atom for the element type of `t` that is not larger than `shape` (m, n, k), or None."""
    atoms = (atom for atom in MMA_ATOMS if atom.element == element_type(t))
    return next((a for a in atoms if shape is None or all(map(le, (a.m, a.n, a.k), shape))), None)


def least_depth(t: Attribute) -> int:
    """Returns the smallest k of all atoms with elements of type `t`. There must be one."""
    return min(atom.k for atom in MMA_ATOMS if atom.element == t)


class MatrixRows(FormattedOp):
    """Base class of `ldmatrix` and `stmatrix`: a warp moves `count` (1, 2 or 4) matrices in each step.

    In every step, lane 8 * m + r supplies the address of row r of matrix m; the addresses of other lanes are ignored.
    The address of a step is the origin plus (with `xor`: XOR) `steps[b]` for each set bit b of the step number.

    With 16-bit elements, register 2 * (count * step + m) + e of lane t is element 2 * (t % 4) + e of row t // 4 of
    matrix m; with `trans`, element t // 4 of row 2 * (t % 4) + e. With f32, register count * step + m of lane t is
    element t % 4 of row t // 4.

    memory: buffer in shared memory.
    origin: element offset of this lane's row in the first step.
    steps: for each bit of the step number, its step in elements.
    count: matrices of one step.
    trans: transpose each matrix.
    xor: combine offsets by XOR instead of addition.

    Constraints: the memory is shared; both element types are bf16, f16 or f32; f32 is not transposed; steps are
    multiples of 16 bytes.
    """

    memory = irdl.operand_def(irdl.base(MemRefType))
    origin = irdl.operand_def(IndexType())
    steps = irdl.prop_def(NUMBERS, default_value=NO_NUMBERS)
    count = irdl.prop_def(IntAttr)
    trans = irdl.opt_prop_def(UnitAttr)
    xor = irdl.opt_prop_def(UnitAttr)

    # The properties below describe the rows as an access like `kernel.load`: each lane moves one row in each step.

    @property
    def coordinates(self) -> tuple[SSAValue, ...]:
        return (self.origin,)

    @property
    def row(self) -> int:
        """Returns the number of elements of a row."""
        return ROW_BYTES // element_bytes(self.memory.type)

    @property
    def registers(self) -> int:
        """Returns the number of elements of a lane's rows, in all steps."""
        return self.row << len(self.steps)

    @property
    def reg_bases(self) -> Bases:
        """Returns, for every bit of the number of an element of the lane's rows, its step in memory."""
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
        """Checks the operation and the type `t` of its registers. Raises VerifyException."""
        if not is_shared(self.memory.type):
            raise VerifyException(f"expected a buffer in shared memory, but got {self.memory.type}")
        atom = mma_atom(t)
        if atom is None or not atom.matrix_orders or element_type(self.memory.type) != element_type(t):
            raise VerifyException(
                f"expected bf16, f16 or f32 in both memory and registers, but got {self.memory.type} and {t}"
            )
        if self.trans is not None and True not in atom.matrix_orders:
            raise VerifyException(f"expected no transposition of f32 matrices, but got trans with {t}")
        if self.count.data not in (1, 2, 4):
            raise VerifyException(f"expected 1, 2 or 4 matrices in a step, but got {self.count.data}")
        if shape_of(t) != (word_elements(t) * self.count.data << len(self.steps),):
            raise VerifyException(
                f"expected {word_elements(t) * self.count.data << len(self.steps)} registers for {self.count.data}"
                f" matrices in each of {1 << len(self.steps)} steps, but got {t}"
            )
        if any(int(s) % self.row for s in self.steps.get_values()):
            raise VerifyException(
                f"expected steps of a multiple of 16 bytes, {self.row} elements, but got"
                f" {list(self.steps.get_values())}"
            )


@irdl.irdl_op_definition
class LdMatrixOp(MatrixRows):
    """Loads matrices from shared memory into registers, by all lanes of a warp (PTX `ldmatrix`).

    ```
    %a = kernel.ldmatrix count 4 %s[%0] xor steps [512] : memref<4096xbf16, "shared"> -> vector<16xbf16>
    ```

    `MatrixRows` defines the registers and the constraints.
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
    """Stores registers as matrices in shared memory, by all lanes of a warp (PTX `stmatrix`, sm_90 and newer).

    ```
    kernel.stmatrix count 4 %v, %s[%0] xor steps [16, 32] : vector<32xbf16>, memref<4096xbf16, "shared">
    ```

    `MatrixRows` defines the registers and the constraints.

    Operands:
        value: registers to store.
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
    """Multiplies blocks of matrices of one warp on tensor cores (PTX `mma.sync`): acc + lhs * rhs.

    ```
    %c = kernel.mma %a, %b, %acc rows [1, 3] cols [2] : vector<16xbf16>, vector<8xbf16>, vector<16xf32>
    ```

    Every m x k block of `lhs` is multiplied by every k x n block of `rhs`, with the instruction for their type
    (`MMA_ATOMS`). The blocks of an operand follow each other in its registers; a lane holds the fragment of each block
    that the PTX ISA defines (`layouts.mma.fragments`). f32 is multiplied as tf32.

    The accumulator has a block of m x n for each pair of a block of `lhs` and a block of `rhs`. The bits of its
    register number r select:

    - bit 0: the column inside a block. Lane t holds column 2 * (t % 4) + bit 0 of r.
    - bit `rows[0]`, if m = 16: the row inside a block. Lane t holds row t // 4, or t // 4 + 8 if the bit is set.
    - the other bits in `rows`: the block of `lhs`.
    - the bits in `cols`: the block of `rhs`.

    Constraints: both operands have one element type with an atom; `rows` and `cols` together list the bits of the
    register number except bit 0; the accumulator has the atom's type.
    """

    name = "kernel.mma"

    @property
    def atom(self) -> MmaAtom:
        """Returns the instruction. Raises VerifyException if there is none for these types and numbers of registers."""
        (lhs,), (rhs,) = (shape_of(v.type) for v in (self.lhs, self.rhs))
        rows, cols = len(self.rows), len(self.cols)
        atoms = [atom for atom in MMA_ATOMS if atom.element == element_type(self.lhs.type)]
        if not atoms or element_type(self.rhs.type) != element_type(self.lhs.type):
            types = ", ".join(str(atom.element) for atom in MMA_ATOMS)
            raise VerifyException(
                f"expected both operands of one type of {types}, but got {element_type(self.lhs.type)} and"
                f" {element_type(self.rhs.type)}"
            )
        expected: list[str] = []
        for atom in atoms:
            if (blocks := rows - atom.row_bits) >= 0:
                a, b = atom.registers[0] << blocks, atom.registers[1] << cols
                if (lhs, rhs) == (a, b):
                    return atom
                expected.append(f"{a} and {b}")
        if not expected:
            raise VerifyException(
                f"expected rows with a bit that selects the upper 8 of the {atoms[0].m} rows of {atoms[0].shape}, but"
                f" got {list(self.rows.get_values())}"
            )
        attributes = f"rows {list(self.rows.get_values())} and cols {list(self.cols.get_values())}"
        raise VerifyException(f"expected {' or '.join(expected)} registers for {attributes}, but got {lhs} and {rhs}")

    def verify_(self) -> None:
        rows, cols = list(self.rows.get_values()), list(self.cols.get_values())
        (registers,) = shape_of(self.acc.type)
        if sorted(rows + cols) != list(range(1, registers.bit_length() - 1)):
            raise VerifyException(
                f"expected rows and cols that number {registers} registers in pairs, but got {rows} and {cols}"
            )
        if element_type(self.acc.type) != self.atom.accumulator:
            raise VerifyException(f"expected an accumulator of {self.atom.accumulator}, but got {self.acc.type}")
