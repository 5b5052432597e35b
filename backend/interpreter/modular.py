"""Arithmetic modulo the two primes of the exact domain, on arrays of uint64."""

from __future__ import annotations

import numpy as np

from .domains import Array

Q = 2147483543
P = 2 * Q + 1
"""Both are prime, and 4 generates the subgroup of order Q of the numbers modulo P: u -> 4^u turns sums modulo Q into
products modulo P. P is 7 modulo 8, so that -1 is no square: being a square behaves like being positive."""

MAX_SUM = 1 << 20
"""Products of 16-bit limbs that may be added in a float64 without rounding, with room to spare."""


def _modulus(prime: int) -> np.uint64:
    return np.uint64(prime)


def multiply(a: Array, b: Array, prime: int) -> Array:
    """a * b mod prime; both below it, so the product fits 64 bits."""
    return (a * b) % _modulus(prime)


def power(base: Array, exponent: int, prime: int) -> Array:
    """base ** exponent mod prime, exponent at least 0."""
    result = np.ones_like(base)
    while exponent:
        if exponent & 1:
            result = multiply(result, base, prime)
        exponent >>= 1
        if exponent:
            base = multiply(base, base, prime)
    return result


def inverse(a: Array, prime: int) -> Array:
    """1 / a mod prime; 0 for 0."""
    return power(a, prime - 2, prime)


def _powers_of_four() -> list[Array]:
    """tables[i][j] = 4 ** (j << 8 * i) mod P, for the four bytes of an exponent."""
    tables: list[Array] = []
    for i in range(4):
        step = pow(4, 1 << (8 * i), P)
        row = [1]
        for _ in range(255):
            row.append(row[-1] * step % P)
        tables.append(np.array(row, np.uint64))
    return tables


_TABLES = _powers_of_four()


def four_to(u: Array) -> Array:
    """4 ** u mod P for u below 2 ** 32."""
    byte = np.uint64(255)
    result = _TABLES[0][u & byte]
    for i in range(1, 4):
        result = multiply(result, _TABLES[i][(u >> np.uint64(8 * i)) & byte], P)
    return result


def total(a: Array, axes: tuple[int, ...], prime: int) -> Array:
    """The sum over `axes` mod prime; exact for up to 2 ** 32 terms."""
    return np.asarray(np.sum(a, axis=axes, dtype=np.uint64)) % _modulus(prime)


def product(a: Array, axis: int, prime: int) -> Array:
    """The product over one axis mod prime, pairing halves; 1 for an empty axis."""
    a = np.moveaxis(a, axis, 0)
    if a.shape[0] == 0:
        return np.ones(a.shape[1:], np.uint64)
    while a.shape[0] > 1:
        half = a.shape[0] // 2
        rest = a[2 * half :]
        a = np.concatenate([multiply(a[:half], a[half : 2 * half], prime), rest])
    return a[0]


def matmul(a: Array, b: Array, prime: int) -> Array:
    """Batched matrix product mod prime: float64 products of 16-bit limbs, which stay below 2 ** 53."""
    k = a.shape[-1]
    if k > MAX_SUM:
        parts = [matmul(a[..., i : i + MAX_SUM], b[..., i : i + MAX_SUM, :], prime) for i in range(0, k, MAX_SUM)]
        return total(np.stack(parts), (0,), prime)
    low, shift = np.uint64(0xFFFF), np.uint64(16)
    a0, a1 = (a & low).astype(np.float64), (a >> shift).astype(np.float64)
    b0, b1 = (b & low).astype(np.float64), (b >> shift).astype(np.float64)
    modulus = _modulus(prime)
    ll = np.matmul(a0, b0).astype(np.uint64) % modulus
    hh = np.matmul(a1, b1).astype(np.uint64) % modulus
    mixed = (np.matmul(a0, b1) + np.matmul(a1, b0)).astype(np.uint64) % modulus
    scale = np.asarray(1 << 16, np.uint64)
    upper = (multiply(hh, scale, prime) + mixed) % modulus
    return (multiply(upper, scale, prime) + ll) % modulus
