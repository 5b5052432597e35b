"""`tile-select-mma`: selects tensor cores for dots.

The loop level multiplies f32 tiles, which may be casts from a narrow type (bf16, f16). An operand is *exact* in a
narrow type if it is such a cast. Other operands must be rounded, or split into parts whose sum is the operand (bf16x3).
"""

from __future__ import annotations

from collections.abc import Sequence

from xdsl.dialects.builtin import StringAttr, bf16, f32, f64
from xdsl.ir import Attribute, Operation, SSAValue

from ...dialects import payload, tile
from ...dialects.kernel.mma import MMA_ATOMS, mma_atom
from ...dialects.layouts.mma import warpgroup_accumulator
from ...dialects.payload import element_type, shape_of, with_element
from ..analysis.layout_preferences import Classes, TileClass
from ..analysis.operands import PARTS, is_exact, parts_of, split_in_parts, widened_from
from ..pass_manager import TilePass, emit_remark
from ..rewriting import erase_unneeded, insert_before, replace, set_fields

NAME = "tile-select-mma"


class SelectMmaPass(TilePass):
    """Selects the tensor-core atom of each dot, according to the schedule.

    ```mlir
    %af = payload.cast %a : tensor<64x32xbf16> -> tensor<64x32xf32>
    %bf = payload.cast %b : tensor<32x64xbf16> -> tensor<32x64xf32>
    %n = tile.dot %af, %bf, %acc : tensor<64x32xf32>, tensor<32x64xf32>, tensor<64x64xf32> -> tensor<64x64xf32>
    ```
    becomes
    ```mlir
    %n = tile.dot %a, %b, %acc atom "mma" : tensor<64x32xbf16>, tensor<32x64xbf16>, tensor<64x64xf32> -> ...
    ```

    With `atom = mma` or `wgmma`, a dot of f32 tiles that are casts from bf16 or f16 takes the narrow tiles instead. A
    masked cast counts as a cast if the fill is a constant that is exact in the narrow type. For an operand that is
    computed in f32, `f32_matmul_precision` decides:

    | value | effect |
    |---|---|
    | `ieee` | the dot stays on CUDA cores, with a remark |
    | `input_dtype` | rounds the operand to the type of the other operand |
    | `bf16x3` | splits the operand into three bf16 tiles: three dots, or six if both operands are split |
    | `tf32` | multiplies f32 with 10 bits of fraction; operands of `wgmma` that are copied from memory are truncated |

    Operands in f64 are multiplied as they are. Dots that share an accumulator all get an atom, or none does. If the
    shape does not fit `wgmma` (64 rows per warpgroup), the dot gets `mma`, with a remark.

    **Rationale**: the product of two narrow numbers is exact in f32 and sums are in f32, so the result is as accurate
    as before, at a much higher speed and with half the traffic of shared memory.

    **Pipeline position**: before `tile-assign-layouts`, as the atom determines the layouts of operands and accumulator.
    """

    name = "tile-select-mma"
    decision = ("atom",)

    def on(self, op: tile.KernelOp) -> None:
        schedule, precision = op.schedule, op.schedule.f32_matmul_precision
        for c in [c for c in Classes(op) if c.dots]:
            types = [(dot, operand_type(dot, precision)) for dot in c.dots]
            refused = next((why for _, why in types if isinstance(why, str)), None)
            atom = _atom_of(c, op.warps.data, schedule.atom, [narrow for _, narrow in types])
            for dot, narrow in types:
                if refused is None and not isinstance(narrow, str):
                    (_rewrite_in_parts if precision == "bf16x3" and narrow != f64 else _rewrite)(dot, narrow, atom)
                    if atom == "wgmma" and narrow == f32:
                        _round(dot, schedule.copy != "sync")
                else:
                    self.decline(dot, narrow if isinstance(narrow, str) else f"its accumulator is shared: {refused}")
        erase_unneeded(op.body)


def _atom_of(c: TileClass, warps: int, atom: str, types: Sequence[Attribute | str]) -> str:
    """Returns the atom of the dots of `c`: `atom`, or `mma` with a remark if it is `wgmma` and the shape or type does
    not fit. `types` are the operand types of the dots."""
    why = "it does not multiply f64" if f64 in types else warpgroup_accumulator(c.shape, warps)
    if atom == "wgmma" and isinstance(why, str):
        emit_remark(c.dots[0], NAME, f"mma instead of wgmma: {why}")
        return "mma"
    return atom


def operand_type(dot: tile.DotOp, precision: str) -> Attribute | str:
    """Returns the type of the operands of `dot` on tensor cores, or the reason why it cannot use them."""
    operand = _operand_type_of_any_size(dot, precision)
    if isinstance(operand, str):
        return operand
    (m, k), (_, n) = shape_of(dot.lhs.type), shape_of(dot.rhs.type)
    if mma_atom(operand, (m, n, k)) is None:
        least = " or ".join(f"{a.m}x{a.k} and {a.k}x{a.n}" for a in MMA_ATOMS if a.element == operand)
        return f"a product of {m}x{k} and {k}x{n} is smaller than {least}"
    return operand


def _operand_type_of_any_size(dot: tile.DotOp, precision: str) -> Attribute | str:
    """Returns the same as `operand_type`, without a check of the size of the tiles."""
    sums = element_type(dot.acc.type)
    if sums != f32:
        return sums if any(sums == a.element == a.accumulator for a in MMA_ATOMS) else f"sums in {sums}"
    factors = (dot.lhs, dot.rhs)
    exact = [widened_from(f) for f in factors]
    types = {t for t in exact if t is not None}
    if precision == "tf32":
        return types.pop() if None not in exact and len(types) == 1 else f32
    if not types:
        if precision == "bf16x3":
            return bf16
        return "both operands are f32; f32_matmul_precision = tf32 or bf16x3 would allow rounding or splitting them"
    if len(types) > 1:
        return "one factor is bf16, the other f16"
    (narrow,) = types
    if precision == "ieee" and None in exact:
        return f"an operand is computed in f32; f32_matmul_precision = input_dtype would allow rounding it to {narrow}"
    if precision == "bf16x3" and None in exact and narrow != bf16:
        return "a factor is computed in f32, of which parts in f16 would lose what is small or large"
    return narrow


def _rewrite(dot: tile.DotOp, narrow: Attribute, atom: str) -> None:
    ops: list[Operation] = []
    set_fields(dot, lhs=_narrowed(dot.lhs, narrow, ops), rhs=_narrowed(dot.rhs, narrow, ops))
    insert_before(dot, *ops)
    dot.properties["atom"] = StringAttr(atom)


def _round(dot: tile.DotOp, copied: bool) -> None:
    """Rounds the operands of a `wgmma` dot to tf32, as the hardware would truncate them.

    Operands that are casts from a narrow type are exact. If `copied`, loaded operands are skipped: asynchronous copies
    move them to shared memory without passing registers.
    """
    for i, value in enumerate((dot.lhs, dot.rhs)):
        if widened_from(value) is not None or (copied and isinstance(value.owner, tile.LoadOp)):
            continue
        rounded = payload.RoundTf32Op(value)
        rounded.result.name_hint = value.name_hint
        insert_before(dot, rounded)
        dot.operands[i] = rounded.result


def _rewrite_in_parts(dot: tile.DotOp, narrow: Attribute, atom: str) -> None:
    """Replaces `dot` by one dot for each pair of parts of its operands, smallest products first.

    If both operands are split, three of the nine products are omitted. They are below 2^-26 of the largest product,
    and rounding to f32 is 2^-24.
    """
    exact = [widened_from(v) is not None for v in (dot.lhs, dot.rhs)]
    if all(exact):
        _rewrite(dot, narrow, atom)
        return
    ops: list[Operation] = []
    lhs_parts, rhs_parts = (
        [_narrowed(v, narrow, ops)] if whole else parts_of(v) or split_in_parts(v, ops)
        for v, whole in zip((dot.lhs, dot.rhs), exact, strict=True)
    )
    pairs = [(i, j) for i in range(len(lhs_parts)) for j in range(len(rhs_parts)) if i + j < PARTS]
    acc = dot.acc
    for i, j in sorted(pairs, key=lambda pair: (-sum(pair), pair)):
        product = tile.DotOp(lhs_parts[i], rhs_parts[j], acc)
        product.properties["atom"] = StringAttr(atom)
        product.result.name_hint = dot.result.name_hint
        ops.append(product)
        acc = product.result
    replace(dot, *ops)


def _narrowed(value: SSAValue, narrow: Attribute, ops: list[Operation]) -> SSAValue:
    """Returns `value` in the type `narrow`: the source of its cast if it has one, else rounded. Appends new operations
    to `ops`."""
    op = value.owner
    new: Operation
    if narrow == element_type(value.type):
        return value
    if isinstance(op, payload.CastOp) and element_type(op.operand.type) == narrow:
        return op.operand
    if isinstance(op, payload.SelectOp) and widened_from(value) == narrow:
        sides = (_narrowed(side, narrow, ops) for side in (op.lhs, op.rhs))
        new = payload.SelectOp(op.cond, *sides)
    elif isinstance(op, payload.ConstantOp) and is_exact(op, narrow):
        new = payload.ConstantOp(op.scalar, with_element(value.type, narrow))
    else:
        new = payload.CastOp(value, with_element(value.type, narrow))
    new.results[0].name_hint = value.name_hint
    ops.append(new)
    return new.results[0]
