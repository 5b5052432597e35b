"""Every op of the executable levels has an execution."""

from __future__ import annotations

import pytest

from deplodock.backend.interpreter.loop import LoopFunctions
from deplodock.backend.interpreter.payload import PayloadFunctions
from deplodock.backend.interpreter.tensor import TensorFunctions
from deplodock.backend.interpreter.tile import TileFunctions
from deplodock.backend.simulator.launch import HostFunctions
from deplodock.backend.simulator.ops import KernelFunctions
from deplodock.backend.simulator.sm90 import HopperFunctions
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
CONTAINERS = {"tile.kernel", "kernel.func", "kernel.warp_specialize"}
MEETINGS = {"kernel.cluster_barrier"}
"""Where the blocks of a cluster are switched (`simulator/warp_specialize.py`); `test_cluster_rows.py` runs them."""


@pytest.mark.parametrize("dialect", ["payload", "tensor", "loop", "tile", "kernel"])
def test_every_op_is_executed(dialect: str):
    executed = {op.name for c in CLASSES for op, _ in c._impls()}  # pyright: ignore[reportPrivateUsage]
    declared = {op.name for op in get_all_dialects()[dialect]().operations}
    assert declared - executed - CONTAINERS - MEETINGS == set()
