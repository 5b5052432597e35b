"""The numbers of a target: a GPU, or the cores of a CPU, as records with units.

The records are data. `architectures.py` has one for each architecture, `host.py` makes that of the local machine, and
`attribute.py` writes them into the IR.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from functools import cache, reduce
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import numpy as np

from ..errors import TargetError

KIB = 1024

Bytes = Annotated[int, "B"]
BytesPerSecond = Annotated[float, "B_per_s"]
OpsPerSecond = Annotated[float, "op_per_s"]
Seconds = Annotated[float, "s"]
Hertz = Annotated[float, "Hz"]
Cycles = Annotated[float, "cycles"]
BytesPerCycle = Annotated[float, "B_per_cycle"]
Registers = Annotated[int, "registers"]
VectorOps = Annotated[float, "vector_ops"]
"""Times of a core in operations on vectors."""


@dataclass(frozen=True)
class Rates:
    """Rates and latencies that a target sustains, which are below those of its data sheet.

    memory    bandwidth of device memory
    cache     bandwidth of the level-2 cache, by loads of threads
    bulk      the same by TMA
    store     bandwidth of results that are written while nothing else is done
    vector    scalar f32 operations
    special   exponentials, divisions, roots
    fma       operations of contractions on CUDA cores (a multiply-add is two), as far as threads can be kept busy
    mma       operations of `mma.sync` in 16 bits
    clock     clock while tensor cores work
    """

    memory: BytesPerSecond
    cache: BytesPerSecond
    bulk: BytesPerSecond
    store: BytesPerSecond
    vector: OpsPerSecond
    special: OpsPerSecond
    fma: OpsPerSecond
    mma: OpsPerSecond
    clock: Hertz
    launch: Seconds = 2.5e-6
    """Time before a kernel does anything."""
    ramp: Seconds = 1.0e-6
    """Time for the first loads to arrive and the last stores to drain, while nothing else is done."""
    latency: Seconds = 0.75e-6
    """Time from a load to its value, under load."""
    bulk_latency: Seconds = 1.0e-6
    """Time from the request of a TMA tile to its arrival from memory, under load."""
    overlap: float = 4.0
    """Exponent of the norm by which times of the multiprocessors, of the level-2 cache and of memory add up."""
    issue_warps: float = 12.0
    """Warps with which a multiprocessor issues arithmetic between contractions at its full rate: there each operation
    waits for the one before."""
    fma_warps: float = 7.0
    """Warps with which a multiprocessor reaches half of its rate of multiply-adds."""
    shared_read: float = 3.0
    """Four multiply-adds that a warp could issue while it reads 16 bytes a thread from shared memory."""
    replay: Seconds = 2.0e-6
    """Time that events measure of the replay of a CUDA graph, in addition to its kernels."""
    block: BytesPerSecond = 60.0e9
    """Bandwidth of a single block."""
    gap: Seconds = 1.0e-6
    """Time from the last block of a kernel to the next kernel, which needs its results."""
    barrier: Seconds = 0.04e-6
    """Time of a barrier between the warps of a block."""
    cluster_barrier: Seconds = 0.5e-6
    """Time that blocks of a cluster take to meet, to read what the others have, and to meet again at their end."""
    peer: BytesPerSecond = 2.65e12
    """Bandwidth of all multiprocessors together to shared memory of others in their clusters: what Luo et al. measured
    on an H800 for clusters of four ("Benchmarking and Dissecting the Nvidia Hopper GPU Architecture via
    Microbenchmarking", arXiv 2402.13499; 3.27e12 for clusters of two)."""
    shared: BytesPerCycle = 128
    """Bandwidth of shared memory of an SM."""
    mma_latency: Cycles = 33.0
    """Time from an `mma.sync` to the next one that adds to the same accumulators."""
    wgmma_cycles: tuple[tuple[int, float], ...] = ((64, 32.8), (128, 65.0), (192, 97.5), (256, 129.3))
    """Cycles of one wgmma of 64 rows and a depth of 16, by its columns, as published for an H100."""
    tiled: float = 0.67
    """The share of `fma` that a matmul of f32 gets with tiles of any shape."""
    nested: float = 0.1
    """The same where all of its results are reduced again: in one small tile after the other."""

    @property
    def known(self) -> bool:
        """True if times can be predicted by the rates. Otherwise schedules follow rules."""
        return self.memory > 0


UNKNOWN = Rates(memory=0, cache=0, bulk=0, store=0, vector=0, special=0, fma=0, mma=0, clock=0)
"""The rates of a record without numbers."""


@dataclass(frozen=True)
class RegisterUse:
    """32-bit registers that ptxas takes of a thread, as seen in machine code (`tests/machine_code.py`).

    rows, sums, atoms   addresses, counters and intermediate values: without matmuls, with them, on tensor cores
    fused, fused_atoms  more where other reductions are computed beside a matmul; with `mma.sync`
    nested              more where one matmul is an operand of another
    waiting             more where accumulators wait for partial sums
    walk                more where a block walks through tiles, for its position
    computing           of a warpgroup beside its accumulators, while it computes
    accumulators        accumulators that one wgmma writes in a thread, at most
    beside_accumulators registers beside them at the launch: ptxas compiles no wgmma for fewer (C7602), whatever
                        `setmaxnreg` gives its warps
    """

    rows: Registers = 30
    sums: Registers = 38
    atoms: Registers = 52
    fused: Registers = 40
    nested: Registers = 60
    fused_atoms: Registers = 20
    waiting: Registers = 14
    walk: Registers = 10
    computing: Registers = 40
    accumulators: Registers = 128
    beside_accumulators: Registers = 32


@dataclass(frozen=True)
class CoreCosts:
    """Times of a core in addition to the operations of a nest. The cost model counts them; `deplodock tune` corrects
    them by what it measures.

    scalar    an operation of elements that do not fill a vector: each by itself, with its address
    access    a load or store of a vector in the nearest cache
    gathered  each element where the neighbours of a vector are not neighbours in memory
    checked   more where each of these is checked by itself, as some are past an end
    near      a vector of every other element, of which some may be past an end
    turned    a vector where squares of vectors are transposed
    masked    more of a vector where rows of a tile end inside of it, so that what is past the end is masked
    spread    each vector of sums of columns, for each chunk of these: it is stored, and added to those of chunks before
    sum       to add a vector of sums to the result, for each panel of a matmul
    pack, turn, far_turn  to pack a vector of a panel: from rows, from columns, and from columns of two vectors, which
              lie in more rows than the nearest cache has places for
    fold, step, block, chunk  to reduce a vector to a number, to start a loop, to start a block, and a chunk whose sums
              are kept
    product   to start a matmul of panels
    seek, near_seek  to begin to read elsewhere in memory, or in the last cache, than where the last read ended:
              processors foresee what follows. Of less than a page it is less, a quarter at least
    page      more, to begin to read a row on another page than the rows before, of a tensor of more than `TLB`:
              processors of Intel that were measured wait for its address, those of AMD find it meanwhile
    spilled   factor by which nested matmuls take longer where their tiles do not fit into the nearest cache
    l1_tiles, l2_tiles  the same of accesses where the tiles of reductions do not fit into the first cache, or second
    parallel_run        bytes below which several pieces of memory are read at the same time
    least_seek          share of `seek` that the shortest piece takes
    far_panel           share of the bytes of a panel that a core waits for where it does not fit into the first cache
    column_vectors      vectors of columns that are reduced at the same time
    """

    scalar: VectorOps = 3.0
    access: VectorOps = 1.5
    gathered: VectorOps = 8.0
    checked: VectorOps = 30.0
    near: VectorOps = 20.0
    turned: VectorOps = 12.0
    masked: VectorOps = 4.0
    spread: VectorOps = 8.0
    sum: VectorOps = 3.0
    pack: VectorOps = 20.0
    turn: VectorOps = 12.0
    far_turn: VectorOps = 20.0
    fold: Seconds = 4e-9
    step: Seconds = 1e-9
    block: Seconds = 10e-9
    chunk: Seconds = 60e-9
    product: Seconds = 30e-9
    seek: Seconds = 120e-9
    near_seek: Seconds = 10e-9
    page: Seconds = 0.0
    spilled: float = 1.3
    l1_tiles: float = 1.2
    l2_tiles: float = 3.0
    parallel_run: Bytes = 128
    least_seek: float = 0.25
    far_panel: float = 0.25
    column_vectors: int = 4


@dataclass(frozen=True)
class Core:
    """A core of a CPU.

    lanes      elements of f32 of its vectors
    registers  how many vectors it has room for
    tile_rows  rows of the result that a matmul of panels keeps in registers at once
    l1, l2     the caches of its own
    bf16_rate  how many times as fast it multiplies matrices of bf16 as those of f32
    streams    from how many places in turn it reads memory as fast as from one, or faster
    fma_in_flight  vectors of sums with which no multiply-add waits for the one before
    amx_rows   rows of the result that matmuls of bf16 keep in two registers of AMX at once
    isa        the instruction set that a program is for, one of `ISAS`, or `native`: that of the local machine
    march      name of the processors that compilers make the program for
    costs      times in addition to operations
    """

    lanes: int = 16
    registers: int = 32
    tile_rows: int = 8
    l1: Bytes = 32 * KIB
    l2: Bytes = 1024 * KIB
    bf16_rate: float = 1.0
    streams: int = 1
    fma_in_flight: int = 8
    amx_rows: int = 32
    isa: str = "native"
    march: str = "native"
    costs: CoreCosts = CoreCosts()

    @property
    def column_rows(self) -> int:
        """Rows that stay in registers where columns of the left operand are contiguous: they need no pointers."""
        return (self.registers - 4) // 2 if self.lanes >= MAX_LANES else self.tile_rows


@dataclass(frozen=True)
class Target:
    """One GPU, or the cores of a CPU.

    name              what `--target` takes: `sm_90a`, `sm_90a:114`, `cpu`, `cpu{isa=avx2 cores=4}`
    card              the card or processor that the numbers are of
    sms               streaming multiprocessors, or cores
    shared_per_block  shared memory that one block may ask for
    shared_per_sm     shared memory of an SM
    threads_per_sm    threads resident on an SM at once
    fp32, tensor      operations (a multiply-add is two), by the data sheet: on CUDA cores, and in bf16 on tensor cores,
                      or by what cores of a CPU have for bf16
    bandwidth         bandwidth of memory, by the data sheet
    l2                the level-2 cache of a GPU, the last cache of a CPU
    workspace         memory that PyTorch takes for sums in addition to its tensors: on a card what it reserves for
                      cuBLAS, which `torch.cuda.max_memory_allocated` counts (32 MiB on Hopper, on others 2 x 4096 + 8 x
                      16 KiB; sums that blocks share and attention take theirs besides); on a CPU about what a call was
                      seen to take (1 to 7 MB for matmuls, 9 to 17 for convolutions)
    rates             what of this can be had
    fusion            the card whose numbers fusion reads: all cards in the table get the plans that are best on one; by
                      default the target itself
    exposed           share of the time for bytes from the cache in which nothing is computed, by the model of fusion
    registers         registers that the compiler takes
    features          what code may use beyond the common base
    capabilities      compute capabilities of the devices that run its code
    lanes             threads of a warp, in step; 1 where a block is a single thread, and a multiprocessor a core
    core              what such a core has
    """

    name: str
    card: str
    sms: int
    shared_per_block: Bytes
    shared_per_sm: Bytes
    threads_per_sm: int
    fp32: OpsPerSecond
    tensor: OpsPerSecond
    bandwidth: BytesPerSecond
    l2: Bytes
    rates: Rates = UNKNOWN
    fusion: Target | None = None
    exposed: float = 0.0
    registers: RegisterUse = RegisterUse()
    features: frozenset[str] = frozenset()
    capabilities: tuple[tuple[int, int], ...] = ()
    lanes: int = 32
    core: Core | None = None
    workspace: Bytes = (2 * 4096 + 8 * 16) * KIB

    @property
    def kind(self) -> str:
        """The kind of target, which decides on planning: `gpu` or `cpu`."""
        return "gpu" if self.core is None else "cpu"

    @property
    def arch(self) -> str:
        """The name without a number of multiprocessors: what `nvcc -arch` takes for a GPU."""
        return self.name.partition(":")[0]

    def with_multiprocessors(self, count: int) -> Target:
        """Returns a card with `count` multiprocessors of this kind, and the same memory: `sm_90a:114`. Raises
        TargetError for a count that no card has."""
        if not 0 < count <= MAX_MULTIPROCESSORS:
            raise TargetError(f"{count} multiprocessors; 1 to {MAX_MULTIPROCESSORS} are possible", argument="target")
        if count == self.sms:
            return self
        r, scale = self.rates, count / self.sms
        rates = replace(r, **{n: getattr(r, n) * scale for n in ("vector", "special", "fma", "mma", "peer")})
        card = f"{self.card}, but {count} multiprocessors"
        speed = {"fp32": self.fp32 * scale, "tensor": self.tensor * scale, "rates": rates}
        return replace(self, name=f"{self.arch}:{count}", card=card, sms=count, **speed)

    def numbers(self) -> dict[str, Any]:
        """Returns every number by its name in the IR and in records: `sms`, `rates.memory`, `core.l1`, `costs.step`."""
        return {f"{prefix}{n}": getattr(part, n) for prefix, part in self.parts().items() for n in units(part)}

    def changed(self, numbers: Mapping[str, Any]) -> Target:
        """Returns the target with some of its `numbers()` replaced."""

        def new(prefix: str, part: Any) -> Any:
            return replace(part, **{n: v for n in units(part) if (v := numbers.get(f"{prefix}{n}")) is not None})

        parts = {prefix: new(prefix, part) for prefix, part in self.parts().items()}
        core = None if self.core is None else replace(parts["core."], costs=parts["costs."])
        registers = parts.get("registers.", self.registers)
        fusion = None if self.fusion is None else replace(parts["fusion."], rates=parts["fusion.rates."])
        return replace(parts[""], rates=parts["rates."], fusion=fusion, registers=registers, core=core)

    def scaled(self, factors: Mapping[str, float]) -> Target:
        """Returns the target with some of its rates and costs multiplied, by their names in `numbers()`.

        Names of other numbers are left out."""
        fitted = {n: v for n, v in self.numbers().items() if n in factors and n.startswith(("rates.", "costs."))}
        return self.changed({n: v * factors[n] for n, v in fitted.items()}) if fitted else self

    def parts(self) -> dict[str, Any]:
        """Returns the records of the target by the prefix of their `numbers()`."""
        fusion = {} if self.fusion is None else {"fusion.": self.fusion, "fusion.rates.": self.fusion.rates}
        core = {"registers.": self.registers} if self.core is None else {"core.": self.core, "costs.": self.core.costs}
        return {"": self, "rates.": self.rates, **fusion, **core}

    def has(self, feature: str) -> bool:
        """Returns true if the target has `feature`: mma, cp_async, tma, cluster, wgmma, or bf16 for cores that multiply
        it by an instruction of its own."""
        return feature in self.features


def units(record: object) -> dict[str, str]:
    """Returns the fields of a record that may differ from one machine to another, each with its unit: numbers, and the
    name of the card, whose unit is the empty string."""
    return _units_of(type(record))


@cache
def _units_of(record: type[Any]) -> dict[str, str]:
    hints = get_type_hints(record, include_extras=True)
    names = [f.name for f in fields(record) if f.name not in ("name", "isa", "march")]
    kinds = {n: get_args(h) if get_origin(h := hints[n]) is Annotated else (h, "") for n in names}
    return {n: kind[1] for n, kind in kinds.items() if kind[0] in (int, float, str)}


def problem_of(target: Target) -> str | None:
    """Returns why the numbers of a target are those of no machine, or None."""
    for name, value in target.numbers().items():
        if isinstance(value, str):
            continue
        if not math.isfinite(value) or value < 0:
            return f"{name} is {value}, which is no amount"
        unknown = name.startswith("rates.") and not target.rates.known
        if value == 0 and name.removeprefix("fusion.") not in _MAY_BE_ZERO and not unknown:
            return f"{name} is 0"
    return None


_MAY_BE_ZERO = {"costs.page", "exposed", *(f"rates.{n}" for n in "ramp latency replay launch gap".split())}

MAX_MULTIPROCESSORS = 1024

RESERVED = 1024
"""Bytes of shared memory that the system takes of every block."""

REGISTERS, REGISTERS_PER_SM = 255, 65536
"""32-bit registers that a thread can have, and those of an SM."""

SECTOR = 32
"""Bytes that memory moves at least, and together."""

PARTITIONS = 4
"""Parts of an SM: each has its share of the registers, and issues the instructions of its own warps."""

PAGE = 4096
"""Bytes of memory along which processors see by themselves what is needed next."""

LINE = 64
"""Bytes of a line of a cache, which the widest vectors fill: what is no further apart is read line after line."""

MAX_LANES = 16
"""Lanes of the widest vectors (AVX-512, of f32); so many elements are a whole number of vectors of any machine."""

NEAR = 2
"""Largest stride, in elements, of the rows of a left operand that a product reads by columns where they are stored."""

TLB = 2048 * PAGE
"""Bytes of the pages whose addresses a core keeps, of which it waits for none: so many have processors of Intel since
Ice Lake, and of AMD since Zen 2."""


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
