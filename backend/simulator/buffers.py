"""Memories of a simulated launch, with what of them was written."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from xdsl.ir import Attribute

from ...dialects.payload import is_float
from ..dtypes import numpy_dtype
from ..interpreter.domains import Array, TypedDomain

NOBODY = -1


def poison(domain: TypedDomain, element: Attribute) -> Array:
    """What memory holds before it is written: NaN, or an integer too large to be an index."""
    if is_float(element):
        return domain.constant(float("nan"), element)
    dtype = numpy_dtype(element)
    if dtype.kind == "c":
        return np.asarray(np.nan, dtype)
    return np.asarray(True) if dtype == np.bool_ else np.asarray(np.iinfo(dtype).max // 3, dtype)


@dataclass
class GlobalBuffer:
    """A buffer in global memory, flat. `written`: None for an input, which is all there from the start.

    `writer` is the thread of the whole grid that wrote an element during the current launch, `position` the buffer's
    number among the arguments of its kernel.
    """

    data: Array
    shape: tuple[int, ...]
    element: Attribute
    written: Array | None
    writer: Array | None = None
    position: int = -1

    @staticmethod
    def empty(domain: TypedDomain, shape: Sequence[int], element: Attribute) -> GlobalBuffer:
        """A buffer in which nothing was written yet."""
        size = int(np.prod(shape, dtype=np.int64))
        data = np.full(size, poison(domain, element), domain.dtype(element))
        return GlobalBuffer(data, tuple(shape), element, np.zeros(size, np.bool_))

    def view(self, first: int, shape: tuple[int, ...]) -> GlobalBuffer:
        """The elements from number `first` on as a buffer of that shape, in the same memory."""
        part = slice(first, first + int(np.prod(shape, dtype=np.int64)))
        written = None if self.written is None else self.written[part]
        return GlobalBuffer(self.data[part], shape, self.element, written)

    def store(self, domain: TypedDomain, place: Array, thread: Any, value: Array) -> tuple[Array, Array]:
        """Write elements, each by a thread of the grid: where another thread writes an element in the same launch too,
        and where it writes something else."""
        if self.writer is None:
            self.writer = np.full(self.data.size, NOBODY, np.int64)
        other = (self.writer[place] != NOBODY) & (self.writer[place] != thread)
        wrong = other & ~domain.same(self.data[place], value)
        self.data[place], self.writer[place] = value, thread
        if self.written is not None:
            self.written[place] = True
        other |= self.writer[place] != thread
        return other, wrong | ~domain.same(self.data[place], value)

    def missing(self, place: Array) -> Array:
        """Which of the elements were never written."""
        return np.zeros(np.shape(place), np.bool_) if self.written is None else ~self.written[place]

    @property
    def itemsize(self) -> int:
        """Bytes of one element on the device."""
        return numpy_dtype(self.element).itemsize


@dataclass
class SharedBuffer:
    """A buffer in the shared memory of every simulated block: `data` is [blocks, elements], and so is `written`. The
    elements of mbarriers are `Barrier`s.

    `offset` is its place in bytes. For a part of it each thread has a `start`, and `size` elements from there on. In a
    cluster `ranks` says for each thread whose instance it means, if that is not its own block's.
    """

    data: Array
    written: Array
    element: Attribute
    offset: int
    size: int
    start: Any = 0
    ranks: Array | None = None

    @property
    def shape(self) -> tuple[int]:
        """Its one extent."""
        return (self.size,)

    def rows(self, own: Array) -> Array:
        """Whose instance each thread means: that of `ranks`, or its own."""
        return own if self.ranks is None else np.broadcast_to(self.ranks, own.shape)

    @property
    def itemsize(self) -> int:
        """Bytes of one element on the device."""
        return numpy_dtype(self.element).itemsize
