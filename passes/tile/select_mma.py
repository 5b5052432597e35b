"""Putting matrix products on tensor cores."""

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
    """Give matrix products to the tensor cores where the schedule says so.

    What: with `atom = mma` or `wgmma`, a `tile.dot` of f32 tiles that were cast from bf16 (or from f16), also if a mask
    then put constants in, takes the narrow tiles themselves and is marked. A factor that was computed in f32 is
    declined, unless the schedule has `f32_matmul_precision = input_dtype`; then it is rounded to the type of the other
    factor. With `f32_matmul_precision = bf16x3` it is split into three bf16 numbers, and there are three products, or
    six if both factors are. With `f32_matmul_precision = tf32` both are multiplied as they are, with 10 bits of their
    fraction: rounded to those, but for what a copy brings to products of warpgroups, which is cut. Factors in f64 are
    multiplied as they are. Products that share
    an accumulator stay alike. Whole warpgroups multiply 64 rows each; a product of another shape is one for `mma`
    instead, and a remark says why.
    Why: the products of two such numbers are exact in f32 and the sums are in f32, as before, at many times the speed;
    and half as many bytes go through shared memory.
    Why here: before layouts, which the atom decides.

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

    name = "tile-select-mma"
    decision = ("atom",)

    def on(self, op: tile.KernelOp) -> None:
        schedule, precision = op.schedule, op.schedule.f32_matmul_precision
        for c in [c for c in Classes(op) if c.dots]:
            types = [(dot, operand_type(dot, precision)) for dot in c.dots]
            refused = next((why for _, why in types if isinstance(why, str)), None)
            own = _atom_of(c, op.warps.data, schedule.atom, [narrow for _, narrow in types])
            for dot, narrow in types:
                if refused is None and not isinstance(narrow, str):
                    (_rewrite_in_parts if precision == "bf16x3" and narrow != f64 else _rewrite)(dot, narrow, own)
                    if own == "wgmma" and narrow == f32:
                        _round(dot, schedule.copy != "sync")
                else:
                    self.decline(dot, narrow if isinstance(narrow, str) else f"its accumulator is shared: {refused}")
        erase_unneeded(op.body)


def _atom_of(c: TileClass, warps: int, atom: str, types: Sequence[Attribute | str]) -> str:
    """The atom of the products of `types` that share an accumulator, if they are on tensor cores."""
    why = "it does not multiply f64" if f64 in types else warpgroup_accumulator(c.shape, warps)
    if atom == "wgmma" and isinstance(why, str):
        emit_remark(c.dots[0], NAME, f"mma instead of wgmma: {why}")
        return "mma"
    return atom


def operand_type(dot: tile.DotOp, precision: str) -> Attribute | str:
    """The type of the factors of `dot` on tensor cores, or why it is none for them."""
    found = _factor_type(dot, precision)
    if isinstance(found, str):
        return found
    (m, k), (_, n) = shape_of(dot.lhs.type), shape_of(dot.rhs.type)
    if mma_atom(found, (m, n, k)) is None:
        least = " or ".join(f"{a.m}x{a.k} and {a.k}x{a.n}" for a in MMA_ATOMS if a.element == found)
        return f"a product of {m}x{k} and {k}x{n} is smaller than {least}"
    return found


def _factor_type(dot: tile.DotOp, precision: str) -> Attribute | str:
    """The type of the factors of `dot`, whatever its size, or why they cannot be multiplied on tensor cores."""
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
    made: list[Operation] = []
    set_fields(dot, lhs=_narrowed(dot.lhs, narrow, made), rhs=_narrowed(dot.rhs, narrow, made))
    insert_before(dot, *made)
    dot.properties["atom"] = StringAttr(atom)


def _round(dot: tile.DotOp, copied: bool) -> None:
    """Round the factors of a product that would cut them to tf32, but those that are `copied` past the registers."""
    for i, value in enumerate((dot.lhs, dot.rhs)):
        if widened_from(value) is not None or (copied and isinstance(value.owner, tile.LoadOp)):
            continue
        rounded = payload.RoundTf32Op(value)
        rounded.result.name_hint = value.name_hint
        insert_before(dot, rounded)
        dot.operands[i] = rounded.result


def _rewrite_in_parts(dot: tile.DotOp, narrow: Attribute, atom: str) -> None:
    """A product for each pair of parts of the factors, the smallest first.

    Left out of nine products of parts are the three below 2^-26 of the largest: a rounding to f32 is 2^-24.
    """
    exact = [widened_from(v) is not None for v in (dot.lhs, dot.rhs)]
    if all(exact):
        _rewrite(dot, narrow, atom)
        return
    made: list[Operation] = []
    left, right = (
        [_narrowed(v, narrow, made)] if whole else parts_of(v) or split_in_parts(v, made)
        for v, whole in zip((dot.lhs, dot.rhs), exact, strict=True)
    )
    pairs = [(i, j) for i in range(len(left)) for j in range(len(right)) if i + j < PARTS]
    acc = dot.acc
    for i, j in sorted(pairs, key=lambda pair: (-sum(pair), pair)):
        product = tile.DotOp(left[i], right[j], acc)
        product.properties["atom"] = StringAttr(atom)
        product.result.name_hint = dot.result.name_hint
        made.append(product)
        acc = product.result
    replace(dot, *made)


def _narrowed(value: SSAValue, narrow: Attribute, made: list[Operation]) -> SSAValue:
    """`value` in the type `narrow`, exactly where it came from there, else rounded; new operations go to `made`."""
    op = value.owner
    new: Operation
    if narrow == element_type(value.type):
        return value
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
