"""Passes that work on one kernel after the other, as passes of MLIR that are anchored on an operation."""

from __future__ import annotations

from abc import abstractmethod
from typing import ClassVar, Generic, TypeVar

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Operation
from xdsl.passes import ModulePass

from ..dialects import kernel, tile
from .remarks import emit_remark

Anchor = TypeVar("Anchor", bound=Operation)


class AnchoredPass(ModulePass, Generic[Anchor]):
    """Runs `on` every operation of the class `anchor` that stands in a module."""

    anchor: ClassVar[type[Operation]]

    @abstractmethod
    def on(self, op: Anchor) -> None:
        """Rewrite one of them."""

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for found in [o for o in op.ops if isinstance(o, self.anchor)]:
            self.on(found)  # pyright: ignore[reportArgumentType]

    def decline(self, op: Operation, why: str | None) -> None:
        """Remark why `op` stays as it was, if there is a reason."""
        if why is not None:
            emit_remark(op, self.name, why)


class TilePass(AnchoredPass[tile.KernelOp]):
    """A pass on the kernels of the tile level."""

    anchor = tile.KernelOp


class FuncPass(AnchoredPass[kernel.FuncOp]):
    """A pass on the kernels of the kernel level."""

    anchor = kernel.FuncOp
