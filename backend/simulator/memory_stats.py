"""How well one block's accesses use the memories: wavefronts of shared memory, sectors of global memory."""

from __future__ import annotations

import numpy as np

from ..interpreter.domains import Array

BANKS = 32
SECTOR = 32


def _requests(address: Array, mask: Array, vec: int) -> tuple[Array, Array]:
    """The first byte of every wide access and whether it happens, as [requests of a warp, 32 lanes]."""
    threads, registers = address.shape
    first = address[:, ::vec].reshape(threads // 32, 32, registers // vec)
    happens = mask[:, ::vec].reshape(threads // 32, 32, registers // vec)
    return first.swapaxes(1, 2).reshape(-1, 32), happens.swapaxes(1, 2).reshape(-1, 32)


def _distinct(values: Array, valid: Array) -> tuple[Array, Array]:
    """Each row sorted, and where a valid value appears for the first time."""
    rows = np.sort(np.where(valid, values, -1), axis=1)
    new = np.ones(rows.shape, np.bool_)
    new[:, 1:] = rows[:, 1:] != rows[:, :-1]
    return rows, new & (rows >= 0)


def moved(address: Array, mask: Array, vec: int, itemsize: int) -> int:
    """Bytes that the accesses [blocks, threads, registers] move; lanes of a warp that ask for one place in one request
    get it together."""
    address, mask = np.broadcast_arrays(address, mask)
    registers = address.shape[2]
    first, happens = _requests(address.reshape(-1, registers), mask.reshape(-1, registers), vec)
    _, new = _distinct(first, happens)
    return int(np.count_nonzero(new)) * vec * itemsize


def wavefronts(address: Array, mask: Array, vec: int, itemsize: int) -> tuple[int, int]:
    """(needed, without conflicts) passes over shared memory for the accesses [threads, registers] at byte `address`.

    A pass serves 32 banks of four bytes; accesses of 8 (16) bytes go half (quarter) warp by half (quarter) warp.
    """
    first, happens = _requests(address, mask, vec)
    width = vec * itemsize
    words = max(1, width // 4)
    phases = min(words, 4)
    rows = first.reshape(-1, 32 // phases)
    valid = happens.reshape(-1, 32 // phases)
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
