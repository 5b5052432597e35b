"""The cores of this machine: what the system says of them, and what was measured (`deplodock doctor --measure`)."""

from __future__ import annotations

import json
import math
import os
from dataclasses import asdict, dataclass
from pathlib import Path


@dataclass(frozen=True)
class Measured:
    """What the cores sustain together: bytes copied (each counted once) and read in a second, from memory, and
    operations of f32 in sums of products in a second, a product and a sum being two. `processor` says of what."""

    processor: str
    cores: int
    copy: float
    read: float
    fma: float

    def written(self) -> str:
        """The numbers as JSON, for `read_measured`."""
        return json.dumps(asdict(self), indent=1) + "\n"


def measured_file() -> Path:
    """Where the numbers of this machine are kept."""
    root = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return root / "deplodock" / "cores.json"


def read_measured() -> Measured | None:
    """What was measured on this processor and on as many cores; None if nothing was, or if the file is damaged."""
    try:
        found = Measured(**json.loads(measured_file().read_bytes()))
        rates = [float(v) for v in (found.copy, found.read, found.fma)]
    except (OSError, TypeError, ValueError):
        return None
    same = (found.processor, found.cores) == (processor(), cores())
    return found if same and all(v > 0 and math.isfinite(v) for v in rates) else None


def cores() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def processor() -> str:
    """What the processor is called, with the width of its vectors where it has wide ones; `unknown` where the system
    does not say."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return "unknown"
    facts = {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in reversed(lines))}
    flags = facts.get("flags", facts.get("Features", "")).split()
    wide = next((name for flag, (name, *_) in _VECTORS.items() if flag in flags), None)
    return ", ".join(filter(None, [facts.get("model name", "unknown"), wide]))


_VECTORS = {
    "avx512f": ("AVX-512", 16, 32),
    "avx2": ("AVX2", 8, 16),
    "avx": ("AVX", 8, 16),
    "sse2": ("SSE2", 4, 16),
    "asimd": ("NEON", 4, 32),
}
"""The widest vectors that a processor has, by the first of these flags: their name, how many f32 are in one, and how
many vectors a core has room for."""


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
