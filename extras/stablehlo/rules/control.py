"""Rules of calls, branches and loops."""

from __future__ import annotations

from collections.abc import Sequence

from jaxlib.mlir import ir
from xdsl.ir import SSAValue

from ....dialects.shapes.extents import SymbolAttr, extents_of
from ..importer import Frame
from ..loops import counted, is_short, scanned, unrolled
from ..operation import OUTSIDE
from ..registry import Builder, HloOperation, rule


@rule("func.call", "stablehlo.composite")
def call(b: Builder, op: HloOperation, *operands: SSAValue) -> Sequence[SSAValue]:
    name = ir.FlatSymbolRefAttr(op.attribute("callee" if op.name == "func.call" else "decomposition")).value
    return op.scope.call(b, name, op, operands)


@rule("stablehlo.while")
def while_(b: Builder, op: HloOperation, *operands: SSAValue) -> Sequence[SSAValue]:
    frame = op.scope
    assert isinstance(frame, Frame)
    loop = counted(op, frame)
    if not loop.steps:
        return operands
    # A scan has no slices of symbolic sizes.
    varies = any(isinstance(n, SymbolAttr) for x in operands for n in extents_of(x.type))
    is_repeated = varies or frame.space is not None or is_short(op, loop.steps, frame)
    return (unrolled if is_repeated else scanned)(b, op, frame, loop, operands)


@rule("stablehlo.case", "stablehlo.if")
def case(b: Builder, op: HloOperation, index: SSAValue) -> Sequence[SSAValue]:
    branches = [op.body(n) for n in range(len(op.ir.regions))]
    constants = op.constants(0)
    if op.name == "stablehlo.if":
        branches.reverse()
    if constants is not None:
        legal = 0 <= constants[0] < len(branches)
        return branches[constants[0] if legal else -1].inlined(b, [])
    # An index outside of the range takes the last branch. Branches have no effects, so all are computed.
    *others, results = [branch.inlined(b, []) for branch in branches]
    for n, values in reversed(list(enumerate(others))):
        hit = b.negated(index) if op.name == "stablehlo.if" else b.cmp("eq", index, n)
        pairs = zip(values, results, strict=True)
        results = [x if x is y else b.select(b.broadcast(hit, extents_of(x.type)), x, y) for x, y in pairs]
    return results


@rule("sdy.sharding_constraint")
def sharding_constraint(b: Builder, op: HloOperation, x: SSAValue) -> SSAValue:
    # The program is for one device.
    return x


@rule("stablehlo.custom_call")
def custom_call(b: Builder, op: HloOperation, *operands: SSAValue) -> Sequence[SSAValue]:
    target = op.word("call_target_name")
    if target in ("Sharding", "SPMDFullToShardShape", "SPMDShardToFullShape", "annotate_device_placement"):
        return operands
    if target == "shape_assertion":
        # `arguments.py` has solved the assertions of @main.
        return []
    raise op.refuse(f"the custom call {target} is not supported", remedy=OUTSIDE)
