"""Matmuls of f32 on tensor cores in tf32, with schedules."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from deplodock.backend.interpreter.domains import Array, cut_tf32, round_tf32

from .products import MatrixProduct

PROGRAM = """
func.func @main(%x: tensor<{x}xf32>, %w: tensor<{w}xf32>) -> tensor<{m}x{n}xf32> {{
  %y = loop.nest (%i, %j) in [{m}, {n}] -> tensor<{m}x{n}xf32> attributes {{schedule = #tile.schedule<{schedule}>}} {{
    %s = loop.reduce add (%k) in [{k}] -> f32 {{
      %0 = loop.load %x[{xi}] : tensor<{x}xf32>
      %1 = loop.load %w[{wi}] : tensor<{w}xf32>
      %2 = arith.mulf %0, %1 : f32
      loop.yield %2 : f32
    }}
    loop.yield %s : f32
  }}
  func.return %y : tensor<{m}x{n}xf32>
}}
"""


@dataclass(frozen=True)
class Product(MatrixProduct):
    """A matmul in tf32 with a schedule. `decisions` is text that is added to the schedule."""

    m: int
    n: int
    k: int
    block: tuple[int, int]
    chunk: int
    warps: int
    left: str = "mk"
    right: str = "nk"
    decisions: str = "atom = mma"

    @property
    def text(self) -> str:
        """Loop IR of the matmul."""
        schedule = (
            f"block = {list(self.block)}, chunk = [{self.chunk}], warps = {self.warps}, f32_matmul_precision = tf32"
        )
        return PROGRAM.format(
            **self.words,
            schedule=f"{schedule}, {self.decisions}",
        )

    def inputs(self) -> list[Array]:
        """Returns random normal operands."""
        rng = np.random.default_rng(self.m * self.n + self.k)
        return [rng.standard_normal(shape).astype(np.float32) for shape in self.shapes]

    def expected(self) -> Array:
        """Returns the product of the operands rounded to tf32, computed in float64."""
        return self.multiplied(*(self.rounded(a).astype(np.float64) for a in self.inputs()))

    def rounded(self, operand: Array) -> Array:
        """Returns an operand in the precision of tf32, with 10 fraction bits.

        Threads round the operands of mma. Asynchronous copies for wgmma bypass the threads, so its operands are
        truncated.
        """
        cut = "wgmma" in self.decisions and "copy" in self.decisions
        return cut_tf32(operand) if cut else round_tf32(operand)


PRODUCTS = {
    "weights along k": Product(70, 136, 72, (64, 64), 32, 4),
    "weights along n": Product(70, 136, 72, (64, 64), 32, 4, right="kn"),
    "left transposed": Product(64, 72, 40, (64, 64), 16, 4, left="km"),
    "both transposed": Product(72, 64, 33, (32, 64), 16, 2, left="km", right="kn"),
    "odd sizes": Product(33, 19, 37, (32, 16), 8, 2),
    "one column of atoms": Product(33, 9, 64, (32, 8), 64, 2, right="kn"),
    "warps without an atom": Product(17, 8, 16, (16, 8), 8, 4),
    "eight warps": Product(128, 128, 32, (128, 128), 32, 8, right="kn"),
    "copies ahead": Product(64, 128, 96, (64, 64), 16, 4, decisions="atom = mma, copy = cp_async, stages = 3"),
    "copies ahead, transposed": Product(
        64, 64, 64, (64, 64), 16, 4, "km", "kn", "atom = mma, copy = cp_async, stages = 2"
    ),
    "boxes": Product(64, 64, 64, (64, 64), 32, 4, decisions="atom = mma, copy = tma, stages = 2"),
    "boxes, transposed": Product(64, 64, 64, (64, 64), 32, 4, "km", "kn", "atom = mma, copy = tma, stages = 2"),
    "warpgroups": Product(72, 64, 40, (64, 64), 32, 4, decisions="atom = wgmma"),
    "warpgroups, transposed": Product(64, 128, 32, (64, 64), 16, 4, "km", "kn", "atom = wgmma"),
    "warpgroups, copies ahead": Product(
        64, 64, 96, (64, 64), 32, 4, decisions="atom = wgmma, copy = cp_async, stages = 2"
    ),
    "warpgroups, boxes": Product(130, 72, 100, (128, 64), 32, 8, decisions="atom = wgmma, copy = tma, stages = 3"),
}
