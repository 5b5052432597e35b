"""What the machines can do: the one place where passes and printers ask about a target.

The numbers describe one common card of each architecture; another one has more or fewer multiprocessors, which
`get_target` takes into account, and so it does what tuning has measured. Planners compare alternatives with them;
nothing that is computed depends on them, only how.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from difflib import get_close_matches
from functools import cache, reduce
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import TargetError
from .cores import (
    ISAS,
    MAX_LANES,
    CoreCosts,
    bf16_rate,
    caches,
    costs_of,
    device_of_cores,
    known_cores,
    read_factors,
    vectors,
    vectors_of,
)
from .layouts.linear import LANES

KIB = 1024


LAST_OF_CORE = 32 * KIB * KIB
"""Bytes of the last cache that a core counts on at most: others use it, too, of other virtual machines where a large
processor is shared."""


@dataclass(frozen=True)
class Rates:
    """What a card sustains, which is less than its data sheet says.

    memory   bytes a second from device memory
    cache    bytes a second from the level-2 cache, by loads of threads
    bulk     the same by TMA
    store    bytes a second of results that are written while nothing else is done
    vector   scalar f32 operations a second
    special  exponentials, divisions, roots a second
    fma      operations a second of sums of products on CUDA cores (a product and a sum are two), as far as threads
             can be kept busy
    mma      operations a second of `mma.sync` in 16 bits
    clock    cycles a second while tensor cores work
    """

    memory: float
    cache: float
    bulk: float
    store: float
    vector: float
    special: float
    fma: float
    mma: float
    clock: float
    launch: float = 2.5e-6
    """Seconds before a kernel does anything."""
    ramp: float = 1.0e-6
    """Seconds for the first loads to arrive and the last stores to drain, while nothing else is done."""
    latency: float = 0.75e-6
    """Seconds from a load to its value, under load."""
    bulk_latency: float = 1.0e-6
    """Seconds from the request of a TMA tile to its arrival, under load, where it comes from memory."""
    overlap: float = 4.0
    """Exponent of the norm by which times of the multiprocessors, of the level-2 cache and of memory add up."""
    issue_warps: float = 12.0
    """Warps with which a multiprocessor issues arithmetic between products at its full rate: there each operation waits
    for the one before."""
    fma_warps: float = 7.0
    """Warps with which a multiprocessor reaches half of its rate of multiply-adds."""
    shared_read: float = 3.0
    """Four multiply-adds that a warp could issue while it reads 16 bytes a thread from shared memory."""
    replay: float = 2.0e-6
    """Seconds that events measure of the replay of a CUDA graph, in addition to its kernels."""
    block: float = 60.0e9
    """Bytes a second that a single block can draw."""
    gap: float = 1.0e-6
    """Seconds from the last block of a kernel to the next kernel, which needs its results."""
    barrier: float = 0.04e-6
    """Seconds of a barrier between the warps of a block."""
    cluster_barrier: float = 0.5e-6
    """Seconds that blocks of a cluster take to meet, to read what the others have, and to meet again at their end."""
    peer: float = 2.65e12
    """Bytes a second that all multiprocessors together read from shared memory of others in their clusters: what Luo
    et al. measured on an H800 for clusters of four ("Benchmarking and Dissecting the Nvidia Hopper GPU Architecture via
    Microbenchmarking", arXiv 2402.13499; 3.27e12 for clusters of two)."""
    shared: float = 128
    """Bytes of shared memory that an SM moves in a cycle."""
    mma_latency: float = 33.0
    """Cycles from an `mma.sync` to the next one that adds to the same accumulators."""
    wgmma_cycles: tuple[tuple[int, float], ...] = ((64, 32.8), (128, 65.0), (192, 97.5), (256, 129.3))
    """Cycles of one wgmma of 64 rows and a depth of 16, by its columns, as published for an H100."""
    tiled: float = 0.67
    """The share of `fma` that a product of f32 gets with tiles of any shape."""
    nested: float = 0.1
    """The same where all of its results are reduced again: in one small tile after the other."""


@dataclass(frozen=True)
class Core:
    """A core of a CPU.

    lanes      elements of f32 of its vectors
    registers  how many vectors it has room for
    tile_rows  rows of the result that a product of panels keeps in registers at once
    l1, l2     bytes of the caches of its own
    bf16_rate  how many times as fast it multiplies matrices of bf16 as those of f32
    streams    from how many places in turn it reads memory as fast as from one, or faster
    isa        the instruction set that a program is for, one of `ISAS`; native is what the machine has
    costs      what it spends beside operations
    """

    lanes: int = 16
    registers: int = 32
    tile_rows: int = 8
    l1: int = 32 * KIB
    l2: int = 1024 * KIB
    bf16_rate: float = 1.0
    streams: int = 1
    isa: str = "native"
    costs: CoreCosts = CoreCosts()

    @property
    def column_rows(self) -> int:
        """Rows that stay in registers where columns of the left operand are contiguous: they need no pointers."""
        return (self.registers - 4) // 2 if self.lanes >= MAX_LANES else self.tile_rows

    def march(self) -> str:
        """What compilers call the processors that programs are for."""
        return self.isa if self.isa == "native" else ISAS[self.isa][1]


@dataclass(frozen=True)
class Target:
    """One GPU, or the cores of a CPU.

    name              what `nvcc -arch` takes
    card              the card that the numbers are of
    sms               streaming multiprocessors
    shared_per_block  bytes of shared memory that one block may ask for
    shared_per_sm     bytes of shared memory of an SM
    threads_per_sm    threads resident on an SM at once
    fp32, tensor      operations a second (a multiply-add is two), by the data sheet: on CUDA cores, and in bf16 on
                      tensor cores, or by what cores of a CPU have for bf16
    bandwidth         bytes a second from memory, by the data sheet
    l2                bytes of the level-2 cache
    workspace         bytes that PyTorch takes for sums beside its tensors: on a card what it reserves for cuBLAS, which
                      `torch.cuda.max_memory_allocated` counts (32 MiB on Hopper, on others 2 x 4096 + 8 x 16 KiB; sums
                      that blocks share and attention take theirs besides); on cores about what a call was seen to take
                      (1 to 7 MB for products, 9 to 17 for convolutions)
    rates             what of this can be had
    features          what code may use beyond the common base
    lanes             threads of a warp, in step; 1 where a block is a single thread, and a multiprocessor a core
    core              what such a core has
    """

    name: str
    card: str
    sms: int
    shared_per_block: int
    shared_per_sm: int
    threads_per_sm: int
    fp32: float
    tensor: float
    bandwidth: float
    l2: int
    rates: Rates
    features: frozenset[str]
    lanes: int = LANES
    core: Core | None = None
    workspace: int = (2 * 4096 + 8 * 16) * KIB

    @property
    def label(self) -> str:
        """The name, with the number of multiprocessors if it is not that of the card: `sm_90a`, `sm_90a:114`."""
        return self.name if self.sms == get_target(self.name).sms else f"{self.name}:{self.sms}"

    def with_multiprocessors(self, count: int) -> Target:
        """A card with `count` multiprocessors of this kind, and the same memory. Raises TargetError for a count that no
        card has."""
        if not 0 < count <= MOST_MULTIPROCESSORS:
            raise TargetError(f"{count} multiprocessors; 1 to {MOST_MULTIPROCESSORS} are possible", argument="target")
        r, scale = self.rates, count / self.sms
        rates = replace(r, vector=r.vector * scale, special=r.special * scale, fma=r.fma * scale, mma=r.mma * scale)
        rates = replace(rates, peer=r.peer * scale)
        card = self.card if count == self.sms else f"{self.card}, but {count} multiprocessors"
        return replace(self, card=card, sms=count, fp32=self.fp32 * scale, tensor=self.tensor * scale, rates=rates)

    def scaled(self, factors: Mapping[str, float]) -> Target:
        """The same with some of its constants multiplied: `rates.memory`, `costs.step` of a core, and so on."""

        def times(record: Any, kind: str) -> Any:
            own = {f.name: f"{kind}.{f.name}" for f in fields(record)}
            return replace(record, **{n: getattr(record, n) * factors[k] for n, k in own.items() if k in factors})

        core = self.core if self.core is None else replace(self.core, costs=times(self.core.costs, "costs"))
        return replace(self, rates=times(self.rates, "rates"), core=core) if factors else self

    def has(self, feature: str) -> bool:
        """Whether the target has `feature`: mma, cp_async, tma, cluster, wgmma."""
        return feature in self.features


MOST_MULTIPROCESSORS = 1024

RESERVED = 1024
"""Bytes of shared memory that the system takes of every block."""

REGISTERS, REGISTERS_PER_SM = 255, 65536
"""32-bit registers that a thread can have, and those of an SM."""

SECTOR = 32
"""Bytes that memory moves at least, and together."""

PARTITIONS = 4
"""Parts of an SM: each has its share of the registers, and issues the instructions of its own warps."""


def launch_registers(threads: int, blocks_per_sm: int = 1) -> int:
    """Registers that each thread of a kernel with `__launch_bounds__(threads, blocks_per_sm)` may start with.

    ptxas divides the registers among the warps that have to be resident, of which each partition has as many, and
    hands them out in steps of eight. `setmaxnreg` moves registers within a block (PTX ISA: it "blocks until enough
    registers are available in the per-CTA maximum register pool"), whose pool is this number times the threads,
    however many an SM has.
    """
    warps = -(-threads // 32) * blocks_per_sm
    return min(REGISTERS_PER_SM // (32 * PARTITIONS * -(-warps // PARTITIONS)), REGISTERS) // 8 * 8


def occupancy(target: Target, threads: Any, registers: Any, shared: Any) -> Any:
    """How many blocks run on an SM of `target` at once, for blocks of `threads` threads with `registers` each and
    `shared` bytes of shared memory; 0 if not even one fits. All may be columns of numbers."""
    warps = -(-threads // 32)
    registers_per_warp = -(-np.maximum(registers, 1) * 32 // 256) * 256
    limits = [32 if target.threads_per_sm == 2048 else 24, target.threads_per_sm // (warps * 32)]
    limits.append(REGISTERS_PER_SM // PARTITIONS // registers_per_warp * PARTITIONS // warps)
    limits.append(np.floor_divide(target.shared_per_sm, shared + RESERVED))
    fits = (shared <= target.shared_per_block) & (registers <= REGISTERS)
    return np.where(fits, reduce(np.minimum, limits), 0)


_AMPERE = frozenset({"mma", "cp_async"})
_TMA = _AMPERE | {"tma", "cluster"}
_HOPPER = _TMA | {"wgmma"}

_A100 = Rates(1.7e12, 4.5e12, 4.5e12, 1.25e12, 8.0e12, 2.4e12, 19.5e12, 290e12, 1.41e9)
_RTX_4090 = Rates(0.92e12, 4.5e12, 4.5e12, 0.63e12, 31e12, 5.1e12, 82.6e12, 165e12, 2.52e9)
_H200 = Rates(4.0e12, 7.0e12, 10.8e12, 3.0e12, 25e12, 4.0e12, 67e12, 600e12, 1.60e9)
_RTX_5090 = Rates(1.6e12, 6.5e12, 6.5e12, 1.1e12, 39e12, 6.5e12, 104.8e12, 209e12, 2.41e9)

_CARDS = (
    Target("sm_80", "A100", 108, 163 * KIB, 164 * KIB, 2048, 19.5e12, 312e12, 2.0e12, 40 << 20, _A100, _AMPERE),
    Target("sm_89", "RTX 4090", 128, 99 * KIB, 100 * KIB, 1536, 82.6e12, 165e12, 1.0e12, 72 << 20, _RTX_4090, _AMPERE),
    Target(
        "sm_90a",
        "H200",
        132,
        227 * KIB,
        228 * KIB,
        2048,
        67e12,
        989e12,
        4.8e12,
        50 << 20,
        _H200,
        _HOPPER,
        workspace=32 << 20,
    ),
    Target("sm_120", "RTX 5090", 170, 99 * KIB, 100 * KIB, 1536, 104.8e12, 209e12, 1.79e12, 96 << 20, _RTX_5090, _TMA),
)

FITTED = Path(__file__).with_name("fitted.json")
"""Factors of the constants above by target, with the device whose measured times they were fitted to, in the form of
the records of tuning; `benchmarks/fit.py` writes them."""


def _fitted() -> dict[str, dict[str, float]]:
    found = json.loads(FITTED.read_text(encoding="utf-8"))
    return {name: entry["factors"] for name, entry in found.items()}


UNFITTED = {t.name: t for t in _CARDS}
"""Every known target, by name, with constants from manuals and publications."""

TARGETS = {name: UNFITTED[name].scaled(_fitted().get(name, {})) for name in UNFITTED}
"""Every known target, by name."""


_CORES = Rates(
    2.0e10,
    2.0e11,
    2.0e11,
    2.0e10,
    1.7e11,
    1.4e10,
    4.0e11,
    4.0e11,
    3.0e9,
    launch=5e-6,
    ramp=0,
    latency=0,
    replay=0,
    tiled=1.0,
    nested=1.0,
)

CPU = Target(
    "cpu",
    "4 cores",
    4,
    256 * KIB,
    256 * KIB,
    1,
    4.0e11,
    4.0e11,
    2.0e10,
    32 << 20,
    _CORES,
    frozenset(),
    1,
    Core(),
    8 << 20,
)
"""The cores of a machine; what is not known of it is that of a common one."""


@cache
def calibrated(name: str) -> Target:
    """The target called `name`, with its constants as tuning has found them on the device here."""
    plain = TARGETS.get(name) or measured_cores()
    if name != plain.name:
        plain = _with_options(plain, name)
    return plain.scaled(read_factors(name, device_of_cores() if plain.core is not None else None))


@cache
def measured_cores() -> Target:
    """The cores of this machine as far as they are known; what is not is scaled from a common one."""
    found = known_cores()
    if found is None:
        return CPU
    r, scale = CPU.rates, found.fma / CPU.fp32
    rates = replace(r, memory=found.read, store=found.copy, vector=r.vector * scale, special=r.special * scale)
    rates = replace(rates, cache=r.cache * scale, bulk=r.bulk * scale, fma=found.fma, mma=found.fma)
    card = f"{found.processor}, {found.cores} cores"
    speed = {"fp32": found.fma, "tensor": found.fma * bf16_rate(), "bandwidth": found.read}
    own = caches()
    lanes, registers = vectors(found.processor)
    rows, l1, l2 = min(8, registers * 3 // 8), own.get("L1d", Core.l1), own.get("L2", Core.l2)
    core = Core(lanes, registers, rows, l1, l2, bf16_rate(), found.streams, costs=costs_of(found.processor))
    last = min(own.get("L3", CPU.l2), found.cores * LAST_OF_CORE)
    return replace(CPU, card=card, sms=found.cores, l2=last, rates=rates, core=core, **speed)


def _with_options(cores: Target, name: str) -> Target:
    """The `cores` as the text `cpu{isa=avx2 cores=4}` names them: their vectors, and how many. What they compute in a
    second goes with both. Raises TargetError."""
    said = _OPTIONS.fullmatch(name)
    pairs = [word.partition("=") for word in said[1].split()] if said else []
    options = {key: value for key, _, value in pairs}
    known = said and len(options) == len(pairs) and {*options} <= {"isa", "cores"} and cores.core is not None
    isa, count = options.get("isa", "native"), options.get("cores", str(cores.sms))
    if not known or isa not in {"native", *ISAS} or not count.isdecimal() or int(count) < 1:
        isas = "|".join(["native", *ISAS])
        raise TargetError(f"{name!r} is not cpu{{isa={isas} cores=N}}", argument="target")
    assert cores.core is not None
    core = cores.core
    if isa != "native":
        lanes, registers = vectors_of(isa)
        rows = min(8, registers * 3 // 8)
        core = replace(core, lanes=lanes, registers=registers, tile_rows=rows, bf16_rate=1.0, isa=isa)
    r, scale = cores.rates, core.lanes / cores.core.lanes * int(count) / cores.sms
    rates = replace(r, vector=r.vector * scale, special=r.special * scale, cache=r.cache * scale, bulk=r.bulk * scale)
    rates = replace(rates, fma=r.fma * scale, mma=r.mma * scale)
    speed = {"fp32": cores.fp32 * scale, "tensor": cores.fp32 * scale * core.bf16_rate}
    return replace(cores, name=name, sms=int(count), rates=rates, core=core, **speed)


_OPTIONS = re.compile(rf"{CPU.name}\{{([^{{}}]*)\}}")


def on_cores(name: str) -> bool:
    """Whether the target called `name` is the cores of a CPU."""
    return name == CPU.name or _OPTIONS.fullmatch(name) is not None


def get_target(name: str, multiprocessors: int | None = None) -> Target:
    """The target called `name`, on a card with so many multiprocessors; without a number on the one in `TARGETS`. The
    cores of a CPU may be said more closely: `cpu{isa=avx2 cores=4}`.

    Raises TargetError, which lists those that are known."""
    if name in TARGETS or on_cores(name):
        found = calibrated(name)
        return found if multiprocessors is None else found.with_multiprocessors(multiprocessors)
    close = get_close_matches(str(name), TARGETS, 1)
    hint = f", did you mean {close[0]}?" if close else ""
    raise TargetError(f"unknown target {name!r}{hint} (known: {', '.join(TARGETS)}, {CPU.name})", argument="target")
