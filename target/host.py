"""The local machine as a target: its CPU as the operating system describes it, and its measured rates.

`deplodock doctor --measure` measures rates of the CPU, and `deplodock tune` fits constants of the cost model. Only the
driver imports this module. Passes, dialects and printers read the target that the driver wrote into the IR.
"""

from __future__ import annotations

import json
import math
import os
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path

from .architectures import CPU, ISAS, tile_rows
from .attribute import get_target, on_cores, with_options
from .model import KIB, Core, CoreCosts, Target

RECORDS, CORES, NONE = "DEPLODOCK_RECORDS", "DEPLODOCK_CORES", "none"
"""Environment variables for the file of records and the file of measured CPU rates, and their value for no file.

With `DEPLODOCK_CORES=none` the local CPU has the numbers of a common CPU."""


@dataclass(frozen=True)
class Measured:
    """Measured rates of a CPU, of all cores together.

    Attributes:
        processor: name of the processor.
        cores: number of cores.
        copy: bytes per second of a copy in memory; a copied byte counts once.
        read: bytes per second of reads from memory.
        fma: f32 operations per second of a matmul; a multiply-add is two.
        streams: number of addresses from which one core reads alternately at the highest bandwidth.
    """

    processor: str
    cores: int
    copy: float
    read: float
    fma: float
    streams: int = 1

    def written(self) -> str:
        """Returns the numbers as JSON, for `read_measured`."""
        return json.dumps(asdict(self), indent=1) + "\n"


COMMON = Measured("one lane of a core", 1, 2.0e10, 2.0e10, 6.25e9)
"""Assumed rates without a measurement: `fma` of one vector lane of one core, bandwidth of the whole CPU."""

LAST_OF_CORE = 32 * KIB * KIB
"""Largest share of the last-level cache that the model assumes for a core, in bytes. On a virtual machine the operating
system reports the whole cache, which other machines of the host use too."""


def costs_of(processor: str) -> CoreCosts:
    """Returns the cost constants of a core. On Intel, a page of a large tensor costs extra time (`CoreCosts.page`)."""
    return CoreCosts(page=90e-9) if "Intel" in processor else CoreCosts()


def user_folder() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "deplodock"


def measured_file() -> Path:
    return Path(os.environ.get(CORES) or user_folder() / "cores.json")


def records_file() -> Path | None:
    """Returns the default file of records, which may not exist; None if the environment variable is `none`."""
    named = os.environ.get(RECORDS)
    return None if named == NONE else Path(named or user_folder() / "records.db")


def consulted_record(record: str | os.PathLike[str] | None) -> str | None:
    """Returns the file of records that a compilation reads, or None.

    `record`: a file, `none` for no file, or None for the default file, if that exists.
    """
    if record is not None:
        return None if str(record) == NONE else str(Path(record))
    file = records_file()
    return str(file) if file is not None and file.is_file() else None


def device_of_cores() -> str:
    """Returns the device name of the local CPU in records."""
    return f"{processor()}, {cores()} cores"


def read_factors(file: Path, target: str, device: str | None) -> dict[str, float]:
    """Returns the factors that correct a target's constants, as `deplodock tune` fitted them to times of a device.

    Args:
        file: database of records. The result is empty if the file is no database or is damaged.
        target: name of the target, without a number of multiprocessors.
        device: name of the device; None for the device of the latest fit.
    """
    import sqlite3  # Python for browsers has no sqlite3.

    where, values = ("target = ?", [target]) if device is None else ("target = ? AND device = ?", [target, device])
    try:
        with closing(sqlite3.connect(f"{file.resolve().as_uri()}?mode=ro", uri=True, timeout=5)) as db:
            query = f"SELECT factors FROM constants WHERE {where} ORDER BY at DESC LIMIT 1"
            row = db.execute(query, values).fetchone()
        factors = {} if row is None else {str(n): float(f) for n, f in json.loads(row[0]).items()}
    except (sqlite3.Error, OSError, ValueError, AttributeError, TypeError):
        return {}  # The passes that use the record report a damaged file.
    return {n: f for n, f in factors.items() if f > 0 and math.isfinite(f)}


def resolve_target(name: str, record: str | None = None) -> Target:
    """Returns a target with the numbers of the local machine and the fitted constants of a database of records.

    Raises TargetError for an unknown name.
    """
    target = with_options(measured_cores(), name) if on_cores(name) else get_target(name)
    if record is None:
        return target
    return target.scaled(read_factors(Path(record), target.arch, None if target.core is None else device_of_cores()))


@cache
def measured_cores() -> Target:
    """Returns the local CPU as a target. Rates that were not measured are scaled from those of a common CPU."""
    measured = known_cores()
    if measured is None:
        return CPU
    r, scale = CPU.rates, measured.fma / CPU.fp32
    scaled = {n: getattr(r, n) * scale for n in ("vector", "special", "cache", "bulk")}
    sizes, (lanes, registers) = caches(), vectors(measured.processor)
    return replace(
        CPU,
        card=f"{measured.processor}, {measured.cores} cores",
        sms=measured.cores,
        l2=min(sizes.get("L3", CPU.l2), measured.cores * LAST_OF_CORE),
        fp32=measured.fma,
        tensor=measured.fma * bf16_rate(),
        bandwidth=measured.read,
        rates=replace(r, memory=measured.read, store=measured.copy, fma=measured.fma, mma=measured.fma, **scaled),
        core=Core(
            lanes=lanes,
            registers=registers,
            tile_rows=tile_rows(registers),
            l1=sizes.get("L1d", Core.l1),
            l2=sizes.get("L2", Core.l2),
            bf16_rate=bf16_rate(),
            streams=measured.streams,
            costs=costs_of(measured.processor),
        ),
    )


def read_measured() -> Measured | None:
    """Returns the measured rates of this CPU, or None if the file is missing, damaged, or of another CPU."""
    try:
        measured = Measured(**json.loads(measured_file().read_bytes()))
        rates = [float(v) for v in (measured.copy, measured.read, measured.fma, measured.streams)]
    except (OSError, TypeError, ValueError):
        return None
    same = (measured.processor, measured.cores) == (processor(), cores())
    return measured if same and all(v > 0 and math.isfinite(v) for v in rates) else None


def known_cores() -> Measured | None:
    """Returns the measured rates of this CPU, or assumed rates by its cores and vectors.

    Returns None if the system does not describe the processor, or if `DEPLODOCK_CORES` is `none`.
    """
    if os.environ.get(CORES) == NONE or (name := processor()) == "unknown":
        return None
    lanes, _ = vectors(name)
    return read_measured() or Measured(name, cores(), COMMON.copy, COMMON.read, COMMON.fma * cores() * lanes)


def cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def processor() -> str:
    """Returns the name of the processor with its widest vectors, or `unknown` if the system does not describe it."""
    name, flags = _cpuinfo()
    wide = next((name for flag, (name, *_) in _VECTORS.items() if flag in flags), None)
    return ", ".join(filter(None, [name, wide]))


def bf16_rate() -> float:
    """Returns the ratio of bf16 to f32 multiplications per cycle on this processor: 16 with AMX, 2 with AVX512-BF16,
    else 1."""
    _, flags = _cpuinfo()
    return 16.0 if "amx_bf16" in flags else 2.0 if "avx512_bf16" in flags else 1.0


def _cpuinfo() -> tuple[str, list[str]]:
    """Returns the name and the feature flags of the first core in `/proc/cpuinfo`."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return "unknown", []
    facts = {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in reversed(lines))}
    return facts.get("model name", "unknown"), facts.get("flags", facts.get("Features", "")).split()


_VECTORS = {
    "avx512f": ("AVX-512", 16, 32),
    "avx2": ("AVX2", 8, 16),
    "avx": ("AVX", 8, 16),
    "sse2": ("SSE2", 4, 16),
    "asimd": ("NEON", 4, 32),
}
"""Feature flag -> (name of the vectors, f32 elements of a vector, number of vector registers), widest first."""


def has_isa(isa: str) -> bool:
    """Returns true if this processor has the instruction set `isa`, a key of `ISAS`."""
    return ISAS[isa].flag in _cpuinfo()[1]


def vectors(processor: str) -> tuple[int, int]:
    """Returns (f32 elements of a vector, number of vector registers) of a processor by its name (`processor()`)."""
    wide = processor.rpartition(", ")[2]
    return next(((lanes, room) for name, lanes, room in _VECTORS.values() if name == wide), (4, 16))


def caches() -> dict[str, int]:
    """Returns cache (`L1d`, `L2`, `L3`) -> bytes, for the data caches of the first core."""
    sizes: dict[str, int] = {}
    for folder in sorted(Path("/sys/devices/system/cpu/cpu0/cache").glob("index*")):
        try:
            level, kind, size = ((folder / name).read_text().strip() for name in ("level", "type", "size"))
        except OSError:
            continue
        if kind != "Instruction" and size.endswith("K"):
            sizes[f"L{level}{'d' if kind == 'Data' else ''}"] = int(size[:-1]) * 1024
    return sizes
