"""Tensor cores of a warpgroup: asynchronous `wgmma` with operands in shared memory.

A warpgroup is four consecutive warps; the number of its first warp is a multiple of four. All its threads execute these
operations together. One `kernel.wgmma` computes acc + A * B in f32, with A of 64 x K and B of K x N:

- 16-bit elements: K = 16 * `k_steps`;
- f32: K = 8 * `k_steps`; the last 13 bits are ignored (tf32).

The operation is asynchronous until a `kernel.wgmma_wait`. Until then its accumulators have the type
`!kernel.async_accumulators<vector<...>>`, which no other operation accepts:

```
%p = kernel.accumulators from %acc : ...
kernel.wgmma_fence
%q = kernel.wgmma %a[%i], %b[%j] into %p k_steps 4 swizzle 128 : ...
kernel.wgmma_commit
%sums = kernel.wgmma_wait 0, %q : ...
```

**Accumulators**: N / 2 registers. In register r, lane t of warp w of the warpgroup holds row 16 * w + t // 4 (+ 8 if
bit 1 of r is set) and column 8 * (r // 4) + 2 * (t % 4) + bit 0 of r. As a layout of 64 x N: `reg = [[0, 1], [8, 0],
[0, 8], [0, 16], ...], lane = [[0, 2], [0, 4], [1, 0], [2, 0], [4, 0]], warp = [[16, 0], [32, 0]]`.

**A in registers**, 16-bit elements: 8 * `k_steps` registers. In register e of k-step s, the lane holds row 16 * w + t
// 4 (+ 8 if bit 1 of e is set) and k = 16 * s + 2 * (t % 4) + bit 0 of e (+ 8 if bit 2 is set). So eight consecutive
accumulators, converted, are one k-step. f32: 4 * `k_steps` registers; register e of k-step s is row 16 * w + t // 4 (+
8 if bit 0 of e is set) and k = 8 * s + t % 4 (+ 4 if bit 1 is set).

**Operands in shared memory** have the layout of boxes that `kernel.tma_load` writes with the same `swizzle` W (see
`copies.py`). There are two orders:

- Contiguous along k: 64 (A) or N (B) rows of W bytes. A row holds W / 2 elements of k (W / 4 of f32); the first K of
  them are used. The offset may start at a multiple of 32 bytes within the row.
- `transposed`, contiguous along the other dimension (16-bit elements only): one panel of the 64 rows of A, or panels of
  W / 2 columns of B. A panel has one row of W bytes for each k. Panels are `leading_offset` elements apart.

The offset of an operand is the offset of its first element, in a tile that starts at a multiple of 1024 bytes.
"""

from __future__ import annotations

from typing import ClassVar

from xdsl import irdl
from xdsl.dialects.builtin import Float32Type, IndexType, IntAttr, MemRefType, UnitAttr, VectorType, f32, i1
from xdsl.ir import Attribute, ParametrizedAttribute, SSAValue, TypeAttribute
from xdsl.utils.exceptions import VerifyException

from ..payload import element_bytes, element_type, is_vector, shape_of
from ..support.assembly import OrderedOp
from .copies import WaitForGroupsOp
from .memory import is_shared_line, shape_of_memory
from .mma import WORD_BYTES, mma_atom

WARPGROUP_ROWS = 64
"""Rows of the accumulator of a warpgroup (PTX ISA, wgmma)."""

SLICE_BYTES = 32
"""Extent along k of one instruction, in bytes (PTX ISA, wgmma)."""

MOST_COLUMNS = 256
"""Maximum number of columns of the accumulator of a warpgroup (PTX ISA, wgmma)."""

SWIZZLED_ROW_BYTES = (32, 64, 128)
"""Legal widths of the rows of operands in shared memory, in bytes."""


def slice_elements(t: Attribute) -> int:
    """Returns the extent along k of one instruction, in elements of type `t`: 16, or 8 for f32."""
    return SLICE_BYTES // element_bytes(t)


@irdl.irdl_attr_definition
class AsyncAccumulatorsType(ParametrizedAttribute, TypeAttribute):
    """Type of the accumulators of `kernel.wgmma` in flight: `!kernel.async_accumulators<vector<64xf32>>`.

    registers: type of the accumulators after `kernel.wgmma_wait`.

    Constraints: 4 to 128 registers of f32, a multiple of 4.
    """

    name = "kernel.async_accumulators"
    registers: VectorType[Attribute]

    def verify(self) -> None:
        if not isinstance(element_type(self.registers), Float32Type):
            raise VerifyException(f"expected accumulators of f32, but got {self.registers}")
        (count,) = shape_of(self.registers)
        if count % 4 or not 4 <= count <= MOST_COLUMNS // 2:
            raise VerifyException(f"expected 4 to 128 accumulators, a multiple of 4, but got {count}")


@irdl.irdl_op_definition
class AccumulatorsOp(OrderedOp):
    """Converts registers to accumulators.

    ```
    %p = kernel.accumulators from %acc : !kernel.async_accumulators<vector<64xf32>>
    %q = kernel.accumulators : !kernel.async_accumulators<vector<64xf32>>
    ```

    A `kernel.wgmma_fence` must precede the first `kernel.wgmma` into them. Without an operand the accumulators are
    undefined, and the first `kernel.wgmma` must overwrite them (`scale_d_zero`).

    Operands:
        source: initial values of the accumulators (`from`).
    """

    name = "kernel.accumulators"
    T: ClassVar = irdl.VarConstraint("T", irdl.base(VectorType))
    source = irdl.opt_operand_def(T)
    result = irdl.result_def(irdl.ParamAttrConstraint(AsyncAccumulatorsType, (T,)))
    assembly_format = "(`from` $source^)? attr-dict `:` type($result)"


@irdl.irdl_op_definition
class WgmmaFenceOp(OrderedOp):
    """Orders earlier accesses of the warpgroup to its registers before the next `kernel.wgmma` (PTX `wgmma.fence`).

    ```
    kernel.wgmma_fence
    ```

    Required before the first `kernel.wgmma`, and after each write to registers of accumulators or of A.
    """

    name = "kernel.wgmma_fence"
    assembly_format = "attr-dict"


@irdl.irdl_op_definition
class WgmmaOp(OrderedOp):
    """Starts an asynchronous matmul of a warpgroup: acc + A * B.

    ```
    %q = kernel.wgmma %a[%i], %b[%j] into %p k_steps 4 swizzle 128 use_acc %more
        : memref<12288xbf16, "shared">, memref<12288xbf16, "shared">, !kernel.async_accumulators<vector<32xf32>>
    %r = kernel.wgmma %regs, %v[%j] transposed leading_offset 4096 into %s k_steps 4 swizzle 128
        : vector<32xbf16>, memref<12288xbf16, "shared">, !kernel.async_accumulators<vector<64xf32>>
    ```

    The head of `dialects/kernel/wgmma.py` defines the layouts of A, B and the accumulators.

    Operands:
        lhs, lhs_offset: A, in shared memory with an element offset, or in registers.
        rhs, rhs_offset: B, in shared memory with an element offset.
        acc: accumulators.
        use_acc: condition, uniform in the warpgroup; if false, the old accumulators are overwritten.

    Attributes:
        k_steps: number of instructions along k.
        swizzle: bytes of a row of an operand in shared memory: 32, 64 or 128.
        lhs_transposed, rhs_transposed: the operand is contiguous along m or n instead of k (`transposed`).
        leading_offset: elements between panels of a transposed operand.
        scale_d_zero: the old accumulators are always overwritten (PTX scale-d = 0).

    Constraints: the operands are bf16, f16 or f32 and fit in their buffers; f32 is not transposed; `use_acc` and
    `scale_d_zero` exclude each other; a transposed A has one panel.
    """

    name = "kernel.wgmma"
    T: ClassVar = irdl.VarConstraint("T", irdl.base(AsyncAccumulatorsType))
    lhs = irdl.operand_def(irdl.base(MemRefType) | irdl.base(VectorType))
    lhs_offset = irdl.opt_operand_def(IndexType())
    rhs = irdl.operand_def(irdl.base(MemRefType))
    rhs_offset = irdl.operand_def(IndexType())
    acc = irdl.operand_def(T)
    use_acc = irdl.opt_operand_def(i1)
    k_steps = irdl.prop_def(IntAttr)
    swizzle = irdl.prop_def(IntAttr)
    lhs_transposed = irdl.opt_prop_def(UnitAttr)
    rhs_transposed = irdl.opt_prop_def(UnitAttr)
    leading_offset = irdl.opt_prop_def(IntAttr)
    scale_d_zero = irdl.opt_prop_def(UnitAttr)
    result = irdl.result_def(T)
    irdl_options = (irdl.AttrSizedOperandSegments(as_property=True),)
    assembly_format = (
        "$lhs (`` `[` $lhs_offset^ `]`)? (`transposed` $lhs_transposed^)?"
        " `,` $rhs `` `[` $rhs_offset `]` (`transposed` $rhs_transposed^)?"
        " (`leading_offset` custom<Int>($leading_offset)^)? `into` $acc `k_steps` custom<Int>($k_steps)"
        " `swizzle` custom<Int>($swizzle) (`scale_d_zero` $scale_d_zero^)? (`use_acc` $use_acc^)? attr-dict"
        " `:` type($lhs) `,` type($rhs) `,` type($acc)"
    )

    @property
    def columns(self) -> int:
        """Returns the number of columns N."""
        assert isinstance(self.acc.type, AsyncAccumulatorsType)
        return 2 * shape_of(self.acc.type.registers)[0]

    @property
    def element(self) -> Attribute:
        """Returns the element type of the operands."""
        return element_type(self.rhs.type)

    @property
    def row(self) -> int:
        """Returns the number of elements of a row of an operand in shared memory."""
        return self.swizzle.data // element_bytes(self.element)

    @property
    def depth(self) -> int:
        """Returns the extent K."""
        return slice_elements(self.element) * self.k_steps.data

    def verify_(self) -> None:
        if self.swizzle.data not in SWIZZLED_ROW_BYTES or self.k_steps.data < 1:
            raise VerifyException(
                f"expected k_steps of at least 1 and a swizzle of 32, 64 or 128 bytes, but got"
                f" {self.k_steps.data} and {self.swizzle.data}"
            )
        if self.scale_d_zero is not None and self.use_acc is not None:
            raise VerifyException("expected `use_acc` or `scale_d_zero`, but got both")
        if (atom := mma_atom(self.element)) is None or atom.accumulator != f32:
            raise VerifyException(f"expected operands of bf16, f16 or f32, but got {self.element}")
        if element_bytes(self.element) == WORD_BYTES and (self.lhs_transposed or self.rhs_transposed) is not None:
            raise VerifyException("expected f32 operands that are contiguous along k, but got a transposed one")
        self._verify_shared(self.rhs, self.columns, self.rhs_transposed is not None, "right")
        t: Attribute = self.lhs.type
        if isinstance(t, MemRefType):
            self._verify_shared(self.lhs, WARPGROUP_ROWS, self.lhs_transposed is not None, "left")
            if self.lhs_offset is None or element_type(self.lhs.type) != self.element:
                raise VerifyException(
                    f"expected the left operand at an offset in a shared buffer of {self.element}, but got {t}"
                )
        elif (
            self.lhs_offset is not None
            or self.lhs_transposed is not None
            or not is_vector(self.lhs.type)
            or element_type(self.lhs.type) != self.element
            or shape_of(self.lhs.type) != (self.depth // 2,)
        ):
            raise VerifyException(
                f"expected {self.depth // 2} registers of {self.element} as the left operand, without offset or"
                f" `transposed`, but got {self.lhs.type}"
            )

    def _verify_shared(self, memory: SSAValue, extent: int, transposed: bool, side: str) -> None:
        t: Attribute = memory.type
        if not is_shared_line(t):
            raise VerifyException(f"expected the {side} operand in a one-dimensional shared buffer, but got {t}")
        depth, row = self.depth, self.row
        if not transposed:
            if depth > row:
                raise VerifyException(f"expected at most {row} elements of k, one row, but got {depth}")
            needed = (extent - 1) * row + depth
        else:
            panels = -(-extent // row)
            # With several panels of a transposed A, an H200 computes other numbers than the PTX ISA describes.
            if side == "left" and panels > 1:
                raise VerifyException(
                    f"expected one panel of the transposed left operand, at least {WARPGROUP_ROWS} wide, but got"
                    f" {panels} of {row}"
                )
            if extent % min(row, extent) or extent > row and self.leading_offset is None:
                raise VerifyException(
                    f"expected whole panels of {row} elements, with a leading_offset if there are several, but got"
                    f" {extent} elements of the {side} operand"
                )
            step = 0 if self.leading_offset is None else self.leading_offset.data
            if panels > 1 and (step < depth * row or step % (8 * row)):
                raise VerifyException(
                    f"expected a leading_offset of a multiple of {8 * row} elements, at least {depth * row}, but got"
                    f" {step}"
                )
            needed = (panels - 1) * step + depth * row
        if shape_of_memory(t)[0] < needed:
            raise VerifyException(f"expected at least {needed} elements of the {side} operand, but got {t}")


@irdl.irdl_op_definition
class WgmmaCommitOp(OrderedOp):
    """Closes a group: all `kernel.wgmma` of the warpgroup since the last group (PTX `wgmma.commit_group`).

    ```
    kernel.wgmma_commit
    ```
    """

    name = "kernel.wgmma_commit"
    assembly_format = "attr-dict"


@irdl.irdl_op_definition
class WgmmaWaitOp(WaitForGroupsOp):
    """Waits until at most the `pending` newest groups of `kernel.wgmma` are outstanding (PTX `wgmma.wait_group`).

    ```
    %q = kernel.wgmma_wait 1, %p
        : !kernel.async_accumulators<vector<64xf32>> -> !kernel.async_accumulators<vector<64xf32>>
    %acc = kernel.wgmma_wait 0, %q : !kernel.async_accumulators<vector<64xf32>> -> vector<64xf32>
    ```

    Completed groups no longer read shared memory. The result may have register type if the group of `acc` is complete:
    with `pending` = 0, or if `pending` groups were committed after it in the same block. Otherwise it keeps the type of
    `acc`.

    Constraints: `pending` is 0 to 7.
    """

    name = "kernel.wgmma_wait"
    acc = irdl.operand_def(irdl.base(AsyncAccumulatorsType))
    result = irdl.result_def(irdl.base(AsyncAccumulatorsType) | irdl.base(VectorType))
    assembly_format = "custom<Int>($pending) `,` $acc attr-dict `:` type($acc) `->` type($result)"

    def __init__(self, pending: int, acc: SSAValue, *, done: bool = False):
        """`done`: the group of `acc` is complete, so the result has register type."""
        assert isinstance(acc.type, AsyncAccumulatorsType)
        super().__init__(pending, acc, acc.type.registers if done or not pending else acc.type)

    def verify_(self) -> None:
        super().verify_()
        assert isinstance(self.acc.type, AsyncAccumulatorsType)
        if self.result.type == self.acc.type:
            return
        if self.result.type != self.acc.type.registers or self.pending.data > self._newer_groups():
            raise VerifyException(
                f"expected {self.acc.type}, because the group may be pending, but got {self.result.type}"
            )

    def _newer_groups(self) -> int:
        """Returns the number of groups that are committed after the group of `acc` and before this wait."""
        if not self.pending.data:
            return 0
        commits, op = 0, self.prev_op
        while op is not None and op is not self.acc.owner:
            commits += isinstance(op, WgmmaCommitOp)
            op = op.prev_op
        return 0 if op is None else commits - 1
