"""f64 matmuls on tensor cores (m8n8k4), from loop nests to the printed CUDA and its machine code."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from support.emulation import emulated_kernels
from support.f64_products import PRODUCTS

from deplodock.backend.cuda.printer import print_cuda
from deplodock.backend.cuda.runtime.disassembly import disassemble
from deplodock.backend.cuda.runtime.nvrtc import compile_cubin
from deplodock.backend.emulator import EmulatedProgram
from deplodock.backend.reference import run
from deplodock.backend.simulator import simulate
from deplodock.dialects import kernel, make_context
from deplodock.dialects.support.parsing import parse_module


@cache
def emulated() -> dict[str, EmulatedProgram]:
    """Returns all matmuls, built for the emulator together."""
    return emulated_kernels({name: p.lowered() for name, p in PRODUCTS.items()})


@pytest.mark.parametrize("name", PRODUCTS)
def test_simulated(name: str) -> None:
    """The simulator computes exact results in the exact domain and close ones in floats, without a report."""
    p = PRODUCTS[name]
    module, args = p.lowered(), p.inputs()
    assert {op.atom.shape for op in module.walk() if isinstance(op, kernel.MmaOp)} == {"m8n8k4"}
    (wanted,) = run(parse_module(make_context(), p.text, "product.mlir"), args, "exact")
    found = simulate(module, args, domain="exact")
    assert not found.report.findings, str(found.report)
    np.testing.assert_array_equal(found.outputs[0], wanted)
    np.testing.assert_allclose(simulate(module, args, domain="typed").outputs[0], p.expected(), rtol=0, atol=1e-13)


@pytest.mark.parametrize("name", PRODUCTS)
def test_emulated(name: str) -> None:
    p = PRODUCTS[name]
    outputs, reports = emulated()[name].run(p.inputs())
    assert not reports, str(reports[0])
    np.testing.assert_allclose(outputs[0], p.expected(), rtol=0, atol=1e-13)


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
@pytest.mark.parametrize("name", ["along k", "copies ahead"])
def test_machine_code(name: str, arch: str) -> None:
    """Every multiply-add is a tensor-core instruction (DMMA)."""
    compiled = compile_cubin(print_cuda(PRODUCTS[name].lowered()), arch)
    (use,) = compiled.kernels.values()
    assert use.spills == use.stack == 0
    assert not compiled.warnings
    code = disassemble(compiled.cubin)["k0"]
    assert code.count("DMMA") > 0
    assert code.spills == code.count("DFMA") == 0


@pytest.mark.gpu
@pytest.mark.parametrize("name", PRODUCTS)
def test_on_the_device(name: str) -> None:
    """Fragments on a GPU have the layout that the simulator and the emulator assume."""
    from deplodock.backend.cuda.runtime import CudaProgram
    from deplodock.frontend.capture.arrays import to_numpy, to_torch

    p = PRODUCTS[name]
    module = p.lowered()
    (result,) = CudaProgram(module, print_cuda(module)).run([to_torch(a) for a in p.inputs()])
    np.testing.assert_allclose(to_numpy(result.cpu()), p.expected(), rtol=0, atol=1e-13)
