"""Finding matrix products in tile programs: `tile-recognize-contractions`."""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects import arith
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Attribute, Operation, SSAValue
from xdsl.ir.affine import AffineExpr, AffineMap
from xdsl.passes import ModulePass
from xdsl.pattern_rewriter import PatternRewriter, RewritePattern, op_type_rewrite_pattern
from xdsl.rewriter import InsertPoint

from ...dialects import payload, tile
from ...dialects.payload import element_type, shape_of
from ...dialects.shapes.domain import DomainAttr
from ...dialects.tensor import ReductionKind
from ..dead_code import erase_unneeded
from ..remarks import emit_remark
from ..rewriting import rewrite_module


class RecognizeContraction(RewritePattern):
    """A sum of products of broadcast tiles -> `tile.dot`."""

    @op_type_rewrite_pattern
    def match_and_rewrite(self, op: tile.ReduceOp, rewriter: PatternRewriter, /) -> None:
        product = op.source.owner
        if (
            op.kind.data != ReductionKind.ADD
            or not isinstance(product, arith.MulfOp)
            or len(shape_of(op.source.type)) < 3
        ):
            return
        found = match_factors(op, product)
        if isinstance(found, str):
            emit_remark(op, RecognizeContractionsPass.name, found)
            return
        a, b = (transposed(value, rewriter) if is_reversed else value for value, is_reversed in found)
        accumulator = single_addition(op)
        if accumulator is None:
            zero = payload.ConstantOp(0.0, op.result.type)
            rewriter.insert(zero, InsertPoint.before(op))
            rewriter.replace(op, tile.DotOp(a, b, zero.result))
            return
        add, other = accumulator
        rewriter.replace(add, tile.DotOp(a, b, other))
        rewriter.erase(op)


def match_factors(op: tile.ReduceOp, product: arith.MulfOp) -> list[tuple[SSAValue, bool]] | str:
    """The factors of the contraction that `op` is, or why it is none: the one that lacks the columns of the result, and
    the one that lacks its rows; each with whether it is held the other way round."""
    dims = [int(d) for d in op.dims.get_values()]
    rank = len(shape_of(op.source.type))
    if len(dims) != 1 or rank != 3:
        return f"{rank - len(dims)} free and {len(dims)} summed dimensions; a matrix product has 2 and 1"
    k = dims[0]
    row, column = (i for i in range(3) if i != k)
    factors: dict[int, SSAValue] = {}
    for operand in product.operands:
        spread = operand.owner
        if not isinstance(spread, tile.BroadcastOp):
            return "a factor depends on the rows and on the columns of the result"
        along = [int(i) for i in spread.along.get_values()]
        if len(along) != 1 or along[0] == k:
            return "a factor depends on neither the rows nor the columns, or not on the summed index"
        factors[along[0]] = spread.source
    if set(factors) != {row, column}:
        return "both factors depend on the same free index"
    found = [(factors[column], k < row), (factors[row], column < k)]
    if any(is_reversed and not can_transpose(value) for value, is_reversed in found):
        return "a factor is a computed tile, held with the summed index in the wrong place"
    return found


def single_addition(op: tile.ReduceOp) -> tuple[arith.AddfOp, SSAValue] | None:
    """The only use of `op`, if it is an addition in the same block, and what is added to."""
    use = op.result.get_user_of_unique_use()
    if not isinstance(use, arith.AddfOp) or use.parent_block() is not op.parent_block():
        return None
    return use, use.rhs if use.lhs is op.result else use.lhs


def can_transpose(value: SSAValue) -> bool:
    """Whether `transposed` can make the other orientation of the tile `value`."""
    op = value.owner
    if isinstance(op, tile.BroadcastOp | tile.AffineOp):
        return True
    if isinstance(op, tile.LoadOp):
        return all(can_transpose(s) for s in op.symbols if shape_of(s.type))
    return isinstance(op, Operation) and payload.is_payload(op) and all(can_transpose(o) for o in op.operands)


def transposed(value: SSAValue, rewriter: PatternRewriter) -> SSAValue:
    """The transpose of a tile, loaded and computed that way round next to the original, which is left as it is."""
    op = value.owner
    assert isinstance(op, Operation)
    new: Operation
    if isinstance(op, tile.BroadcastOp):
        along = sorted(1 - int(i) for i in op.along.get_values())
        new = tile.BroadcastOp(op.source, along, _reversed_type(value.type))
    elif isinstance(op, tile.AffineOp):
        new = tile.AffineOp(_reversed_map(op.map.data), op.symbols, _reversed_type(value.type))
    elif isinstance(op, tile.LoadOp):
        symbols = [transposed(s, rewriter) if shape_of(s.type) else s for s in op.symbols]
        domain = op.domain and DomainAttr.get(_reversed_map(op.domain.affine), op.domain.limits)
        new = tile.LoadOp(op.source, _reversed_map(op.map.data), symbols, domain, op.fill, _reversed_type(value.type))
    else:
        new = payload.retyped(op, [transposed(o, rewriter) for o in op.operands], _reversed_type(value.type))
    new.location = op.location
    new.results[0].name_hint = value.name_hint
    rewriter.insert(new, InsertPoint.after(op))
    return new.results[0]


def _reversed_type(t: Attribute) -> Attribute:
    return tile.tile_type(element_type(t), shape_of(t)[::-1])


def _reversed_map(map: AffineMap) -> AffineMap:
    swap = [AffineExpr.dimension(1), AffineExpr.dimension(0)]
    symbols = [AffineExpr.symbol(i) for i in range(map.num_symbols)]
    return map.replace_dims_and_symbols(swap, symbols, 2, map.num_symbols)


@dataclass(frozen=True)
class RecognizeContractionsPass(ModulePass):
    """Turn sums of products into matrix products.

    What: `reduce add` over one dimension of a product whose factors are broadcast, one along the columns and one along
    the rows of the result, is a `tile.dot` of the factors before they were broadcast; an addition to it becomes its
    accumulator. A factor that is held the wrong way round is loaded (and computed) the other way round. Names of
    operators play no part: any kernel with such a sum gets the product.
    Why: the three-dimensional product is never formed, and operands can be shared between threads.
    Why here: before layouts are chosen, which start from the accumulators.

    ```mlir
    %a3 = tile.broadcast %a along [1] : tensor<64x16xf32> -> tensor<64x64x16xf32>
    %b3 = tile.broadcast %b along [0] : tensor<64x16xf32> -> tensor<64x64x16xf32>
    %p = arith.mulf %a3, %b3 : tensor<64x64x16xf32>
    %s = tile.reduce add %p over [2] : tensor<64x64x16xf32> -> tensor<64x64xf32>
    %n = arith.addf %acc, %s : tensor<64x64xf32>
    ```
    becomes, with %bt loaded as %b is but the other way round,
    ```mlir
    %n = tile.dot %a, %bt, %acc : tensor<64x16xf32>, tensor<16x64xf32>, tensor<64x64xf32> -> tensor<64x64xf32>
    ```
    """

    name = "tile-recognize-contractions"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        if rewrite_module(op, [RecognizeContraction()]):
            erase_unneeded(op.body)
