"""`deplodock.from_jax` and its result, `JaxFunction`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import wraps
from typing import TYPE_CHECKING, Any

import jax
from jax import export
from jaxlib.mlir import ir

from ...errors import DeplodockError, ShapeError, presented
from ...frontend.capture.arrays import to_torch
from ...frontend.inspection import Inspected
from ...frontend.modules import CompiledModule, compile_module
from .arrays import to_jax, to_tensor
from .files import of_export
from .importer import Imported, Options, imported

if TYPE_CHECKING:
    from ...frontend.compilation import Compilation
    from ...frontend.executors import Executor


class JaxFunction(Inspected):
    """A compiled function of JAX, called with JAX or NumPy arrays like the function.

    Attributes:
        imported: the program of the tensor dialect, as it was imported.
        program: the compiled program.
    """

    def __init__(self, program: Imported, compiled: CompiledModule, signature: Signature) -> None:
        self.imported, self.program = program, compiled
        self._signature = signature
        self._tables = [to_torch(table) for table in program.tables]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Runs the program.

        Args:
            args: arrays, nested in the tuples, lists and dictionaries of the example arguments.
            kwargs: arguments by name of a function that was exported with them.

        Returns:
            the result of the function, with JAX arrays.

        Raises:
            ShapeError: the arguments do not have the types and shapes of the example arguments.
        """
        try:
            leaves = self._signature.leaves(args, kwargs)
            results = self.program.run([*map(to_tensor, leaves), *self._tables])
        except DeplodockError as error:
            raise presented(error) from error.__cause__
        unsigned = [t.unsigned for t in self.imported.results]
        arrays = [to_jax(*r) for r in zip(results, unsigned, self._signature.types, strict=True)]
        return jax.tree.unflatten(self._signature.results, arrays)

    def __repr__(self) -> str:
        """Returns the signature of the program, its target and its executor."""
        inputs, results = (", ".join(map(str, types)) for types in (self.imported.inputs, self.imported.results))
        where = f"target {self.compilation.target}, executor {self.executor.name}"
        return f"<deplodock program ({inputs}) -> ({results}), {where}>"

    @property
    def compilation(self) -> Compilation:
        """The program at all levels of IR, from the tensor level on."""
        return self.program.compilation

    @property
    def executor(self) -> Executor:
        """The executor that runs the program."""
        return self.program.executor

    def check(self) -> None:
        """Lowers the program to the kernel level. Raises CompileError if a schedule is not supported."""
        self.compilation.at("kernel")


@dataclass(frozen=True)
class Signature:
    """Structure of the arguments and of the results.

    Attributes:
        arguments: structure of the pair of positional and named arguments.
        results: structure of the result.
        types: data types of the results.
        used: numbers of the arrays that are arguments of the program.
    """

    arguments: Any
    results: Any
    types: Sequence[Any]
    used: Sequence[int]

    def leaves(self, args: Any, kwargs: Any) -> list[Any]:
        """Returns the arrays of a call that are arguments of the program. Raises ShapeError for another structure."""
        leaves, structure = jax.tree.flatten((args, kwargs))
        if structure != self.arguments:
            raise ShapeError(f"expected arguments of the structure {self.arguments}, but got {structure}")
        return [leaves[n] for n in self.used]


def is_symbolic(args: Any) -> bool:
    """Returns true if a size of the example arguments is a symbol of `jax.export.symbolic_shape`."""
    return any(export.is_symbolic_dim(n) for leaf in jax.tree.leaves(args) for n in getattr(leaf, "shape", ()))


def lowered(function: Callable[..., Any] | export.Exported, args: Sequence[Any]) -> tuple[ir.Module, Signature]:
    """Returns the StableHLO module of a function.

    Args:
        function: a function of arrays, or an artifact of `jax.export`.
        args: example arguments. With a symbolic size the function is exported.
    """
    if not isinstance(function, export.Exported):
        original = function

        @wraps(original)
        def call(*args: Any) -> Any:
            return original(*args)

        jitted = jax.jit(call, keep_unused=True)
        if not is_symbolic(args):
            lowering = jitted.trace(*args).lower(lowering_platforms=("cpu",))
            structure = jax.tree.structure((args, {}))
            used = range(structure.num_leaves)
            module: Any = lowering.compiler_ir("stablehlo")
            types = [leaf.dtype for leaf in jax.tree.leaves(lowering.out_info)]
            return module, Signature(structure, lowering.out_tree, types, used)
        function = export.export(jitted, platforms=("cpu",))(*args)
    types = [aval.dtype for aval in function.out_avals]
    signature = Signature(function.in_tree, function.out_tree, types, function.module_kept_var_idx)
    return of_export(function).module, signature


def from_jax(
    function: Callable[..., Any] | export.Exported, *args: Any, fast_math: bool = False, **options: Any
) -> JaxFunction:
    """Compiles a function of JAX for arguments like the example arguments.

    ```
    f = deplodock.from_jax(lambda x, w: jax.nn.relu(x @ w), x, w)
    y = f(x, w)
    ```

    Args:
        function: a function of arrays, such as `jax.jit` or `jax.grad` of one, or an artifact of `jax.export`.
        args: example arguments: arrays, numbers or `jax.ShapeDtypeStruct`, nested in tuples, lists and dictionaries.
            Sizes of `jax.export.symbolic_shape` vary from call to call. An artifact needs none.
        fast_math: whether exponentials and quotients may be approximated.
        options: options of `compile_module`, such as `target` and `executor`.

    Returns:
        the compiled function.

    Raises:
        CompileError: an operation or an option is not supported.
    """
    try:
        module, signature = lowered(function, args)
        program = imported(module, Options(fast_math))
        compiled = compile_module(program.module, level="tensor", **options)
    except DeplodockError as error:
        raise presented(error) from error.__cause__
    return JaxFunction(program, compiled, signature)
