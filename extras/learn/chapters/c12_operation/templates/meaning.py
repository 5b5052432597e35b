"""The operation `mine.squared_relu`, max(x, 0) ** 2, and its meaning."""

from typing import Any

from xdsl.interpreter import Interpreter, InterpreterFunctions, impl, register_impls
from xdsl.ir import Dialect
from xdsl.irdl import irdl_op_definition, operand_def, result_def

from deplodock.dialects.payload import element_type
from deplodock.dialects.support.assembly import SAME_TYPE, PureOp
from deplodock.plugins import declare


@irdl_op_definition
class SquaredReluOp(PureOp):
    """Elementwise max(x, 0) ** 2."""

    name = "mine.squared_relu"
    # One operand `x` and one result `result`, of the same type.
    x: Any = ...
    result: Any = ...
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
        # args[0] has the elements of %x. Compute with the methods of self.domain:
        #   self.domain.constant(1.5, element)
        #   self.domain.binary("arith.addf", a, b, element)
        return (...,)


declare("deplodock.interpreters", "mine", MineFunctions)
