"""Measurement of memory bandwidth and FLOP/s of the CPU, for the cost model."""

from __future__ import annotations

import ctypes
import mmap
import timeit
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from ...target.host import Measured, cores, processor, vectors
from .build import build
from .printer import helper_section

ELEMENTS = 256 << 20
"""Number of f32 elements that are read: 1 GB, much more than the caches. A quarter of them is copied.

NumPy uses huge pages for arrays of this size.
"""

STREAMS = (1, 2, 4, 8)
"""Numbers of parallel read streams that are measured. A core reads the streams alternately.

The fastest number differs between processors.
"""

ROUNDS, CHAINS, TRIES = 1_000_000, 12, 11
"""Multiply-adds of a dependence chain, chains per core, and repetitions of a measurement."""


def measure(elements: int = ELEMENTS, rounds: int = ROUNDS) -> Measured:
    """Measures the bandwidth of copies and reads, and FLOP/s, of all cores. Takes a few seconds.

    Args:
        elements: number of f32 elements to read.
        rounds: multiply-adds of a dependence chain.

    Raises:
        ExecutionError: if there is no compiler.
    """
    library, threads = _library(), cores()
    source, target = np.ones(elements // 4, np.float32), np.zeros(elements // 4, np.float32)
    long, at = ctypes.c_long, [ctypes.c_void_p(a.ctypes.data) for a in (source, target)]
    copy = _seconds(lambda: library.copy(at[1], at[0], long(target.size), threads))
    fma = _seconds(lambda: library.multiply(ctypes.c_float(0.5), long(rounds), threads))
    operations = 2 * CHAINS * vectors(processor())[0] * rounds * threads
    read = read_rate(elements, threads)
    return Measured(processor(), threads, target.nbytes / copy, read, operations / fma, _streams(library, elements))


def read_rate(elements: int = ELEMENTS, threads: int | None = None) -> float:
    """Returns the read bandwidth of `threads` cores together, or of all cores, in bytes per second.

    Raises ExecutionError if there is no compiler.
    """
    source = np.ones(elements, np.float32)
    return source.nbytes / min(_read(_library(), source, threads or cores()))


def _streams(library: ctypes.CDLL, elements: int) -> int:
    """Returns the number of `STREAMS` with which one core reads fastest.

    The memory has small pages, as the tensors of PyTorch have.
    """
    source = np.frombuffer(mmap.mmap(-1, 4 * elements), np.float32)
    source.fill(1.0)
    times = _read(library, source, 1)
    return STREAMS[times.index(min(times))]


def _read(library: ctypes.CDLL, source: Any, threads: int) -> list[float]:
    """Returns the seconds to read an array on `threads` cores, for each number of `STREAMS`."""
    at, size = ctypes.c_void_p(source.ctypes.data), ctypes.c_long(source.size)
    return [_seconds(lambda n=n: library.read(at, size, threads, n)) for n in STREAMS]


def _library() -> ctypes.CDLL:
    text = helper_section({"vector.fused"}) + (Path(__file__).parent / "measure.hpp").read_text()
    return ctypes.CDLL(str(build(text)))


def _seconds(call: Callable[[], object]) -> float:
    return min(timeit.repeat(call, number=1, repeat=TRIES))
