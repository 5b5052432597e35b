"""Calls without Python: `calls.cpp`, built once for this Python and this PyTorch.

It is an extension module, and knows where PyTorch keeps the tensor of a Python object. Where it cannot be built, or
finds the tensor elsewhere, every call goes through Python, which takes some microseconds longer.
"""

from __future__ import annotations

import sysconfig
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache
from importlib.machinery import ExtensionFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from types import ModuleType

from ...errors import ExecutionError
from .build_cache import cached_file, digest
from .compiler import known, run_compiler

FLAGS = ("-std=c++20", "-O2", "-fPIC", "-shared", "-w")

_SOURCE = Path(__file__).with_name("calls.cpp")
_NAME = "deplodock_calls"


@cache
def building() -> Future[ModuleType]:
    """The extension module, built or loaded by a thread of its own: no program waits for it."""
    return ThreadPoolExecutor(1, "calls").submit(load_extension)


def extension() -> ModuleType | None:
    """The extension module; None where there is none, or not yet."""
    found = building()
    return found.result() if found.done() and found.exception() is None else None


def load_extension() -> ModuleType:
    """The extension module, built if it is not in the cache. Raises ExecutionError, with the reason, where it cannot be
    built or used."""
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
