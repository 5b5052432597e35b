"""The dialects: what may be written at each level, and the registry that finds them.

Nothing is imported until a dialect is asked for, so a tool that never meets the kernel level never pays for it.
"""

from __future__ import annotations

from collections.abc import Callable

from xdsl.context import Context
from xdsl.ir import Dialect

from ..plugins import registry

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
"""The dialects of xDSL that we use as they are. xDSL has a `tensor` of its own that ours must not meet."""


def get_all_dialects() -> dict[str, Callable[[], Dialect]]:
    """Returns every dialect that the tools know, by name, as a function that imports it.

    Raises:
        PluginError: a third-party dialect takes a name that is in use.
    """
    return registry(ENTRY_POINT_GROUP, OWN_DIALECTS | UPSTREAM_DIALECTS, "dialect")


def make_context() -> Context:
    """Returns a context of all dialects, each of which is imported when it is first met."""
    ctx = Context()
    for name, load in get_all_dialects().items():
        ctx.register_dialect(name, load)
    return ctx
