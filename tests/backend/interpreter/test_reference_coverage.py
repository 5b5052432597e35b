"""Every operation of the executable levels is implemented by the interpreter."""

from __future__ import annotations

import pytest

from deplodock.backend.interpreter.loop import LoopFunctions
from deplodock.backend.interpreter.payload import PayloadFunctions
from deplodock.backend.interpreter.tensor import TensorFunctions
from deplodock.backend.interpreter.tile import TileFunctions
from deplodock.backend.simulator import CONTROL
from deplodock.backend.simulator.ops import OPERATIONS
from deplodock.dialects import get_all_dialects

CLASSES = (PayloadFunctions, TensorFunctions, LoopFunctions, TileFunctions)
CONTAINERS = {"tile.kernel", "kernel.func"}
HOST = {"kernel.alloc", "kernel.slice", "kernel.launch"}
"""What a launch plan is made of, which the simulator runs."""


@pytest.mark.parametrize("dialect", ["payload", "tensor", "loop", "tile", "kernel"])
def test_every_op_is_executed(dialect: str):
    executed = {op.name for c in CLASSES for op, _ in c._impls()}  # pyright: ignore[reportPrivateUsage]
    executed |= {op.name for op in (*OPERATIONS, *CONTROL)}
    declared = {op.name for op in get_all_dialects()[dialect]().operations}
    assert declared - executed - CONTAINERS - HOST == set()
