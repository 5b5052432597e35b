"""Splitting f32 factors of matrix products before the products: `loop-split-f32-operands`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Block, SSAValue
from xdsl.passes import ModulePass

from ...dialects import loop
from ...dialects.support.locations import refused
from ...dialects.tile.schedule import ScheduleAttr
from ..analysis.operands import STORED, load_parts, parts_nest, wide_factors
from ..rewriting import insert_after, insert_at_start


@dataclass(frozen=True)
class SplitF32OperandsPass(ModulePass):
    """Split f32 factors into three bf16 numbers once, in kernels of their own.

    What: of a nest with `f32_matmul_precision = bf16x3_presplit` every factor of a contraction that is loaded as f32 is
    stored before as three tensors of bf16, whose sum it is, and the nest loads those; it then has `f32_matmul_precision
    = bf16x3`.
    Why: with `f32_matmul_precision = bf16x3` each block splits what it loads, so every element is split in as many
    blocks as read it, and nothing can be copied ahead: boxes and `cp.async` bring what is in memory. Six bytes are read
    for four instead.
    Why here: `plan-schedules` decides; it runs again afterwards, for the nests that split.

    ```mlir
    %s = loop.reduce add (%k) in [4096] -> f32 {
      %a = loop.load %x[%i, %k] : tensor<4096x4096xf32>
    ```
    becomes
    ```mlir
    %x_0, %x_1, %x_2 = loop.nest (%d0, %d1) in [4096, 4096] -> tensor<4096x4096xbf16>, ... { ... }  // in front of it
    %s = loop.reduce add (%k) in [4096] -> f32 {
      %a_0 = loop.load %x_0[%i, %k] : tensor<4096x4096xbf16>
      ...
      %a = payload.combine_bf16x3 %p, %q, %r : f32
    ```
    """

    name = "loop-split-f32-operands"
    needs: ClassVar[Mapping[str, int]] = {"f32_matmul_precision=bf16x3_presplit": 1}

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        stored: dict[SSAValue, loop.NestOp] = {}
        for nest in [n for n in op.walk() if isinstance(n, loop.NestOp)]:
            schedule = nest.attributes.get("schedule")
            if not isinstance(schedule, ScheduleAttr) or schedule.data.f32_matmul_precision != STORED:
                continue
            if not (loads := wide_factors(nest)):
                raise refused(
                    nest,
                    "no factor of a product is loaded as f32, so none can be split before",
                    argument="f32_matmul_precision",
                )
            for load in loads:
                source, owner = load.source, load.source.owner
                if source not in stored:
                    stored[source] = parts_nest(source)
                    if isinstance(owner, Block):
                        insert_at_start(owner, stored[source], source=nest)
                    else:
                        insert_after(owner, stored[source], source=nest)
                load_parts(load, stored[source].res)
            nest.attributes["schedule"] = schedule.changed(f32_matmul_precision="bf16x3")
