"""What all executors share: checking arguments, saying where an execution failed, and calling the functions that
PyTorch computes."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeAlias

import numpy as np
from xdsl.dialects.func import CallOp, FuncOp
from xdsl.interpreter import Interpreter, InterpreterFunctions, PythonValues, impl, register_impls
from xdsl.ir import Attribute, Operation
from xdsl.utils.exceptions import InterpretationError

from ...dialects.payload import shape_of
from ...dialects.shapes.binding import Sizes
from ...dialects.support.calls import EAGER, is_eager
from ...dialects.support.locations import location_text
from ...errors import CompileError, ExecutionError
from ...plugins import plugins
from ..dtypes import numpy_dtype
from .domains import Array, RealDomain, TypedDomain


def make_domain(name: str) -> TypedDomain:
    """The scalar domain called `name`; raises ExecutionError for another name."""
    from .exact import ExactDomain

    domains = {d.name: d for d in (TypedDomain, RealDomain, ExactDomain)}
    if name not in domains:
        raise ExecutionError(f"no scalar domain {name!r}; there are typed, real and exact")
    return domains[name]()


class Position(Interpreter.Listener):
    """Remembers the ops that are being executed, outermost first, for errors."""

    def __init__(self) -> None:
        self.stack: list[Operation] = []
        self.done: Callable[[Operation], None] | None = None

    @property
    def op(self) -> Operation | None:
        """The innermost op that has started and not ended."""
        return self.stack[-1] if self.stack else None

    def will_interpret_op(self, op: Operation, args: tuple[Any, ...]) -> None:
        self.stack.append(op)

    def did_interpret_op(self, op: Operation, results: tuple[Any, ...]) -> None:
        self.stack.pop()
        if self.done is not None:
            self.done(op)

    @contextmanager
    def located(self) -> Iterator[None]:
        """Give errors the name and the place of the op at fault; other exceptions become ExecutionError."""
        try:
            with np.errstate(all="ignore"):
                yield
        except CompileError as error:
            error.__notes__ = []  # the module as text, added upstream once per region
            if self.op is not None:
                error.operator = error.operator or self.op.name
                error.location = error.location or location_text(self.op)
            raise
        except (InterpretationError, ValueError, TypeError, IndexError, KeyError, MemoryError) as error:
            raise ExecutionError(
                f"not executed: {type(error).__name__}: {error}",
                operator=self.op.name if self.op else None,
                location=location_text(self.op) if self.op else None,
            ) from error


def storage(t: Attribute, sizes: Sizes | None = None) -> tuple[np.dtype[Any], tuple[int, ...]]:
    """The NumPy type and the shape of a tensor, memref or scalar type, where symbols have the values `sizes`."""
    return numpy_dtype(t), (sizes or Sizes()).shape(t)  # pyright: ignore[reportUnknownArgumentType]


def check_arguments(wanted: Sequence[Attribute], args: Sequence[Array], sizes: Sizes | None = None) -> list[Array]:
    """`args` as arrays of exactly the types `wanted` at these `sizes`; ExecutionError names one that is not."""
    if len(args) != len(wanted):
        raise ExecutionError(f"@main takes {len(wanted)} arguments, not {len(args)}")
    checked: list[Array] = []
    for i, (arg, t) in enumerate(zip(args, wanted, strict=True)):
        array = np.asarray(arg)
        dtype, shape = storage(t, sizes)
        if array.shape != shape or array.dtype != dtype:
            found = f"{array.dtype}{list(array.shape)}"
            raise ExecutionError(f"needs {dtype}{list(shape)}, got {found}", argument=f"argument {i} of @main")
        checked.append(array)
    return checked


ENTRY_POINT_GROUP = "deplodock.interpreters"
"""Entry points of this group, each a class of `InterpreterFunctions` that is made from a scalar domain and the sizes of
a program, execute third-party ops."""


def register_plugins(interpreter: Interpreter, domain: TypedDomain, sizes: Sizes) -> None:
    """Lets an interpreter execute the operations of plugins."""
    for load in plugins(ENTRY_POINT_GROUP, (), "interpreter").values():
        interpreter.register_implementations(load()(domain, sizes))


Eager: TypeAlias = Mapping[str, Callable[[Sequence[Array]], Sequence[Array]]]
"""What computes the declared functions of a program, by name: arrays in, arrays out."""


def call_eager(
    name: str,
    eager: Eager,
    args: Sequence[Array],
    wanted: Sequence[tuple[np.dtype[Any], tuple[int, ...]]],
    operator: str | None = None,
) -> list[Array]:
    """The results of a function that PyTorch computes, which have to be of the types and shapes `wanted`. Raises
    ExecutionError that names the `operator`, or the function."""
    if name not in eager:
        raise ExecutionError("left to PyTorch, which is not here", operator=operator or name)
    results = [np.asarray(r) for r in eager[name](args)]
    found = [(r.dtype, r.shape) for r in results]
    if found != [*wanted]:
        given, declared = (", ".join(f"{dtype}{list(shape)}" for dtype, shape in each) for each in (found, wanted))
        raise ExecutionError(f"PyTorch gives {given}, declared is {declared}", operator=operator or name)
    return results


@register_impls
class EagerFunctions(InterpreterFunctions):
    """Calls in a program on whole tensors; those of declared functions go to `eager`."""

    def __init__(self, domain: TypedDomain, eager: Eager) -> None:
        self.domain = domain
        self.eager = eager

    @impl(CallOp)
    def call(self, interpreter: Interpreter, op: CallOp, args: PythonValues) -> PythonValues:
        callee = interpreter.get_op_for_symbol(op.callee)
        if not isinstance(callee, FuncOp) or not is_eager(callee):
            return interpreter.call_op(op.callee, args)
        if type(self.domain) is not TypedDomain:
            raise ExecutionError("left to PyTorch, which computes on values of their own type only")
        full = [np.broadcast_to(a, shape_of(v.type)) for a, v in zip(args, op.operands, strict=True)]
        name, operator = callee.sym_name.data, str(callee.attributes[EAGER]).strip('"')
        return tuple(call_eager(name, self.eager, full, [storage(t) for t in op.result_types], operator))
