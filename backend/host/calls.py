"""Calls of a program on a GPU or the CPU: the plan that a call needs, tensors for its results, the steps that PyTorch
computes, and calls without Python by the extension module `calls.cpp`, built once for this Python and this PyTorch.

The module reads the tensor of a Python object in memory. Where it cannot be built, or the tensor is elsewhere, every
call goes through Python, which takes some microseconds longer.
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
from .compiler import known, run_compiler
from .launch_plan import EagerStep, LaunchPlan

FLAGS = ("-std=c++20", "-O2", "-fPIC", "-shared", "-w")

_SOURCE = Path(__file__).with_name("calls.cpp")
_NAME = "deplodock_calls"


@cache
def building() -> Future[ModuleType]:
    """Returns the extension module, which a thread of its own builds or loads."""
    return ThreadPoolExecutor(1, "calls").submit(load_extension)


def extension() -> ModuleType | None:
    """Returns the extension module; None where there is none, or not yet."""
    found = building()
    return found.result() if found.done() and found.exception() is None else None


def load_extension() -> ModuleType:
    """Returns the extension module, built if it is not in the cache. Raises ExecutionError, with the reason, where it
    cannot be built or used."""
    import torch

    folder = Path(torch.__file__).parent
    includes = (folder / "include", Path(sysconfig.get_paths()["include"]))
    libraries = ("-ltorch_python", "-ltorch_cpu", "-lc10")

    def make(target: Path) -> None:
        found = (*(f"-I{path}" for path in includes), str(_SOURCE), "-o", str(target), f"-L{folder / 'lib'}")
        run_compiler(*FLAGS, *found, *libraries)

    made_by = (known("native"), torch.__version__, torch.version.git_version, str(folder))
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
            raise ExecutionError("this PyTorch keeps tensors elsewhere in its Python objects", operator="cpu")
    return module


KEPT_PLANS = 256
"""So many plans of a program are kept, one for each set of shapes that it was called with."""

Key = tuple[tuple[Any, Any], ...]
"""The shapes and types of the tensors that a program is called with."""


def key_of(tensors: Sequence[Any]) -> Key:
    """Returns the shapes and types for which a plan is kept."""
    return tuple([(t.shape, t.dtype) for t in tensors])


def new_results(plan: LaunchPlan, inputs: Sequence[Any], empty: Callable[[Sequence[int], str], Any]) -> list[Any]:
    """Returns tensors for the results of a call: an argument where it is changed in place, else `empty(shape,
    type)`."""
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
    """Lets PyTorch compute a step. `arguments` are the tensors of the program's arguments; the other buffers are in the
    tensor `scratch` of bytes, the arena. Raises ExecutionError."""

    def tensor(number: int) -> Any:
        if number < len(arguments):
            return arguments[number]
        buffer = plan.buffers[number]
        memory = scratch[buffer.offset : buffer.offset + buffer.bytes]
        return memory.view(getattr(torch, DTYPES[buffer.dtype].torch)).view(buffer.shape)

    if step.function not in eager:
        raise ExecutionError("left to PyTorch, which is not here", operator=step.function)
    results = eager[step.function]([tensor(i) for i in step.inputs])
    for i, result in zip(step.outputs, results, strict=True):
        buffer = tensor(i)
        if result.shape != buffer.shape or result.dtype != buffer.dtype:
            raise ExecutionError(f"PyTorch gives {result.dtype}{list(result.shape)}", operator=step.function)
        buffer.copy_(result)
