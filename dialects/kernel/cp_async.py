"""Asynchronous copies of the kernel dialect: from global to shared memory, without registers and without waiting.

A thread issues copies, closes a group of them with `kernel.async_commit`, and waits until all but its newest groups
have arrived.
Then it sees what it copied itself; what other threads copied it sees behind a barrier after their waits.
"""

from __future__ import annotations

from xdsl.dialects.builtin import ArrayAttr, IndexType, IntAttr, MemRefType, UnitAttr, i1
from xdsl.ir import SSAValue
from xdsl.irdl import base, irdl_op_definition, operand_def, opt_operand_def, opt_prop_def, prop_def, result_def
from xdsl.utils.exceptions import VerifyException

from ..layouts.attributes import bases_of
from ..payload import element_type
from ..support.assembly import OrderedOp, PureOp
from .memory import ACCESS, ACCESS_TYPES, GLOBAL, SHARED, MemoryAccess, is_shared_line, memory_bytes, space_of

COPY_BYTES = (4, 8, 16)
"""How many bytes one asynchronous copy may move."""


@irdl_op_definition
class SubviewOp(PureOp):
    """A part of a shared buffer, as a buffer: one slot of a ring. The offset, in elements, is the same in all threads.

    ```
    %s = kernel.subview %ring[%offset] : memref<3072xf32, "shared"> -> memref<1024xf32, "shared">
    ```
    """

    name = "kernel.subview"
    ring = operand_def(base(MemRefType))
    offset = operand_def(IndexType())
    result = result_def(base(MemRefType))
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


@irdl_op_definition
class CopyAsyncOp(MemoryAccess, OrderedOp):
    """Start copying from global to shared memory, in the threads where the predicate, if any, holds.

    The left side is that of a `kernel.load`; where its checks fail, zeros arrive. `to` is where it goes: each thread's
    coordinate in a one-dimensional buffer, and what every bit of the register number adds to it (`xor`: combines with
    it). `vec` elements, together 4, 8 or 16 bytes, move at once.

    ```
    kernel.cp_async %x[%i, %k] regs [[0, 1], [0, 2], [8, 0]] vec 4 where (%i) steps [[0], [0], [8]] in [0:100]
         to %s[%o] xor regs [[1], [2], [64]] if %p
         : memref<100x64xf32> (index, index, index), memref<1024xf32, "shared">
    ```
    """

    name = "kernel.cp_async"
    target = operand_def(base(MemRefType))
    place = operand_def(IndexType())
    predicate = opt_operand_def(i1)
    target_regs = prop_def(ArrayAttr[ArrayAttr[IntAttr]], default_value=ArrayAttr(()))
    target_xor = opt_prop_def(UnitAttr)
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


@irdl_op_definition
class AsyncCommitOp(OrderedOp):
    """Close a group: all copies that this thread has issued since the last group. A group may be empty.

    ```
    kernel.async_commit
    ```
    """

    name = "kernel.async_commit"


class WaitForGroupsOp(OrderedOp):
    """What waits until all groups of asynchronous operations but the `pending` newest are done."""

    pending = prop_def(IntAttr)

    def verify_(self) -> None:
        if not 0 <= self.pending.data < 8:
            raise VerifyException(f"waits until 0 to 7 groups are left, not {self.pending.data}")


@irdl_op_definition
class AsyncWaitOp(WaitForGroupsOp):
    """Wait until all groups of this thread have arrived but the `pending` newest.

    ```
    kernel.async_wait 1
    ```
    """

    name = "kernel.async_wait"
    assembly_format = "custom<Int>($pending) attr-dict"
