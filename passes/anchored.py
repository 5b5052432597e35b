"""Passes that work on one nest or kernel after the other, as passes of MLIR that are anchored on an operation."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Mapping
from typing import ClassVar, Generic, TypeVar

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Operation
from xdsl.passes import ModulePass

from ..dialects import kernel, loop, tile
from ..dialects.support.locations import blamed
from ..dialects.tile.schedule import PLAIN, ScheduleAttr
from .remarks import emit_remark

Anchor = TypeVar("Anchor", bound=Operation)


class AnchoredPass(ModulePass, Generic[Anchor]):
    """Runs `on` every operation of the class `anchor` that stands in a module.

    A pass that carries out a `decision` of schedules names the field, and then, if it is for some of its values only,
    these: `("copy", "tma")`. Without values it is for all but the plainest. What is decided otherwise, or has no
    schedule, it does not see; nor what holds no operation of the class `inside`, which the pass is about. `needs` of
    the pass manager follow from the three; a class may name more.
    """

    anchor: ClassVar[type[Operation]]
    inside: ClassVar[type[Operation]] = Operation
    decision: ClassVar[tuple[str, ...]] = ()
    needs: ClassVar[Mapping[str, int]] = {}

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if not hasattr(cls, "anchor"):
            return
        name, values = cls.decision[:1], cls.decision[1:]
        chosen = [f"{cls.decision[0]}={value}" for value in values] or [*name]
        words = [cls.anchor.name, *(() if cls.inside is Operation else (cls.inside.name,))]
        if chosen and PLAIN[cls.decision[0]] not in values:
            words.append("|".join(chosen))
        cls.needs = {**dict.fromkeys(words, 1), **cls.__dict__.get("needs", {})}

    @abstractmethod
    def on(self, op: Anchor) -> None:
        """Rewrite one of them."""

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for found in [o for o in self.among(op) if isinstance(o, self.anchor) and self._is_decided(o)]:
            if any(isinstance(o, self.inside) for o in found.walk()):
                with blamed(found):
                    self.on(found)  # pyright: ignore[reportArgumentType]

    def among(self, module: ModuleOp) -> Iterable[Operation]:
        """The operations of which some are anchors."""
        return module.ops

    def _is_decided(self, op: Operation) -> bool:
        if not self.decision:
            return True
        (name, *values), schedule = self.decision, op.attributes.get("schedule")
        value = getattr(schedule.data, name) if isinstance(schedule, ScheduleAttr) else PLAIN[name]
        return value in values if values else value != PLAIN[name]

    def decline(self, op: Operation, why: str | None) -> None:
        """Remark why `op` stays as it was, if there is a reason."""
        if why is not None:
            emit_remark(op, self.name, why)


class NestPass(AnchoredPass[loop.NestOp]):
    """A pass on the nests of the loop level, in functions or by themselves."""

    anchor = loop.NestOp

    def among(self, module: ModuleOp) -> Iterable[Operation]:
        return module.walk()


class TilePass(AnchoredPass[tile.KernelOp]):
    anchor = tile.KernelOp


class FuncPass(AnchoredPass[kernel.FuncOp]):
    anchor = kernel.FuncOp
