"""Products of f32 matrices on tensor cores as tf32, under schedules."""

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
    """A product of a by b in f32, each with rows first or transposed, under a schedule."""

    m: int
    n: int
    k: int
    block: tuple[int, int]
    chunk: int
    warps: int
    left: str = "mk"
    right: str = "nk"
    rest: str = "atom = mma"

    @property
    def text(self) -> str:
        """The loop nest."""
        schedule = (
            f"block = {list(self.block)}, chunk = [{self.chunk}], warps = {self.warps}, f32_matmul_precision = tf32"
        )
        return PROGRAM.format(
            **self.words,
            schedule=f"{schedule}, {self.rest}",
        )

    def inputs(self) -> list[Array]:
        """Random normal inputs."""
        rng = np.random.default_rng(self.m * self.n + self.k)
        return [rng.standard_normal(shape).astype(np.float32) for shape in self.shapes]

    def wanted(self) -> Array:
        """The product of the factors as tensor cores take them, in float64."""
        return self.multiplied(*(self.taken(a).astype(np.float64) for a in self.inputs()))

    def taken(self, factor: Array) -> Array:
        """A factor with 10 bits of its fraction: rounded, unless it was copied to where a warpgroup reads it."""
        cut = "wgmma" in self.rest and "copy" in self.rest
        return cut_tf32(factor) if cut else round_tf32(factor)


PRODUCTS = {
    "weights along k": Product(70, 136, 72, (64, 64), 32, 4),
    "weights along n": Product(70, 136, 72, (64, 64), 32, 4, right="kn"),
    "left transposed": Product(64, 72, 40, (64, 64), 16, 4, left="km"),
    "both transposed": Product(72, 64, 33, (32, 64), 16, 2, left="km", right="kn"),
    "odd sizes": Product(33, 19, 37, (32, 16), 8, 2),
    "one column of atoms": Product(33, 9, 64, (32, 8), 64, 2, right="kn"),
    "warps without an atom": Product(17, 8, 16, (16, 8), 8, 4),
    "eight warps": Product(128, 128, 32, (128, 128), 32, 8, right="kn"),
    "copies ahead": Product(64, 128, 96, (64, 64), 16, 4, rest="atom = mma, copy = cp_async, stages = 3"),
    "copies ahead, transposed": Product(
        64, 64, 64, (64, 64), 16, 4, "km", "kn", "atom = mma, copy = cp_async, stages = 2"
    ),
    "boxes": Product(64, 64, 64, (64, 64), 32, 4, rest="atom = mma, copy = tma, stages = 2"),
    "boxes, transposed": Product(64, 64, 64, (64, 64), 32, 4, "km", "kn", "atom = mma, copy = tma, stages = 2"),
    "warpgroups": Product(72, 64, 40, (64, 64), 32, 4, rest="atom = wgmma"),
    "warpgroups, transposed": Product(64, 128, 32, (64, 64), 16, 4, "km", "kn", "atom = wgmma"),
    "warpgroups, copies ahead": Product(64, 64, 96, (64, 64), 32, 4, rest="atom = wgmma, copy = cp_async, stages = 2"),
    "warpgroups, boxes": Product(130, 72, 100, (128, 64), 32, 8, rest="atom = wgmma, copy = tma, stages = 3"),
}
