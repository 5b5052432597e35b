"""Products of f64 on tensor cores, m8n8k4: from loop nests to the printed text and its machine code."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np
import pytest
import torch
from disassembly import disassemble
from xdsl.dialects.builtin import ModuleOp

from deplodock.backend.cuda.printer import print_cuda
from deplodock.backend.cuda.runtime.nvrtc import compile_cubin
from deplodock.backend.emulator import EmulatedProgram, compile_many
from deplodock.backend.host.launch_plan import make_plan
from deplodock.backend.interpreter.domains import Array
from deplodock.backend.reference import run
from deplodock.backend.simulator import simulate
from deplodock.dialects import kernel
from deplodock.dialects.support.parsing import make_context, parse_module
from deplodock.passes.pass_manager import run_passes
from deplodock.passes.pipelines import parse_passes

PROGRAM = """
func.func @main(%x: tensor<{x}xf64>, %w: tensor<{w}xf64>) -> tensor<{m}x{n}xf64> {{
  %y = loop.nest (%i, %j) in [{m}, {n}] -> tensor<{m}x{n}xf64> attributes {{schedule = #tile.schedule<{schedule}>}} {{
    %s = loop.reduce add (%k) in [{k}] -> f64 {{
      %0 = loop.load %x[{xi}] : tensor<{x}xf64>
      %1 = loop.load %w[{wi}] : tensor<{w}xf64>
      %2 = arith.mulf %0, %1 : f64
      loop.yield %2 : f64
    }}
    loop.yield %s : f64
  }}
  func.return %y : tensor<{m}x{n}xf64>
}}
"""


@dataclass(frozen=True)
class Product:
    """A product of a by b, each with rows first or transposed, under a schedule."""

    m: int
    n: int
    k: int
    block: tuple[int, int]
    chunk: int
    warps: int
    left: str = "mk"
    right: str = "nk"
    rest: str = ""

    @property
    def text(self) -> str:
        """The loop nest."""
        extents, names = {"m": self.m, "n": self.n, "k": self.k}, {"m": "%i", "n": "%j", "k": "%k"}
        x, w = ("x".join(str(extents[d]) for d in side) for side in (self.left, self.right))
        xi, wi = (", ".join(names[d] for d in side) for side in (self.left, self.right))
        schedule = f"block = {list(self.block)}, chunk = [{self.chunk}], warps = {self.warps}, atom = mma{self.rest}"
        return PROGRAM.format(x=x, w=w, m=self.m, n=self.n, k=self.k, xi=xi, wi=wi, schedule=schedule)

    def inputs(self) -> list[Array]:
        """Random factors."""
        rng = np.random.default_rng(0)
        extents = {"m": self.m, "n": self.n, "k": self.k}
        return [rng.standard_normal([extents[d] for d in side]) for side in (self.left, self.right)]

    def wanted(self) -> Array:
        """The product as PyTorch computes it."""
        x, w = map(torch.from_numpy, self.inputs())
        return ((x if self.left == "mk" else x.T) @ (w.T if self.right == "nk" else w)).numpy()

    def lowered(self) -> ModuleOp:
        """The kernel."""
        module = parse_module(make_context(), self.text, "product.mlir")
        run_passes(make_context(), module, parse_passes("loop-to-tile,tile-to-kernel"))
        return module


PRODUCTS = {
    "along k": Product(32, 64, 40, (32, 32), 16, 4),
    "across k": Product(32, 32, 16, (32, 32), 8, 2, "km", "kn"),
    "odd sizes": Product(19, 13, 11, (8, 16), 4, 1, right="kn"),
    "warps without an atom": Product(9, 8, 8, (8, 8), 8, 4),
    "copies ahead": Product(32, 64, 48, (32, 32), 16, 4, rest=", copy = cp_async, stages = 2"),
}


@cache
def emulated() -> dict[str, EmulatedProgram]:
    """All products for the host, built at once."""
    modules = {name: p.lowered() for name, p in PRODUCTS.items()}
    texts = {name: print_cuda(m) for name, m in modules.items()}
    built = compile_many(list(texts.values()))
    return {
        name: EmulatedProgram(texts[name], make_plan(modules[name]), b) for name, b in zip(PRODUCTS, built, strict=True)
    }


@pytest.mark.parametrize("name", PRODUCTS)
def test_simulated(name: str) -> None:
    """Exactly and in floats, without a report."""
    p = PRODUCTS[name]
    module, args = p.lowered(), p.inputs()
    assert {op.atom.shape for op in module.walk() if isinstance(op, kernel.MmaOp)} == {"m8n8k4"}
    (wanted,) = run(parse_module(make_context(), p.text, "product.mlir"), args, "exact")
    found = simulate(module, args, domain="exact")
    assert not found.report.findings, str(found.report)
    np.testing.assert_array_equal(found.outputs[0], wanted)
    np.testing.assert_allclose(simulate(module, args, domain="typed").outputs[0], p.wanted(), rtol=0, atol=1e-13)


@pytest.mark.parametrize("name", PRODUCTS)
def test_emulated(name: str) -> None:
    p = PRODUCTS[name]
    outputs, reports = emulated()[name].run(p.inputs())
    assert not reports, str(reports[0])
    np.testing.assert_allclose(outputs[0], p.wanted(), rtol=0, atol=1e-13)


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
@pytest.mark.parametrize("name", ["along k", "copies ahead"])
def test_machine_code(name: str, arch: str) -> None:
    """Every multiply-add is on tensor cores: DMMA."""
    compiled = compile_cubin(print_cuda(PRODUCTS[name].lowered()), arch)
    (use,) = compiled.kernels.values()
    assert use.spills == use.stack == 0
    assert not compiled.warnings
    code = disassemble(compiled.cubin)["k0"]
    assert code.count("DMMA") > 0
    assert code.local_accesses == code.count("DFMA") == 0


@pytest.mark.gpu
@pytest.mark.parametrize("name", PRODUCTS)
def test_on_the_device(name: str) -> None:
    """The hardware's fragments are what the simulator and the host bodies take them for."""
    from deplodock.backend.cuda.runtime import CudaProgram
    from deplodock.frontend.capture.arrays import to_numpy, to_torch

    p = PRODUCTS[name]
    module = p.lowered()
    (result,) = CudaProgram(module, print_cuda(module)).run([to_torch(a) for a in p.inputs()])
    np.testing.assert_allclose(to_numpy(result.cpu()), p.wanted(), rtol=0, atol=1e-13)
