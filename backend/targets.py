"""What the machines can do: the one place where passes and printers ask about a target.

The numbers describe one common card of each architecture. Planners compare alternatives with them; nothing that is
computed depends on them, only how.
"""

from __future__ import annotations

from dataclasses import dataclass
from difflib import get_close_matches

from ..errors import TargetError

KIB = 1024


@dataclass(frozen=True)
class Target:
    """One GPU.

    name              what `nvcc -arch` takes
    card              the card that the numbers are of
    sms               streaming multiprocessors
    shared_per_block  bytes of shared memory that one block may ask for
    shared_per_sm     bytes of shared memory of an SM
    registers_per_sm  32-bit registers of an SM; a thread can have 255 of them
    threads_per_sm    threads resident on an SM at once
    fp32, tensor      operations a second (a multiply-add is two): on CUDA cores, and in bf16 on tensor cores
    bandwidth         bytes a second from memory
    l2                bytes of the level-2 cache
    launch            seconds that starting one kernel costs
    features          what code may use beyond the common base
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
    features: frozenset[str]
    registers_per_sm: int = 65536
    launch: float = 2.5e-6

    def has(self, feature: str) -> bool:
        """Whether the target has `feature`: mma, cp_async, tma, wgmma."""
        return feature in self.features


_AMPERE = frozenset({"mma", "cp_async"})
_TMA = _AMPERE | {"tma"}

TARGETS = {
    t.name: t
    for t in (
        Target("sm_80", "A100", 108, 163 * KIB, 164 * KIB, 2048, 19.5e12, 312e12, 2.0e12, 40 << 20, _AMPERE),
        Target("sm_89", "RTX 4090", 128, 99 * KIB, 100 * KIB, 1536, 82.6e12, 165e12, 1.0e12, 72 << 20, _AMPERE),
        Target("sm_90a", "H200", 132, 227 * KIB, 228 * KIB, 2048, 67e12, 989e12, 4.8e12, 50 << 20, _TMA | {"wgmma"}),
        Target("sm_120", "RTX 5090", 170, 99 * KIB, 100 * KIB, 1536, 104.8e12, 209e12, 1.79e12, 96 << 20, _TMA),
    )
}
"""Every known target, by name."""


def get_target(name: str) -> Target:
    """The target called `name`; raises TargetError, which lists those that are known."""
    if name in TARGETS:
        return TARGETS[name]
    close = get_close_matches(str(name), TARGETS, 1)
    hint = f", did you mean {close[0]}?" if close else ""
    raise TargetError(f"unknown target {name!r}{hint} (known: {', '.join(TARGETS)})", argument="target")
