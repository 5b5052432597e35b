"""Asynchronous copies of the kernel dialect, between global and shared memory: without registers, without waiting.

With `kernel.cp_async` a thread issues copies, closes a group of them with `kernel.async_commit`, and waits until all
but its newest groups have arrived. Then it sees what it copied itself, and after a barrier what other threads copied.

With the tensor memory accelerator one thread copies whole boxes of a buffer to or from shared memory.
A *tensor map* says which boxes of which buffer are copied and how they lie in shared memory. It is a constant of the
kernel, which the host makes from the buffer's address when it launches: it only follows from the memref's type.

A box lies in shared memory row by row, without gaps. With `swizzle` W (32, 64 or 128) its rows have W bytes, and the
16-byte piece p of row r lies where piece p ^ s of that row would, where s has the low log2(W / 16) bits of the place
of the row's start counted in 128 bytes: for W = 128 the bits of r, as boxes start at multiples of 1024 bytes.
That is a linear layout: row bit i (below 3) also moves by exclusive or in the row. In elements of two bytes, W = 128:
`offset = [[0, 1], [0, 2], [0, 4], [0, 8], [0, 16], [0, 32], [1, 8], [2, 16], [4, 32], [8, 0], ...]`.

Asynchronous copies and `kernel.wgmma` see shared memory through the *asynchronous proxy*. What threads store, they see
once each thread that stored has executed `kernel.fence_async` and then synchronised with who starts the copy; what a
copy has loaded, threads see behind their wait at its mbarrier.
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
"""How many bytes one asynchronous copy may move."""


@irdl.irdl_op_definition
class SubviewOp(PureOp):
    """A part of a shared buffer, as a buffer: one slot of a ring. The offset, in elements, is the same in all threads.

    ```
    %s = kernel.subview %ring[%offset] : memref<3072xf32, "shared"> -> memref<1024xf32, "shared">
    ```
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
                raise VerifyException(f"a slot is a part of a shared buffer, not {t}")
        if element_type(self.ring.type) != element_type(self.result.type):
            raise VerifyException("ring and slot have one element type")
        if memory_bytes(self.ring.type) < memory_bytes(self.result.type):
            raise VerifyException("a slot is no larger than its ring")


@irdl.irdl_op_definition
class CopyAsyncOp(MemoryAccess, OrderedOp):
    """Start copying from global to shared memory, in the threads where the predicate, if any, holds.

    The left side is that of a `kernel.load`; where its checks fail, zeros arrive. `to` is where it goes: each thread's
    coordinate in a one-dimensional buffer, and what every bit of the register number adds to it (`xor`: combines with
    it). `vec` elements, together 4, 8 or 16 bytes, move at once.

    ```
    kernel.cp_async %x[%i, %k] regs [[0, 1], [0, 2], [8, 0]] vec 4 where 0 <= %i < 100 steps [[0], [0], [8]]
         to %s[%o] xor regs [[1], [2], [64]] if %p
         : memref<100x64xf32>, memref<1024xf32, "shared">
    ```
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
        """For every bit of the register number, its step in the target."""
        return tuple(b[0] for b in bases_of(self.target_regs))

    def verify_(self) -> None:
        if space_of(self.memory.type) is not GLOBAL or not is_shared_line(self.target.type):
            raise VerifyException("a copy goes from global memory to a shared buffer of one dimension")
        if self.xor is not None:
            raise VerifyException("offsets in global memory do not combine by exclusive or")
        element = element_type(self.target.type)
        self.verify_places(element)
        width = self.vec.data
        one = MemRefType(element, [1])
        if width * memory_bytes(one) not in COPY_BYTES:
            raise VerifyException(f"{width} elements of {element}: a copy moves 4, 8 or 16 bytes at once")
        if len(self.target_regs) != len(self.regs) or any(len(b) != 1 for b in bases_of(self.target_regs)):
            raise VerifyException("one step in the target for each bit of the register number")
        low = width.bit_length() - 1
        if any(self.target_bases[b] != 1 << b for b in range(low)):
            raise VerifyException(f"the first {low} register bits are not consecutive in the target")
        if any(c.type != IndexType() for c in self.operand_indices):
            raise VerifyException("coordinates and checks of a copy are index")


@irdl.irdl_op_definition
class AsyncCommitOp(OrderedOp):
    """Close a group: all copies that this thread has issued since the last group. A group may be empty.

    ```
    kernel.async_commit
    ```
    """

    name = "kernel.async_commit"


class WaitForGroupsOp(OrderedOp):
    """What waits until all groups of asynchronous operations but the `pending` newest are done."""

    pending = irdl.prop_def(IntAttr)

    def verify_(self) -> None:
        if not 0 <= self.pending.data < 8:
            raise VerifyException(f"waits until 0 to 7 groups are left, not {self.pending.data}")


@irdl.irdl_op_definition
class AsyncWaitOp(WaitForGroupsOp):
    """Wait until all groups of this thread have arrived but the `pending` newest.

    ```
    kernel.async_wait 1
    ```
    """

    name = "kernel.async_wait"
    assembly_format = "custom<Int>($pending) attr-dict"


SWIZZLES = (0, 32, 64, 128)
"""Bytes of the rows that a swizzle permutes; 0: none."""

BOX_EXTENT = 256
"""The most elements of a box along a dimension."""

SWIZZLED_ROWS = 8
"""Rows after which a swizzle repeats itself: a swizzled box is aligned to the bytes of so many."""

SWIZZLED_ALIGNMENT = SWIZZLED_ROWS * max(SWIZZLES)
"""To how many bytes any swizzled box is aligned in shared memory."""

PLAIN_ALIGNMENT = 128
"""To how many bytes any other box is aligned in shared memory."""


@irdl.irdl_attr_definition
class TensorMapType(ParametrizedAttribute, TypeAttribute):
    """Boxes of a buffer: `!kernel.tensor_map<64x64xbf16, swizzle 128>`. The shape has as many extents as the buffer."""

    name = "kernel.tensor_map"
    box: MemRefType[Attribute]
    swizzle: IntAttr

    @staticmethod
    def get(box: Sequence[int], element: Attribute, swizzle: int) -> TensorMapType:
        return TensorMapType(MemRefType(element, list(box)), IntAttr(swizzle))

    @property
    def shape(self) -> tuple[int, ...]:
        return shape_of_memory(self.box)

    @property
    def element(self) -> Attribute:
        return element_type(self.box)

    @property
    def bytes(self) -> int:
        """Bytes of a box in shared memory: what a load of it brings, parts outside of the buffer included."""
        return memory_bytes(self.box)

    @property
    def alignment(self) -> int:
        """To how many bytes a box is aligned in shared memory."""
        return SWIZZLED_ROWS * self.swizzle.data or PLAIN_ALIGNMENT

    def verify(self) -> None:
        shape, swizzle = self.shape, self.swizzle.data
        if not 1 <= len(shape) <= 5 or any(not 1 <= n <= BOX_EXTENT for n in shape):
            raise VerifyException(f"a box has 1 to 5 extents of 1 to {BOX_EXTENT}, not {list(shape)}")
        if swizzle not in SWIZZLES:
            raise VerifyException(f"a swizzle of 0, 32, 64 or 128 bytes, not {swizzle}")
        row = shape[-1] * element_bytes(self.element)
        if row % 16:
            raise VerifyException(f"a row of a box has a multiple of 16 bytes, not {row}")
        if swizzle and row != swizzle:
            raise VerifyException(f"a box swizzled by {swizzle} bytes has rows of {swizzle} bytes, not {row}")

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
    """The map of an argument of the kernel, at the top of the kernel. In CUDA it is a further parameter.

    ```
    %a = kernel.tensor_map %x : memref<512x320xbf16> -> !kernel.tensor_map<64x64xbf16, swizzle 128>
    ```
    """

    name = "kernel.tensor_map"
    memory = irdl.operand_def(irdl.base(MemRefType))
    result = irdl.result_def(irdl.base(TensorMapType))
    assembly_format = "$memory attr-dict `:` type($memory) `->` type($result)"

    def verify_(self) -> None:
        t, m = self.result.type, self.memory.type
        assert isinstance(t, TensorMapType)
        if not isinstance(self.memory, BlockArgument):
            raise VerifyException("a map is of a buffer that is an argument of the kernel")
        extents = extents_of(m)
        if len(extents) != len(t.shape) or element_type(m) != t.element:
            raise VerifyException(f"boxes of {list(t.shape)} {t.element} in {m}")
        known = [n if isinstance(n, int) else 1 for n in extents]  # nothing is known to divide a symbol
        pitches = [math.prod(known[d:]) * element_bytes(t.element) for d in range(1, len(extents))]
        if any(p % 16 for p in pitches):
            raise VerifyException(f"rows of {m} do not start at multiples of 16 bytes")


class _BoxOp(OrderedOp):
    """What moves one box has in common: the buffer in shared memory, the element of it where the box starts, the map
    and the coordinates of the box's first element."""

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
            raise VerifyException(f"a box lies in a shared buffer of one dimension, not in {m}")
        if element_type(m) != t.element:
            raise VerifyException("buffer and map have one element type")
        if memory_bytes(m) < t.bytes:
            raise VerifyException(f"a box of {t.bytes} bytes is larger than {m}")
        if len(self.coordinates) != len(t.shape):
            raise VerifyException(f"one coordinate for each of {len(t.shape)} dimensions")


@irdl.irdl_op_definition
class TmaLoadOp(_BoxOp):
    """Start copying a box from global to shared memory; every thread that gets here starts one.

    What lies outside of the buffer arrives as zeros. The bytes of the whole box count at the mbarrier. With `multicast`
    it arrives in the blocks of the cluster that have these ranks, in each at the same place of its shared memory, and
    its bytes count at each one's own mbarrier (PTX `cp.async.bulk.tensor ... .multicast::cluster`).

    ```
    kernel.tma_load %a[%i, %k] to %s[%o] signal %full[%slot]
        : !kernel.tensor_map<64x64xbf16, swizzle 128>, memref<12288xbf16, "shared">,
          memref<3x!kernel.mbarrier, "shared">
    kernel.tma_load %b[%j, %k] to %t[%o] signal %full[%slot] multicast [0, 1] : ...
    ```
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
        """The blocks of the cluster that the box arrives in; empty for the block itself."""
        return () if self.multicast is None else tuple(int(r) for r in self.multicast.get_values())

    def verify_(self) -> None:
        super().verify_()
        if not is_mbarriers(self.barriers.type):
            raise VerifyException(f"signals an mbarrier in shared memory, not {self.barriers.type}")
        if self.multicast is None:
            return
        require_cluster(self, "a box for several blocks")
        most = cluster_of(self) or max(CLUSTERS)
        if not self.ranks or list(self.ranks) != sorted({*self.ranks} & {*range(most)}):
            raise VerifyException(f"a box for the blocks {list(self.ranks)} of a cluster of {most}, in order")


@irdl.irdl_op_definition
class TmaStoreOp(_BoxOp):
    """Start copying a box from shared to global memory; what lies outside of the buffer is left out.

    It belongs to the open bulk group of its thread, see `kernel.bulk_commit`. Until that group was waited for, nobody
    may overwrite the box in shared memory.

    ```
    kernel.tma_store %s[%o] to %c[%i, %j] : memref<4096xbf16, "shared">, !kernel.tensor_map<64x64xbf16, swizzle 128>
    ```
    """

    name = "kernel.tma_store"
    assembly_format = (
        "$shared `` `[` $place `]` `to` $map `` `[` $coordinates `]` attr-dict `:` type($shared) `,` type($map)"
    )


@irdl.irdl_op_definition
class BulkCommitOp(OrderedOp):
    """Close the group of this thread's `kernel.tma_store`s since the last group.

    ```
    kernel.bulk_commit
    ```
    """

    name = "kernel.bulk_commit"


@irdl.irdl_op_definition
class BulkWaitOp(WaitForGroupsOp):
    """Wait until all bulk groups of this thread but the `pending` newest are done; with `read`, until they have read
    shared memory. A thread waits for all its groups, at least for their reads, before it ends.

    ```
    kernel.bulk_wait 0 read
    ```
    """

    name = "kernel.bulk_wait"
    read = irdl.opt_prop_def(UnitAttr)
    assembly_format = "custom<Int>($pending) (`read` $read^)? attr-dict"


@irdl.irdl_op_definition
class FenceAsyncOp(OrderedOp):
    """Order this thread's stores to shared memory before what asynchronous copies and `kernel.wgmma` do there later.

    ```
    kernel.fence_async
    ```
    """

    name = "kernel.fence_async"
