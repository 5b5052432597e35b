"""Memory of a simulated launch: buffers, which of their elements are written, and the cost of accesses.

The cost is the number of wavefronts of shared memory, and of sectors of global memory.
"""

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

NO_THREAD = -1


def poison(domain: TypedDomain, element: Attribute) -> Array:
    """Returns the contents of unwritten memory: NaN, or an integer that is too large for an index."""
    if is_float(element):
        return domain.constant(float("nan"), element)
    dtype = numpy_dtype(element)
    if dtype.kind == "c":
        return np.asarray(np.nan, dtype)
    return np.asarray(True) if dtype == np.bool_ else np.asarray(np.iinfo(dtype).max // 3, dtype)


@dataclass
class GlobalBuffer:
    """Buffer in global memory.

    Attributes:
        data: elements, flat.
        shape: extents.
        element: element type.
        written: whether each element was written; None for an input.
        writer: thread of the grid that wrote each element in the current launch.
        position: number of the argument of the kernel.
        offset: address of the first element in bytes.
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
        """Returns a buffer of `shape` in the same memory, from the element `first` on."""
        part = slice(first, first + int(np.prod(shape, dtype=np.int64)))
        written = None if self.written is None else self.written[part]
        return GlobalBuffer(self.data[part], shape, self.element, written)

    def store(self, domain: TypedDomain, place: Array, thread: Any, value: Array) -> tuple[Array, Array]:
        """Writes elements.

        Args:
            domain: scalar domain.
            place: element numbers.
            thread: thread of the grid that writes each element.
            value: values.

        Returns:
            For each element whether another thread writes it in the same launch, and whether it writes another value.
        """
        if self.writer is None:
            self.writer = np.full(self.data.size, NO_THREAD, np.int64)
        other = (self.writer[place] != NO_THREAD) & (self.writer[place] != thread)
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
    """Buffer in the shared memory of every simulated block.

    Attributes:
        data: elements as [blocks, elements]. Elements of mbarriers are `Barrier`s.
        written: whether each element was written.
        element: element type.
        offset: start in shared memory in bytes.
        size: number of elements.
        start: first element of a part of the buffer, for each thread.
        ranks: block of the cluster whose buffer each thread accesses; None for its own block.
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

    def rows(self, own_rows: Array) -> Array:
        """Returns the index in the first axis of `data` that each thread accesses.

        `own_rows` is the index of the thread's own block (`Machine.rows`).
        """
        return own_rows if self.ranks is None else np.broadcast_to(self.ranks, own_rows.shape)

    @property
    def itemsize(self) -> int:
        return numpy_dtype(self.element).itemsize


BANKS = 32
SECTOR = 32


def _requests(address: Array, mask: Array, vec: int) -> tuple[Array, Array]:
    """Groups accesses into requests: one access of `vec` registers by each lane of a warp.

    Returns the address of each access, and whether it happens, as [requests, lanes].

    Args:
        address: byte addresses as [..., threads, registers].
        mask: true for accesses that happen.
        vec: registers of an access.
    """
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
    """Returns the bytes that accesses move. Equal addresses of a request of a warp count once.

    Args:
        address: byte addresses as [blocks, threads, registers].
        mask: true for accesses that happen.
        vec: registers of an access.
        itemsize: bytes of a register.
    """
    address, mask = np.broadcast_arrays(address, mask)
    first, happens = _requests(address, mask, vec)
    _, new = _distinct(first, happens)
    return int(np.count_nonzero(new)) * vec * itemsize


def wavefronts(address: Array, mask: Array, vec: int, itemsize: int) -> tuple[int, int]:
    """Returns the wavefronts of shared memory: needed ones, and those without bank conflicts.

    A wavefront serves 32 banks of four bytes. Accesses of 8 or 16 bytes take a half or a quarter of a warp at a time.

    Args:
        address: byte addresses as [threads, registers].
        mask: true for accesses that happen.
        vec: registers of an access.
        itemsize: bytes of a register.
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
    words_of_row, new = _distinct(word, valid)
    key = np.arange(len(rows))[:, None] * BANKS + words_of_row % BANKS
    per_bank = np.bincount(key[new].astype(np.intp), minlength=len(rows) * BANKS).reshape(-1, BANKS)
    return int(per_bank.max(axis=1).sum()), int(valid.any(axis=1).sum())


def sectors(address: Array, mask: Array, vec: int, itemsize: int) -> tuple[int, int]:
    """Returns the 32-byte sectors of global memory: touched ones, and the least possible number.

    Args:
        address: byte addresses as [threads, registers].
        mask: true for accesses that happen.
        vec: registers of an access.
        itemsize: bytes of a register.
    """
    first, happens = _requests(address, mask, vec)
    width = vec * itemsize
    pieces = max(1, width // SECTOR)
    touched = (first[:, :, None] // SECTOR + np.arange(pieces)).reshape(len(first), -1)
    _, new = _distinct(touched, np.repeat(happens, pieces, axis=1))
    least = -(-happens.sum(axis=1) * width // SECTOR)
    return int(new.sum()), int(least.sum())
