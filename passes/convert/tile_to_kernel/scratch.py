"""Scratch memory that parts of results take in turns."""

from __future__ import annotations

from dataclasses import dataclass, field

from xdsl.ir import Attribute, SSAValue

from ....dialects import kernel
from ....dialects.kernel.warp_specialize import WARPGROUP
from ....dialects.layouts.linear import Coordinate, Linear, Shared, log2
from ....dialects.layouts.wgmma import part_of_group
from ...analysis.memory_access import memory_type
from ...analysis.tma_tiles import EPILOGUE_BUFFERS
from .emitter import Emitter

Kind = tuple[Attribute, int]
"""Element type and number of elements."""


@dataclass
class Scratch:
    """Shared buffers for tiles that are there for a short time. Whoever takes one has what was free for longest."""

    out: Emitter
    free: dict[Kind, list[SSAValue]] = field(default_factory=dict[Kind, list[SSAValue]])
    made: dict[Kind, int] = field(default_factory=dict[Kind, int])

    def take(self, element: Attribute, shared: Shared, warp_group_private: int | None, hint: str) -> SSAValue:
        """A buffer of the size of `shared`; a new one, until there are enough for turns. `apart` is how many warps stay
        among themselves, which has to hold for all who take a buffer."""
        kind = element, shared.size
        free = self.free.setdefault(kind, [])
        if free and self.made[kind] >= EPILOGUE_BUFFERS:
            buffer = free.pop(0)
            op = buffer.owner
            assert isinstance(op, kernel.SharedOp)
            if op.warp_group_private is not None and op.warp_group_private.data != warp_group_private:
                op.warp_group_private = None
            return buffer
        self.made[kind] = self.made.get(kind, 0) + 1
        return self.out.allocate(kernel.SharedOp(element, shared.size, warp_group_private=warp_group_private), hint)

    def give(self, buffer: SSAValue) -> None:
        """Whoever took `buffer` needs it no more."""
        t = memory_type(buffer)
        self.free[t.element_type, t.get_shape()[0]].append(buffer)


def groups_apart(shared: Shared, *layouts: Linear) -> tuple[Coordinate, ...]:
    """The bases of the number of the warpgroup, if every warpgroup keeps to its own part of `shared` in all layouts,
    and the parts lie one behind the other; else, or for one warpgroup, none."""
    groups = layouts[0].warp[log2(WARPGROUP) :]
    if any(layout.warp[log2(WARPGROUP) :] != groups for layout in layouts):
        return ()
    if not groups or part_of_group(shared.shape, groups) is None:
        return ()
    part = shared.size >> len(groups)
    return groups if [shared.place(b) // part for b in groups] == [1 << i for i in range(len(groups))] else ()
