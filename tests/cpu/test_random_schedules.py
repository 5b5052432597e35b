"""Random schedules of blocks that are one thread: right in the simulator, bit for bit, and as C++ on this machine."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from fuzz.schedules import LOWERING, Case, draw, expected, judge
from xdsl.dialects.builtin import ModuleOp

from deplodock.backend.cpu.printer import print_cpp
from deplodock.backend.cpu.runtime import CpuProgram
from deplodock.backend.reference import run
from deplodock.dialects import loop
from deplodock.dialects.tile.schedule import PLAIN
from deplodock.frontend.capture.arrays import to_numpy, to_torch
from deplodock.passes.analysis.packed_operands import packable_loads

SEEDS = (*range(24), 115)
"""Of the last one the blocks are no multiple of 32."""

PACKED = 3
"""In every so manieth case a factor of a product is copied before."""

KEPT = ("block", "chunk", "serial", "split_k", "group_m", "num_ctas", "cache_rows")
"""The decisions that mean something to a core."""


def one_thread(case: Case) -> Case:
    """The case with the tiles of its schedule, for a single thread."""
    decided = {name: value if name in KEPT else PLAIN[name] for name, value in vars(case.schedule.data).items()}
    schedule = case.schedule.changed(**decided | {"lanes": 1, "warps": 1})
    for nest in case.module.walk():
        if isinstance(nest, loop.NestOp):
            along = [i for i, a in enumerate(nest.body.block.args) if isinstance(packable_loads(nest, a), list)]
            if along and case.seed % PACKED == 0:
                schedule = schedule.changed(pack=[along[case.seed // PACKED % len(along)]])
            nest.attributes["schedule"] = schedule
    return replace(case, schedule=schedule)


def _on_this_machine(module: ModuleOp, inputs: list[np.ndarray]) -> list[np.ndarray]:
    return [to_numpy(t) for t in CpuProgram(module, print_cpp(module)).run([to_torch(a) for a in inputs])]


def test_random_schedules() -> None:
    right = 0
    for seed in SEEDS:
        case = one_thread(draw(seed))
        inputs, _ = expected(case.name)
        wanted = run(case.module.clone(), inputs)
        kind, why = judge(case, "cpu")
        assert kind in ("right", "refused"), f"{case}: {kind}: {why}"
        if kind == "refused":
            assert "not executed" not in why, f"{case}: {why}"
            continue
        right += 1
        for found, real in zip(_on_this_machine(case.module, inputs), wanted, strict=True):
            a, b = found.astype(np.float64), real.astype(np.float64)
            allowed = 2e-2 * max(1.0, float(np.abs(b).mean()))
            np.testing.assert_allclose(a, b, rtol=2e-2, atol=allowed, err_msg=str(case))
    assert right >= 0.8 * len(SEEDS), f"{LOWERING} refuses too many"
