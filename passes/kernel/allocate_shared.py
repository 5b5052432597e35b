"""`kernel-allocate-shared`: assigns every shared buffer its offset in the block's shared memory.

Buffers that are never in use at the same time may have overlapping byte ranges. `lifetimes` computes when each buffer
is in use, and `place` assigns the offsets.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from xdsl.dialects.builtin import IntAttr
from xdsl.ir import SSAValue, Use

from ...dialects import kernel
from ...dialects.support.locations import refused
from ...target.attribute import target_of
from ...target.model import Target
from ..pass_manager import FuncPass
from ..rewriting import block_of

MIN_ALIGNMENT_BYTES, BANK_ROW_BYTES = 16, 128
"""Alignments of buffers in bytes: the widest access of a thread (16), and all 32 banks of 4 bytes (128). Buffers of at
least `BANK_ROW_BYTES` bytes have the larger one."""

MIN_KERNEL_BYTES_TO_OVERLAP = 16 * 1024
"""Buffers overlap only in kernels that need more than this many bytes of shared memory. In smaller kernels shared
memory does not limit the number of resident blocks, and overlapping buffers need additional barriers."""

MIN_BUFFER_BYTES_TO_OVERLAP = 1024
"""Buffers smaller than this many bytes never overlap another buffer: the barrier would cost more than the memory."""


def place(
    buffers: Iterable[kernel.SharedOp], lifetimes: Mapping[kernel.SharedOp, Lifetime] | None = None
) -> tuple[dict[kernel.SharedOp, int], int]:
    """Assigns offsets to shared buffers, first fit in the order of `buffers`.

    Args:
        buffers: At least one buffer.
        lifetimes: The lifetime of each buffer. If None, no two buffers overlap. Otherwise buffers with disjoint
            lifetimes may overlap.

    Returns:
        The offset of each buffer in bytes, and the size of the allocation in bytes.
    """
    ranges: dict[kernel.SharedOp, tuple[int, int]] = {}
    for buffer in buffers:
        size, alignment, offset = kernel.memory_bytes(buffer.result.type), _alignment(buffer), 0
        taken = [r for other, r in ranges.items() if lifetimes is None or _conflict(buffer, other, lifetimes)]
        for start, end in sorted(taken):
            if offset + size <= start:
                break
            offset = max(offset, -(-end // alignment) * alignment)
        ranges[buffer] = offset, offset + size
    return {op: start for op, (start, _) in ranges.items()}, max(end for _, end in ranges.values())


def _alignment(op: kernel.SharedOp) -> int:
    """Returns the alignment of a buffer in bytes. TMA tiles and operands of `kernel.wgmma` need more than loads and
    stores."""
    is_large = kernel.memory_bytes(op.result.type) >= BANK_ROW_BYTES
    alignments = [BANK_ROW_BYTES if is_large else MIN_ALIGNMENT_BYTES]
    for use in _uses(op):
        user = use.operation
        if isinstance(user, kernel.WgmmaOp):
            alignments.append(kernel.SWIZZLED_ALIGNMENT)
        elif isinstance(user, kernel.TmaLoadOp | kernel.TmaStoreOp) and user.shared is user.operands[use.index]:
            alignments.append(user.map_type.alignment)
    return max(alignments)


def _uses(op: kernel.SharedOp) -> Iterator[Use]:
    """Yields the uses of a buffer, of its subviews (`kernel.subview`), and of its addresses in other blocks of the
    cluster (`kernel.mapa`)."""
    todo: list[SSAValue] = [op.result]
    for value in todo:
        for use in value.uses:
            yield use
            if isinstance(use.operation, kernel.SubviewOp | kernel.MapaOp):
                todo.append(use.operation.result)


@dataclass(frozen=True)
class Lifetime:
    """Lifetime of a buffer: the positions of the first and the last operation that use it, in program order."""

    first: int
    last: int

    def overlaps(self, other: Lifetime) -> bool:
        return self.first <= other.last and other.first <= self.last


def lifetimes(func: kernel.FuncOp, buffers: Iterable[kernel.SharedOp]) -> dict[kernel.SharedOp, Lifetime]:
    """Returns the lifetime of each shared buffer of a kernel.

    A buffer that is defined before a loop and used inside it is live throughout the loop, as its contents may be read
    in a later iteration. A buffer that is defined inside a loop is a new buffer in each iteration.
    """
    number = {op: i for i, op in enumerate(func.body.walk())}
    # The position of the last operation nested in each operation.
    end = dict(number)
    for op in reversed(number):
        parent = op.parent_op()
        if parent is not None and parent in end:
            end[parent] = max(end[parent], end[op])
    spans: dict[kernel.SharedOp, Lifetime] = {}
    for op in buffers:
        block = block_of(op)
        users = {user for use in _uses(op) if (user := block.find_ancestor_op_in_block(use.operation)) is not None}
        first = min((number[u] for u in users), default=number[op])
        last = max((end[u] for u in users), default=number[op])
        spans[op] = Lifetime(first, last)
    return spans


def _conflict(a: kernel.SharedOp, b: kernel.SharedOp, lifetimes: Mapping[kernel.SharedOp, Lifetime]) -> bool:
    """Returns true if two buffers must not overlap: their lifetimes overlap, or one buffer is too small to save
    much."""
    smaller = min(kernel.memory_bytes(a.result.type), kernel.memory_bytes(b.result.type))
    return smaller < MIN_BUFFER_BYTES_TO_OVERLAP or lifetimes[a].overlaps(lifetimes[b])


def _synchronises(func: kernel.FuncOp) -> bool:
    """Returns true if the kernel already contains barriers, or partitions of warps."""
    waits = kernel.BarrierOp | kernel.ClusterBarrierOp | kernel.GroupBarrierOp | kernel.MbarWaitOp
    return func.partitions is not None or any(isinstance(o, waits) for o in func.body.walk())


@dataclass(frozen=True)
class AllocateSharedPass(FuncPass):
    """Assigns every shared buffer an offset in the block's allocation, and sets the size of the allocation.

    ```mlir
    %a = kernel.shared : memref<4096xf32, "shared">           // last used before %b is first used
    %b = kernel.shared : memref<8192xf32, "shared">
    ```
    becomes, with `shared 32768` on the kernel,
    ```mlir
    %a = kernel.shared at 0 : memref<4096xf32, "shared">
    %b = kernel.shared at 0 : memref<8192xf32, "shared">
    ```

    Buffers of at least 1 KiB whose lifetimes are disjoint overlap if the kernel needs more than 16 KiB. In a kernel
    that already contains barriers no buffers overlap. TMA tiles and operands of `kernel.wgmma` get the alignment of
    their swizzle. The pass refuses a kernel that needs more shared memory than the target has, or clusters on a target
    without them.

    **Rationale**: a block has one shared allocation, and its size limits how many blocks are resident on a
    multiprocessor.

    **Pipeline position**: before `kernel-insert-barriers`, which needs the offsets: overlapping buffers are the same
    memory, so a write to one needs a barrier after a read of the other.

    **Options**: `target` is the GPU whose limits apply; the default is the target of the module.
    """

    name = "kernel-allocate-shared"

    target: str | None = None

    def on(self, op: kernel.FuncOp) -> None:
        target = target_of(op, self.target)
        if op.cluster_size > 1 and not target.has("cluster"):
            raise refused(op, f"{target.name} has no clusters of blocks", argument=op.sym_name.data)
        if buffers := [inner for inner in op.body.walk() if isinstance(inner, kernel.SharedOp)]:
            _allocate(op, buffers, target)


def _allocate(func: kernel.FuncOp, buffers: Sequence[kernel.SharedOp], target: Target) -> None:
    offsets, total = place(buffers)
    if total > MIN_KERNEL_BYTES_TO_OVERLAP and not _synchronises(func):
        offsets, total = place(buffers, lifetimes(func, buffers))
    if total > target.shared_per_block:
        why = f"needs {total} bytes of shared memory, a block of {target.arch} has {target.shared_per_block}"
        raise refused(func, f"{why}: choose smaller tiles or chunks", argument=func.sym_name.data)
    for buffer, offset in offsets.items():
        buffer.offset = IntAttr(offset)
    func.shared = IntAttr(total)
