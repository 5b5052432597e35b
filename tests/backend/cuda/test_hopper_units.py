"""Single instructions of sm_90a: the IR, the C++ body in the emulator and, on a GPU, the instruction agree."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from support.cluster_units import CLUSTER_UNITS, UNITS
from support.emulation import emulated_kernels
from support.hopper_running import allocated

from deplodock.backend.cuda.printer import print_cuda
from deplodock.backend.cuda.runtime.nvrtc import compile_cubin
from deplodock.backend.emulator import EmulatedProgram
from deplodock.backend.simulator import simulate
from deplodock.dialects import make_context
from deplodock.dialects.support.parsing import parse_module
from deplodock.errors import ScheduleError, TargetError
from deplodock.passes.pass_manager import run_passes
from deplodock.passes.pipelines import parse_passes


@cache
def emulated() -> dict[str, EmulatedProgram]:
    """Returns all units, built for the emulator together."""
    return emulated_kernels({name: allocated(u.text()) for name, u in UNITS.items()})


@pytest.mark.parametrize("name", UNITS)
def test_simulated(name: str) -> None:
    unit = UNITS[name]
    found = simulate(allocated(unit.text()), unit.inputs())
    assert [str(f) for f in found.report.findings] == []
    np.testing.assert_array_equal(found.outputs[0].astype(np.float32), unit.expected().astype(np.float32))


@pytest.mark.parametrize("name", UNITS)
def test_emulated(name: str) -> None:
    unit = UNITS[name]
    (found,), reports = emulated()[name].run(unit.inputs(), (0, 1))
    assert [str(r) for r in reports] == []
    np.testing.assert_array_equal(found.astype(np.float32), unit.expected().astype(np.float32))


def test_assembly_is_accepted() -> None:
    """ptxas compiles every unit without a warning or a spill."""
    for name, unit in UNITS.items():
        compiled = compile_cubin(print_cuda(allocated(unit.text())), "sm_90a")
        assert compiled.warnings == (), name
        assert all(use.spills == 0 for use in compiled.kernels.values()), name


def test_clusters_on_other_targets() -> None:
    """Clusters compile for other targets that have them. Passes and the compiler refuse them for older targets."""
    for unit in CLUSTER_UNITS.values():
        assert compile_cubin(print_cuda(allocated(unit.text())), "sm_120").warnings == ()
    module = parse_module(make_context(), CLUSTER_UNITS["a box for two blocks"].text(), "test.mlir")
    with pytest.raises(ScheduleError, match="sm_89 has no clusters of blocks"):
        run_passes(make_context(), module, parse_passes("kernel-allocate-shared{target=sm_89}"))
    with pytest.raises(TargetError, match="sm_80 has no clusters of blocks"):
        compile_cubin(print_cuda(allocated(unit.text())), "sm_80")


@pytest.mark.gpu
@pytest.mark.parametrize("name", UNITS)
def test_device(name: str) -> None:
    """On a GPU the instruction has the expected result."""
    from deplodock.backend.cuda.runtime import CudaProgram
    from deplodock.frontend.capture.arrays import to_numpy, to_torch

    unit = UNITS[name]
    module = allocated(unit.text())
    program = CudaProgram(module, print_cuda(module))
    (found,) = program.run([to_torch(x) for x in unit.inputs()])
    np.testing.assert_array_equal(to_numpy(found).astype(np.float32), unit.expected().astype(np.float32))
