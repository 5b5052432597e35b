"""Memories of a simulated launch, with what of them was written, and how well one block's accesses use them: wavefronts
of shared memory, sectors of global memory."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from xdsl.ir import Attribute

from ...dialects.layouts.linear import LANES
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
    offset: int = 0

    @staticmethod
    def empty(domain: TypedDomain, shape: Sequence[int], element: Attribute) -> GlobalBuffer:
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

    def missing(self, place: Any) -> Array:
        return np.zeros((), np.bool_) if self.written is None else ~self.written[place]

    @property
    def itemsize(self) -> int:
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
        return (self.size,)

    def missing(self, place: Any) -> Array:
        return ~self.written[place]

    def rows(self, own: Array) -> Array:
        """Whose instance each thread means: that of `ranks`, or its own."""
        return own if self.ranks is None else np.broadcast_to(self.ranks, own.shape)

    @property
    def itemsize(self) -> int:
        return numpy_dtype(self.element).itemsize


BANKS = 32
SECTOR = 32


def _requests(address: Array, mask: Array, vec: int) -> tuple[Array, Array]:
    """The first byte of every wide access and whether it happens, as [requests of a warp, lanes], for accesses [...,
    threads of a block, registers]."""
    *_, threads, registers = address.shape
    lanes = min(LANES, threads)
    first = address[..., ::vec].reshape(-1, lanes, registers // vec)
    happens = mask[..., ::vec].reshape(-1, lanes, registers // vec)
    return first.swapaxes(1, 2).reshape(-1, lanes), happens.swapaxes(1, 2).reshape(-1, lanes)


def _distinct(values: Array, valid: Array) -> tuple[Array, Array]:
    rows = np.sort(np.where(valid, values, -1), axis=1)
    new = np.ones(rows.shape, np.bool_)
    new[:, 1:] = rows[:, 1:] != rows[:, :-1]
    return rows, new & (rows >= 0)


def moved(address: Array, mask: Array, vec: int, itemsize: int) -> int:
    """Bytes that the accesses [blocks, threads, registers] move; lanes of a warp that ask for one place in one request
    get it together."""
    address, mask = np.broadcast_arrays(address, mask)
    first, happens = _requests(address, mask, vec)
    _, new = _distinct(first, happens)
    return int(np.count_nonzero(new)) * vec * itemsize


def wavefronts(address: Array, mask: Array, vec: int, itemsize: int) -> tuple[int, int]:
    """(needed, without conflicts) passes over shared memory for the accesses [threads, registers] at byte `address`.

    A pass serves 32 banks of four bytes; accesses of 8 (16) bytes go half (quarter) warp by half (quarter) warp.
    """
    first, happens = _requests(address, mask, vec)
    width = vec * itemsize
    words = max(1, width // 4)
    lanes = first.shape[1]
    phases = min(words, 4, lanes)
    rows = first.reshape(-1, lanes // phases)
    valid = happens.reshape(-1, lanes // phases)
    word = rows[:, :, None] // 4 + np.arange(words)
    word = word.reshape(len(rows), -1)
    valid = np.repeat(valid, words, axis=1)
    found, new = _distinct(word, valid)
    key = np.arange(len(rows))[:, None] * BANKS + found % BANKS
    per_bank = np.bincount(key[new], minlength=len(rows) * BANKS).reshape(-1, BANKS)
    return int(per_bank.max(axis=1).sum()), int(valid.any(axis=1).sum())


def sectors(address: Array, mask: Array, vec: int, itemsize: int) -> tuple[int, int]:
    """(touched, least possible) 32-byte sectors of global memory for the accesses at byte `address`."""
    first, happens = _requests(address, mask, vec)
    width = vec * itemsize
    pieces = max(1, width // SECTOR)
    touched = (first[:, :, None] // SECTOR + np.arange(pieces)).reshape(len(first), -1)
    _, new = _distinct(touched, np.repeat(happens, pieces, axis=1))
    least = -(-happens.sum(axis=1) * width // SECTOR)
    return int(new.sum()), int(least.sum())
