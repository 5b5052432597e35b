"""The memories that the buffers of a kernel lie in: one record for each, which dialect, passes and printer read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from xdsl.dialects.builtin import MemRefType, NoneAttr, StringAttr
from xdsl.ir import Attribute


@dataclass(frozen=True)
class MemorySpace:
    """A memory, by the `name` in the types of its buffers, which global memory has none of.

    `of_block`: it is the shared memory of a block, so that offsets may combine by exclusive or, and a kernel may read
    what it wrote. `writable`: threads may store there. `qualifier`: what stands in front of the element type of a
    pointer in CUDA.
    """

    name: str
    of_block: bool = False
    writable: bool = True
    qualifier: str = ""

    def buffer(self, element: Attribute, shape: Sequence[int]) -> MemRefType[Attribute]:
        """The type of a buffer in this memory."""
        return MemRefType(element, shape, memory_space=StringAttr(self.name) if self.name else NoneAttr())


GLOBAL = MemorySpace("")
SHARED = MemorySpace("shared", of_block=True)
CLUSTER = MemorySpace("cluster", of_block=True, writable=False, qualifier="const ")
"""The shared memory of another block of the cluster."""

_SPACES = {space.name: space for space in (GLOBAL, SHARED, CLUSTER)}


def space_of(t: Attribute | None) -> MemorySpace | None:
    """The memory of a buffer of type `t`; None for what is no buffer, or lies in no memory that there is."""
    if not isinstance(t, MemRefType):
        return None
    name = t.memory_space.data if isinstance(t.memory_space, StringAttr) else ""
    return _SPACES.get(name) if name or isinstance(t.memory_space, NoneAttr) else None


def is_shared(t: Attribute) -> bool:
    """Whether a memref type lies in shared memory."""
    return space_of(t) is SHARED


def is_shared_line(t: Attribute) -> bool:
    """Whether `t` is a shared buffer of one dimension."""
    return space_of(t) is SHARED and isinstance(t, MemRefType) and t.get_num_dims() == 1  # pyright: ignore
