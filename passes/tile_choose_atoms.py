"""Putting matrix products on tensor cores."""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import Float32Type, ModuleOp, StringAttr
from xdsl.ir import Attribute, SSAValue
from xdsl.passes import ModulePass
from xdsl.transforms.dead_code_elimination import dce

from ..dialects import payload, tile
from ..dialects.locations import copy_location
from ..dialects.matrix_layouts import ATOM
from ..dialects.payload import element_type, shape_of, with_element
from ..dialects.schedule import ScheduleAttr
from .layout_assignment.classes import Classes
from .remarks import emit_remark

NAME = "tile-choose-atoms"


@dataclass(frozen=True)
class TileChooseAtomsPass(ModulePass):
    """Give matrix products to the tensor cores where the schedule says so.

    What: with `atom = mma`, a `tile.dot` of f32 tiles that were cast from bf16 (or from f16) takes the narrow tiles
    themselves and is marked. A factor that was computed in f32 is declined, unless the schedule has the permission
    `narrow = operands`; then it is rounded to the type of the other factor. Products that share an accumulator stay
    alike.
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

    name = NAME

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for kernel in op.ops:
            schedule = kernel.attributes.get("schedule")
            if isinstance(kernel, tile.KernelOp) and isinstance(schedule, ScheduleAttr) and schedule.atom.data == "mma":
                choose(kernel, schedule.narrow.data == "operands")
        dce(op)


@dataclass(frozen=True)
class Operands:
    """The factors of a product in `narrow`; those that have another type are to be rounded."""

    lhs: SSAValue
    rhs: SSAValue
    narrow: Attribute


def choose(kernel: tile.KernelOp, may_narrow: bool) -> None:
    """Put the products of `kernel` that can be onto tensor cores."""
    classes = Classes(kernel)
    for c in classes:
        if not c.dots:
            continue
        found = [(dot, narrow_operands(dot, may_narrow)) for dot in c.dots]
        refused = next((why for _, why in found if isinstance(why, str)), None)
        for dot, operands in found:
            if isinstance(operands, Operands) and refused is None:
                _rewrite(dot, operands)
            else:
                why = operands if isinstance(operands, str) else f"its accumulator is shared: {refused}"
                emit_remark(dot, NAME, why)


def narrow_operands(dot: tile.DotOp, may_narrow: bool) -> Operands | str:
    """The factors of `dot` for tensor cores, or why it is none for them."""
    (m, k), (_, n) = shape_of(dot.lhs.type), shape_of(dot.rhs.type)
    if any(extent < least for extent, least in zip((m, n, k), ATOM, strict=True)):
        return f"a product of {m}x{k} and {k}x{n} is smaller than {ATOM[0]}x{ATOM[2]} and {ATOM[2]}x{ATOM[1]}"
    if not isinstance(element_type(dot.acc.type), Float32Type):
        return f"sums in {element_type(dot.acc.type)}"
    sources = [_uncast(dot.lhs), _uncast(dot.rhs)]
    types = {element_type(s.type) for s in sources if is_narrow(element_type(s.type))}
    if not types:
        return "both factors are f32"
    if len(types) > 1:
        return "one factor is bf16, the other f16"
    (narrow,) = types
    if not may_narrow and any(element_type(s.type) != narrow for s in sources):
        return f"a factor is computed in f32; narrow = operands in the schedule would allow rounding it to {narrow}"
    return Operands(sources[0], sources[1], narrow)


def is_narrow(t: Attribute) -> bool:
    """Whether `t` is a type that tensor cores multiply exactly."""
    return t in tile.NARROW


def _uncast(value: SSAValue) -> SSAValue:
    """What `value` was before it was widened to f32, if it was."""
    op = value.owner
    return op.operand if isinstance(op, payload.CastOp) and is_narrow(element_type(op.operand.type)) else value


def _rewrite(dot: tile.DotOp, operands: Operands) -> None:
    for i, value in enumerate((operands.lhs, operands.rhs)):
        if element_type(value.type) != operands.narrow:
            cast = payload.CastOp(value, with_element(value.type, operands.narrow))
            cast.result.name_hint = value.name_hint
            assert dot.parent is not None
            dot.parent.insert_op_before(cast, dot)
            copy_location(dot, (cast,))
            value = cast.result
        dot.operands[i] = value
    dot.properties["atom"] = StringAttr("mma")
