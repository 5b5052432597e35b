"""Matmuls of f16 and bf16 on tensor cores, with a bias and schedules."""

from __future__ import annotations

from dataclasses import dataclass

import ml_dtypes
import numpy as np

from deplodock.backend.interpreter.domains import Array

from .products import MatrixProduct

TO_KERNEL = (
    "convert-loop-to-tile,cse,dce,tile-select-mma,tile-assign-layouts,"
    "tile-stage-dot-operands,cse,convert-tile-to-kernel,cse,dce,kernel-allocate-shared,kernel-insert-barriers"
)


PROGRAM = """
func.func @main(%x: tensor<{x}x{type}>, %w: tensor<{w}x{type}>, %b: tensor<{n}xf32>) -> tensor<{m}x{n}x{out}> {{
  %y = loop.nest (%i, %j) in [{m}, {n}] -> tensor<{m}x{n}x{out}> attributes {{schedule = #tile.schedule<{schedule}>}} {{
    %s = loop.reduce add (%k) in [{k}] -> f32 {{
      %0 = loop.load %x[{xi}] : tensor<{x}x{type}>
      %1 = payload.cast %0 : {type} -> f32
      %2 = loop.load %w[{wi}] : tensor<{w}x{type}>
      %3 = payload.cast %2 : {type} -> f32
      %4 = arith.mulf %1, %3 : f32
      loop.yield %4 : f32
    }}
    %5 = loop.load %b[%j] : tensor<{n}xf32>
    %6 = arith.addf %s, %5 : f32
    {last}
  }}
  func.return %y : tensor<{m}x{n}x{out}>
}}
"""


@dataclass(frozen=True)
class Product(MatrixProduct):
    """A matmul with a bias and a schedule. `type` and `out` are the element types of the operands and the result."""

    m: int
    n: int
    k: int
    block: tuple[int, int]
    chunk: int
    warps: int
    left: str = "mk"
    right: str = "nk"
    type: str = "bf16"
    out: str = "bf16"

    passes = TO_KERNEL

    @property
    def text(self) -> str:
        """Loop IR of the matmul."""
        last = "loop.yield %6 : f32"
        if self.out != "f32":
            last = f"%7 = payload.cast %6 : f32 -> {self.out}\n    loop.yield %7 : {self.out}"
        schedule = f"block = {list(self.block)}, chunk = [{self.chunk}], warps = {self.warps}, atom = mma"
        return PROGRAM.format(**self.words, type=self.type, out=self.out, schedule=schedule, last=last)

    def inputs(self) -> list[Array]:
        """Returns random normal operands and a bias."""
        rng = np.random.default_rng(self.m * self.n + self.k)
        narrow = ml_dtypes.bfloat16 if self.type == "bf16" else np.float16
        return [
            *(rng.standard_normal(shape).astype(narrow) for shape in self.shapes),
            rng.standard_normal(self.n).astype(np.float32),
        ]


PRODUCTS = {
    "weights along k": Product(70, 136, 72, (64, 64), 32, 4),
    "weights along n": Product(70, 136, 72, (64, 64), 32, 4, right="kn"),
    "left transposed": Product(64, 72, 40, (64, 64), 32, 4, left="km", type="f16", out="f16"),
    "both transposed": Product(72, 64, 33, (32, 64), 16, 2, left="km", right="kn", type="f16"),
    "odd sizes": Product(33, 19, 37, (32, 16), 16, 2),
    "one column of atoms": Product(33, 9, 64, (32, 8), 64, 2, right="kn"),
    "warps without an atom": Product(17, 8, 16, (16, 8), 16, 4),
    "one row of atoms": Product(16, 130, 96, (16, 128), 32, 4, right="kn"),
    "eight warps": Product(128, 128, 64, (128, 128), 32, 8, right="kn"),
    "wide parts": Product(128, 136, 64, (128, 128), 64, 4, out="f32"),
}
