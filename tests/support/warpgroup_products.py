"""Matmuls by warpgroup instructions (wgmma) with a bias and relu, with schedules."""

from __future__ import annotations

from dataclasses import dataclass

import ml_dtypes
import numpy as np
from xdsl.dialects.builtin import ModuleOp

from deplodock.backend.interpreter.domains import Array
from deplodock.dialects import make_context
from deplodock.passes.pass_manager import run_passes
from deplodock.passes.pipelines import parse_passes

from .products import MatrixProduct

TO_TILE = (
    "convert-loop-to-tile,tile-swizzle-grid,tile-persistent-blocks,cse,dce,tile-select-mma,tile-assign-layouts,"
    "tile-stage-dot-operands,tile-split-epilogue,tile-tma-epilogue,cse,tile-pipeline-loads,tile-warp-specialize"
)


TO_KERNEL = "tile-pipeline-dots,convert-tile-to-kernel,cse,dce,kernel-allocate-shared,kernel-insert-barriers"


PROGRAM = """
func.func @main(%x: tensor<{x}x{type}>, %w: tensor<{w}x{type}>, %b: tensor<{n}xf32>) -> tensor<{m}x{n}xbf16> {{
  %y = loop.nest (%i, %j) in [{m}, {n}] -> tensor<{m}x{n}xbf16> attributes {{schedule = #tile.schedule<{schedule}>}} {{
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
    %zero = payload.constant 0.0 : f32
    %7 = arith.maximumf %6, %zero : f32
    %8 = payload.cast %7 : f32 -> bf16
    loop.yield %8 : bf16
  }}
  func.return %y : tensor<{m}x{n}xbf16>
}}
"""


@dataclass(frozen=True)
class Product(MatrixProduct):
    """The kernel relu(a @ b + bias) with a schedule, whose fields are the attributes."""

    m: int
    n: int
    k: int
    block: tuple[int, int]
    chunk: int
    warps: int
    copy: str = "sync"
    stages: int = 1
    left: str = "mk"
    right: str = "nk"
    type: str = "bf16"
    atom: str = "wgmma"
    group: int = 1
    persistent: int = 0
    cluster: int = 1
    cluster_k: int = 1

    passes = f"{TO_TILE},{TO_KERNEL}"

    @property
    def text(self) -> str:
        """Loop IR of the kernel."""
        return PROGRAM.format(
            **self.words,
            type=self.type,
            schedule=f"block = {list(self.block)}, chunk = [{self.chunk}], warps = {self.warps}, atom = {self.atom}, "
            f"copy = {self.copy}, stages = {self.stages}, group_m = {self.group}, num_ctas = {self.persistent}, "
            f"cluster = {self.cluster}, cluster_k = {self.cluster_k}",
        )

    def inputs(self) -> list[Array]:
        """Returns operands and a bias of small integers, for which every sum is exact."""
        rng = np.random.default_rng(self.m * self.n + self.k)
        narrow = ml_dtypes.bfloat16 if self.type == "bf16" else np.float16
        return [
            *(rng.integers(-3, 4, shape).astype(narrow) for shape in self.shapes),
            rng.integers(-3, 4, self.n).astype(np.float32),
        ]

    def tiles(self) -> ModuleOp:
        """Returns the kernel at the tile level."""
        module = self.parse()
        run_passes(make_context(), module, parse_passes(TO_TILE))
        return module


PRODUCTS = {
    "plain": Product(72, 136, 136, (64, 64), 64, 4),
    "half a row of k": Product(64, 64, 64, (64, 64), 32, 4),
    "two warpgroups share rows": Product(64, 256, 128, (64, 256), 64, 8, "cp_async", 2, right="kn"),
    "cp.async": Product(136, 72, 200, (128, 64), 64, 8, "cp_async", 3),
    "boxes": Product(136, 72, 200, (128, 64), 64, 8, "tma", 3),
    "boxes, one stage": Product(72, 72, 200, (64, 64), 64, 4, "tma", 1),
    "boxes, two rows of k": Product(128, 128, 256, (128, 128), 128, 8, "tma", 2),
    "boxes, panels": Product(64, 128, 192, (64, 128), 64, 4, "tma", 4, right="kn"),
    "boxes, left across": Product(128, 64, 72, (64, 64), 64, 4, "tma", 2, left="km", type="f16"),
    "boxes, both across": Product(72, 64, 40, (64, 64), 16, 4, "tma", 2, left="km", right="kn"),
    "rows that are not aligned": Product(64, 64, 100, (64, 64), 32, 4, "tma", 2),
    "boxes, persistent": Product(256, 200, 136, (64, 64), 64, 4, "tma", 3, group=2, persistent=3),
    "persistent": Product(136, 200, 72, (64, 64), 64, 4, persistent=5),
    "boxes, narrow panels": Product(72, 40, 136, (64, 32), 64, 8, "tma", 2, right="kn"),
    "boxes for mma": Product(72, 72, 136, (64, 64), 64, 4, "tma", 3, atom="mma"),
    "clusters": Product(136, 120, 136, (64, 64), 64, 4, "tma", 2, cluster=2),
    "clusters, patches": Product(248, 136, 136, (128, 64), 64, 8, "tma", 3, group=2, cluster=2),
    "clusters, persistent": Product(120, 256, 72, (64, 64), 64, 4, "tma", 2, right="kn", persistent=4, cluster=4),
    "clusters for mma": Product(72, 128, 136, (64, 64), 64, 4, "tma", 3, atom="mma", cluster=2),
    "sums of a cluster": Product(136, 120, 264, (64, 64), 64, 4, "tma", 2, cluster_k=4),
    "sums of a cluster, parts of columns": Product(40, 72, 264, (64, 64), 32, 4, "tma", 3, right="kn", cluster_k=2),
    "sums of a cluster, two warpgroups": Product(128, 72, 200, (128, 64), 64, 8, "cp_async", 2, cluster_k=2),
    "sums of a cluster for mma": Product(72, 40, 264, (64, 64), 32, 4, "cp_async", 2, atom="mma", cluster_k=8),
    "sums of a cluster on CUDA cores": Product(72, 40, 264, (32, 32), 32, 2, "cp_async", 2, atom="fma", cluster_k=4),
}
