"""Thirteen processes compile programs with common kernels at the same time, with one build cache."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

PROCESSES, ROUNDS = 13, 20

SCRIPT = r"""
import json, os, random, re, sys, time, traceback, warnings
from multiprocessing import get_context
from pathlib import Path
from types import SimpleNamespace

from deplodock.backend.host.build_cache import SEAL
from deplodock.backend.cuda.kernel_texts import unpack
from deplodock.backend.cpp.writer import HELPERS_MARK, KERNELS_MARK
from deplodock.backend.cuda.runtime import nvrtc

processes, rounds, folder = int(sys.argv[1]), int(sys.argv[2]), Path(sys.argv[3])


class Compiler:
    # Behaves as NVRTC 13 on a GPU: it keeps machine code in files that all processes share, and its log is empty for a
    # text that it has compiled before. The registers are the number that the text stores.
    nvrtcResult = SimpleNamespace(NVRTC_SUCCESS=0)

    def nvrtcCreateProgram(self, source, name, *headers):
        return 0, SimpleNamespace(source=source, log=b"", cubin=b"")

    def nvrtcCompileProgram(self, program, count, flags):
        text = re.sub(r"(?m)^#line.*\n", "", program.source.decode())
        entry, registers = re.search(r"(k_\w+)\(", text)[1], re.search(r"= (\d+);", text)[1]
        known = Path(f"{entry}.known")
        if b"-no-cache" in flags or not known.exists():
            program.log = f"Compiling entry function '{entry}'\nUsed {registers} registers".encode()
        program.cubin = f"machine code of {entry}, {registers} registers".encode() * 1000
        time.sleep(random.random() * 3e-3)
        known.touch()
        return (0,)

    def nvrtcGetProgramLogSize(self, program):
        return 0, program.log

    nvrtcGetCUBINSize = lambda self, program: (0, program.cubin)
    nvrtcGetProgramLog = nvrtcGetCUBIN = lambda self, program, data: (0,)
    nvrtcDestroyProgram = lambda self, program: (0,)


nvrtc._nvrtc = Compiler
nvrtc._read = lambda size_of, read, program: size_of(program)[1]
nvrtc.compiler_build = lambda: ((13, 0), "a build")
exec(sys.argv[4])


def program(numbers):
    kernels = [f'extern "C" __global__ void k{i}(int* x) {{\n  x[0] = {n};\n}}\n' for i, n in enumerate(numbers)]
    return f"{HELPERS_MARK}\n{KERNELS_MARK}" + "\n".join(kernels)


def compile_rounds(seed, together, failures):
    random.seed(seed)
    for number in range(rounds):
        os.environ["XDG_CACHE_HOME"] = str(folder / str(number))
        numbers = random.sample(range(8, 14), 4)
        together.wait()
        try:
            compiled = nvrtc.compile_cubin(program(numbers), "sm_90a")
            code = unpack(compiled.cubin)
            for i, registers in enumerate(numbers):
                assert compiled.kernels[f"k{i}"].registers == registers, f"k{i} has other registers"
                assert f"{code[f'k{i}'].entry}, {registers} registers" in code[f"k{i}"].cubin.decode()
        except Exception as error:
            failures.put(f"round {number}: {type(error).__name__}: {error}")


warnings.simplefilter("error")
os.chdir(folder)
fork = get_context("fork")
together, failures = fork.Barrier(processes), fork.SimpleQueue()
children = [fork.Process(target=compile_rounds, args=(n, together, failures)) for n in range(processes)]
for child in children:
    child.start()
found = []
for child in children:
    child.join(60)
    found += [f"a process ended with {child.exitcode}"] * (child.exitcode != 0)
while not failures.empty():
    found.append(failures.get())
for number in range(rounds):
    names = [path.name for path in Path(f"{number}/deplodock/cubin").iterdir()]
    found += [f"round {number} keeps {names}"] * (len(names) != 6 or not all(n.endswith(".bin") for n in names))
print(json.dumps(found))
"""


def failures(folder: Path, rounds: int, fault: str = "") -> list[str]:
    """Runs `SCRIPT` in a process and returns the failures. `fault` is a statement that changes the compiler first."""
    command = [sys.executable, "-c", SCRIPT, str(PROCESSES), str(rounds), str(folder), fault]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=100)
    return json.loads(done.stdout)


def test_no_kernel_is_lost(tmp_path: Path) -> None:
    """Each program has four of six kernels. Every process gets the registers and machine code of its kernels."""
    assert failures(tmp_path, ROUNDS) == []


CACHE = "from deplodock.backend.host import build_cache as cache; import contextlib, pathlib, shutil; "
SLOW = CACHE + "real = os.path.lexists; os.path.lexists = lambda path: (time.sleep(2e-3), real(path))[1]; "
FAULTS = {
    "NVRTC keeps what it compiles": ("nvrtc.UNCACHED = ()", "KeyError: 'k_"),
    "a file appears bit by bit": (
        CACHE + "cache.os = SimpleNamespace(**vars(os)); cache.os.replace = shutil.copyfile",
        "it is made again",
    ),
    "one scratch folder for all": (
        CACHE
        + "scratch = lambda dir, prefix: (pathlib.Path(dir, 'scratch').mkdir(exist_ok=True), dir / 'scratch')[1]; "
        + "cache.tempfile = SimpleNamespace(TemporaryDirectory=lambda **how: contextlib.nullcontext(scratch(**how)))",
        "FileNotFoundError",
    ),
    "kernels that differ share a file": ("nvrtc.digest = lambda *parts: '0'", "KeyError: 'k_"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_faults_are_seen(fault: str, tmp_path: Path) -> None:
    statement, message = FAULTS[fault]
    assert any(message in line for line in failures(tmp_path, 5, statement))


def test_a_file_that_another_process_finishes_is_not_damaged(tmp_path: Path) -> None:
    """Another process finishes a file after its contents were read and before it would be declared damaged."""
    assert failures(tmp_path, 5, SLOW) == []
