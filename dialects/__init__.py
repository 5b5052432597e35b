"""The dialects: what may be written at each level, and the registry that finds them.

Nothing is imported until a dialect is asked for, so a tool that never meets the kernel level never pays for it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from importlib import import_module

import xdsl.dialects
from xdsl.ir import Dialect

from ..plugins import plugins

ENTRY_POINT_GROUP = "deplodock.dialects"
"""Entry points of this group, each naming a `Dialect` object, are third-party dialects."""

OWN_DIALECTS = {
    "torch": ".torch:Torch",
    "tensor": ".tensor:Tensor",
    "loop": ".loop:Loop",
    "tile": ".tile:Tile",
    "kernel": ".kernel:Kernel",
    "payload": ".payload:Payload",
    "deplodock": "..target.attribute:Deplodock",
}
"""Our dialects by name, from the top level down, the scalar operations that all but the first share, and the attributes
of programs."""

LEVELS = ("torch", "tensor", "loop", "tile", "kernel", "cuda")
"""The levels from top to bottom; all but the last, which is text, are dialects."""

UPSTREAM_DIALECTS = ("affine", "arith", "builtin", "func", "math", "memref", "pdl", "scf", "test", "vector")
"""The dialects of xDSL that we use as they are. Explicit: xDSL has a `tensor` of its own that ours must not meet."""


def _load_dialect(reference: str) -> Dialect:
    """Import a dialect by `.module:attribute`, relative to this package."""
    module, _, attribute = reference.partition(":")
    dialect = getattr(import_module(module, __name__), attribute)
    assert isinstance(dialect, Dialect), reference
    return dialect


def get_all_dialects() -> dict[str, Callable[[], Dialect]]:
    """Every dialect that the tools know, by name, as a function that imports it.

    A third-party dialect may not take a name that is already in use: PluginError.
    """
    upstream = xdsl.dialects.get_all_dialects()
    found: dict[str, Callable[[], Dialect]] = {n: partial(_load_dialect, ref) for n, ref in OWN_DIALECTS.items()}
    found |= {name: upstream[name] for name in UPSTREAM_DIALECTS}
    return found | plugins(ENTRY_POINT_GROUP, found, "dialect")
