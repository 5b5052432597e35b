"""Putting matrix products on tensor cores."""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import Float32Type, ModuleOp, StringAttr
from xdsl.ir import Attribute, Operation, SSAValue
from xdsl.passes import ModulePass
from xdsl.transforms.dead_code_elimination import dce

from ..dialects import payload, tile
from ..dialects.locations import copy_location
from ..dialects.matrix_layouts import ATOM
from ..dialects.payload import element_type, shape_of, with_element
from ..dialects.schedule import ScheduleAttr
from .layout_assignment.classes import Classes
from .narrow_factors import is_exact, widened_from
from .remarks import emit_remark

NAME = "tile-choose-atoms"


@dataclass(frozen=True)
class TileChooseAtomsPass(ModulePass):
    """Give matrix products to the tensor cores where the schedule says so.

    What: with `atom = mma`, a `tile.dot` of f32 tiles that were cast from bf16 (or from f16), also if a mask then put
    constants in, takes the narrow tiles themselves and is marked. A factor that was computed in f32 is declined, unless
    the schedule has the permission `narrow = operands`; then it is rounded to the type of the other factor. Products
    that share an accumulator stay alike.
    Why: the products of two such numbers are exact in f32 and the sums are in f32, as before, at many times the speed;
    and half as many bytes go through shared memory.
    Why here: after contractions are found, and before layouts, which the atom decides.

    ```mlir
    %af = payload.cast %a : tensor<64x32xbf16> -> tensor<64x32xf32>
    %bf = payload.cast %b : tensor<32x64xbf16> -> tensor<32x64xf32>
    %n = tile.dot %af, %bf, %acc : tensor<64x32xf32>, tensor<32x64xf32>, tensor<64x64xf32> -> tensor<64x64xf32>
    ```
    becomes
    ```mlir
    %n = tile.dot %a, %b, %acc atom "mma" : tensor<64x32xbf16>, tensor<32x64xbf16>, tensor<64x64xf32> -> ...
    ```
    """

    name = "tile-choose-atoms"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for kernel in op.ops:
            schedule = kernel.attributes.get("schedule")
            if isinstance(kernel, tile.KernelOp) and isinstance(schedule, ScheduleAttr) and schedule.atom.data == "mma":
                choose(kernel, schedule.narrow.data == "operands")
        dce(op)


def choose(kernel: tile.KernelOp, may_narrow: bool) -> None:
    """Put the products of `kernel` that can be onto tensor cores."""
    classes = Classes(kernel)
    for c in classes:
        if not c.dots:
            continue
        found = [(dot, operand_type(dot, may_narrow)) for dot in c.dots]
        refused = next((why for _, why in found if isinstance(why, str)), None)
        for dot, narrow in found:
            if refused is None and not isinstance(narrow, str):
                _rewrite(dot, narrow)
            else:
                emit_remark(dot, NAME, narrow if isinstance(narrow, str) else f"its accumulator is shared: {refused}")


def operand_type(dot: tile.DotOp, may_narrow: bool) -> Attribute | str:
    """The type of the factors of `dot` on tensor cores, or why it is none for them."""
    (m, k), (_, n) = shape_of(dot.lhs.type), shape_of(dot.rhs.type)
    if any(extent < least for extent, least in zip((m, n, k), ATOM, strict=True)):
        return f"a product of {m}x{k} and {k}x{n} is smaller than {ATOM[0]}x{ATOM[2]} and {ATOM[2]}x{ATOM[1]}"
    if not isinstance(element_type(dot.acc.type), Float32Type):
        return f"sums in {element_type(dot.acc.type)}"
    factors = (dot.lhs, dot.rhs)
    exact = [widened_from(f) for f in factors]
    types = {t for t in exact if t is not None}
    if not types:
        return "both factors are computed in f32"
    if len(types) > 1:
        return "one factor is bf16, the other f16"
    (narrow,) = types
    if not may_narrow and None in exact:
        return f"a factor is computed in f32; narrow = operands in the schedule would allow rounding it to {narrow}"
    return narrow


def _rewrite(dot: tile.DotOp, narrow: Attribute) -> None:
    assert dot.parent is not None
    for i, value in enumerate((dot.lhs, dot.rhs)):
        made: list[Operation] = []
        dot.operands[i] = _narrowed(value, narrow, made)
        dot.parent.insert_ops_before(made, dot)
        copy_location(dot, made)
    dot.properties["atom"] = StringAttr("mma")


def _narrowed(value: SSAValue, narrow: Attribute, made: list[Operation]) -> SSAValue:
    """`value` in the type `narrow`, exactly where it came from there, else rounded; new operations go to `made`."""
    op = value.owner
    new: Operation
    if isinstance(op, payload.CastOp) and element_type(op.operand.type) == narrow:
        return op.operand
    if isinstance(op, payload.SelectOp) and widened_from(value) == narrow:
        sides = (_narrowed(side, narrow, made) for side in (op.lhs, op.rhs))
        new = payload.SelectOp(op.cond, *sides)
    elif isinstance(op, payload.ConstantOp) and is_exact(op, narrow):
        new = payload.ConstantOp(op.scalar, with_element(value.type, narrow))
    else:
        new = payload.CastOp(value, with_element(value.type, narrow))
    new.results[0].name_hint = value.name_hint
    made.append(new)
    return new.results[0]
