"""Parts of calls that the CPU and GPU runtimes share: results, steps of PyTorch, and the module for fast calls.

The extension module `calls.cpp` makes a call that is similar to an earlier one without Python code, which saves some
microseconds. It is built once for a version of Python and PyTorch. It reads the C++ tensor of a Python object directly
from memory.
"""

from __future__ import annotations

import sysconfig
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache
from importlib.machinery import ExtensionFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from types import ModuleType
from typing import Any

from ...dialects.shapes.extents import static
from ...errors import ExecutionError
from ..dtypes import DTYPES
from .build_cache import cached_file, digest
from .compiler import compiler_identity, run_compiler
from .launch_plan import EagerStep, LaunchPlan

FLAGS = ("-std=c++20", "-O2", "-fPIC", "-shared", "-w")

_SOURCE = Path(__file__).with_name("calls.cpp")
_NAME = "deplodock_calls"


@cache
def building() -> Future[ModuleType]:
    """Starts a thread that builds or loads the extension module. Returns its future."""
    return ThreadPoolExecutor(1, "calls").submit(load_extension)


def extension() -> ModuleType | None:
    """Returns the extension module, or None if it is not available yet or at all."""
    future = building()
    return future.result() if future.done() and future.exception() is None else None


def load_extension() -> ModuleType:
    """Returns the extension module, built if it is not cached.

    Raises:
        ExecutionError: if it cannot be built or used.
    """
    import torch

    folder = Path(torch.__file__).parent
    includes = (folder / "include", Path(sysconfig.get_paths()["include"]))
    libraries = ("-ltorch_python", "-ltorch_cpu", "-lc10")

    def make(target: Path) -> None:
        arguments = (*(f"-I{path}" for path in includes), str(_SOURCE), "-o", str(target), f"-L{folder / 'lib'}")
        run_compiler(*FLAGS, *arguments, *libraries)

    made_by = (compiler_identity("native"), torch.__version__, torch.version.git_version, str(folder))
    key = digest(_SOURCE.read_text(), *made_by, sysconfig.get_config_var("EXT_SUFFIX"), *FLAGS)
    try:
        loader = ExtensionFileLoader(_NAME, str(cached_file("calls", f"{key}.so", make)))
        spec = spec_from_loader(_NAME, loader)
        assert spec is not None
        module = module_from_spec(spec)
    except (ImportError, OSError) as error:
        raise ExecutionError(f"{_SOURCE.name} is not loaded: {error}", operator="cpu") from error
    for tensor in (torch.empty(0), torch.nn.Parameter(torch.empty(1))):
        if module.address(tensor) != tensor._cdata:
            raise ExecutionError(
                "expected the tensor at its usual offset in a Python object of PyTorch, but got another layout",
                operator="cpu",
            )
    return module


KEPT_PLANS = 256
"""Largest number of cached plans of a program, one for each set of shapes."""

Key = tuple[tuple[Any, Any], ...]
"""Shapes and types of the arguments of a call."""


def key_of(tensors: Sequence[Any]) -> Key:
    """Returns the shapes and types of tensors, the key of a plan."""
    return tuple([(t.shape, t.dtype) for t in tensors])


def new_results(plan: LaunchPlan, inputs: Sequence[Any], empty: Callable[[Sequence[int], str], Any]) -> list[Any]:
    """Returns tensors for the results of a call.

    Args:
        plan: plan of the call.
        inputs: arguments. A result that is computed in place is one of them.
        empty: function of (shape, type) that allocates a tensor.
    """
    places, buffers = dict(plan.in_place), enumerate(plan.output_buffers, plan.inputs)
    return [inputs[places[i]].detach() if i in places else empty(static(b.shape), b.dtype) for i, b in buffers]


def compute_eagerly(
    step: EagerStep,
    eager: Mapping[str, Callable[[Sequence[Any]], Sequence[Any]]],
    plan: LaunchPlan,
    arguments: Sequence[Any],
    scratch: Any,
    torch: Any,
) -> None:
    """Runs a step that PyTorch computes.

    Args:
        step: the step.
        eager: functions by name.
        plan: plan of the call.
        arguments: tensors of the arguments of the program.
        scratch: the arena, a tensor of bytes with all other buffers.
        torch: the module.

    Raises:
        ExecutionError: if the function is missing, or its results have other shapes or types.
    """

    def tensor(number: int) -> Any:
        if number < len(arguments):
            return arguments[number]
        buffer = plan.buffers[number]
        memory = scratch[buffer.offset : buffer.offset + buffer.bytes]
        return memory.view(getattr(torch, DTYPES[buffer.dtype].torch)).view(buffer.shape)

    if step.function not in eager:
        raise ExecutionError("left to PyTorch, but there is no PyTorch implementation to call", operator=step.function)
    results = eager[step.function]([tensor(i) for i in step.inputs])
    for i, result in zip(step.outputs, results, strict=True):
        buffer = tensor(i)
        if result.shape != buffer.shape or result.dtype != buffer.dtype:
            raise ExecutionError(f"PyTorch gives {result.dtype}{list(result.shape)}", operator=step.function)
        buffer.copy_(result)
