"""Trains a small transformer in two processes, compiled and eager, and prints the differences and the graph breaks.

    python -m benchmarks.compiler.collectives  # DDP, FSDP2 and tensor parallelism, compiled for the CPU

Both processes compile the model, with deplodock and with Inductor, whose lines are printed one below the other.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "tests" / "frontend"))

from test_collectives import PARALLEL, train  # noqa: E402

BACKENDS: dict[str, Callable[[nn.Module], Any]] = {
    "deplodock": lambda model: torch.compile(model, backend="deplodock", options={"executor": "cpu"}),
    "inductor": torch.compile,
}


def work(rank: int) -> None:
    """Trains in one process of the group. The first process prints a line for each kind of parallelism."""
    from torch._dynamo.utils import counters

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    for parallel in PARALLEL:
        expected = train(parallel, rank)
        for name, compile in BACKENDS.items():
            torch.compiler.reset()
            counters.clear()
            results = train(parallel, rank, compile)
            difference = max(float((a - b).abs().max()) for a, b in zip(results, expected, strict=True))
            if rank == 0:
                graphs, breaks = counters["stats"]["unique_graphs"], [t.split("\n")[0] for t in counters["graph_break"]]
                head = f"{parallel.__name__}, {name}: {graphs} graphs, largest difference {difference:.1e}"
                print(f"{head}, breaks: {breaks}", flush=True)
    dist.destroy_process_group()


def main() -> int:
    """Starts the two processes. Returns 1 if one of them fails."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        group = os.environ | {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free.getsockname()[1])}
    processes = [subprocess.Popen([sys.executable, __file__], env=group | {"RANK": str(rank)}) for rank in range(2)]
    return int(any([process.wait() for process in processes]))


if __name__ == "__main__":
    if "RANK" in os.environ:
        work(int(os.environ["RANK"]))
    else:
        sys.exit(main())
