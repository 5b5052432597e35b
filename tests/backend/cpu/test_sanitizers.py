"""CPU programs under sanitizers: no access outside of a buffer, no undefined behaviour, no data race between blocks.

`--kernels all` runs 300 kernels, and 50 of them with threads. Each buffer of a program, scratch memory included, is a
separate allocation here, so the sanitizer knows its bounds, as it does for arrays on the stack. Masked loads and stores
of AVX-512 are not checked; AVX2 has none.
"""

from __future__ import annotations

import re
import shutil

import pytest
import torch
from support.alone import Failed, Machine
from support.cpu_programs import PROGRAMS
from support.cpu_samples import check_all, enough, of_function, of_schedule

from deplodock.backend.cpu.printer import print_cpp

pytestmark = pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")

_ADDRESSES = ("-O0", "-fsanitize=address,undefined", "-fno-sanitize-recover=all")
ADDRESSES = {march: Machine("g++", (*_ADDRESSES, f"-march={march}")) for march in ("native", "x86-64-v3")}
THREADS = Machine("g++", ("-O1", "-g1", "-march=native", "-fsanitize=thread"), threads=4)


@pytest.fixture(params=ADDRESSES)
def addresses(request: pytest.FixtureRequest) -> Machine:
    """Returns the machine with the address sanitizer: the instruction set of this CPU, or AVX2 if it has AVX2."""
    if request.param != "native" and "AVX" not in torch.backends.cpu.get_cpu_capability():
        pytest.skip("this machine has no AVX2")
    return ADDRESSES[request.param]


def test_addresses(request: pytest.FixtureRequest, addresses: Machine) -> None:
    check_all(enough(request, 4, 300), addresses)


def test_a_right_operand_outside_of_its_tensor(addresses: Machine) -> None:
    """A convolution tap whose rows are all in the padding reads nothing."""
    function, args = PROGRAMS["convolution of bf16"]
    check_all([of_function("convolution", function, list(args))], addresses)


def test_threads(request: pytest.FixtureRequest) -> None:
    check_all(enough(request, 3, 50), THREADS)


def test_a_store_behind_a_buffer_is_found(addresses: Machine) -> None:
    with pytest.raises(Failed, match="heap-buffer-overflow"):
        _run_changed(addresses, "store(&", "store(16 + &")


def test_an_index_outside_of_an_array_is_found(addresses: Machine) -> None:
    with pytest.raises(Failed, match="stack-buffer-overflow|out of bounds"):
        _run_changed(addresses, "{\n    const int at", "{\n    float row[4]; row[block + 4] = 0;\n    const int at")


def test_an_access_behind_the_buffer_of_a_core_is_found(addresses: Machine) -> None:
    sample = of_schedule(11)
    assert sample is not None
    wrong, places = re.subn(r"memory\[(\d+)\];", r"memory[\1 - 4];", print_cpp(sample.module))
    assert places == 1
    with pytest.raises(Failed, match="of global variable 'memory'"):
        addresses.run(sample.module, sample.args, wrong)


def test_blocks_that_write_the_same_memory_are_found() -> None:
    with pytest.raises(Failed, match="data race"):
        _run_changed(THREADS, "run(begin(s),", "run(begin(s / 2),")


def _run_changed(machine: Machine, before: str, after: str) -> None:
    sample = of_function("rows", lambda x: x * 2, [torch.randn(256, 64)])
    text = print_cpp(sample.module)
    assert before in text
    check_all([sample], machine)
    machine.run(sample.module, sample.args, text.replace(before, after))
