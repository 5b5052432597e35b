"""Memories with a shadow: who wrote and who read each cell, and since which barrier."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from xdsl.ir import Attribute

from ...dialects.payload import is_float
from ..interpreter.domains import Array, TypedDomain, numpy_dtype

NOBODY, MANY = -1, -2


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

    `writer` is the thread of the whole grid that wrote an element during the current launch; `MANY` where atomic
    operations combined into it.
    """

    data: Array
    shape: tuple[int, ...]
    element: Attribute
    written: Array | None
    writer: Array | None = None

    @staticmethod
    def empty(domain: TypedDomain, shape: Sequence[int], element: Attribute) -> GlobalBuffer:
        """A buffer in which nothing was written yet."""
        size = int(np.prod(shape, dtype=np.int64))
        data = np.full(size, poison(domain, element), domain.dtype(element))
        return GlobalBuffer(data, tuple(shape), element, np.zeros(size, np.bool_))

    def writers(self) -> Array:
        """`writer`, from now on kept."""
        if self.writer is None:
            self.writer = np.full(self.data.size, NOBODY, np.int64)
        return self.writer

    def view(self, first: int, shape: tuple[int, ...]) -> GlobalBuffer:
        """The elements from number `first` on as a buffer of that shape, in the same memory."""
        part = slice(first, first + int(np.prod(shape, dtype=np.int64)))
        written = None if self.written is None else self.written[part]
        return GlobalBuffer(self.data[part], shape, self.element, written)

    @property
    def itemsize(self) -> int:
        """Bytes of one element on the device."""
        return numpy_dtype(self.element).itemsize


@dataclass
class SharedBuffer:
    """A buffer in the shared memory of every simulated block: `data` is [blocks, size].

    `start` is its first cell in the shadow, `cells` how many cells an element has, `offset` its place in bytes. In a
    cluster `ranks` says for each thread whose instance it means, if that is not its own block's.
    """

    data: Array
    element: Attribute
    number: int
    start: int
    cells: int
    offset: int
    ranks: Array | None = None

    @property
    def itemsize(self) -> int:
        """Bytes of one element on the device."""
        return numpy_dtype(self.element).itemsize


def cells_of(buffer: SharedBuffer, block: Array, thread: Array, place: Array) -> tuple[tuple[Array, Array], Array]:
    """Every shadow cell of the accesses, as ((block, cell), thread); an element's cells lie next to each other. `block`
    is the row of the buffer."""
    cells = buffer.start + place[:, None] * buffer.cells + np.arange(buffer.cells)
    return (np.repeat(block, buffer.cells), cells.reshape(-1)), np.repeat(thread, buffer.cells)


@dataclass
class Races:
    """Per access, whether it broke a rule: one bool each."""

    uninitialised: Array
    foreign: Array
    race: Array
    flying: Array


@dataclass
class Shadow:
    """The history of every cell of shared memory: last writer and readers, each with the number of barriers before."""

    blocks: int
    cells: int
    writer: Array = field(init=False)
    write_epoch: Array = field(init=False)
    reader: Array = field(init=False)
    read_epoch: Array = field(init=False)
    owner: Array = field(init=False)
    flying: Array = field(init=False)
    """Whether an asynchronous copy may still write the cell."""

    def __post_init__(self) -> None:
        shape = (self.blocks, self.cells)
        self.writer, self.reader = np.full(shape, NOBODY, np.int32), np.full(shape, NOBODY, np.int32)
        self.write_epoch, self.read_epoch = np.full(shape, -1, np.int32), np.full(shape, -1, np.int32)
        self.owner = np.full(shape, -1, np.int16)
        self.flying = np.zeros(shape, np.bool_)

    def read(self, at: tuple[Array, Array], thread: Array, epoch: Array, owner: int) -> Races:
        """`thread` reads the cells `at` (block, cell), `epoch` barriers into the kernel, through buffer `owner`."""
        nothing = self.write_epoch[at] < 0
        foreign = ~nothing & (self.owner[at] != owner)
        race = (self.write_epoch[at] == epoch) & (self.writer[at] != thread)
        others = (self.read_epoch[at] == epoch) & (self.reader[at] != thread)
        self.reader[at] = np.where(others, MANY, thread)
        self.read_epoch[at] = epoch
        lost = (self.reader[at] != thread) & (self.reader[at] != MANY)
        self._mark(self.reader, at, lost)
        # A cell that two threads read keeps MANY even if the last of them stored its own number above.
        self._mark(self.reader, at, others)
        return Races(nothing, foreign, race, self.flying[at])

    def write(self, at: tuple[Array, Array], thread: Array, epoch: Array, owner: int, unchanged: Array) -> Array:
        """`thread` writes the cells; returns where that races with an earlier access. Writing what is there already
        (`unchanged`) races with readers of other values only, so with nobody."""
        after_write = (self.write_epoch[at] == epoch) & (self.writer[at] != thread)
        after_read = (self.read_epoch[at] == epoch) & (self.reader[at] != thread)
        race = (after_write | after_read) & ~unchanged
        shared = after_write & unchanged
        self.writer[at] = thread
        self.write_epoch[at] = epoch
        self.owner[at] = owner
        self._mark(self.writer, at, (self.writer[at] != thread) | shared)
        return race

    @staticmethod
    def _mark(who: Array, at: tuple[Array, Array], where: Array) -> None:
        if where.any():
            who[at[0][where], at[1][where]] = MANY
