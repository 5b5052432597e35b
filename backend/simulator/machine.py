"""The state of a running kernel: all threads of some blocks, who is active, and the accesses they make."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
from xdsl.ir import Operation

from ...dialects import kernel
from ...dialects.shapes.binding import Sizes
from ..interpreter.domains import Array, TypedDomain, ranked
from .buffers import GlobalBuffer, SharedBuffer
from .memory_stats import moved, sectors, wavefronts
from .report import KernelCounts, Kind, Report

MAX_WIDTH = 16
"""Bytes of the widest access of a thread."""


Mover = kernel.LoadOp | kernel.StoreOp | kernel.AtomicRmwOp | kernel.LdMatrixOp | kernel.StMatrixOp | kernel.CopyAsyncOp
"""What accesses memory."""


def register_offsets(bases: tuple[int, ...], exclusive_or: bool) -> Array:
    """For every register number, the combination of the steps of its set bits."""
    offsets = np.zeros(1, np.int64)
    for step in bases:
        offsets = np.concatenate([offsets, offsets ^ step if exclusive_or else offsets + step])
    return offsets


@dataclass
class Access:
    """One load or store by all threads: everything is [blocks, threads, registers].

    `place` is the flat element, `mask` where the access happens and is legal.
    """

    place: Array
    mask: Array

    def selected(self) -> tuple[Array, Array, Array]:
        """(block, thread, place) of every access that happens, flat."""
        block, thread, _ = np.nonzero(self.mask)
        return block, thread, self.place[self.mask]

    def spread(self, flags: Array) -> Array:
        """Flags of the accesses that happen, at their [block, thread, register]."""
        where = np.zeros(self.mask.shape, np.bool_)
        where[self.mask] = flags
        return where


@dataclass
class Machine:
    """Some blocks of one launch. Values are arrays [blocks, threads] or [blocks, threads, registers].

    The blocks of a cluster are one block here, with the threads of all of them one after the other; `cluster` is how
    many they are, and `numbers` has the first.
    """

    domain: TypedDomain
    report: Report
    counts: KernelCounts
    numbers: Array
    threads: int
    measured: bool
    buffers: dict[int, int]
    sizes: Sizes
    cluster: int = 1
    active: Array = field(init=False)
    shared: dict[Operation, SharedBuffer] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.active = np.ones((len(self.numbers), self.threads), np.bool_)

    @property
    def block_threads(self) -> int:
        """Threads of one block."""
        return self.threads // self.cluster

    @property
    def rows(self) -> Array:
        """[block, thread] -> the row of shared buffers that is its own block's."""
        if self.cluster == 1:
            return np.broadcast_to(np.arange(len(self.numbers))[:, None], self.active.shape)
        return np.arange(self.threads)[None, :] // self.block_threads

    @property
    def grid_threads(self) -> Array:
        """[block, thread] -> its number in the whole grid."""
        return self.numbers[:, None] * self.block_threads + np.arange(self.threads)

    def everywhere(self, value: Array) -> Array:
        """A value of every thread as [block, thread]."""
        return np.broadcast_to(ranked(value, 2), self.active.shape)

    def warps(self) -> list[int]:
        """The warps with an active thread."""
        return [int(w) for w in np.flatnonzero(self.active.reshape(-1, 32).any(axis=1))]

    def uses(self, index: Array) -> Iterator[tuple[int, int, int]]:
        """(warp, value, threads) for every value that active threads of a warp of one block, or cluster, have."""
        values = self.everywhere(index)[0]
        for w in self.warps():
            lanes = slice(32 * w, 32 * w + 32)
            mine = values[lanes][self.active[0, lanes]]
            for value, count in zip(*np.unique(mine, return_counts=True), strict=True):
                yield w, int(value), int(count)

    def uniform(self, value: Array) -> int:
        """The one value that active threads have, or the first one's."""
        return int(self.everywhere(value)[self.active][0])

    def rank_of(self, warp: int) -> int:
        """The block of the cluster that a warp belongs to."""
        return warp * 32 // self.block_threads

    def first_runs(self) -> bool:
        """Whether the block that is measured, the first, is running."""
        return self.measured and (self.cluster == 1 or bool(self.active[0, : self.block_threads].any()))

    def find(self, kind: Kind, op: Operation, where: Array, message: str) -> None:
        """Report a mistake made where `where`, indexed by [block, thread, ...], holds."""
        if not where.any():
            return
        block, thread = (int(i) for i in np.argwhere(where)[0][:2])
        rank, thread = divmod(thread, self.block_threads)
        who = f"thread {thread} of block {int(self.numbers[block]) + rank}"
        self.report.add(kind, op, message.format(who=who), int(np.count_nonzero(where)))

    def barrier_of_block(self, op: Operation) -> None:
        """The active blocks are at a barrier, which all of their threads have to reach."""
        active = self.active.reshape(-1, self.block_threads)
        arrive, all_arrive = np.asarray(active.any(axis=1)), np.asarray(active.all(axis=1))
        missing = (~active & (arrive & ~all_arrive)[:, None]).reshape(self.active.shape)
        self.find("divergent", op, missing, "{who} does not reach a barrier that others wait at")
        if self.first_runs() and arrive[0]:
            self.counts.barriers += 1

    def whole_warps(self, op: Operation, what: str) -> None:
        """Report active threads whose warps are not there as a whole."""
        warps = self.active.reshape(len(self.active), -1, 32)
        alone = (warps & ~warps.all(axis=2, keepdims=True)).reshape(self.active.shape)
        self.find("divergent", op, alone, f"{{who}} {what} without the other lanes of its warp")

    def count_flops(self, each: int) -> None:
        """Count float operations, so many of each active thread."""
        self.counts.flops += each * int(np.count_nonzero(self.active))

    def complain(self, kind: Kind, op: Operation, text: str, warp: int) -> None:
        """Report a mistake of a warp of a block, or cluster, that runs alone."""
        first, each = int(self.numbers[0]), self.block_threads // 32
        block = f" of block {first + warp // each}" if self.cluster > 1 else ""
        self.report.add(kind, op, f"warp {warp % each}{block}: {text}")

    def locate(
        self,
        op: Mover,
        shape: tuple[int, ...],
        coordinates: tuple[Array, ...],
        checks: tuple[Array, ...],
    ) -> Access:
        """Where `op` reads or writes; accesses outside `shape` are reported and left out."""
        registers, xor = op.registers, op.xor is not None
        full = (*self.active.shape, registers)
        mask = np.broadcast_to(self.active[:, :, None], full)
        for c, (lo, hi) in enumerate(op.bounds):
            value = self.register_places(checks[c], [s[c] for s in op.check_steps], xor)
            mask = mask & (lo <= value) & (value < self.sizes.number(hi))
        place = np.zeros(full, np.int64)
        legal = mask
        for d, extent in enumerate(shape):
            value = np.broadcast_to(self.register_places(coordinates[d], [b[d] for b in op.reg_bases], xor), full)
            outside = mask & ((value < 0) | (value >= extent))
            if outside.any():
                at = int(value[tuple(np.argwhere(outside)[0])])
                where = f"coordinate {d} is {at}, outside 0..{extent - 1}"
                self.find("out-of-bounds", op, outside, f"{{who}}: {where}")
                legal = legal & ~outside
            place = place * extent + value
        return Access(np.where(legal, place, 0), legal)

    def register_places(self, value: Array, bases: Sequence[int], xor: bool) -> Array:
        """`value`, one for each thread, in every register: with the bases of the set bits of the register's number."""
        offsets = register_offsets(tuple(bases), xor)
        value = np.asarray(value)
        value = value if value.ndim == 3 else ranked(value, 2)[:, :, None]
        return value ^ offsets if xor else value + offsets

    def aligned(self, op: Mover, access: Access, itemsize: int, offset: int = 0) -> None:
        """Report accesses of several elements that are not aligned to their size."""
        vec = op.vec.data
        if vec == 1:
            return
        width = min(vec * itemsize, MAX_WIDTH)
        first = (access.place[:, :, ::vec] * itemsize + offset) % width != 0
        self.find("misaligned", op, first & access.mask[:, :, ::vec], f"{{who}}: an access of {width} bytes")

    def position_of(self, buffer: GlobalBuffer) -> int:
        """The number of a buffer among the kernel's arguments."""
        return self.buffers.get(id(buffer), -1)

    def measure_global(self, op: Mover, access: Access, buffer: GlobalBuffer) -> None:
        """Count bytes for all blocks, sectors for the first."""
        c, stores = self.counts, isinstance(op, kernel.StoreOp | kernel.AtomicRmwOp)
        table, widths = (c.stored, c.store_widths) if stores else (c.loaded, c.load_widths)
        position, width = self.position_of(buffer), min(op.vec.data * buffer.itemsize, MAX_WIDTH)
        size = moved(access.place * buffer.itemsize, access.mask, op.vec.data, buffer.itemsize)
        table[position] = table.get(position, 0) + size
        widths[width] = widths.get(width, 0) + size
        if self.first_runs():
            touched, least = sectors(access.place[0] * buffer.itemsize, access.mask[0], op.vec.data, buffer.itemsize)
            self.counts.sectors += touched
            self.counts.ideal_sectors += least

    def measure_shared(self, op: Mover, access: Access, buffer: SharedBuffer) -> None:
        """Count wavefronts of the first block."""
        if self.first_runs():
            address = access.place[0] * buffer.itemsize + buffer.offset
            needed, ideal = wavefronts(address, access.mask[0], op.vec.data, buffer.itemsize)
            self.counts.wavefronts += needed
            self.counts.ideal_wavefronts += ideal
