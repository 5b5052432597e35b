"""kernel-allocate-shared: give every shared buffer its place in the block's shared memory."""

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

SMALL, LARGE = 16, 128
"""Bytes to which a buffer starts: the widest access, and for buffers of at least `LARGE` bytes a whole row of banks."""

CHEAP = 16 * 1024
"""Up to this many bytes a block, saving shared memory lets no more blocks run at once, but would cost barriers."""

SCRATCH = 1024
"""Buffers smaller than this never share: they would save less than a barrier costs."""


def place(
    buffers: Iterable[kernel.SharedOp], lifetimes: Mapping[kernel.SharedOp, Lifetime] | None = None
) -> tuple[dict[kernel.SharedOp, int], int]:
    """Returns the offset of each buffer, and the bytes that all take together. With `lifetimes`, buffers that are never
    in use at the same time may share bytes."""
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
    """The alignment of a buffer in bytes: for its accesses, and for the boxes and operands of tensor cores in it."""
    alignments = [LARGE if kernel.memory_bytes(op.result.type) >= LARGE else SMALL]
    for use in _uses(op):
        user = use.operation
        if isinstance(user, kernel.WgmmaOp):
            alignments.append(kernel.SWIZZLED_ALIGNMENT)
        elif isinstance(user, kernel.TmaLoadOp | kernel.TmaStoreOp) and user.shared is user.operands[use.index]:
            alignments.append(user.map_type.alignment)
    return max(alignments)


def _uses(op: kernel.SharedOp) -> Iterator[Use]:
    """Yields the uses of a buffer, of its slots, and of the buffers of other blocks that it names."""
    todo: list[SSAValue] = [op.result]
    for value in todo:
        for use in value.uses:
            yield use
            if isinstance(use.operation, kernel.SubviewOp | kernel.MapaOp):
                todo.append(use.operation.result)


@dataclass(frozen=True)
class Lifetime:
    """A buffer is in use from the operation numbered `first` to the one numbered `last`, both included."""

    first: int
    last: int

    def overlaps(self, other: Lifetime) -> bool:
        return self.first <= other.last and other.first <= self.last


def lifetimes(func: kernel.FuncOp, buffers: Iterable[kernel.SharedOp]) -> dict[kernel.SharedOp, Lifetime]:
    """Returns when each shared buffer of a kernel is in use.

    A buffer made outside of a loop and used inside keeps its contents from one iteration to the next, so it is in use
    throughout the loop; one made inside a loop is a new buffer each time.
    """
    number = {op: i for i, op in enumerate(func.body.walk())}
    end = dict(number)  # of the last op inside of each
    for op in reversed(number):
        around = op.parent_op()
        if around is not None and around in end:
            end[around] = max(end[around], end[op])
    spans: dict[kernel.SharedOp, Lifetime] = {}
    for op in buffers:
        block = block_of(op)
        users = {user for use in _uses(op) if (user := block.find_ancestor_op_in_block(use.operation)) is not None}
        first = min((number[u] for u in users), default=number[op])
        last = max((end[u] for u in users), default=number[op])
        spans[op] = Lifetime(first, last)
    return spans


def _conflict(a: kernel.SharedOp, b: kernel.SharedOp, lifetimes: Mapping[kernel.SharedOp, Lifetime]) -> bool:
    """Returns true if two buffers must be disjoint: both are in use at some time, or one is too small to share."""
    smaller = min(kernel.memory_bytes(a.result.type), kernel.memory_bytes(b.result.type))
    return smaller < SCRATCH or lifetimes[a].overlaps(lifetimes[b])


def _synchronises(func: kernel.FuncOp) -> bool:
    """Returns true if threads of a kernel wait for each other already."""
    waits = kernel.BarrierOp | kernel.ClusterBarrierOp | kernel.GroupBarrierOp | kernel.MbarWaitOp
    return func.partitions is not None or any(isinstance(o, waits) for o in func.body.walk())


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
        if buffers := [inner for inner in op.body.walk() if isinstance(inner, kernel.SharedOp)]:
            _allocate(op, buffers, target)


def _allocate(func: kernel.FuncOp, buffers: Sequence[kernel.SharedOp], target: Target) -> None:
    offsets, total = place(buffers)
    if total > CHEAP and not _synchronises(func):
        offsets, total = place(buffers, lifetimes(func, buffers))
    if total > target.shared_per_block:
        why = f"needs {total} bytes of shared memory, a block of {target.arch} has {target.shared_per_block}"
        raise refused(func, f"{why}: choose smaller tiles or chunks", argument=func.sym_name.data)
    for buffer, offset in offsets.items():
        buffer.offset = IntAttr(offset)
    func.shared = IntAttr(total)
