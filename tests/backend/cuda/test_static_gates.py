"""Static gates (`static_gates.py`): checks without a GPU of every kernel of the 84 shapes, for every target.

By default a slice: the smaller shapes of each family in each type, on alternating targets. `--gates all` runs all 1,008
combinations.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from math import prod

import pytest
from support.seed84 import BY_NAME, NAMES
from support.static_gates import DTYPES, Kernel, captured_case, check, failures, kernels

from deplodock.backend.cuda.runtime.disassembly import parse_listing
from deplodock.backend.disassembly import Region
from deplodock.dialects.layouts import linear
from deplodock.target.architectures import TARGETS

FAMILIES = list(dict.fromkeys(case["family"] for case in BY_NAME.values()))


def combinations(amount: str) -> list[tuple[str, str, str]]:
    """Returns the (case, data type, target) to check: all, or a random slice with the seed `amount`."""
    if amount == "all":
        return [(n, d, t) for n in NAMES for d in DTYPES for t in TARGETS]
    rng, targets = random.Random(int(amount)), list(TARGETS)
    found: list[tuple[str, str, str]] = []
    for family in FAMILIES:
        for dtype in DTYPES:
            name = rng.choice(smaller(family))
            found.append((name, dtype, targets[len(found) % len(targets)]))
    return found


def smaller(family: str) -> list[str]:
    """Returns the half of a family's cases that has the smaller tensors."""
    names = [n for n in NAMES if BY_NAME[n]["family"] == family]
    names.sort(key=lambda n: sum(prod(shape) for shape in BY_NAME[n]["inputs"].values()))
    return names[: (len(names) + 1) // 2]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "combination" in metafunc.fixturenames:
        found = combinations(str(metafunc.config.getoption("--gates")))
        metafunc.parametrize("combination", found, ids=["-".join(c) for c in found])


def test_gates(combination: tuple[str, str, str]) -> None:
    assert not failures(*combination)


def code(k: Kernel, **opcodes: int) -> Kernel:
    """Returns `k` with more instructions: opcode -> number. `__` in a keyword stands for a dot of the opcode."""
    listing = "".join(f"/*0000*/ {name.replace('__', '.')} ;\n" * n for name, n in opcodes.items())
    added = parse_listing(f".section .text.k\n{listing}")["k"]
    return replace(k, code=Region([*k.code.instructions, *added.instructions]))


def without(k: Kernel, opcode: str) -> Kernel:
    """Returns `k` without the instructions of an opcode."""
    return replace(k, code=Region([i for i in k.code.instructions if i.opcode.split(".")[0] != opcode]))


def counts(k: Kernel, **changes: object) -> Kernel:
    return replace(k, counts=replace(k.counts, **changes))


PRODUCT = ("matmul.tinyllama.gate_proj.s512", "bf16", "sm_90a")
ROWS = ("softmax.tinyllama.s32", "f32", "sm_90a")
FAULTS: dict[str, tuple[tuple[str, str, str], Callable[[Kernel], Kernel], str]] = {
    "a spill": (ROWS, lambda k: replace(k, use=replace(k.use, spill_stores=8)), "8 bytes spilled"),
    "a stack": (ROWS, lambda k: replace(k, use=replace(k.use, stack=16)), "16 on the stack"),
    "local memory": (ROWS, lambda k: code(k, LDL__128=1), "1 local accesses"),
    "no tensor cores": (PRODUCT, lambda k: without(k, "HGMMA"), "0 HGMMA of"),
    "half of the products": (PRODUCT, lambda k: code(without(k, "HGMMA"), HGMMA=1), "1 HGMMA of"),
    "other tensor cores": (PRODUCT, lambda k: code(k, HMMA__16816__F32=4), "4 HMMA of 0"),
    "a conversion of one number": (PRODUCT, lambda k: code(k, F2F__BF16__F32=2), "2 conversions from f32"),
    "no boxes": (PRODUCT, lambda k: without(k, "UTMALDG"), "0 UTMALDG of"),
    "narrow loads": (ROWS, lambda k: code(without(k, "LDG"), LDG__E__64=4), "LDG of 64 bits at most"),
    "narrow stores": (ROWS, lambda k: code(without(k, "STG"), STG__E=4), "STG of 32 bits at most"),
    "mostly narrow loads": (ROWS, lambda k: counts(k, load_widths={16: 800, 4: 200}), "20% of what is loaded"),
    "mostly narrow stores": (ROWS, lambda k: counts(k, store_widths={16: 800, 8: 200}), "20% of what is stored"),
    "registers": (ROWS, lambda k: replace(k, use=replace(k.use, registers=255)), "255 registers"),
    "a conflict": (PRODUCT, lambda k: counts(k, wavefronts=k.counts.wavefronts + 1), "wavefronts of shared memory"),
    "half sectors": (ROWS, lambda k: counts(k, sectors=2 * k.counts.ideal_sectors), "sectors of memory instead"),
    "rows read twice": (ROWS, lambda k: counts(k, loaded={0: 2 * k.counts.loaded[0]}), "a block loads"),
    "rows not read": (ROWS, lambda k: counts(k, loaded={0: k.counts.loaded[0] // 2}), "a block loads"),
    "a plan that reads twice": (ROWS, lambda k: replace(k, planned=replace(k.planned, read=2 * k.planned.read)), "of "),
}


@cache
def compiled(case: tuple[str, str, str]) -> Kernel:
    (found,) = kernels(*captured_case(*case[:2]), case[2])
    return found


@pytest.mark.parametrize("fault", FAULTS)
def test_gates_see_faults(fault: str) -> None:
    case, plant, expected = FAULTS[fault]
    assert list(check(compiled(case))) == []
    found = list(check(plant(compiled(case))))
    assert len(found) == 1, found
    assert expected in found[0]


def test_a_kernel_that_is_not_as_planned(monkeypatch: pytest.MonkeyPatch) -> None:
    """A compiler that does not see bank conflicts does not swizzle, and a gate notices."""
    monkeypatch.setattr(linear, "wavefronts", lambda lanes, vec, bytes_each: 1)  # type: ignore[reportUnknownLambdaType]
    (conflict,) = failures(PRODUCT[0], "bf16", "sm_80")
    assert "wavefronts of shared memory instead of" in conflict
