"""Registers, memory and occupancy of a kernel on a GPU, as compiled or as the planning model expects them."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

from ...target.model import Target, block_limits
from .runtime.nvrtc import KernelUse


@dataclass(frozen=True)
class Resources:
    """Resources of a kernel.

    Attributes:
        registers: Registers of a thread.
        shared: Bytes of shared memory of a block.
        blocks_per_sm: Blocks that run on a multiprocessor at the same time; 0 if a block does not fit.
        occupancy: Threads of these blocks divided by the largest number of threads of a multiprocessor.
        limit: Resource that limits `blocks_per_sm`.
        spilled: Bytes of registers that are stored to and loaded from local memory.
        stack: Bytes of local memory of a thread.
    """

    registers: int
    shared: int
    blocks_per_sm: int
    occupancy: float
    limit: str = ""
    spilled: int = 0
    stack: int = 0

    def as_dict(self) -> dict[str, Any]:
        """Returns the resources as JSON data."""
        return asdict(self)


def expected_resources(target: Target, threads: int, registers: int, shared: int, blocks_per_sm: int) -> Resources:
    """Returns the resources that the planning model expects of a kernel.

    Args:
        target: The GPU.
        threads: Threads of a block.
        registers: Registers of a thread.
        shared: Bytes of shared memory of a block.
        blocks_per_sm: Blocks that run on a multiprocessor at the same time.
    """
    return Resources(registers, shared, blocks_per_sm, blocks_per_sm * threads / target.threads_per_sm)


def compiled_resources(target: Target, threads: int, dynamic: int, use: KernelUse) -> Resources:
    """Returns the resources of a compiled kernel.

    Args:
        target: The GPU.
        threads: Threads of a block.
        dynamic: Bytes of shared memory that the launch requests.
        use: What the compiler reports.
    """
    shared = dynamic + use.shared
    limits = {name: int(n) for name, n in block_limits(target, threads, use.registers, shared).items()}
    limit = min(limits, key=limits.__getitem__)
    blocks = limits[limit]
    return Resources(
        use.registers, shared, blocks, blocks * threads / target.threads_per_sm, limit, use.spills, use.stack
    )
