"""Kernels that do the same become one kernel with several launches."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp, SymbolRefAttr
from xdsl.passes import ModulePass

from ...dialects import kernel, tile
from ...dialects.support.equivalence import structure
from ..rewriting import erase


class DeduplicateKernelsPass(ModulePass):
    """Keep one of several kernels that differ only in their names and the names of their values.

    What: kernels, of the tile or the kernel level, whose structure is the same (ops, attributes, types, schedule, which
    value goes where) are replaced by the first of them; launches follow.
    Why: a model has few kinds of kernels, and every one costs all later passes, the CUDA compiler, and a load.
    Why here: right after the kernels were made, before the work on them begins; again where later passes made equal
    what was not.

    ```mlir
    tile.kernel @k0(...) {...}    tile.kernel @k1(...) {... the same ...}
    %a = tile.launch @k0(%x) : ...    %b = tile.launch @k1(%y) : ...
    ```
    becomes
    ```mlir
    tile.kernel @k0(...) {...}
    %a = tile.launch @k0(%x) : ...    %b = tile.launch @k0(%y) : ...
    ```
    """

    name = "tile-deduplicate-kernels"
    needs: ClassVar[Mapping[str, int]] = {"tile.kernel|kernel.func": 2}

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        first: dict[object, str] = {}
        instead: dict[str, str] = {}
        for symbol in [o for o in op.ops if isinstance(o, tile.KernelOp | kernel.FuncOp)]:
            name = symbol.sym_name.data
            if (same := first.setdefault(structure(symbol, {}, ("sym_name",)), name)) != name:
                instead[name] = same
                erase(symbol)
        for launch in op.walk() if instead else ():
            if isinstance(launch, tile.LaunchOp | kernel.LaunchOp):
                name = launch.kernel.string_value()
                launch.kernel = SymbolRefAttr(instead.get(name, name))
