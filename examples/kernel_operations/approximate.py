"""Tile and kernel operations of a package outside of the library: their passes, lowering, C++ and interpreter.

The package adds an approximate hyperbolic tangent and a maximum of magnitudes, with the PTX instructions for them.
"""

from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.arith import MulfOp
from xdsl.dialects.builtin import ModuleOp, VectorType, f32
from xdsl.dialects.math import AbsFOp, TanhOp
from xdsl.interpreter import InterpreterFunctions, impl, register_impls
from xdsl.ir import Dialect
from xdsl.irdl import irdl_op_definition, operand_def, result_def, traits_def
from xdsl.passes import ModulePass
from xdsl.pattern_rewriter import PatternRewriter, RewritePattern, op_type_rewrite_pattern

from deplodock.backend.cpp.device import add_helpers
from deplodock.dialects.kernel import ReduceRegistersOp
from deplodock.dialects.payload import element_type
from deplodock.dialects.support.assembly import SAME_TYPE, ElementwiseOp, LegalAt, PureOp
from deplodock.dialects.tensor import ReductionKind
from deplodock.passes.rewriting import rewrite_module


@irdl_op_definition
class ApproximateTanhOp(ElementwiseOp):
    """Elementwise hyperbolic tangent with a relative error of 2^-11. Legal at every level."""

    name = "approx.tanh"
    source, result = operand_def(SAME_TYPE), result_def(SAME_TYPE)
    assembly_format = "$source attr-dict `:` type($result)"


@irdl_op_definition
class ScaledTanhOp(PureOp):
    """Approximate tangent times a factor, as in soft-capped logits. Legal at the tile level only."""

    name = "approx.scaled_tanh"
    source, factor, result = operand_def(SAME_TYPE), operand_def(SAME_TYPE), result_def(SAME_TYPE)
    assembly_format = "$source `by` $factor attr-dict `:` type($result)"
    traits = traits_def(LegalAt(("tile",)))


@irdl_op_definition
class AbsmaxOp(PureOp):
    """Largest magnitude of the registers of one thread. Legal at the kernel level only."""

    name = "approx.absmax"
    source, result = operand_def(), result_def()
    assembly_format = "$source attr-dict `:` type($source) `->` type($result)"
    traits = traits_def(LegalAt(("kernel",)))


Approx = Dialect("approx", [ApproximateTanhOp, ScaledTanhOp, AbsmaxOp])


class ScaleTanh(RewritePattern):
    """Replaces `math.tanh` followed by `arith.mulf` by `approx.scaled_tanh`, in f32."""

    @op_type_rewrite_pattern
    def match_and_rewrite(self, op: MulfOp, rewriter: PatternRewriter, /) -> None:
        if isinstance(op.lhs.owner, TanhOp) and element_type(op.result.type) == f32:
            rewriter.replace(op, ScaledTanhOp(op.lhs.owner.operand, op.rhs))


class ApproximateTanh(RewritePattern):
    """Replaces `math.tanh` of f32 by `approx.tanh`."""

    @op_type_rewrite_pattern
    def match_and_rewrite(self, op: TanhOp, rewriter: PatternRewriter, /) -> None:
        if element_type(op.result.type) == f32 and any(True for _ in op.result.uses):
            rewriter.replace(op, ApproximateTanhOp(op.operand))


@dataclass(frozen=True)
class ApproximateTanhPass(ModulePass):
    """Replaces hyperbolic tangents of f32 by approximate ones, and fuses a multiplication of the result."""

    name = "tile-approximate-tanh"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        rewrite_module(op, [ScaleTanh()])
        rewrite_module(op, [ApproximateTanh()])


class FuseAbsmax(RewritePattern):
    """Replaces the maximum of `math.absf` over all registers of a thread by `approx.absmax`."""

    @op_type_rewrite_pattern
    def match_and_rewrite(self, op: ReduceRegistersOp, rewriter: PatternRewriter, /) -> None:
        magnitudes, result = op.source.owner, op.result.type
        if isinstance(magnitudes, AbsFOp) and op.kind.data == ReductionKind.MAX and result == VectorType(f32, [1]):
            rewriter.replace(op, AbsmaxOp(magnitudes.operand, result))


@dataclass(frozen=True)
class FuseAbsmaxPass(ModulePass):
    """Fuses the maximum over the registers of a thread with the computation of magnitudes."""

    name = "kernel-fuse-absmax"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        rewrite_module(op, [FuseAbsmax()])


AFTER_LAYOUTS = "tile-approximate-tanh:after=tile-assign-layouts"
AFTER_CONVERSION = "kernel-fuse-absmax:after=convert-tile-to-kernel"


def lower_scaled_tanh(out, op):
    """Lowers `approx.scaled_tanh` to `approx.tanh` and `arith.mulf` on registers."""
    return out.emit(MulfOp(out.emit(ApproximateTanhOp(out.of(op.source))), out.of(op.factor)))


add_helpers("""
//// tanh_approx
static __device__ float tanh_approx(float x) { float r; asm("tanh.approx.f32 %0, %1;" : "=f"(r) : "f"(x)); return r; }
//// host
{ return tanhf(x); }
//// absmax
static __device__ float absmax(float m, float x) {
  float r; asm("{.reg .f32 a; abs.f32 a, %2; max.NaN.f32 %0, %1, a;}" : "=f"(r) : "f"(m), "f"(x)); return r;
}
//// host
{ x = x < 0.0f ? -x : x; return m != m ? m : m < x || x != x ? x : m; }
""")


def print_tanh(scalars, op, operands, t):
    """Prints `approx.tanh` as a C++ expression.

    Args:
        scalars: the printer of scalar expressions.
        op: the operation.
        operands: the C++ of its operands.
        t: its type.
    """
    return scalars.helper("tanh_approx", operands)


def print_absmax(statements, op):
    """Prints `approx.absmax` as a C++ loop over the registers of the thread."""
    writer = statements.writer
    writer.use("absmax")
    result = writer.start(op.result, "0.0f")
    with writer.registers_loop(op.source.type.get_shape()[0]) as r:
        writer.line(f"{result[0].text} = absmax({result[0].text}, {writer.read(op.source, r).text});")


@register_impls
class ApproxFunctions(InterpreterFunctions):
    """Executes the operations in the interpreter's scalar domain."""

    def __init__(self, domain, sizes):
        self.domain = domain

    @impl(ApproximateTanhOp)
    def tanh(self, interpreter, op, args):
        return (self.domain.unary("math.tanh", args[0], element_type(op.result.type)),)

    @impl(ScaledTanhOp)
    def scaled_tanh(self, interpreter, op, args):
        element = element_type(op.result.type)
        return (self.domain.binary("arith.mulf", self.domain.unary("math.tanh", args[0], element), args[1], element),)

    @impl(AbsmaxOp)
    def absmax(self, interpreter, op, args):
        magnitudes = self.domain.unary("math.absf", args[0], element_type(op.result.type))
        return (self.domain.reduce(ReductionKind.MAX, magnitudes, (magnitudes.ndim - 1,), f32)[..., None],)
