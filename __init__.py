"""deplodock: PyTorch in, readable CUDA out, through five xDSL dialects.

```python
import deplodock

f = deplodock.compile(module, (x,))
y = f(x)
print(f.ir("tile"))
```
Importing this package is cheap; torch is imported by `compile`.
"""

from __future__ import annotations

from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    __version__: str
    from .errors import CompileError, DeplodockError
    from .frontend.api import CompiledFunction, compile
    from .frontend.artifact import Artifact, load

__all__ = ["Artifact", "CompileError", "CompiledFunction", "DeplodockError", "compile", "load"]

# Nothing is imported up front: neither torch, nor, where a test runner takes this file for a package of its own in a
# checkout of any name, a sibling.
_HOMES = {
    "Artifact": ".frontend.artifact",
    "CompileError": ".errors",
    "CompiledFunction": ".frontend.api",
    "DeplodockError": ".errors",
    "compile": ".frontend.api",
    "load": ".frontend.artifact",
}


def __getattr__(name: str) -> Any:
    if name == "__version__":
        return _version()
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        return getattr(import_module(_HOMES[name], __name__), name)
    except ModuleNotFoundError as error:
        from .errors import MissingPackageError, missing_package

        if (advice := missing_package(error)) is not None:
            raise MissingPackageError(advice) from None
        raise


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])


def _version() -> str:
    """The version that is installed, or `unknown` in a checkout that is only on the path."""
    try:
        return version("deplodock")
    except PackageNotFoundError:
        return "unknown"
