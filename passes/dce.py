"""Erasing operations that do nothing but compute what nobody needs: `dce`."""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from functools import cache

from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Operation, Region, SSAValue
from xdsl.passes import ModulePass
from xdsl.traits import (
    EffectInstance,
    IsTerminator,
    MemoryEffect,
    MemoryEffectKind,
    RecursiveMemoryEffect,
    SymbolOpInterface,
)


@cache
def _interfaces(kind: type[Operation]) -> tuple[MemoryEffect, ...]:
    """What says which effects operations of a class have."""
    return tuple(kind.get_traits_of_type(MemoryEffect))


@cache
def _is_fixture(kind: type[Operation]) -> bool:
    """Whether operations of a class are terminators or symbols."""
    return any(kind.has_trait(t, value_if_unregistered=False) for t in (IsTerminator, SymbolOpInterface))


def effects_of(op: Operation) -> AbstractSet[EffectInstance] | None:
    """The effects of `op`, or None where they are unknown: as `get_effects` of xDSL, which searches the traits of a
    class for each of its operations."""
    interfaces = _interfaces(type(op))
    found = set[EffectInstance]()
    for interface in interfaces:
        if type(interface) is RecursiveMemoryEffect:
            parts = (effects_of(o) for region in op.regions for block in region.blocks for o in block.ops)
        else:
            parts = (interface.get_effects(op),)
        for effects in parts:
            if effects is None:
                return None
            found |= effects
    return found if interfaces else None


def is_unneeded(op: Operation) -> bool:
    """Whether nobody would miss `op`: no result is used, and it only reads, and allocates what is its own."""
    if any(result.first_use is not None for result in op.results) or _is_fixture(type(op)):
        return False
    effects = effects_of(op)
    return effects is not None and all(
        e.kind == MemoryEffectKind.READ
        or (e.kind == MemoryEffectKind.ALLOC and isinstance(e.value, SSAValue) and op.is_ancestor(e.value.owner))
        for e in effects
    )


def erase_unneeded(region: Region) -> None:
    """Erase all operations of `region` that nobody needs, users before what they use."""
    for block in reversed(region.blocks):
        for op in reversed(block.ops):
            if is_unneeded(op):
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
