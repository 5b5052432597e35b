"""The dialects: what may be written at each level, and the registry that finds them.

Nothing is imported until a dialect is asked for, so a tool that never meets the kernel level never pays for it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from importlib import import_module

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
}
"""Our dialects by name, from the top level down, and the scalar operations that all but the first share."""

LEVELS = ("torch", "tensor", "loop", "tile", "kernel", "cuda")
"""The levels from top to bottom; all but the last, which is text, are dialects."""

UPSTREAM_DIALECTS = {
    "affine": "xdsl.dialects.affine:Affine",
    "arith": "xdsl.dialects.arith:Arith",
    "builtin": "xdsl.dialects.builtin:Builtin",
    "func": "xdsl.dialects.func:Func",
    "math": "xdsl.dialects.math:Math",
    "memref": "xdsl.dialects.memref:MemRef",
    "pdl": "xdsl.dialects.pdl:PDL",
    "scf": "xdsl.dialects.scf:Scf",
    "test": "xdsl.dialects.test:Test",
    "vector": "xdsl.dialects.vector:Vector",
}
"""The dialects of xDSL that we use as they are. Explicit: xDSL has a `tensor` of its own that ours must not meet."""


def load_object(reference: str) -> object:
    """Import `module:attribute`; a module that starts with a dot is relative to this package."""
    module, _, attribute = reference.partition(":")
    return getattr(import_module(module, __name__), attribute)


def _load_dialect(reference: str) -> Dialect:
    dialect = load_object(reference)
    assert isinstance(dialect, Dialect), reference
    return dialect


def get_all_dialects() -> dict[str, Callable[[], Dialect]]:
    """Every dialect that the tools know, by name, as a function that imports it.

    A third-party dialect may not take a name that is already in use: PluginError.
    """
    references = {**OWN_DIALECTS, **UPSTREAM_DIALECTS}
    found: dict[str, Callable[[], Dialect]] = {name: partial(_load_dialect, ref) for name, ref in references.items()}
    return found | plugins(ENTRY_POINT_GROUP, found, "dialect")
