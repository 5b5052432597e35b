"""`loop-split-f32-operands`: splits f32 operands of matmuls into bf16 tensors, in kernels before the matmuls."""

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
from ..analysis.operands import PRESPLIT, load_parts, parts_nest, wide_factors
from ..rewriting import insert_after, insert_at_start


@dataclass(frozen=True)
class SplitF32OperandsPass(ModulePass):
    """Splits f32 operands of contractions into three bf16 tensors, whose sum they are, by nests of their own.

    ```mlir
    %s = loop.reduce add (%k) in [4096] -> f32 {
      %a = loop.load %x[%i, %k] : tensor<4096x4096xf32>
    ```
    becomes
    ```mlir
    %x_0, %x_1, %x_2 = loop.nest (%d0, %d1) in [4096, 4096] -> tensor<4096x4096xbf16>, ... { ... }  // before the nest
    %s = loop.reduce add (%k) in [4096] -> f32 {
      %a_0 = loop.load %x_0[%i, %k] : tensor<4096x4096xbf16>
      ...
      %a = payload.combine_bf16x3 %p, %q, %r : f32
    ```

    The pass changes nests with `f32_matmul_precision = bf16x3_presplit`. They have `f32_matmul_precision = bf16x3`
    afterwards.

    **Rationale**: otherwise each block splits the elements that it loads, so an element is split once in every block
    that reads it. And TMA and `cp.async` cannot be used, because they copy data as it is in memory. In return, six
    bytes are read instead of four.

    **Pipeline position**: after `plan-schedules`, which decides the precision. It runs again for the new nests.
    """

    name = "loop-split-f32-operands"
    needs: ClassVar[Mapping[str, int]] = {"f32_matmul_precision=bf16x3_presplit": 1}

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        stored: dict[SSAValue, loop.NestOp] = {}
        for nest in [n for n in op.walk() if isinstance(n, loop.NestOp)]:
            schedule = nest.attributes.get("schedule")
            if not isinstance(schedule, ScheduleAttr) or schedule.data.f32_matmul_precision != PRESPLIT:
                continue
            if not (loads := wide_factors(nest)):
                raise refused(
                    nest,
                    "expected a matmul operand that is loaded as f32, but there is none; use bf16x3",
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
