"""Execute a program at the tensor, loop or tile level with NumPy: what every other executor is compared with."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import numpy as np
from xdsl.dialects.builtin import ModuleOp
from xdsl.interpreter import Interpreter
from xdsl.interpreters.func import FuncFunctions

from ..dialects.payload import element_type, shape_of
from .interpreter.domains import Array, TypedDomain
from .interpreter.loop import LoopFunctions
from .interpreter.payload import PayloadFunctions
from .interpreter.running import Position, check_arguments, main_function, make_domain
from .interpreter.tensor import TensorFunctions
from .interpreter.tile import TileFunctions

DomainName = Literal["typed", "real", "exact"]


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
    inputs = list(main.function_type.inputs)
    values = [scalars.encode(a, element_type(t)) for a, t in zip(check_arguments(inputs, args), inputs, strict=True)]
    position = Position()
    interpreter = Interpreter(module, listeners=(position,))
    interpreter.register_implementations(FuncFunctions())
    interpreter.register_implementations(PayloadFunctions(scalars))
    interpreter.register_implementations(TensorFunctions(scalars))
    interpreter.register_implementations(LoopFunctions(scalars, chunk))
    interpreter.register_implementations(TileFunctions(scalars))
    with position.located():
        results = interpreter.call_op(main, tuple(values))
    return [_result(scalars, r, t) for r, t in zip(results, main.function_type.outputs, strict=True)]


def _result(domain: TypedDomain, value: Array, t: Any) -> Array:
    return np.array(np.broadcast_to(value, shape_of(t)), dtype=domain.dtype(element_type(t)))
