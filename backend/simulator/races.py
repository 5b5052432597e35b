"""Races of the threads of a block for shared memory, in kernels that synchronise by `kernel.barrier` only.

Two accesses of one byte race if different threads make them, one of them is a write, and no barrier of the block is
between them. Lockstep hides the effect of a race in the simulator, so accesses are recorded: for each byte the last
writer and two different readers since the last barrier. Two readers suffice, because one of them is not the writer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from xdsl.ir import Operation

from ...dialects import kernel
from ...dialects.support.locations import location_text
from ..interpreter.domains import Array

if TYPE_CHECKING:
    from .machine import Access, Machine
    from .memory import SharedBuffer

NOBODY = -1

WRITES = (kernel.StoreOp, kernel.StMatrixOp, kernel.CopyAsyncOp)


class RaceDetector:
    """Accesses of shared memory since the last barrier of each block.

    Attributes:
        first_reader, second_reader: threads that read a byte, as [blocks, bytes].
        writer: last thread that wrote a byte.
        read_by, written_by: number of the operation of the first reader and of the writer.
        ops: operations by number.
    """

    def __init__(self, blocks: int, size: int) -> None:
        """Sets the number of simulated blocks and the bytes of shared memory."""
        shape = (blocks, size)
        self.first_reader, self.second_reader, self.writer = (np.full(shape, NOBODY, np.int64) for _ in range(3))
        self.read_by, self.written_by = (np.zeros(shape, np.int64) for _ in range(2))
        self.ops: list[Operation] = []

    def barrier(self, blocks: Array) -> None:
        """Forgets the accesses of blocks whose threads are all at a barrier. `blocks`: mask."""
        for threads in (self.first_reader, self.second_reader, self.writer):
            threads[blocks] = NOBODY

    def access(self, machine: Machine, op: Operation, access: Access, buffer: SharedBuffer) -> None:
        """Records the accesses of an operation. Reports those that race with earlier ones.

        Args:
            machine: the running blocks.
            op: the operation.
            access: its accesses.
            buffer: its memory.
        """
        if op not in self.ops:
            self.ops.append(op)
        number, size = self.ops.index(op), buffer.itemsize
        block, thread, place = access.selected()
        block, thread = (np.repeat(x, size) for x in (machine.rows[block, thread], thread))
        byte = (place[:, None] * size + buffer.offset + np.arange(size)).reshape(-1)
        at, writes = (block, byte), isinstance(op, WRITES)
        self._report(machine, op, at, thread, self.writer[at], ("writes" if writes else "reads", "writes"), True)
        if not writes:
            fresh = self.first_reader[at] == NOBODY
            self.first_reader[block[fresh], byte[fresh]] = thread[fresh]
            self.read_by[block[fresh], byte[fresh]] = number
            others = self.first_reader[at] != thread
            self.second_reader[block[others], byte[others]] = thread[others]
            return
        first, second = self.first_reader[at], self.second_reader[at]
        self._report(machine, op, at, thread, np.where(first == thread, second, first), ("writes", "reads"), False)
        self.writer[at], self.written_by[at] = thread, number

    def _report(
        self,
        machine: Machine,
        op: Operation,
        at: tuple[Array, Array],
        thread: Array,
        other: Array,
        verbs: Any,
        write: bool,
    ) -> None:
        """Reports the first access that races with an earlier one.

        Args:
            machine: the running blocks.
            op: the operation.
            at: block and byte of each access.
            thread: thread of each access.
            other: thread of an earlier access, or NOBODY.
            verbs: words for the access and the earlier one.
            write: whether the earlier access is a write.
        """
        races = np.flatnonzero((other != NOBODY) & (other != thread))
        if not len(races):
            return
        i = races[0]
        block, byte = int(at[0][i]), int(at[1][i])
        earlier = self.ops[int((self.written_by if write else self.read_by)[block, byte])]
        place = location_text(earlier)
        where = f" at {place}" if place else ""
        text = (
            f"thread {int(thread[i])} of block {int(machine.numbers[block])} {verbs[0]} byte {byte} of shared memory, "
            f"and thread {int(other[i])} {verbs[1]} it{where}, with no barrier between"
        )
        machine.report.add("race", op, text, len(races))
