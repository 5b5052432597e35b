"""The dialects of the compiler, and their registration in an xDSL context.

A dialect is imported when it is first used, so `dl-opt` on a tensor program never imports the kernel dialect.
"""

from __future__ import annotations

from collections.abc import Callable

from xdsl.context import Context
from xdsl.ir import Dialect

from ..plugins import registry

ENTRY_POINT_GROUP = "deplodock.dialects"
"""Entry point group of third-party dialects; each entry point names a `Dialect` object."""

OWN_DIALECTS = {
    "torch": ".torch:Torch",
    "tensor": ".tensor:Tensor",
    "loop": ".loop:Loop",
    "tile": ".tile:Tile",
    "kernel": ".kernel:Kernel",
    "payload": ".payload:Payload",
    "host": ".host:Host",
    "deplodock": "..target.attribute:Deplodock",
}
"""Deplodock's dialects by name: the five levels from the top down, the payload and host operations that they share, and
the target attributes."""

LEVELS = ("torch", "tensor", "loop", "tile", "kernel", "cuda")
"""Levels from top to bottom. The last one is text, all others are dialects."""

MACHINE_CODE = {"ptx": "cuda", "sass": "cuda", "asm": "cpp"}
"""Name of a text of machine code -> the text from which it is compiled (`frontend/machine_code.py`)."""

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
"""Dialects of xDSL that are used unchanged. xDSL's own `tensor` is left out, because its name is taken by ours."""


def get_all_dialects() -> dict[str, Callable[[], Dialect]]:
    """Returns a function that imports the dialect, for the name of every dialect known to the tools.

    Raises:
        PluginError: a third-party dialect uses a name that is taken.
    """
    return registry(ENTRY_POINT_GROUP, OWN_DIALECTS | UPSTREAM_DIALECTS, "dialect")


def make_context() -> Context:
    """Returns a context with all dialects. A dialect is imported at its first use."""
    ctx = Context()
    for name, load in get_all_dialects().items():
        ctx.register_dialect(name, load)
    return ctx
