"""deplodock compiles PyTorch programs to readable CUDA or C++ through five xDSL dialects.

```python
import deplodock

f = deplodock.compile(module, (x,))
y = f(x)
print(f.ir("tile"))
```
Importing this package does not import torch; the first use of `compile` does.
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

# Public names are imported at their first use, for two reasons: torch takes seconds to import, and a test runner may
# import this file under the name of the checkout's folder, where relative imports do not work.
_HOMES = {
    **dict.fromkeys(("CompileError", "DeplodockError"), ".errors"),
    **dict.fromkeys(("CompiledFunction", "compile"), ".frontend.api"),
    **dict.fromkeys(("CompiledModule", "compile_module"), ".frontend.modules"),
    # A star import does not replace Python's `print`, because `__all__` lacks the name.
    "print": ".passes.printing:print_value",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES or __name__ != "deplodock":
        return _other_attribute(name)
    try:
        module, _, attribute = _HOMES[name].partition(":")
        return getattr(import_module(module, __name__), attribute or name)
    except ModuleNotFoundError as error:
        from .errors import MissingPackageError, missing_package

        if (advice := missing_package(error)) is not None:
            raise MissingPackageError(advice) from None
        raise


def _other_attribute(name: str) -> Any:
    """Returns `__version__`, or the object that a plugin declares as `deplodock.NAME`."""
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

    return sorted([*_HOMES, *plugins("deplodock.api", _HOMES, "function"), "__version__"])


def load_ipython_extension(shell: Any) -> None:
    """Adds the magics and completions of plugins, such as `%%deplodock`, to IPython: `%load_ext deplodock`."""
    from .plugins import plugins

    for load in plugins("deplodock.shells", (), "shell extension").values():
        load()(shell)


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
    """Finds the entry points in the `pyproject.toml` of a checkout.

    The metadata of an editable installation lists the entry points of the time of its installation.
    """

    def find_spec(self, *_: object) -> None:
        """Finds no modules."""

    def find_distributions(self, context: DistributionFinder.Context) -> Iterator[Distribution]:
        """Yields the metadata of the checkout if the context asks for deplodock, or for all distributions."""
        if context.name in (None, "deplodock") and _Checkout.file.is_file():
            yield _Checkout()


sys.meta_path.insert(0, _CheckoutFinder())
