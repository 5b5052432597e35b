"""Rules of calls, branches and loops."""

from __future__ import annotations

from collections.abc import Sequence

from jaxlib.mlir import ir
from xdsl.ir import SSAValue

from ..registry import Builder, HloOperation, rule


@rule("func.call", "stablehlo.composite")
def call(b: Builder, op: HloOperation, *operands: SSAValue) -> Sequence[SSAValue]:
    name = ir.FlatSymbolRefAttr(op.attribute("callee" if op.name == "func.call" else "decomposition")).value
    return op.scope.call(b, name, op, operands)


@rule("stablehlo.custom_call")
def custom_call(b: Builder, op: HloOperation, *operands: SSAValue) -> Sequence[SSAValue]:
    target = op.word("call_target_name")
    if target in ("Sharding", "SPMDFullToShardShape", "SPMDShardToFullShape", "annotate_device_placement"):
        return operands
    raise op.refuse(f"the custom call {target} is not supported")
