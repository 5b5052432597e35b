"""Matmuls of f64 on tensor cores, with schedules."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from deplodock.backend.interpreter.domains import Array

from .products import MatrixProduct

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
class Product(MatrixProduct):
    """A matmul of f64 with a schedule. `decisions` is text that is added to the schedule."""

    m: int
    n: int
    k: int
    block: tuple[int, int]
    chunk: int
    warps: int
    left: str = "mk"
    right: str = "nk"
    decisions: str = ""

    @property
    def text(self) -> str:
        """Loop IR of the matmul."""
        schedule = (
            f"block = {list(self.block)}, chunk = [{self.chunk}], warps = {self.warps}, atom = mma{self.decisions}"
        )
        return PROGRAM.format(**self.words, schedule=schedule)

    def inputs(self) -> list[Array]:
        """Returns random operands."""
        rng = np.random.default_rng(0)
        return [rng.standard_normal(shape) for shape in self.shapes]

    def expected(self) -> Array:
        """Returns the product of the operands, computed by PyTorch."""
        return self.multiplied(*map(torch.from_numpy, self.inputs())).numpy()


PRODUCTS = {
    "along k": Product(32, 64, 40, (32, 32), 16, 4),
    "across k": Product(32, 32, 16, (32, 32), 8, 2, "km", "kn"),
    "odd sizes": Product(19, 13, 11, (8, 16), 4, 1, right="kn"),
    "warps without an atom": Product(9, 8, 8, (8, 8), 8, 4),
    "copies ahead": Product(32, 64, 48, (32, 32), 16, 4, decisions=", copy = cp_async, stages = 2"),
}
