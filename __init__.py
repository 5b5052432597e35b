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
    from .frontend.modules import CompiledModule, compile_module

__all__ = [
    "CompileError",
    "CompiledFunction",
    "CompiledModule",
    "DeplodockError",
    "compile",
    "compile_module",
]

# Nothing is imported up front: neither torch, nor, where a test runner takes this file for a package of its own in a
# checkout of any name, a sibling.
_HOMES = {
    **dict.fromkeys(("CompileError", "DeplodockError"), ".errors"),
    **dict.fromkeys(("CompiledFunction", "compile"), ".frontend.api"),
    **dict.fromkeys(("CompiledModule", "compile_module"), ".frontend.modules"),
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES or __name__ != "deplodock":  # a test runner imports a checkout by the name of its folder
        return _other_attribute(name)
    try:
        return getattr(import_module(_HOMES[name], __name__), name)
    except ModuleNotFoundError as error:
        from .errors import MissingPackageError, missing_package

        if (advice := missing_package(error)) is not None:
            raise MissingPackageError(advice) from None
        raise


def _other_attribute(name: str) -> Any:
    """Returns the version, or what a plugin declares as `deplodock.NAME`."""
    if name == "__version__":
        try:
            return version("deplodock")
        except PackageNotFoundError:
            return "unknown"
    if not name.startswith("_") and __name__ == "deplodock":
        from .plugins import plugins

        if name in (loaders := plugins("deplodock.api", _HOMES, "function")):
            return loaders[name]()
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    from .plugins import plugins

    return sorted([*__all__, *plugins("deplodock.api", _HOMES, "function"), "__version__"])


class _Checkout(Distribution):
    """Metadata of a checkout, from its `pyproject.toml`."""

    file = Path(__file__).parent / "pyproject.toml"

    def read_text(self, filename: str) -> str | None:
        import tomllib

        project = tomllib.loads(self.file.read_text(encoding="utf-8"))["project"]
        groups = {"console_scripts": project["scripts"], **project["entry-points"]}
        lines = [line for g, names in groups.items() for line in (f"[{g}]", *(f"{n} = {v}" for n, v in names.items()))]
        metadata = f"Name: {project['name']}\nVersion: {project['version']}\n"
        return {"METADATA": metadata, "entry_points.txt": "\n".join(lines)}.get(filename)

    def locate_file(self, path: Any) -> Path:
        return self.file.parent / path


class _CheckoutFinder(DistributionFinder):
    """Finds the entry points of a checkout as they are now. Metadata of an editable installation are of its time."""

    def find_spec(self, *_: object) -> None:
        """Finds no modules."""

    def find_distributions(self, context: DistributionFinder.Context) -> Iterator[Distribution]:
        """Yields the distribution if it is asked for by name, or with all others."""
        if context.name in (None, "deplodock") and _Checkout.file.is_file():
            yield _Checkout()


sys.meta_path.insert(0, _CheckoutFinder())
