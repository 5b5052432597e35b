"""Execute a program at the tensor, loop or tile level with NumPy: what every other executor is compared with."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
from xdsl.dialects.builtin import ModuleOp, TensorType
from xdsl.dialects.func import FuncOp
from xdsl.interpreter import Interpreter
from xdsl.interpreters.func import FuncFunctions
from xdsl.ir import Operation
from xdsl.utils.exceptions import InterpretationError

from ..dialects.locations import location_text
from ..dialects.payload import element_type, shape_of
from ..errors import CompileError, ExecutionError
from .interpreter.domains import Array, RealDomain, TypedDomain, numpy_dtype
from .interpreter.loop import LoopFunctions
from .interpreter.payload import PayloadFunctions
from .interpreter.tensor import TensorFunctions
from .interpreter.tile import TileFunctions

DomainName = Literal["typed", "real", "exact"]


def make_domain(name: str) -> TypedDomain:
    """The scalar domain called `name`; raises ExecutionError for another name."""
    if name == "typed":
        return TypedDomain()
    if name == "real":
        return RealDomain()
    if name == "exact":
        from .interpreter.exact import ExactDomain

        return ExactDomain()
    raise ExecutionError(f"no scalar domain {name!r}; there are typed, real and exact")


class _Position(Interpreter.Listener):
    """Remembers the op that is being executed, for errors."""

    op: Operation | None = None

    def will_interpret_op(self, op: Operation, args: tuple[Any, ...]) -> None:
        self.op = op


def main_function(module: ModuleOp) -> FuncOp:
    """The function `@main`; raises ExecutionError if there is none."""
    for op in module.ops:
        if isinstance(op, FuncOp) and op.sym_name.data == "main":
            return op
    raise ExecutionError("the module has no function @main")


def check_arguments(main: FuncOp, args: Sequence[Array]) -> list[Array]:
    """`args` as arrays of exactly the types of `main`'s first arguments; raises ExecutionError for another."""
    wanted = list(main.function_type.inputs)
    if len(args) != len(wanted):
        raise ExecutionError(f"@main takes {len(wanted)} arguments, not {len(args)}")
    checked: list[Array] = []
    for i, (arg, t) in enumerate(zip(args, wanted, strict=True)):
        array = np.asarray(arg)
        dtype = numpy_dtype(element_type(t))
        if array.shape != shape_of(t) or array.dtype != dtype:
            found = f"{array.dtype}{list(array.shape)}"
            raise ExecutionError(f"needs {dtype}{list(shape_of(t))}, got {found}", argument=f"argument {i} of @main")
        checked.append(array)
    return checked


def run(
    module: ModuleOp,
    args: Sequence[Array],
    domain: DomainName | TypedDomain = "typed",
    *,
    chunk: int | None = None,
) -> list[Array]:
    """Execute `@main` of a program of tensor, loop and tile ops.

    `args` are arrays of exactly the shapes and types of its arguments (bf16 is `ml_dtypes.bfloat16`). The results
    come in the representation of the scalar `domain`: the element type itself (`typed`), float64 for every float
    (`real`), or uint64 that may only be compared for equality (`exact`). `chunk` computes staged reductions in chunks
    of that many iterations, merged by their transport. Raises ExecutionError naming the op and its place.
    """
    scalars = make_domain(domain) if isinstance(domain, str) else domain
    main = main_function(module)
    values = [
        scalars.encode(a, element_type(t))
        for a, t in zip(check_arguments(main, args), main.function_type.inputs, strict=True)
    ]
    position = _Position()
    interpreter = Interpreter(module, listeners=(position,))
    interpreter.register_implementations(FuncFunctions())
    interpreter.register_implementations(PayloadFunctions(scalars))
    interpreter.register_implementations(TensorFunctions(scalars))
    interpreter.register_implementations(LoopFunctions(scalars, chunk))
    interpreter.register_implementations(TileFunctions(scalars))
    try:
        with np.errstate(all="ignore"):
            results = interpreter.call_op(main, tuple(values))
    except CompileError as error:
        if position.op is not None:
            error.operator = error.operator or position.op.name
            error.location = error.location or location_text(position.op)
        raise
    except (InterpretationError, ValueError, TypeError, IndexError, KeyError, MemoryError) as error:
        op = position.op
        raise ExecutionError(
            f"not executed: {type(error).__name__}: {error}",
            operator=op.name if op else None,
            location=location_text(op) if op else None,
        ) from error
    return [_result(scalars, r, t) for r, t in zip(results, main.function_type.outputs, strict=True)]


def _result(domain: TypedDomain, value: Array, t: Any) -> Array:
    assert isinstance(t, TensorType) or not shape_of(t)
    return np.array(np.broadcast_to(value, shape_of(t)), dtype=domain.dtype(element_type(t)))
