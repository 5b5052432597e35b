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

from typing import TYPE_CHECKING, Any

from .errors import CompileError, DeplodockError

if TYPE_CHECKING:
    from .frontend.api import CompiledFunction, compile
    from .frontend.saved import Artefact, load

__all__ = ["Artefact", "CompileError", "CompiledFunction", "DeplodockError", "compile", "load"]


def __getattr__(name: str) -> Any:
    if name in ("compile", "CompiledFunction"):
        from .frontend import api

        return getattr(api, name)
    if name in ("load", "Artefact"):
        from .frontend import saved

        return getattr(saved, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
