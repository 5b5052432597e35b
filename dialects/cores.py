"""The cores of this machine: what the system says of them, and what was measured (`deplodock doctor --measure`)."""

from __future__ import annotations

import json
import math
import os
import sqlite3
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path

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


@dataclass(frozen=True)
class CoreCosts:
    """What a core spends beside the operations of a nest; the planner's model counts it, and `deplodock tune` corrects
    it by what it measures.

    In vector operations:
    scalar    an operation of elements that do not fill a vector: each by itself, with its address
    access    a load or store of a vector in the nearest cache
    gathered  each element where the neighbours of a vector are not neighbours in memory
    checked   more where each of these is checked by itself, as some are past an end
    turned    a vector where squares of vectors are transposed
    masked    more of a vector where rows of a tile end inside of it, so that what is past the end is masked
    spread    each vector of sums of columns, for each chunk of these: it is stored, and added to those of chunks before
    sum       to add a vector of sums to the result, for each panel of a product
    pack, turn, far_turn  to pack a vector of a panel: from rows, from columns, and from columns of two vectors, which
              lie in more rows than the nearest cache has places for
    In seconds:
    fold, step, block, chunk  to reduce a vector to a number, to start a loop, to start a block, and a chunk whose sums
              are kept
    product   to start a product of panels
    seek, near_seek  to begin to read what lies elsewhere in memory, or in the last cache, than what was read before:
              processors foresee what follows. Of less than a page it is less, a quarter at least
    page      more, to begin to read a row on another page than the rows before, of a tensor of more than `TLB`:
              processors of Intel that were measured wait for its address, those of AMD find it meanwhile
    spilled   so many times longer products inside of each other take, where their tiles do not fit into the nearest
              cache
    """

    scalar: float = 3.0
    access: float = 1.5
    gathered: float = 8.0
    checked: float = 30.0
    turned: float = 12.0
    masked: float = 4.0
    spread: float = 8.0
    sum: float = 3.0
    pack: float = 20.0
    turn: float = 12.0
    far_turn: float = 20.0
    fold: float = 4e-9
    step: float = 1e-9
    block: float = 10e-9
    chunk: float = 60e-9
    product: float = 30e-9
    seek: float = 120e-9
    near_seek: float = 10e-9
    page: float = 0.0
    spilled: float = 1.3


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


def device_of_cores() -> str:
    """What the cores of this machine are called in records."""
    return f"{processor()}, {cores()} cores"


def read_factors(target: str, device: str | None) -> dict[str, float]:
    """By what the constants of a target are to be multiplied, after what the records have of a device, or of the one
    measured last; empty where they have nothing."""
    file = records_file()
    if file is None or not file.is_file():
        return {}
    where, values = ("target = ?", [target]) if device is None else ("target = ? AND device = ?", [target, device])
    try:
        with closing(sqlite3.connect(f"{file.resolve().as_uri()}?mode=ro", uri=True, timeout=5)) as db:
            query = f"SELECT factors FROM constants WHERE {where} ORDER BY at DESC LIMIT 1"
            row = db.execute(query, values).fetchone()
        found = {} if row is None else {str(n): float(f) for n, f in json.loads(row[0]).items()}
    except (sqlite3.Error, OSError, ValueError, AttributeError, TypeError):
        return {}  # what is damaged, or of something else, is said where records are used
    return {n: f for n, f in found.items() if f > 0 and math.isfinite(f)}


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


ISAS = {
    "avx512": ("avx512vl", "x86-64-v4", "AVX-512"),
    "avx2": ("avx2", "x86-64-v3", "AVX2"),
    "sse": ("sse4_2", "x86-64-v2", "SSE2"),
    "neon": ("asimd", "armv8-a", "NEON"),
}
"""The instruction sets that a target may name: the flag of processors that have one, what compilers call the least of
these, and the vectors."""


def has_isa(isa: str) -> bool:
    """Whether this processor has an instruction set of `ISAS`."""
    return ISAS[isa][0] in _told()[1]


def vectors_of(isa: str) -> tuple[int, int]:
    """How many f32 are in a vector of an instruction set, and for how many vectors a core has room."""
    return vectors(f", {ISAS[isa][2]}")


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
