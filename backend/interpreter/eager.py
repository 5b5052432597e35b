"""Functions that PyTorch computes, called while a program is executed in NumPy."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

import numpy as np
from xdsl.dialects import func
from xdsl.interpreter import Interpreter, InterpreterFunctions, PythonValues, impl, register_impls
from xdsl.ir import Attribute

from ...dialects.payload import shape_of
from ...dialects.support.calls import EAGER, is_eager
from ...errors import ExecutionError
from .domains import Array, TypedDomain
from .running import storage

Eager: TypeAlias = Mapping[str, Callable[[Sequence[Array]], Sequence[Array]]]
"""What computes the declared functions of a program, by name: arrays in, arrays out."""


def call_eager(function: func.FuncOp, eager: Eager, args: Sequence[Array], types: Sequence[Attribute]) -> list[Array]:
    """The results of a function that PyTorch computes, which have to be of `types`. Raises ExecutionError."""
    name, operator = function.sym_name.data, str(function.attributes[EAGER]).strip('"')
    if name not in eager:
        raise ExecutionError("left to PyTorch, which is not here", operator=operator)
    results = [np.asarray(r) for r in eager[name](args)]
    found = [(r.dtype, r.shape) for r in results]
    if found != [storage(t) for t in types]:
        given = ", ".join(f"{dtype}{list(shape)}" for dtype, shape in found)
        raise ExecutionError(f"PyTorch gives {given}, declared is {', '.join(map(str, types))}", operator=operator)
    return results


@register_impls
class EagerFunctions(InterpreterFunctions):
    """Calls in a program on whole tensors; those of declared functions go to `eager`."""

    def __init__(self, domain: TypedDomain, eager: Eager) -> None:
        self.domain = domain
        self.eager = eager

    @impl(func.CallOp)
    def call(self, interpreter: Interpreter, op: func.CallOp, args: PythonValues) -> PythonValues:
        callee = interpreter.get_op_for_symbol(op.callee)
        if not isinstance(callee, func.FuncOp) or not is_eager(callee):
            return interpreter.call_op(op.callee, args)
        if type(self.domain) is not TypedDomain:
            raise ExecutionError("left to PyTorch, which computes on values of their own type only")
        full = [np.broadcast_to(a, shape_of(v.type)) for a, v in zip(args, op.operands, strict=True)]
        return tuple(call_eager(callee, self.eager, full, op.result_types))
