"""The local machine as a target: the system's description of its cores, and measurements (`deplodock doctor --measure`,
`deplodock tune`).

Only the driver imports this module: passes, dialects and printers read the target that it wrote into the IR.
"""

from __future__ import annotations

import json
import math
import os
import sqlite3
from contextlib import closing
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path

from .architectures import CPU, ISAS, get_target, on_cores, tile_rows, with_options
from .model import KIB, Core, CoreCosts, Target


@dataclass(frozen=True)
class Measured:
    """What the cores sustain together: bytes copied (each counted once) and read in a second, from memory, and
    operations of f32 in sums of products in a second, a product and a sum being two. `processor` says of what. One core
    reads memory fastest from so many places, `streams`, in turn."""

    processor: str
    cores: int
    copy: float
    read: float
    fma: float
    streams: int = 1

    def written(self) -> str:
        """The numbers as JSON, for `read_measured`."""
        return json.dumps(asdict(self), indent=1) + "\n"


COMMON = Measured("one lane of a core", 1, 2.0e10, 2.0e10, 6.25e9)
"""What was not measured is taken to be this."""


LAST_OF_CORE = 32 * KIB * KIB
"""Bytes of the last cache that a core counts on at most: others use it, too, of other virtual machines where a large
processor is shared."""


def costs_of(processor: str) -> CoreCosts:
    """What cores of a processor that is called so spend beside operations."""
    return CoreCosts(page=90e-9) if "Intel" in processor else CoreCosts()


def user_folder() -> Path:
    """The folder in which the user's measurements lie."""
    root = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return root / "deplodock"


RECORDS, CORES, NONE = "DEPLODOCK_RECORDS", "DEPLODOCK_CORES", "none"
"""The environment variables that name the file of records which is consulted where no other is given, and that of what
was measured; and what they say if there is to be none, and programs for the CPU are planned for a common one."""


def measured_file() -> Path:
    """Where the numbers of this machine are kept."""
    named = os.environ.get(CORES, "")
    return Path(named) if named else user_folder() / "cores.json"


def records_file() -> Path | None:
    """The file of records that is consulted where no other is given: what the environment says, or `records.db` beside
    the measured numbers; None where there is to be none. It need not exist."""
    named = os.environ.get(RECORDS, "")
    if named == NONE:
        return None
    return Path(named) if named else user_folder() / "records.db"


def consulted_record(record: str | os.PathLike[str] | None) -> str | None:
    """Returns the record that a compilation uses: `record`, none for `NONE`, and the user's own, if it exists, for
    None."""
    if record is not None:
        return None if str(record) == NONE else str(Path(record))
    file = records_file()
    return str(file) if file is not None and file.is_file() else None


def device_of_cores() -> str:
    """What the cores of this machine are called in records."""
    return f"{processor()}, {cores()} cores"


def read_factors(file: Path, target: str, device: str | None) -> dict[str, float]:
    """Returns the factors of a target's constants that `deplodock tune` fitted to the times of a device.

    Args:
        file: database of records; the result is empty if it is none, or if it is damaged.
        target: name of the target, without a number of multiprocessors.
        device: name of the device; None for the one that was measured last.
    """
    where, values = ("target = ?", [target]) if device is None else ("target = ? AND device = ?", [target, device])
    try:
        with closing(sqlite3.connect(f"{file.resolve().as_uri()}?mode=ro", uri=True, timeout=5)) as db:
            query = f"SELECT factors FROM constants WHERE {where} ORDER BY at DESC LIMIT 1"
            row = db.execute(query, values).fetchone()
        found = {} if row is None else {str(n): float(f) for n, f in json.loads(row[0]).items()}
    except (sqlite3.Error, OSError, ValueError, AttributeError, TypeError):
        return {}  # what is damaged, or of something else, is said where records are used
    return {n: f for n, f in found.items() if f > 0 and math.isfinite(f)}


def resolve_target(name: str, record: str | None = None) -> Target:
    """Returns the target called `name` with the numbers of the local machine.

    Args:
        name: name of a target, as for `get_target`. The numbers of a CPU are those of the local processor.
        record: database of records, whose fitted constants are applied; None for none.

    Raises:
        TargetError: for a name that is not known.
    """
    target = with_options(measured_cores(), name) if on_cores(name) else get_target(name)
    device = None if target.core is None else device_of_cores()
    return target if record is None else target.scaled(read_factors(Path(record), target.arch, device))


@cache
def measured_cores() -> Target:
    """Returns the CPU of the local machine as far as it is known; the rest is in proportion to the common one."""
    measured = known_cores()
    if measured is None:
        return CPU
    r, scale = CPU.rates, measured.fma / CPU.fp32
    rates = replace(r, memory=measured.read, store=measured.copy, vector=r.vector * scale, special=r.special * scale)
    rates = replace(rates, cache=r.cache * scale, bulk=r.bulk * scale, fma=measured.fma, mma=measured.fma)
    card = f"{measured.processor}, {measured.cores} cores"
    speed = {"fp32": measured.fma, "tensor": measured.fma * bf16_rate(), "bandwidth": measured.read}
    sizes = caches()
    lanes, registers = vectors(measured.processor)
    core = Core(
        lanes=lanes,
        registers=registers,
        tile_rows=tile_rows(registers),
        l1=sizes.get("L1d", Core.l1),
        l2=sizes.get("L2", Core.l2),
        bf16_rate=bf16_rate(),
        streams=measured.streams,
        costs=costs_of(measured.processor),
    )
    last = min(sizes.get("L3", CPU.l2), measured.cores * LAST_OF_CORE)
    return replace(CPU, card=card, sms=measured.cores, l2=last, rates=rates, core=core, **speed)


def read_measured() -> Measured | None:
    """What was measured on this processor and on as many cores; None if nothing was, or if the file is damaged."""
    try:
        found = Measured(**json.loads(measured_file().read_bytes()))
        rates = [float(v) for v in (found.copy, found.read, found.fma, found.streams)]
    except (OSError, TypeError, ValueError):
        return None
    same = (found.processor, found.cores) == (processor(), cores())
    return found if same and all(v > 0 and math.isfinite(v) for v in rates) else None


def known_cores() -> Measured | None:
    """What was measured on this processor, or what is common for its number of cores and width of vectors; None where
    the system does not say, or where that is not to be asked."""
    if os.environ.get(CORES) == NONE or (name := processor()) == "unknown":
        return None
    lanes, _ = vectors(name)
    return read_measured() or Measured(name, cores(), COMMON.copy, COMMON.read, COMMON.fma * cores() * lanes)


def cores() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def processor() -> str:
    """What the processor is called, with the width of its vectors where it has wide ones; `unknown` where the system
    does not say."""
    name, flags = _told()
    wide = next((name for flag, (name, *_) in _VECTORS.items() if flag in flags), None)
    return ", ".join(filter(None, [name, wide]))


def bf16_rate() -> float:
    """How many times as many products of bf16 as of f32 this processor computes in a cycle, by its instructions: for
    pairs of elements, or for registers of 16 rows of 32 (AMX: 16 cycles each)."""
    _, flags = _told()
    return 16.0 if "amx_bf16" in flags else 2.0 if "avx512_bf16" in flags else 1.0


def _told() -> tuple[str, list[str]]:
    """What the system says of the first core: its name, and what it can do."""
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
"""The widest vectors that a processor has, by the first of these flags: their name, how many f32 are in one, and how
many vectors a core has room for."""


def has_isa(isa: str) -> bool:
    """Whether this processor has an instruction set of `ISAS`."""
    return ISAS[isa].flag in _told()[1]


def vectors(processor: str) -> tuple[int, int]:
    """How many f32 are in a vector of a processor that is called so, and for how many vectors a core has room."""
    wide = processor.rpartition(", ")[2]
    return next(((lanes, room) for name, lanes, room in _VECTORS.values() if name == wide), (4, 16))


def caches() -> dict[str, int]:
    """Bytes of the caches that the first core reads from: `L1d`, `L2`, `L3`."""
    found: dict[str, int] = {}
    for folder in sorted(Path("/sys/devices/system/cpu/cpu0/cache").glob("index*")):
        try:
            level, kind, size = ((folder / name).read_text().strip() for name in ("level", "type", "size"))
        except OSError:
            continue
        if kind != "Instruction" and size.endswith("K"):
            found[f"L{level}{'d' if kind == 'Data' else ''}"] = int(size[:-1]) * 1024
    return found
