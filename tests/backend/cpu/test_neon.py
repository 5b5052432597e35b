"""The C++ for other vector instructions: NEON with a cross compiler and qemu, SSE and AVX2 on this machine.

`--kernels all` runs 50 kernels on each.
"""

from __future__ import annotations

import platform
import shutil

import pytest
import torch
from support.alone import Machine
from support.cpu_samples import check_all, enough

MACHINES = {
    "neon": Machine("aarch64-linux-gnu-g++", ("-O1", "-static"), start=("qemu-aarch64",)),
    "sse": Machine("g++", ("-O1", "-march=x86-64")),
    "avx2": Machine("g++", ("-O1", "-march=x86-64-v3")),
}


@pytest.mark.parametrize("name", MACHINES)
def test_vectors(request: pytest.FixtureRequest, name: str) -> None:
    machine = MACHINES[name]
    if missing := [tool for tool in (machine.compiler, *machine.start) if shutil.which(tool) is None]:
        pytest.skip(f"needs {' and '.join(missing)}")
    if name != "neon" and platform.machine() != "x86_64":
        pytest.skip("needs a processor of this kind")
    if name == "avx2" and "AVX" not in torch.backends.cpu.get_cpu_capability():
        pytest.skip("this machine has no AVX2")
    check_all(enough(request, 3, 50), machine)
