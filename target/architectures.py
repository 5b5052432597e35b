"""The table of architectures: one record each, with the numbers of a common GPU or CPU.

To support a new architecture, add a record. The planner, the printer, the runtime and the documentation read all facts
from it.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path

from .model import KIB, Core, Rates, Target

_AMPERE = frozenset({"mma", "cp_async"})
_TMA = _AMPERE | {"tma", "cluster"}
_HOPPER = _TMA | {"wgmma"}

_RECORDS = (
    Target(
        name="sm_80",
        card="A100",
        capabilities=((8, 0), (8, 6), (8, 7)),
        features=_AMPERE,
        sms=108,
        shared_per_block=163 * KIB,
        shared_per_sm=164 * KIB,
        threads_per_sm=2048,
        fp32=19.5e12,
        tensor=312e12,
        bandwidth=2.0e12,
        l2=40 << 20,
        rates=Rates(
            memory=1.7e12,
            cache=4.5e12,
            bulk=4.5e12,
            store=1.25e12,
            vector=8.0e12,
            special=2.4e12,
            fma=19.5e12,
            mma=290e12,
            clock=1.41e9,
        ),
    ),
    Target(
        name="sm_89",
        card="RTX 4090",
        capabilities=((8, 9),),
        features=_AMPERE,
        sms=128,
        shared_per_block=99 * KIB,
        shared_per_sm=100 * KIB,
        threads_per_sm=1536,
        fp32=82.6e12,
        tensor=165e12,
        bandwidth=1.0e12,
        l2=72 << 20,
        rates=Rates(
            memory=0.92e12,
            cache=4.5e12,
            bulk=4.5e12,
            store=0.63e12,
            vector=31e12,
            special=5.1e12,
            fma=82.6e12,
            mma=165e12,
            clock=2.52e9,
        ),
    ),
    Target(
        name="sm_90a",
        card="H200",
        capabilities=((9, 0),),
        features=_HOPPER,
        sms=132,
        shared_per_block=227 * KIB,
        shared_per_sm=228 * KIB,
        threads_per_sm=2048,
        fp32=67e12,
        tensor=989e12,
        bandwidth=4.8e12,
        l2=50 << 20,
        workspace=32 << 20,
        rates=Rates(
            memory=4.0e12,
            cache=7.0e12,
            bulk=10.8e12,
            store=3.0e12,
            vector=25e12,
            special=4.0e12,
            fma=67e12,
            mma=600e12,
            clock=1.60e9,
        ),
    ),
    Target(
        name="sm_120",
        card="RTX 5090",
        capabilities=((12, 0), (12, 1)),
        features=_TMA,
        sms=170,
        shared_per_block=99 * KIB,
        shared_per_sm=100 * KIB,
        threads_per_sm=1536,
        fp32=104.8e12,
        tensor=209e12,
        bandwidth=1.79e12,
        l2=96 << 20,
        rates=Rates(
            memory=1.6e12,
            cache=6.5e12,
            bulk=6.5e12,
            store=1.1e12,
            vector=39e12,
            special=6.5e12,
            fma=104.8e12,
            mma=209e12,
            clock=2.41e9,
        ),
    ),
)
"""Records of the GPUs. Their constants are from manuals and publications; `model.py` has the units."""

FITTED = Path(__file__).with_name("fitted.json")
"""File with factors that correct the constants above. `benchmarks/gpu/fit.py` fits them to measured times of a
device."""


_FACTORS = {name: entry["factors"] for name, entry in json.loads(FITTED.read_text(encoding="utf-8")).items()}

DEFAULT = "sm_90a"
"""Target of a program without a target.

The cost model of fusion uses its numbers for all GPUs, without the fitted factors. These factors correct the cost model
of schedules, which has other terms.
"""

_FUSION = next(r for r in _RECORDS if r.name == DEFAULT)

TARGETS = {r.name: replace(r, fusion=_FUSION).scaled(_FACTORS.get(r.name, {})) for r in _RECORDS}
"""Name -> GPU target, with the fitted factors."""

CPU = Target(
    name="cpu",
    card="4 cores",
    sms=4,
    shared_per_block=256 * KIB,
    shared_per_sm=256 * KIB,
    threads_per_sm=1,
    lanes=1,
    fp32=4.0e11,
    tensor=4.0e11,
    bandwidth=2.0e10,
    l2=32 << 20,
    workspace=8 << 20,
    features=frozenset({"bf16"}),
    core=Core(),
    rates=Rates(
        memory=2.0e10,
        cache=2.0e11,
        bulk=2.0e11,
        store=2.0e10,
        vector=1.7e11,
        special=1.4e10,
        fma=4.0e11,
        mma=4.0e11,
        clock=3.0e9,
        launch=5e-6,
        ramp=0,
        latency=0,
        replay=0,
        tiled=1.0,
        nested=1.0,
    ),
    exposed=1.0,
)
"""Record of a common CPU with four cores."""


@dataclass(frozen=True)
class Isa:
    """Instruction set of a CPU target.

    Attributes:
        flag: feature flag of processors with the instruction set, as in `/proc/cpuinfo`.
        march: value of the compiler option `-march`.
        lanes: f32 elements of a vector.
        registers: number of vector registers.
    """

    flag: str
    march: str
    lanes: int
    registers: int


ISAS = {
    "avx512": Isa(flag="avx512vl", march="x86-64-v4", lanes=16, registers=32),
    "avx2": Isa(flag="avx2", march="x86-64-v3", lanes=8, registers=16),
    "sse": Isa(flag="sse4_2", march="x86-64-v2", lanes=4, registers=16),
    "neon": Isa(flag="asimd", march="armv8-a", lanes=4, registers=32),
}
"""Name -> instruction set."""


def tile_rows(registers: int) -> int:
    """Returns the rows of the result that a packed matmul keeps in `registers` vector registers."""
    return min(8, registers * 3 // 8)
