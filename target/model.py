"""Classes of the records of targets (GPUs and CPUs). The type of each number is its unit, such as `BytesPerSecond`.

`architectures.py` has a record for each architecture, `host.py` makes the record of the local machine, and
`attribute.py` writes a record into the IR.
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
"""Time of a CPU core in units of one vector operation."""


@dataclass(frozen=True)
class Rates:
    """Sustained rates and latencies of a target, which are lower than those of its data sheet.

    Attributes:
        memory: bandwidth of device memory.
        cache: bandwidth of the L2 cache for loads of threads.
        bulk: bandwidth of the L2 cache for TMA.
        store: bandwidth of stores to memory without other work.
        vector: scalar f32 operations.
        special: exponentials, divisions and roots.
        fma: f32 operations of contractions on CUDA cores with full occupancy; a multiply-add is two.
        mma: 16-bit operations of `mma.sync`.
        clock: clock under load of the tensor cores.
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
    """Time from the launch of a kernel to its first instruction."""
    ramp: Seconds = 1.0e-6
    """Time of a kernel in which nothing overlaps: the arrival of the first loads and the drain of the last stores."""
    latency: Seconds = 0.75e-6
    """Time from a load to its value, under load."""
    bulk_latency: Seconds = 1.0e-6
    """Time from the request of a TMA tile to its arrival from memory, under load."""
    overlap: float = 4.0
    """Exponent p of the p-norm that combines the times of multiprocessors, L2 cache and memory. Infinity is perfect
    overlap."""
    issue_warps: float = 12.0
    """Warps that a multiprocessor needs for its full rate of arithmetic between contractions, which is latency
    bound."""
    fma_warps: float = 7.0
    """Warps with which a multiprocessor reaches half of its multiply-add rate."""
    shared_read: float = 3.0
    """Time in which a warp reads 16 bytes per thread from shared memory, in units of four multiply-adds."""
    replay: Seconds = 2.0e-6
    """Time that CUDA events measure for the replay of a CUDA graph in addition to its kernels."""
    block: BytesPerSecond = 60.0e9
    """Memory bandwidth of a single block."""
    gap: Seconds = 1.0e-6
    """Time from the end of a kernel to the start of a dependent kernel."""
    barrier: Seconds = 0.04e-6
    """Time of a barrier of the warps of a block."""
    cluster_barrier: Seconds = 0.5e-6
    """Time of an exchange in a cluster: a barrier, reads from other blocks, and a barrier at the end."""
    peer: BytesPerSecond = 2.65e12
    """Total bandwidth of all multiprocessors to shared memory of other blocks in their clusters. Luo et al. measured it
    on an H800 for clusters of four ("Benchmarking and Dissecting the Nvidia Hopper GPU Architecture via
    Microbenchmarking", arXiv 2402.13499; 3.27e12 for clusters of two)."""
    shared: BytesPerCycle = 128
    """Bandwidth of the shared memory of an SM."""
    mma_latency: Cycles = 33.0
    """Latency between two `mma.sync` on the same accumulators."""
    wgmma_cycles: tuple[tuple[int, float], ...] = ((64, 32.8), (128, 65.0), (192, 97.5), (256, 129.3))
    """(columns, cycles) of a wgmma of 64 rows and depth 16, as published for an H100."""
    tiled: float = 0.67
    """Share of `fma` that an f32 matmul reaches, whatever the shape of its tiles."""
    nested: float = 0.1
    """Share of `fma` that an f32 matmul reaches if its results are reduced again, in one small tile after the other."""

    @property
    def known(self) -> bool:
        """True if the record has rates. Without rates, rules choose the schedules instead of the cost model."""
        return self.memory > 0


UNKNOWN = Rates(memory=0, cache=0, bulk=0, store=0, vector=0, special=0, fma=0, mma=0, clock=0)
"""Rates of a record without numbers."""


@dataclass(frozen=True)
class RegisterUse:
    """32-bit registers of a thread that ptxas allocates, measured in machine code (`tests/machine_code.py`).

    Attributes:
        rows: registers for addresses, counters and intermediate values in a kernel without matmuls.
        sums: the same of a kernel with matmuls on CUDA cores.
        atoms: the same of a kernel with matmuls on tensor cores.
        fused: additional registers of a kernel that computes other reductions in addition to a matmul.
        fused_atoms: the same with `mma.sync`.
        nested: additional registers if a matmul is an operand of another matmul.
        waiting: additional registers if partial sums are added to accumulators later (`promotion_interval`).
        walk: additional registers of a persistent block, for its position.
        computing: registers of a warpgroup in addition to its accumulators during computation.
        accumulators: largest number of accumulators that one wgmma writes in a thread.
        beside_accumulators: registers in addition to the accumulators that a thread needs at the launch. With fewer,
            ptxas refuses wgmma (C7602), regardless of `setmaxnreg`.
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
    """Costs of a CPU core in addition to the arithmetic of a nest, for the cost model. `deplodock tune` corrects them.

    A *panel* is the packed right operand of a matmul for one vector or two of columns (BLIS).

    scalar    a scalar operation on an element of a partial vector, with its address computation
    access    a vector load or store in the L1 cache
    gathered  an element of a vector that is not contiguous in memory
    checked   additional cost of such an element with a bounds check
    near      a bounds-checked vector load of stride 2
    turned    a vector of a block transpose in registers
    masked    additional cost of a vector that is masked at the end of a row
    spread    a vector of column sums, for each chunk: it is stored and added to the sums of earlier chunks
    sum       a vector of accumulators that is added to the result, for each panel of a matmul
    pack, turn, far_turn  packing of a vector of a panel: from rows, from columns, and from columns of two vectors,
              whose rows exceed the associativity of the L1 cache
    fold      reduction of a vector to a scalar
    step      start of an iteration of a loop
    block     start of a block
    chunk     start of a chunk whose partial sums are materialised
    product   start of a packed matmul
    seek      start of a discontiguous read in memory, which the prefetcher cannot predict. A read of less than a page
              costs less, at least the share `least_seek`
    near_seek the same in the last-level cache
    page      additional cost of a row on another page of a tensor of more than `TLB` bytes: the measured processors of
              Intel wait for the page walk, those of AMD overlap it
    spilled   slowdown factor of nested matmuls whose tiles exceed the L1 cache
    l1_tiles, l2_tiles  slowdown factor of accesses if the tiles of reductions exceed the L1 or L2 cache
    parallel_run        contiguous runs of fewer bytes are read in parallel
    least_seek          share of `seek` of the shortest run
    far_panel           share of the bytes of a panel that a core waits for if the panel exceeds the L1 cache
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

    lanes      f32 elements of a vector
    registers  number of vector registers
    tile_rows  rows of the result that a packed matmul keeps in registers
    l1, l2     its L1 data cache and L2 cache
    bf16_rate  speed of bf16 matmuls relative to f32 matmuls
    streams    number of addresses from which it reads alternately at full memory bandwidth
    fma_in_flight  independent vector accumulators that hide the latency of multiply-adds
    amx_rows   rows of the result that bf16 matmuls keep in two AMX tile registers
    isa        instruction set of the program: one of `ISAS`, or `native` for that of the local machine
    march      value of the compiler option `-march`
    costs      costs in addition to arithmetic
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
        """Rows of the result that a matmul keeps in registers if the left operand is contiguous along columns.

        These are more than `tile_rows`, because the rows need no pointers.
        """
        return (self.registers - 4) // 2 if self.lanes >= MAX_LANES else self.tile_rows


@dataclass(frozen=True)
class Target:
    """Record of a GPU or a CPU.

    name              name for `--target`: `sm_90a`, `sm_90a:114`, `cpu`, `cpu{isa=avx2 cores=4}`
    card              GPU or processor whose numbers these are
    sms               number of streaming multiprocessors, or of cores
    shared_per_block  largest shared memory of a block
    shared_per_sm     shared memory of an SM
    threads_per_sm    largest number of resident threads of an SM
    fp32              f32 operations by the data sheet; a multiply-add is two
    tensor            bf16 operations of matmuls by the data sheet, on tensor cores or bf16 instructions of a CPU
    bandwidth         memory bandwidth by the data sheet
    l2                L2 cache of a GPU, last-level cache of a CPU
    workspace         memory that PyTorch allocates for matmuls in addition to tensors. On a GPU: its cuBLAS workspace,
                      which `torch.cuda.max_memory_allocated` counts (32 MiB on Hopper, else 2 x 4096 + 8 x 16 KiB). On
                      a CPU: about the measured memory of a call (1 to 7 MB for matmuls, 9 to 17 MB for convolutions)
    rates             sustained rates
    fusion            record that the cost model of fusion reads, the same for all GPUs of the table; by default the
                      target itself
    exposed           share of the time of cache reads that does not overlap with computation, for the model of fusion
    registers         registers that ptxas allocates
    features          optional features of the hardware that generated code may use (`has`)
    capabilities      compute capabilities of the devices that run its code
    lanes             threads of a warp; 1 for a CPU, where a block is one thread and a multiprocessor is a core
    core              a core of a CPU; None for a GPU
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
        """`gpu` or `cpu`, which selects the planning model."""
        return "gpu" if self.core is None else "cpu"

    @property
    def arch(self) -> str:
        """Name without a number of multiprocessors. For a GPU it is the value of `nvcc -arch`."""
        return self.name.partition(":")[0]

    def with_multiprocessors(self, count: int) -> Target:
        """Returns a GPU with another number of multiprocessors and the same memory (`sm_90a:114`).

        Raises TargetError unless 0 < count <= MAX_MULTIPROCESSORS.
        """
        if not 0 < count <= MAX_MULTIPROCESSORS:
            raise TargetError(
                f"expected 1 to {MAX_MULTIPROCESSORS} multiprocessors, but got {count}", argument="target"
            )
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
        """Returns the target with some of its rates and costs multiplied.

        `factors`: name of a number (`numbers()`) -> factor. Other numbers than `rates.*` and `costs.*` are ignored.
        """
        fitted = {n: v for n, v in self.numbers().items() if n in factors and n.startswith(("rates.", "costs."))}
        return self.changed({n: v * factors[n] for n, v in fitted.items()}) if fitted else self

    def parts(self) -> dict[str, Any]:
        """Returns prefix of names in `numbers()` -> record with these numbers."""
        fusion = {} if self.fusion is None else {"fusion.": self.fusion, "fusion.rates.": self.fusion.rates}
        core = {"registers.": self.registers} if self.core is None else {"core.": self.core, "costs.": self.core.costs}
        return {"": self, "rates.": self.rates, **fusion, **core}

    def has(self, feature: str) -> bool:
        """Returns true if the target has `feature`: mma, cp_async, tma, cluster, wgmma, or bf16 for CPUs with
        instructions that multiply bf16."""
        return feature in self.features


def units(record: object) -> dict[str, str]:
    """Returns name -> unit of the fields of a record that may differ between machines.

    These are the numbers and `card`, a text. The unit is empty for texts and numbers without a unit.
    """
    return _units_of(type(record))


@cache
def _units_of(record: type[Any]) -> dict[str, str]:
    hints = get_type_hints(record, include_extras=True)
    names = [f.name for f in fields(record) if f.name not in ("name", "isa", "march")]
    kinds = {n: get_args(h) if get_origin(h := hints[n]) is Annotated else (h, "") for n in names}
    return {n: kind[1] for n, kind in kinds.items() if kind[0] in (int, float, str)}


def problem_of(target: Target) -> str | None:
    """Returns an error message if a number of a target is impossible (negative, infinite, zero), else None."""
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
"""Bytes of shared memory of every block that CUDA reserves."""

REGISTERS, REGISTERS_PER_SM = 255, 65536
"""Largest number of 32-bit registers of a thread, and their number in an SM."""

SECTOR = 32
"""Bytes of the smallest transfer from memory."""

PARTITIONS = 4
"""Partitions of an SM. Each has its own registers and issues the instructions of its own warps."""

PAGE = 4096
"""Bytes of a memory page. The hardware prefetcher of a CPU does not cross pages."""

LINE = 64
"""Bytes of a cache line, and of the widest vectors."""

MAX_LANES = 16
"""f32 lanes of the widest vectors (AVX-512). Vectors of all other instruction sets divide this number."""

NEAR = 2
"""Largest stride, in elements, between rows of a left operand that a matmul reads by columns without a copy."""

TLB = 2048 * PAGE
"""Bytes of the pages whose addresses the second-level TLB of a core holds: 2048 pages in processors of Intel since Ice
Lake and of AMD since Zen 2."""


def launch_registers(threads: int, blocks_per_sm: int = 1) -> int:
    """Returns the registers of a thread at the launch of a kernel with `__launch_bounds__(threads, blocks_per_sm)`.

    ptxas divides the registers of a partition evenly among its resident warps, in steps of eight.
    `setmaxnreg` only moves registers within a block (PTX ISA: it "blocks until enough registers are available in the
    per-CTA maximum register pool"). The pool of a block is this number times its threads.
    """
    warps = -(-threads // 32) * blocks_per_sm
    return min(REGISTERS_PER_SM // (32 * PARTITIONS * -(-warps // PARTITIONS)), REGISTERS) // 8 * 8


def block_limits(target: Target, threads: Any, registers: Any, shared: Any) -> dict[str, Any]:
    """Returns how many blocks run on an SM at once by each limit, by its name; 0 if a block does not fit.

    The last three arguments may be numbers or arrays of numbers.

    Args:
        target: the GPU.
        threads: threads of a block.
        registers: registers of a thread.
        shared: bytes of shared memory of a block.
    """
    warps = -(-threads // 32)
    registers_per_warp = -(-np.maximum(registers, 1) * 32 // 256) * 256
    held = REGISTERS_PER_SM // PARTITIONS // registers_per_warp * PARTITIONS // warps
    return {
        "threads": target.threads_per_sm // (warps * 32),
        "registers": np.where(registers <= REGISTERS, held, 0),
        "shared memory": np.where(shared <= target.shared_per_block, target.shared_per_sm // (shared + RESERVED), 0),
        "blocks": 32 if target.threads_per_sm == 2048 else 24,
    }


def occupancy(target: Target, threads: Any, registers: Any, shared: Any) -> Any:
    """Returns how many blocks run on an SM at once; 0 if a block does not fit. The arguments are as for `block_limits`.

    Args:
        target: the GPU.
        threads: threads of a block.
        registers: registers of a thread.
        shared: bytes of shared memory of a block.
    """
    return reduce(np.minimum, block_limits(target, threads, registers, shared).values())
