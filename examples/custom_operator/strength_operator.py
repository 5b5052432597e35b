"""Support for an operator of `torch.library` in a package: its op, conversion from torch, interpreter and lowering."""

from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.arith import AddfOp
from xdsl.dialects.builtin import ModuleOp
from xdsl.interpreter import Interpreter, InterpreterFunctions, impl, register_impls
from xdsl.ir import Dialect, SSAValue
from xdsl.irdl import IRDLOperation, irdl_op_definition, operand_def, result_def
from xdsl.passes import ModulePass
from xdsl.pattern_rewriter import PatternRewriter, RewritePattern, op_type_rewrite_pattern

from deplodock.dialects.tensor.builder import Builder
from deplodock.passes.convert.torch_to_tensor.registry import decomposes
from deplodock.passes.rewriting import rewrite_module


@irdl_op_definition
class TwiceOp(IRDLOperation):
    """Twice a tensor: `strength.twice %x` is `%x + %x`."""

    name = "strength.twice"
    source, result = operand_def(), result_def()
    assembly_format = "$source attr-dict `:` type($source) `->` type($result)"


Strength = Dialect("strength", [TwiceOp])


@decomposes("strength.twice")
def twice(b: Builder, self: SSAValue) -> SSAValue:
    """Converts the PyTorch operator to `strength.twice`, in the type that arithmetic uses (f32 for f16 and bf16)."""
    x = b.working(self)
    return b.insert(TwiceOp(operands=[x], result_types=[x.type]))


@register_impls
class StrengthFunctions(InterpreterFunctions):
    """Executes `strength.twice` in the interpreter's scalar domain: floats, float64, or residues modulo two primes."""

    def __init__(self, domain, sizes) -> None:
        self.domain = domain

    @impl(TwiceOp)
    def twice(self, interpreter: Interpreter, op: TwiceOp, args: tuple) -> tuple:
        return (self.domain.binary("arith.addf", args[0], args[0], op.result.type.element_type),)


class LowerTwice(RewritePattern):
    """Replaces `strength.twice %x` by `arith.addf %x, %x`."""

    @op_type_rewrite_pattern
    def match_and_rewrite(self, op: TwiceOp, rewriter: PatternRewriter, /) -> None:
        rewriter.replace(op, AddfOp(op.source, op.source))


@dataclass(frozen=True)
class LowerStrengthPass(ModulePass):
    """Lowers the ops of the dialect to `arith` ops, which all lower levels support."""

    name = "lower-strength"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        rewrite_module(op, [LowerTwice()])


INSERTION = "lower-strength:after=convert-torch-to-tensor"
