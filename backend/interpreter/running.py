"""Parts that all executors share.

- The arguments of a program are checked (`check_arguments`).
- Errors get the name and the source location of the failing op (`Position`).
- Operations of the host program are executed (`HostFunctions`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeAlias

import numpy as np
from xdsl.dialects.func import CallOp, FuncOp
from xdsl.interpreter import Interpreter, InterpreterFunctions, PythonValues, impl, register_impls
from xdsl.ir import Attribute, Operation
from xdsl.utils.exceptions import InterpretationError

from ...dialects.host import BindSizeOp
from ...dialects.shapes.binding import Sizes, bind_sizes
from ...dialects.support.calls import EAGER, is_eager
from ...dialects.support.locations import location_text
from ...errors import CompileError, ExecutionError
from ...plugins import plugins
from ..dtypes import numpy_dtype
from .domains import Array, RealDomain, TypedDomain


def make_domain(name: str) -> TypedDomain:
    """Returns a scalar domain, the arithmetic of an interpreter: `typed`, `real` or `exact`.

    `typed` computes in the types of the program, `real` in float64 in place of all floats, `exact` in residues modulo
    two primes.

    Raises:
        ExecutionError: for any other name.
    """
    from .exact import ExactDomain

    domains = {d.name: d for d in (TypedDomain, RealDomain, ExactDomain)}
    if name not in domains:
        raise ExecutionError(f"expected a scalar domain typed, real or exact, but got {name}")
    return domains[name]()


class Position(Interpreter.Listener):
    """Records the ops that are being executed, so that errors can name the failing op.

    Fields:
        stack: ops that have started and not ended, outermost first.
        done: called with each op that ends, for progress reports.
    """

    def __init__(self) -> None:
        self.stack: list[Operation] = []
        self.done: Callable[[Operation], None] | None = None

    @property
    def op(self) -> Operation | None:
        """The innermost op that is being executed, or None."""
        return self.stack[-1] if self.stack else None

    def will_interpret_op(self, op: Operation, args: tuple[Any, ...]) -> None:
        self.stack.append(op)

    def did_interpret_op(self, op: Operation, results: tuple[Any, ...]) -> None:
        self.stack.pop()
        if self.done is not None:
            self.done(op)

    @contextmanager
    def located(self) -> Iterator[None]:
        """Adds the name and the source location of the failing op to errors of the body.

        Exceptions that are no CompileError become an ExecutionError.
        """
        try:
            with np.errstate(all="ignore"):
                yield
        except CompileError as error:
            # xDSL adds the text of the module once per region.
            error.__notes__ = []
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
    """Returns the NumPy type and the shape of a tensor, memref or scalar type; `sizes` are its symbol values."""
    return numpy_dtype(t), (sizes or Sizes()).shape(t)  # pyright: ignore[reportUnknownArgumentType]


def check_arguments(types: Sequence[Attribute], args: Sequence[Array], sizes: Sizes | None = None) -> list[Array]:
    """Returns the arguments of `@main` as NumPy arrays.

    Args:
        types: argument types of `@main`.
        args: arguments.
        sizes: values of the symbols in the types.

    Raises:
        ExecutionError: if an argument is missing, or does not have exactly its type and shape.
    """
    if len(args) != len(types):
        raise ExecutionError(f"expected {len(types)} arguments of @main, but got {len(args)}")
    checked: list[Array] = []
    for i, (arg, t) in enumerate(zip(args, types, strict=True)):
        array = np.asarray(arg)
        dtype, shape = storage(t, sizes)
        if array.shape != shape or array.dtype != dtype:
            actual = f"{array.dtype}{list(array.shape)}"
            raise ExecutionError(f"expected {dtype}{list(shape)}, but got {actual}", argument=f"argument {i} of @main")
        checked.append(array)
    return checked


def bind_arguments(main: FuncOp, args: Sequence[Array]) -> tuple[list[Array], Sizes]:
    """Returns the arguments of `@main` as NumPy arrays, and the sizes that their shapes set.

    Args:
        main: `@main` of a program above the kernel level.
        args: arguments.

    Raises:
        ExecutionError: if an argument is missing, or does not have exactly its type and shape.
        ShapeError: if the shape of an argument does not fit the symbols.
    """
    sizes = bind_sizes(main, [np.shape(a) for a in args])
    return check_arguments(list(main.function_type.inputs), args, sizes), sizes


ENTRY_POINT_GROUP = "deplodock.interpreters"
"""Entry point group of plugins that execute third-party ops.

Each entry point is a subclass of `InterpreterFunctions`. Its constructor takes a scalar domain and the values of the
symbols of a program (`Sizes`).
"""


def register_plugins(interpreter: Interpreter, domain: TypedDomain, sizes: Sizes) -> None:
    """Registers the ops of installed plugins with an interpreter.

    Args:
        interpreter: interpreter that gets the ops.
        domain: scalar domain.
        sizes: values of the symbols of the program.
    """
    for load in plugins(ENTRY_POINT_GROUP, (), "interpreter").values():
        interpreter.register_implementations(load()(domain, sizes))


Eager: TypeAlias = Mapping[str, Callable[[Sequence[Array]], Sequence[Array]]]
"""Implementations of the functions that a program leaves to PyTorch, by name. They take and return arrays."""


def call_eager(
    name: str,
    eager: Eager,
    args: Sequence[Array],
    result_types: Sequence[tuple[np.dtype[Any], tuple[int, ...]]],
    operator: str | None = None,
) -> list[Array]:
    """Calls a function that the program leaves to PyTorch.

    Args:
        name: name of the function in the program.
        eager: implementations by name.
        args: arguments.
        result_types: NumPy type and shape of each result, as the program declares them.
        operator: name for error messages; None for `name`.

    Raises:
        ExecutionError: if there is no implementation, or a result does not have its declared type and shape.
    """
    if name not in eager:
        raise ExecutionError(
            "left to PyTorch, but there is no PyTorch implementation to call", operator=operator or name
        )
    results = [np.asarray(r) for r in eager[name](args)]
    actual_types = [(r.dtype, r.shape) for r in results]
    if actual_types != [*result_types]:
        actual, expected = (
            ", ".join(f"{dtype}{list(shape)}" for dtype, shape in types) for types in (actual_types, result_types)
        )
        raise ExecutionError(f"expected results {expected}, but PyTorch returned {actual}", operator=operator or name)
    return results


@register_impls
class HostFunctions(InterpreterFunctions):
    """Operations of the host program: `func.call` and `host.bind_size`.

    Calls of functions without a body go to the implementations in `eager`. A size is bound in `sizes`, which all
    interpreters of the program share.
    """

    def __init__(self, domain: TypedDomain, eager: Eager, sizes: Sizes) -> None:
        self.domain, self.eager, self.sizes = domain, eager, sizes

    @impl(BindSizeOp)
    def bind(self, interpreter: Interpreter, op: BindSizeOp, args: PythonValues) -> PythonValues:
        self.sizes.bind(op.symbol, int(args[0].item()), location_text(op))
        return ()

    @impl(CallOp)
    def call(self, interpreter: Interpreter, op: CallOp, args: PythonValues) -> PythonValues:
        callee = interpreter.get_op_for_symbol(op.callee)
        if not isinstance(callee, FuncOp) or not is_eager(callee):
            return interpreter.call_op(op.callee, args)
        if type(self.domain) is not TypedDomain:
            raise ExecutionError(
                f"expected the typed domain for a function that is left to PyTorch, but got {self.domain.name}"
            )
        full = [np.broadcast_to(a, self.sizes.shape(v.type)) for a, v in zip(args, op.operands, strict=True)]
        name, operator = callee.sym_name.data, str(callee.attributes[EAGER]).strip('"')
        return tuple(call_eager(name, self.eager, full, [storage(t, self.sizes) for t in op.result_types], operator))
