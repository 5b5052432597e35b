"""Products of f64 matrices under schedules."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from xdsl.dialects.builtin import ModuleOp

from deplodock.backend.interpreter.domains import Array
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
