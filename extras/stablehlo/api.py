"""`deplodock.from_jax` and its result, `JaxFunction`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from typing import TYPE_CHECKING, Any

import jax
import numpy as np
import torch

from ...errors import DeplodockError, ShapeError, presented
from ...frontend.capture.arrays import to_torch
from ...frontend.modules import CompiledModule, compile_module
from .importer import Imported, Options, imported

if TYPE_CHECKING:
    from ...frontend.compilation import Compilation
    from ...frontend.executors import Executor

_UNSIGNED = {torch.uint16: torch.int16, torch.uint32: torch.int32, torch.uint64: torch.int64, torch.uint8: torch.int8}
"""Unsigned type -> the type of the same bits in the program."""


class JaxFunction:
    """A compiled function of JAX, called with JAX or NumPy arrays like the function.

    Attributes:
        imported: the program of the tensor dialect, as it was imported.
        program: the compiled program.
    """

    def __init__(self, program: Imported, compiled: CompiledModule, inputs: Any, results: Any) -> None:
        self.imported, self.program = program, compiled
        self._inputs, self._results = inputs, results
        self._tables = [to_torch(table) for table in program.tables]

    def __call__(self, *args: Any) -> Any:
        """Runs the program.

        Args:
            args: arrays, nested in the tuples, lists and dictionaries of the example arguments.

        Returns:
            the result of the function, with JAX arrays.

        Raises:
            ShapeError: the arguments do not have the types and shapes of the example arguments.
        """
        try:
            leaves, structure = jax.tree.flatten(args)
            if structure != self._inputs:
                raise ShapeError(f"expected arguments of the structure {self._inputs}, but got {structure}")
            results = self.program.run([*map(to_tensor, leaves), *self._tables])
        except DeplodockError as error:
            raise presented(error) from error.__cause__
        unsigned = [t.unsigned for t in self.imported.results]
        return jax.tree.unflatten(self._results, [to_jax(t, u) for t, u in zip(results, unsigned, strict=True)])

    @property
    def compilation(self) -> Compilation:
        """The program at all levels of IR, from the tensor level on."""
        return self.program.compilation

    @property
    def executor(self) -> Executor:
        """The executor that runs the program."""
        return self.program.executor

    def ir(self, level: str) -> str:
        """Returns the text of the program at a level: `tensor`, `loop`, `tile`, `kernel`, or `cuda` (`cpp` for a
        CPU)."""
        return self.program.ir(level)

    @property
    def pipeline(self) -> str:
        """The passes from the tensor level to the kernel level, as one argument for `dl-opt -p`."""
        return self.compilation.pipeline()


def to_tensor(array: Any) -> torch.Tensor:
    """Returns an array as a tensor of the type that the program has, without a copy where the memory permits it."""
    if isinstance(array, jax.Array):
        tensor = torch.from_dlpack(array)
    else:
        host = np.asarray(array)
        if host.dtype in (np.float64, np.int64, np.uint64) and not jax.config.read("jax_enable_x64"):
            host = host.astype(host.dtype.str[:2] + "4")
        is_plain = host.dtype.kind in "fiub" and host.flags.writeable and host.flags.c_contiguous and host.size
        tensor = torch.from_numpy(host) if is_plain else to_torch(host)
    return tensor.view(_UNSIGNED[tensor.dtype]) if tensor.dtype in _UNSIGNED else tensor


def to_jax(tensor: torch.Tensor, unsigned: bool) -> jax.Array:
    """Returns a tensor as a JAX array, without a copy. `unsigned`: whether its integers are unsigned."""
    if unsigned:
        tensor = tensor.view(next(u for u, signed in _UNSIGNED.items() if signed == tensor.dtype))
    return jax.dlpack.from_dlpack(tensor)


def lowered(function: Callable[..., Any], args: Sequence[Any]) -> Any:
    """Returns the lowering of a function by JAX, with all of its arguments."""

    @wraps(function)
    def call(*args: Any) -> Any:
        return function(*args)

    return jax.jit(call, keep_unused=True).trace(*args).lower(lowering_platforms=("cpu",))


def from_jax(function: Callable[..., Any], *args: Any, fast_math: bool = False, **options: Any) -> JaxFunction:
    """Compiles a function of JAX for arguments like the example arguments.

    ```
    f = deplodock.from_jax(lambda x, w: jax.nn.relu(x @ w), x, w)
    y = f(x, w)
    ```

    Args:
        function: a function of arrays, `jax.jit` or `jax.grad` of one included.
        args: example arguments: arrays, numbers or `jax.ShapeDtypeStruct`, nested in tuples, lists and dictionaries.
        fast_math: whether exponentials, quotients and square roots may be approximated.
        options: options of `compile_module`, such as `target` and `executor`.

    Returns:
        the compiled function.

    Raises:
        CompileError: an operation or an option is not supported.
    """
    try:
        lowering = lowered(function, args)
        program = imported(lowering.compiler_ir("stablehlo"), Options(fast_math))
        compiled = compile_module(program.module, level="tensor", **options)
    except DeplodockError as error:
        raise presented(error) from error.__cause__
    structure = jax.tree.structure(args)
    return JaxFunction(program, compiled, structure, lowering.out_tree)
