# judged: compute with the methods of self.domain
"""The operation `mine.squared_relu`, max(x, 0) ** 2, and its meaning."""

from typing import Any

import numpy as np
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
        return (np.maximum(args[0], 0) ** 2,)


declare("deplodock.interpreters", "mine", MineFunctions)
