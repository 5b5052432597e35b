"""Every op of the executable levels has an execution."""

from __future__ import annotations

import pytest

from deplodock.backend.interpreter.loop import LoopFunctions
from deplodock.backend.interpreter.payload import PayloadFunctions
from deplodock.backend.interpreter.tensor import TensorFunctions
from deplodock.backend.interpreter.tile import TileFunctions
from deplodock.backend.simulator.hopper import HopperFunctions
from deplodock.backend.simulator.launching import HostFunctions
from deplodock.backend.simulator.threads import KernelFunctions
from deplodock.dialects import get_all_dialects

CLASSES = (
    PayloadFunctions,
    TensorFunctions,
    LoopFunctions,
    TileFunctions,
    KernelFunctions,
    HopperFunctions,
    HostFunctions,
)
CONTAINERS = {"tile.kernel", "kernel.func", "kernel.roles"}
MEETINGS = {"kernel.cluster_barrier"}
"""Where the blocks that run together change places (`simulator/processes.py`); `test_cluster_rows.py` runs them."""


@pytest.mark.parametrize("dialect", ["payload", "tensor", "loop", "tile", "kernel"])
def test_every_op_is_executed(dialect: str):
    executed = {op.name for c in CLASSES for op, _ in c._impls()}  # pyright: ignore[reportPrivateUsage]
    declared = {op.name for op in get_all_dialects()[dialect]().operations}
    assert declared - executed - CONTAINERS - MEETINGS == set()
