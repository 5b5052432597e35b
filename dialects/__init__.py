"""The dialects: what may be written at each level, and the registry that finds them.

Nothing is imported until a dialect is asked for, so a tool that never meets the kernel level never pays for it.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib.metadata import EntryPoint
from importlib.util import resolve_name

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


def get_all_dialects() -> dict[str, Callable[[], Dialect]]:
    """Every dialect that the tools know, by name, as a function that imports it.

    A third-party dialect may not take a name that is already in use: PluginError.
    """
    places = {name: resolve_name(place, __name__) for name, place in OWN_DIALECTS.items()}
    dialects = {name: EntryPoint(name, place, ENTRY_POINT_GROUP).load for name, place in places.items()}
    upstream = xdsl.dialects.get_all_dialects()
    dialects |= {name: upstream[name] for name in UPSTREAM_DIALECTS}
    return dialects | plugins(ENTRY_POINT_GROUP, dialects, "dialect")
