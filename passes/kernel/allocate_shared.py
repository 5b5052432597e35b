"""kernel-allocate-shared: give every shared buffer its place in the block's shared memory."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from xdsl.dialects.builtin import IntAttr
from xdsl.ir import Operation, SSAValue

from ...dialects import kernel
from ...dialects.support.locations import refused
from ...target.attribute import target_of
from ..pass_manager import FuncPass

SMALL, LARGE = 16, 128
"""Bytes to which a buffer starts: the widest access, and for buffers of at least `LARGE` bytes a whole row of banks."""

CHEAP = 16 * 1024
"""Up to this many bytes a block, saving shared memory lets no more blocks run at once, but would cost barriers."""

SCRATCH = 1024
"""Buffers smaller than this never share: they would save less than a barrier costs."""


@dataclass(frozen=True)
class Lifetime:
    """A buffer is in use from the operation numbered `first` to the one numbered `last`, both included."""

    op: kernel.SharedOp
    size: int
    first: int
    last: int
    alignment: int = 1

    def overlaps(self, other: Lifetime) -> bool:
        return self.first <= other.last and other.first <= self.last


def lifetimes(func: kernel.FuncOp) -> list[Lifetime]:
    """When each shared buffer of a kernel is in use, in program order.

    A buffer made outside of a loop and used inside keeps its contents from one iteration to the next, so it is in use
    throughout the loop; one made inside a loop is a new buffer each time.
    """
    number = {op: i for i, op in enumerate(func.body.walk())}
    end = dict(number)  # of the last op inside of each
    for op in reversed(number):
        around = op.parent_op()
        if around is not None and around in end:
            end[around] = max(end[around], end[op])
    found: list[Lifetime] = []
    for op in number:
        if isinstance(op, kernel.SharedOp) and op.parent is not None:
            users = {user for u in _users(op) if (user := op.parent.find_ancestor_op_in_block(u)) is not None}
            first = min((number[u] for u in users), default=number[op])
            last = max((end[u] for u in users), default=number[op])
            found.append(Lifetime(op, kernel.memory_bytes(op.result.type), first, last, _alignment(op)))
    return found


def _alignment(op: kernel.SharedOp) -> int:
    """To how many bytes a buffer has to start, for the boxes and the operands of tensor cores in it."""
    if kernel.is_mbarriers(op.result.type):
        return 1
    boxes = [u.map_type.alignment for u in _users(op) if isinstance(u, kernel.TmaLoadOp | kernel.TmaStoreOp)]
    operand = any(isinstance(u, kernel.WgmmaOp) for u in _users(op))
    return max([1, *boxes, kernel.SWIZZLED_ALIGNMENT if operand else 1])


def _users(op: kernel.SharedOp) -> Iterator[Operation]:
    todo: list[SSAValue] = [op.result]
    for value in todo:
        for use in value.uses:
            yield use.operation
            if isinstance(use.operation, kernel.SubviewOp | kernel.MapaOp):
                todo.append(use.operation.result)


def place(buffers: list[Lifetime], *, share: bool = True) -> tuple[list[int], int]:
    """An offset for each of `buffers`, and the bytes they take together; with `share`, buffers that are never in use at
    the same time may lie on the same bytes."""
    offsets: list[int] = []
    for number, buffer in enumerate(buffers):
        taken = sorted(
            (offsets[i], offsets[i] + other.size)
            for i, other in enumerate(buffers[:number])
            if not share or min(other.size, buffer.size) < SCRATCH or other.overlaps(buffer)
        )
        alignment = LARGE if buffer.size >= LARGE else SMALL
        alignment = max(alignment, buffer.alignment)
        offset = 0
        for start, end in taken:
            if offset + buffer.size <= start:
                break
            offset = max(offset, -(-end // alignment) * alignment)
        offsets.append(offset)
    return offsets, max((o + b.size for o, b in zip(offsets, buffers, strict=True)), default=0)


@dataclass(frozen=True)
class AllocateSharedPass(FuncPass):
    """Give every shared buffer an offset in one allocation, and every kernel its size.

    What: computes when each `kernel.shared` is in use. Where a block would take more than a little, large buffers that
    are never in use together lie on the same bytes (first fit, in program order).
    Why: a block has one shared allocation, and how much it takes decides how many blocks run at once.
    Why here: `kernel-insert-barriers` comes next and treats buffers that overlap as the same memory; without offsets it
    could not see that one buffer's writes endanger the other's reads. In a kernel with barriers already, nothing is
    shared. Buffers of boxes and of operands of `kernel.wgmma` start where their swizzle counts from. Clusters of blocks
    are refused for a target that has none.

    ```mlir
    %a = kernel.shared : memref<4096xf32, "shared">           // last used before %b is first used
    %b = kernel.shared : memref<8192xf32, "shared">
    ```
    becomes, with `shared 32768` on the kernel,
    ```mlir
    %a = kernel.shared at 0 : memref<4096xf32, "shared">
    %b = kernel.shared at 0 : memref<8192xf32, "shared">
    ```
    """

    name = "kernel-allocate-shared"

    target: str | None = None

    def on(self, op: kernel.FuncOp) -> None:
        target = target_of(op, self.target)
        if op.cluster_size > 1 and not target.has("cluster"):
            raise refused(op, f"{target.name} has no clusters of blocks", argument=op.sym_name.data)
        if any(isinstance(inner, kernel.SharedOp) for inner in op.body.walk()):
            _allocate(op, target.shared_per_block, target.arch)


def _allocate(func: kernel.FuncOp, limit: int, target: str) -> None:
    buffers = lifetimes(func)
    waits = kernel.BarrierOp | kernel.ClusterBarrierOp | kernel.GroupBarrierOp | kernel.MbarWaitOp
    synchronised = func.partitions is not None or any(isinstance(o, waits) for o in func.body.walk())
    offsets, total = place(buffers, share=False)
    if total > CHEAP and not synchronised:
        offsets, total = place(buffers)
    if total > limit:
        why = f"needs {total} bytes of shared memory, a block of {target} has {limit}: choose smaller tiles or chunks"
        raise refused(func, why, argument=func.sym_name.data)
    for buffer, offset in zip(buffers, offsets, strict=True):
        buffer.op.offset = IntAttr(offset)
    func.shared = IntAttr(total)
