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

import sys
from collections.abc import Iterator
from importlib import import_module
from importlib.metadata import Distribution, DistributionFinder, PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    __version__: str
    from .errors import CompileError, DeplodockError
    from .frontend.api import CompiledFunction, compile
    from .frontend.loading import Artifact, load
    from .frontend.modules import CompiledModule, compile_module

__all__ = [
    "Artifact",
    "CompileError",
    "CompiledFunction",
    "CompiledModule",
    "DeplodockError",
    "compile",
    "compile_module",
    "load",
]

# Nothing is imported up front: neither torch, nor, where a test runner takes this file for a package of its own in a
# checkout of any name, a sibling.
_HOMES = {
    "Artifact": ".frontend.loading",
    "CompileError": ".errors",
    "CompiledFunction": ".frontend.api",
    "CompiledModule": ".frontend.modules",
    "DeplodockError": ".errors",
    "compile": ".frontend.api",
    "compile_module": ".frontend.modules",
    "load": ".frontend.loading",
}


def __getattr__(name: str) -> Any:
    if name == "__version__":
        try:
            return version("deplodock")
        except PackageNotFoundError:
            return "unknown"
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


class _Checkout(Distribution):
    """Metadata of a checkout that is on the path without being installed."""

    files_of_metadata = {
        "METADATA": "Name: deplodock\nVersion: unknown\n",
        "entry_points.txt": "[torch_dynamo_backends]\ndeplodock = deplodock.frontend.dynamo:torch_compile_backend\n",
    }

    def read_text(self, filename: str) -> str | None:
        return self.files_of_metadata.get(filename)

    def locate_file(self, path: Any) -> Path:
        return Path(__file__).parent / path


class _CheckoutFinder(DistributionFinder):
    """Lets torch.compile find the backend of a checkout by its name. An installed package comes first."""

    def find_spec(self, *_: object) -> None:
        """Finds no modules."""

    def find_distributions(self, context: DistributionFinder.Context) -> Iterator[Distribution]:
        """Yields the distribution if it is asked for by name, or with all others."""
        if context.name in (None, "deplodock"):
            yield _Checkout()


sys.meta_path.append(_CheckoutFinder())
