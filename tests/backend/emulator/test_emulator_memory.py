"""Memory of a process that emulates many programs: maps and libraries are reused or released."""

from __future__ import annotations

import gc
from pathlib import Path

import numpy as np
from support.emulated_text import kernel, one_launch

from deplodock.backend.emulator import EmulatedProgram

PROGRAMS, LAUNCHES = 6, 40
PLAN = one_launch([(1024,)], [(1024,)], threads=1024, shared=4096)


def maps() -> list[str]:
    """Returns the memory maps of this process."""
    return Path("/proc/self/maps").read_text().splitlines()


def resident() -> int:
    """Returns the resident memory of this process in bytes."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


def run(number: int) -> Path:
    """Runs a program that is unique to `number`. Returns the path of its loaded library."""
    text = kernel(f"s[t] = x[t];\n__syncthreads();\ny[t] = s[1023 - t] + {number}.0f;").replace("(128)", "(1024)")
    program, x = EmulatedProgram(text, PLAN), np.arange(1024, dtype=np.float32)
    (y,), reports = program.run([x], seeds=(0, 1) if number else [0] * LAUNCHES)
    assert not reports
    np.testing.assert_array_equal(y, x[::-1] + number)
    assert any(str(program.module.library.path) in line for line in maps())
    return program.module.library.path


def test_programs_leave_nothing_behind() -> None:
    loaded = [run(0)]
    before = len(maps()), resident()
    loaded += [run(number) for number in range(1, PROGRAMS)]
    gc.collect()
    assert len(maps()) <= before[0] + 8
    assert resident() <= before[1] + 32 * 2**20
    assert len(set(loaded)) == PROGRAMS
    assert not [path for path in loaded if any(str(path) in line for line in maps())]
