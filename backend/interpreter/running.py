"""What all executors share: finding `@main`, checking its arguments, and saying where an execution failed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from xdsl.dialects.builtin import ModuleOp
from xdsl.dialects.func import CallOp, FuncOp
from xdsl.interpreter import Interpreter
from xdsl.ir import Attribute, Operation
from xdsl.utils.exceptions import InterpretationError

from ...dialects.shapes.binding import Sizes
from ...dialects.support.locations import location_text
from ...errors import CompileError, ExecutionError
from ..dtypes import numpy_dtype
from .domains import Array, RealDomain, TypedDomain


def make_domain(name: str) -> TypedDomain:
    """The scalar domain called `name`; raises ExecutionError for another name."""
    if name == "typed":
        return TypedDomain()
    if name == "real":
        return RealDomain()
    if name == "exact":
        from .exact import ExactDomain

        return ExactDomain()
    raise ExecutionError(f"no scalar domain {name!r}; there are typed, real and exact")


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


def main_function(module: ModuleOp) -> FuncOp:
    """The function `@main`, or else the only one with a body that no other function calls; raises ExecutionError if
    there is none."""
    functions = [op for op in module.ops if isinstance(op, FuncOp) and not op.is_declaration]
    called = {c.callee.string_value() for f in functions for c in f.walk() if isinstance(c, CallOp)}
    for op in functions:
        if op.sym_name.data == "main":
            return op
    free = [op for op in functions if op.sym_name.data not in called]
    if len(free) == 1:
        return free[0]
    names = ", ".join(f"@{op.sym_name.data}" for op in free)
    several = f": which of {names} is the program?" if free else ""
    raise ExecutionError(f"the module has no function @main{several}")


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
