"""`tile-deduplicate-kernels`: replaces equal kernels by one kernel with several launches."""

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
    """Replaces kernels that differ only in their names, and in the names of their values, by one of them.

    ```mlir
    tile.kernel @k0(...) {...}    tile.kernel @k1(...) {... the same ...}
    %a = tile.launch @k0(%x) : ...    %b = tile.launch @k1(%y) : ...
    ```
    becomes
    ```mlir
    tile.kernel @k0(...) {...}
    %a = tile.launch @k0(%x) : ...    %b = tile.launch @k0(%y) : ...
    ```

    Two kernels of the tile or the kernel level are equal if their operations, attributes, types, schedules and operands
    are. Launches of the others are changed to the first one.

    **Rationale**: a model has few different kernels, and each one costs compile time in all later passes and in the
    CUDA compiler.

    **Pipeline position**: directly after the kernels are created, and again after passes that may make kernels equal.
    """

    name = "tile-deduplicate-kernels"
    needs: ClassVar[Mapping[str, int]] = {"tile.kernel|kernel.func": 2}

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        first: dict[object, str] = {}
        replacements: dict[str, str] = {}
        for symbol in [o for o in op.ops if isinstance(o, tile.KernelOp | kernel.FuncOp)]:
            name = symbol.sym_name.data
            if (same := first.setdefault(structure(symbol, {}, ("sym_name",)), name)) != name:
                replacements[name] = same
                erase(symbol)
        for launch in op.walk() if replacements else ():
            if isinstance(launch, tile.LaunchOp | kernel.LaunchOp):
                name = launch.kernel.string_value()
                launch.kernel = SymbolRefAttr(replacements.get(name, name))
