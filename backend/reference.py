"""Reference interpreter: executes a program at the tensor, loop or tile level with NumPy.

The results of all other executors are compared with it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
from xdsl.dialects.builtin import ModuleOp
from xdsl.interpreter import Interpreter
from xdsl.interpreters.func import FuncFunctions

from ..dialects.payload import element_type
from ..dialects.shapes.binding import Sizes
from ..dialects.support.calls import main_function
from ..progress import steps
from .interpreter.domains import Array, TypedDomain
from .interpreter.loop import LoopFunctions
from .interpreter.payload import PayloadFunctions
from .interpreter.running import Eager, HostFunctions, Position, bind_arguments, make_domain, register_plugins
from .interpreter.tensor import TensorFunctions
from .interpreter.tile import TileFunctions

DomainName = Literal["typed", "real", "exact"]


def run(
    module: ModuleOp,
    args: Sequence[Array],
    domain: DomainName | TypedDomain = "typed",
    *,
    chunk: int | None = None,
    eager: Eager | None = None,
    listeners: Sequence[Interpreter.Listener] = (),
) -> list[Array]:
    """Executes `@main` of a program of tensor, loop and tile ops.

    Args:
        module: program at the tensor, loop or tile level.
        args: arrays of exactly the shapes and types of the arguments of `@main` (bf16 is `ml_dtypes.bfloat16`). Their
            shapes set the symbols of the program.
        domain: representation of floats: their element type (`typed`), float64 (`real`), or residues as uint64, which
            may only be compared for equality (`exact`).
        chunk: iterations per chunk of a staged reduction. The partial results are merged by its rescaling. None
            computes each stage over its whole range.
        eager: implementations of the functions that the program leaves to PyTorch, by name.
        listeners: objects that are called before and after each op.

    Returns:
        The results of `@main`, in the representation of `domain`.

    Raises:
        ExecutionError: if an op cannot be executed; it names the op and its source location.
        ShapeError: if the shape of an argument does not fit the symbols.
    """
    scalars = make_domain(domain) if isinstance(domain, str) else domain
    main = main_function(module)
    checked, sizes = bind_arguments(main, args)
    values = [scalars.encode(a, element_type(t)) for a, t in zip(checked, main.function_type.inputs, strict=True)]
    position = Position()
    interpreter = Interpreter(module, listeners=(position, *listeners))
    interpreter.register_implementations(FuncFunctions())
    interpreter.register_implementations(HostFunctions(scalars, eager or {}, sizes), override=True)
    interpreter.register_implementations(PayloadFunctions(scalars, sizes))
    interpreter.register_implementations(TensorFunctions(scalars, sizes))
    interpreter.register_implementations(LoopFunctions(scalars, chunk, sizes))
    interpreter.register_implementations(TileFunctions(scalars, sizes))
    register_plugins(interpreter, scalars, sizes)
    operations = main.body.block
    with position.located(), steps("reference", len(operations.ops), "operations") as step:
        position.done = lambda op: step() if op.parent is operations else None
        results = interpreter.call_op(main, tuple(values))
    return [_result(scalars, r, t, sizes) for r, t in zip(results, main.function_type.outputs, strict=True)]


def _result(domain: TypedDomain, value: Array, t: Any, sizes: Sizes) -> Array:
    return np.array(np.broadcast_to(value, sizes.shape(t)), dtype=domain.dtype(element_type(t)))
