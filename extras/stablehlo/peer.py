"""Results of JAX for a StableHLO program, to compare with."""

from __future__ import annotations

from collections.abc import Sequence

import jax
import torch

from .arrays import to_jax, to_tensor
from .files import StableHlo
from .importer import Imported


def jax_results(program: StableHlo, imported: Imported, arguments: Sequence[torch.Tensor]) -> list[torch.Tensor] | None:
    """Returns the results that JAX computes, or None if it cannot run the program.

    Args:
        program: the program.
        imported: the import of it.
        arguments: its arguments, without tables.
    """
    if any(
        t.element.name == "f64" or getattr(t.element, "bitwidth", 0) == 64 for t in imported.inputs + imported.results
    ):
        # JAX has 64-bit types only in a mode of the whole process.
        return None
    arrays = [to_jax(a, t.unsigned) for a, t in zip(arguments, imported.inputs, strict=True)]
    try:
        results = _exported(program, arrays) if program.exported is not None else _compiled(program, arrays)
    except (AttributeError, ImportError, TypeError, ValueError, RuntimeError):
        return None
    return [to_tensor(r) for r in results]


def _exported(program: StableHlo, arrays: Sequence[jax.Array]) -> Sequence[jax.Array]:
    """Returns the results of an artifact of `jax.export`."""
    exported = program.exported
    assert exported is not None, "the caller has tested it"
    if len(exported.module_kept_var_idx) != len(exported.in_avals):
        raise ValueError("unused arguments have no values")
    args, kwargs = jax.tree.unflatten(exported.in_tree, arrays)
    return jax.tree.leaves(exported.call(*args, **kwargs))


def _compiled(program: StableHlo, arrays: Sequence[jax.Array]) -> Sequence[jax.Array]:
    """Returns the results of a module, compiled by XLA for the CPU."""
    from jax.extend.backend import get_backend
    from jaxlib import _jax, xla_client  # pyright: ignore[reportAttributeAccessIssue]

    backend = get_backend("cpu")
    devices = _jax.DeviceList(tuple(backend.local_devices()[:1]))
    executable = backend.compile_and_load(program.module, devices, xla_client.CompileOptions())
    columns = executable.execute_sharded(list(arrays)).disassemble_into_single_device_arrays()
    return [column[0] for column in columns]
