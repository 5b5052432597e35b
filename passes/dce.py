"""Erasing operations that do nothing but compute what nobody needs: `dce`."""

from __future__ import annotations

from dataclasses import dataclass

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Region
from xdsl.passes import ModulePass
from xdsl.transforms.dead_code_elimination import is_trivially_dead


def erase_unneeded(region: Region) -> None:
    """Erase all operations of `region` that nobody needs, users before what they use."""
    for block in reversed(region.blocks):
        for op in reversed(block.ops):
            if is_trivially_dead(op):
                block.erase_op(op)
            else:
                for inner in op.regions:
                    erase_unneeded(inner)


@dataclass(frozen=True)
class DeadCodeElimination(ModulePass):
    """Erase operations whose results nobody uses and that do nothing else.

    What: one walk from the end of the program to its start, so what only an erased op has used goes as well. What only
    reads memory is erased like what computes; terminators and symbols stay.
    Why not the pass of xDSL, which decides in the same way: it goes over the whole program until nothing changes, and
    asks of every op, whether it is used or not, what effects it has.

    ```mlir
    %a = math.exp %x : f32
    %b = math.sin %a : f32
    func.return %x : f32
    ```
    becomes
    ```mlir
    func.return %x : f32
    ```
    """

    name = "dce"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        erase_unneeded(op.body)
