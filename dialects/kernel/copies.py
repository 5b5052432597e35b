"""Asynchronous copies between global and shared memory: `cp.async` and TMA.

With `kernel.cp_async` every thread copies its own elements. It closes a group of copies with `kernel.async_commit`, and
`kernel.async_wait` waits until only the newest groups are outstanding. Then the thread sees its own copies; after a
barrier it sees the copies of other threads.

With TMA (tensor memory accelerator) one thread copies a whole *box*, a rectangular part of a buffer. A *tensor map*
describes the boxes of a buffer and their layout in shared memory. It is a constant of the kernel that the host builds
at the launch from the buffer's address and memref type.

A box is stored row by row, without gaps. With `swizzle` W (32, 64 or 128 bytes) a row has W bytes, and the 16-byte unit
p of row r is stored at unit p ^ s of that row. s is the low log2(W / 16) bits of the row's start address divided by
128: for W = 128, the low three bits of r, because boxes start at multiples of 1024 bytes. This is a linear layout; for
2-byte elements and W = 128: `offset = [[0, 1], [0, 2], [0, 4], [0, 8], [0, 16], [0, 32], [1, 8], [2, 16], [4, 32], [8,
0], ...]`.

TMA copies and `kernel.wgmma` access shared memory through the *asynchronous proxy*. They see a thread's stores after
that thread has executed `kernel.fence_async` and then synchronised with the thread that starts the operation. Threads
see loaded data after they have waited at the copy's mbarrier.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from xdsl import irdl
from xdsl.dialects.builtin import ArrayAttr, IndexType, IntAttr, MemRefType, UnitAttr, i1
from xdsl.ir import Attribute, BlockArgument, ParametrizedAttribute, SSAValue, TypeAttribute
from xdsl.parser import AttrParser
from xdsl.printer import Printer
from xdsl.utils.exceptions import VerifyException

from ..layouts import bases_of
from ..payload import element_bytes, element_type
from ..shapes.extents import extents_of
from ..support.assembly import NUMBERS, OrderedOp, PureOp
from .barriers import CLUSTERS, cluster_of, is_mbarriers, require_cluster
from .memory import (
    ACCESS,
    ACCESS_TYPES,
    GLOBAL,
    SHARED,
    MemoryAccess,
    is_shared_line,
    memory_bytes,
    shape_of_memory,
    space_of,
)

COPY_BYTES = (4, 8, 16)
"""Legal sizes of one asynchronous copy of a thread, in bytes (PTX ISA, cp.async)."""


@irdl.irdl_op_definition
class SubviewOp(PureOp):
    """Returns a part of a shared buffer as a buffer, such as one stage of a circular buffer.

    ```
    %s = kernel.subview %ring[%offset] : memref<3072xf32, "shared"> -> memref<1024xf32, "shared">
    ```

    The offset, in elements, must be the same in all threads.

    Operands:
        ring: the whole buffer.
        offset: number of the first element of the part.

    Constraints: both buffers are one-dimensional, in shared memory, with one element type; the part is not larger.
    """

    name = "kernel.subview"
    ring = irdl.operand_def(irdl.base(MemRefType))
    offset = irdl.operand_def(IndexType())
    result = irdl.result_def(irdl.base(MemRefType))
    assembly_format = "$ring `` `[` $offset `]` attr-dict `:` type($ring) `->` type($result)"

    def __init__(self, ring: SSAValue, offset: SSAValue, size: int):
        super().__init__(ring, offset, SHARED.buffer(element_type(ring.type), [size]))

    def verify_(self) -> None:
        for t in (self.ring.type, self.result.type):
            if not is_shared_line(t):
                raise VerifyException(f"expected a one-dimensional shared buffer, but got {t}")
        if element_type(self.ring.type) != element_type(self.result.type):
            raise VerifyException(f"expected a part of {self.ring.type}, but got {self.result.type}")
        if memory_bytes(self.ring.type) < memory_bytes(self.result.type):
            raise VerifyException(
                f"expected a part no larger than its buffer {self.ring.type}, but got {self.result.type}"
            )


@irdl.irdl_op_definition
class CopyAsyncOp(MemoryAccess, OrderedOp):
    """Starts copies from global to shared memory, in threads whose predicate (if any) is true (PTX `cp.async`).

    ```
    kernel.cp_async %x[%i, %k] regs [[0, 1], [0, 2], [8, 0]] vec 4 where 0 <= %i < 100 steps [[0], [0], [8]]
         to %s[%o] xor regs [[1], [2], [64]] if %p
         : memref<100x64xf32>, memref<1024xf32, "shared">
    ```

    The source is accessed as by a `kernel.load`; elements whose checks fail arrive as zeros. The target is a
    one-dimensional buffer: each thread's coordinate, plus (with `xor`: XOR) the entry of the second `regs` for each set
    bit of the register number.

    Operands:
        target: buffer in shared memory (`to`).
        place: element offset of the thread's first register in the target.
        predicate: nothing is copied if it is false (`if`).

    Attributes:
        target_regs: for each bit of the register number, its step in the target.
        target_xor: combine offsets in the target by XOR instead of addition.

    Constraints: the source is in global memory, the target in shared memory; `vec` elements have 4, 8 or 16 bytes and
    are contiguous in both.
    """

    name = "kernel.cp_async"
    target = irdl.operand_def(irdl.base(MemRefType))
    place = irdl.operand_def(IndexType())
    predicate = irdl.opt_operand_def(i1)
    target_regs = irdl.prop_def(ArrayAttr[ArrayAttr[IntAttr]], default_value=ArrayAttr(()))
    target_xor = irdl.opt_prop_def(UnitAttr)
    assembly_format = (
        f"{ACCESS} `to` $target `` `[` $place `]` (`xor` $target_xor^)? (`regs` custom<Bases>($target_regs)^)?"
        f" (`if` $predicate^)? {ACCESS_TYPES} `,` type($target)"
    )

    @property
    def registers(self) -> int:
        return 1 << len(self.regs)

    @property
    def target_bases(self) -> tuple[int, ...]:
        """Returns, for every bit of the register number, its step in the target."""
        return tuple(b[0] for b in bases_of(self.target_regs))

    def verify_(self) -> None:
        if space_of(self.memory.type) is not GLOBAL or not is_shared_line(self.target.type):
            raise VerifyException(
                "expected a copy from global memory to a one-dimensional shared buffer, but got"
                f" {self.memory.type} to {self.target.type}"
            )
        if self.xor is not None:
            raise VerifyException("expected offsets without xor in global memory, but got xor")
        element = element_type(self.target.type)
        self.verify_places(element)
        width = self.vec.data
        one = MemRefType(element, [1])
        if width * memory_bytes(one) not in COPY_BYTES:
            raise VerifyException(f"expected a copy of 4, 8 or 16 bytes, but got {width} elements of {element}")
        if len(self.target_regs) != len(self.regs) or any(len(b) != 1 for b in bases_of(self.target_regs)):
            raise VerifyException(
                f"expected one step in the target for each of {len(self.regs)} bits of the register number, but got"
                f" {[list(b) for b in bases_of(self.target_regs)]}"
            )
        low = width.bit_length() - 1
        if any(self.target_bases[b] != 1 << b for b in range(low)):
            raise VerifyException(
                f"expected the first {low} register bits to be contiguous in the target, but got steps"
                f" {list(self.target_bases[:low])}"
            )
        for c in self.operand_indices:
            if c.type != IndexType():
                raise VerifyException(f"expected coordinates and checks of type index, but got {c.type}")


@irdl.irdl_op_definition
class AsyncCommitOp(OrderedOp):
    """Closes a group: all copies that this thread has issued since the last group. A group may be empty.

    ```
    kernel.async_commit
    ```
    """

    name = "kernel.async_commit"


class WaitForGroupsOp(OrderedOp):
    """Base class of operations that wait until at most the `pending` newest groups are outstanding.

    pending: number of newest groups that may stay outstanding.
    """

    pending = irdl.prop_def(IntAttr)

    def verify_(self) -> None:
        if not 0 <= self.pending.data < 8:
            raise VerifyException(f"expected 0 to 7 pending groups, but got {self.pending.data}")


@irdl.irdl_op_definition
class AsyncWaitOp(WaitForGroupsOp):
    """Waits until at most the `pending` newest copy groups of this thread are outstanding.

    ```
    kernel.async_wait 1
    ```

    Constraints: `pending` is 0 to 7.
    """

    name = "kernel.async_wait"
    assembly_format = "custom<Int>($pending) attr-dict"


SWIZZLES = (0, 32, 64, 128)
"""Legal TMA swizzles: bytes of the rows that are permuted; 0 for none."""

BOX_EXTENT = 256
"""Maximum extent of a box along a dimension, in elements (CUDA driver API, cuTensorMapEncodeTiled)."""

SWIZZLED_ROWS = 8
"""Rows after which a swizzle repeats. A swizzled box is aligned to the bytes of this many rows."""

SWIZZLED_ALIGNMENT = SWIZZLED_ROWS * max(SWIZZLES)
"""Alignment of swizzled boxes in shared memory that suffices for every swizzle, in bytes."""

PLAIN_ALIGNMENT = 128
"""Alignment of boxes without a swizzle in shared memory, in bytes."""


@irdl.irdl_attr_definition
class TensorMapType(ParametrizedAttribute, TypeAttribute):
    """Description of the boxes of a buffer: `!kernel.tensor_map<64x64xbf16, swizzle 128>`.

    box: shape and element type of a box, with one extent for each dimension of the buffer.
    swizzle: bytes of a swizzled row, or 0.
    """

    name = "kernel.tensor_map"
    box: MemRefType[Attribute]
    swizzle: IntAttr

    @staticmethod
    def get(box: Sequence[int], element: Attribute, swizzle: int) -> TensorMapType:
        """Returns a tensor map type.

        Args:
            box: extents of a box.
            element: element type.
            swizzle: 0, 32, 64 or 128 bytes.
        """
        return TensorMapType(MemRefType(element, list(box)), IntAttr(swizzle))

    @property
    def shape(self) -> tuple[int, ...]:
        return shape_of_memory(self.box)

    @property
    def element(self) -> Attribute:
        return element_type(self.box)

    @property
    def bytes(self) -> int:
        """Returns the bytes of a box in shared memory, which a load transfers even if parts are outside of the
        buffer."""
        return memory_bytes(self.box)

    @property
    def alignment(self) -> int:
        """Returns the alignment of a box in shared memory, in bytes."""
        return SWIZZLED_ROWS * self.swizzle.data or PLAIN_ALIGNMENT

    def verify(self) -> None:
        shape, swizzle = self.shape, self.swizzle.data
        if not 1 <= len(shape) <= 5 or any(not 1 <= n <= BOX_EXTENT for n in shape):
            raise VerifyException(f"expected a box of 1 to 5 extents of 1 to {BOX_EXTENT}, but got {list(shape)}")
        if swizzle not in SWIZZLES:
            raise VerifyException(f"expected a swizzle of 0, 32, 64 or 128 bytes, but got {swizzle}")
        row = shape[-1] * element_bytes(self.element)
        if row % 16:
            raise VerifyException(f"expected box rows of a multiple of 16 bytes, but got {row}")
        if swizzle and row != swizzle:
            raise VerifyException(f"expected rows of {swizzle} bytes, like the swizzle, but got {row}")

    @classmethod
    def parse_parameters(cls, parser: AttrParser) -> list[Attribute]:
        with parser.in_angle_brackets():
            shape, element = parser.parse_ranked_shape()
            swizzle = 0
            if parser.parse_optional_punctuation(","):
                parser.parse_keyword("swizzle")
                swizzle = parser.parse_integer()
        return [MemRefType(element, shape), IntAttr(swizzle)]

    def print_parameters(self, printer: Printer) -> None:
        with printer.in_angle_brackets():
            printer.print_string("".join(f"{n}x" for n in self.shape))
            printer.print_attribute(self.element)
            if self.swizzle.data:
                printer.print_string(f", swizzle {self.swizzle.data}")


@irdl.irdl_op_definition
class TensorMapOp(PureOp):
    """Returns the tensor map of a buffer argument. It is at the top of the kernel; in CUDA it is a kernel parameter.

    ```
    kernel.func @k0(%x: memref<512x320xbf16>) grid [8] warps 4 {
      %a = kernel.tensor_map %x : memref<512x320xbf16> -> !kernel.tensor_map<64x64xbf16, swizzle 128>
    }
    ```

    Operands:
        memory: buffer in global memory.

    Constraints: the buffer is an argument of the kernel; buffer and box have equal rank and element type; rows of the
    buffer start at multiples of 16 bytes.
    """

    name = "kernel.tensor_map"
    memory = irdl.operand_def(irdl.base(MemRefType))
    result = irdl.result_def(irdl.base(TensorMapType))
    assembly_format = "$memory attr-dict `:` type($memory) `->` type($result)"

    def verify_(self) -> None:
        t, m = self.result.type, self.memory.type
        assert isinstance(t, TensorMapType)
        if not isinstance(self.memory, BlockArgument):
            raise VerifyException(f"expected a tensor map of an argument of the kernel, but got a value of type {m}")
        extents = extents_of(m)
        if len(extents) != len(t.shape) or element_type(m) != t.element:
            raise VerifyException(
                f"expected boxes with the rank and element type of {m}, but got {list(t.shape)} of {t.element}"
            )
        # No number except 1 is known to divide a symbol.
        factors = [n if isinstance(n, int) else 1 for n in extents]
        pitches = [math.prod(factors[d:]) * element_bytes(t.element) for d in range(1, len(extents))]
        if any(p % 16 for p in pitches):
            raise VerifyException(f"expected rows at multiples of 16 bytes, but got {m}")


class _BoxOp(OrderedOp):
    """Base class of TMA copies of one box.

    shared: buffer in shared memory.
    place: element offset of the box in it.
    map: tensor map.
    coordinates: coordinates of the box's first element in the global buffer.
    """

    shared = irdl.operand_def(irdl.base(MemRefType))
    place = irdl.operand_def(IndexType())
    map = irdl.operand_def(irdl.base(TensorMapType))
    coordinates = irdl.var_operand_def(IndexType())

    @property
    def map_type(self) -> TensorMapType:
        assert isinstance(self.map.type, TensorMapType)
        return self.map.type

    def verify_(self) -> None:
        m, t = self.shared.type, self.map_type
        if not is_shared_line(m):
            raise VerifyException(f"expected a box in a one-dimensional shared buffer, but got {m}")
        if element_type(m) != t.element:
            raise VerifyException(
                f"expected one element type of buffer and tensor map, but got {element_type(m)} and {t.element}"
            )
        if memory_bytes(m) < t.bytes:
            raise VerifyException(f"expected a buffer of at least {t.bytes} bytes for the box, but got {m}")
        if len(self.coordinates) != len(t.shape):
            raise VerifyException(
                f"expected {len(t.shape)} coordinates, one for each dimension, but got {len(self.coordinates)}"
            )


@irdl.irdl_op_definition
class TmaLoadOp(_BoxOp):
    """Starts the copy of a box from global to shared memory. Every thread that executes it starts one.

    ```
    kernel.tma_load %a[%i, %k] to %s[%o] signal %full[%slot]
        : !kernel.tensor_map<64x64xbf16, swizzle 128>, memref<12288xbf16, "shared">,
          memref<3x!kernel.mbarrier, "shared">
    kernel.tma_load %b[%j, %k] to %t[%o] signal %full[%slot] multicast [0, 1]
        : !kernel.tensor_map<64x64xbf16, swizzle 128>, memref<12288xbf16, "shared">,
          memref<3x!kernel.mbarrier, "shared">
    ```

    Elements outside of the buffer arrive as zeros. The mbarrier counts the bytes of the whole box. With `multicast`,
    the box arrives in the blocks of the cluster with the listed ranks, at the same offset in each, and counts at the
    mbarrier of each (PTX `cp.async.bulk.tensor ... .multicast::cluster`).

    Operands:
        barriers, index: buffer of mbarriers, and number of the mbarrier that counts the bytes (`signal`).

    Attributes:
        multicast: ranks of the blocks that receive the box.

    Constraints: `multicast` lists ranks of the cluster in ascending order, in a kernel with clusters; the barrier is an
    mbarrier in shared memory.
    """

    name = "kernel.tma_load"
    barriers = irdl.operand_def(irdl.base(MemRefType))
    index = irdl.operand_def(IndexType())
    multicast = irdl.opt_prop_def(NUMBERS)
    assembly_format = (
        "$map `` `[` $coordinates `]` `to` $shared `` `[` $place `]` `signal` $barriers `` `[` $index `]`"
        " (`multicast` $multicast^)? attr-dict"
        " `:` type($map) `,` type($shared) `,` type($barriers)"
    )

    @property
    def ranks(self) -> tuple[int, ...]:
        """Returns the ranks of the blocks that receive the box, or `()` if it is only this block."""
        return () if self.multicast is None else tuple(int(r) for r in self.multicast.get_values())

    def verify_(self) -> None:
        super().verify_()
        if not is_mbarriers(self.barriers.type):
            raise VerifyException(f"expected an mbarrier in shared memory, but got {self.barriers.type}")
        if self.multicast is None:
            return
        require_cluster(self, "a box for several blocks")
        size = cluster_of(self) or max(CLUSTERS)
        if not self.ranks or list(self.ranks) != sorted({*self.ranks} & {*range(size)}):
            raise VerifyException(f"expected ascending ranks of a cluster of {size}, but got {list(self.ranks)}")


@irdl.irdl_op_definition
class TmaStoreOp(_BoxOp):
    """Starts the copy of a box from shared to global memory. Elements outside of the buffer are not written.

    ```
    kernel.tma_store %s[%o] to %c[%i, %j] : memref<4096xbf16, "shared">, !kernel.tensor_map<64x64xbf16, swizzle 128>
    ```

    The copy belongs to the open bulk group of its thread (`kernel.bulk_commit`). The box in shared memory must not be
    overwritten until `kernel.bulk_wait` has waited for that group.
    """

    name = "kernel.tma_store"
    assembly_format = (
        "$shared `` `[` $place `]` `to` $map `` `[` $coordinates `]` attr-dict `:` type($shared) `,` type($map)"
    )


@irdl.irdl_op_definition
class BulkCommitOp(OrderedOp):
    """Closes a bulk group: all `kernel.tma_store` of this thread since the last group.

    ```
    kernel.bulk_commit
    ```
    """

    name = "kernel.bulk_commit"


@irdl.irdl_op_definition
class BulkWaitOp(WaitForGroupsOp):
    """Waits until at most the `pending` newest bulk groups of this thread are outstanding.

    ```
    kernel.bulk_wait 0 read
    ```

    With `read`, it waits only until the other groups have read shared memory. A thread must wait for all its groups, at
    least for their reads, before it ends.

    Attributes:
        read: wait only until the groups have read shared memory.

    Constraints: `pending` is 0 to 7.
    """

    name = "kernel.bulk_wait"
    read = irdl.opt_prop_def(UnitAttr)
    assembly_format = "custom<Int>($pending) (`read` $read^)? attr-dict"


@irdl.irdl_op_definition
class FenceAsyncOp(OrderedOp):
    """Orders this thread's stores to shared memory before later asynchronous copies and `kernel.wgmma` there.

    ```
    kernel.fence_async
    ```
    """

    name = "kernel.fence_async"
