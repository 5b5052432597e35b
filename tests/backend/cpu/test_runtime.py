"""Calls of programs on the CPU: one C++ call each, from any thread, with scratch memory per call."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import deplodock
from deplodock.backend.cpu import build, printer, runtime
from deplodock.backend.cpu.runtime import CpuProgram, collapse_pages
from deplodock.backend.host.calls import building
from deplodock.errors import ExecutionError
from deplodock.frontend.capture.eager_fallback import FallbackWarning


def _compiled(function: Callable[..., Any], *args: torch.Tensor, **how: Any) -> tuple[Any, CpuProgram]:
    program = deplodock.compile(function, args, target="cpu", **how)
    assert isinstance(program.executor.program, CpuProgram)
    return program, program.executor.program


def _launches(program: CpuProgram, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Returns a list that gets the number of threads of every C++ call, with or without Python."""
    calls, launch = [], program._launch

    @ctypes.CFUNCTYPE(None, *launch.argtypes)
    def counted(first: int, end: int, memory: int, threads: int, *more: Any) -> None:
        calls.append(threads)
        launch(first, end, memory, threads, *more)

    monkeypatch.setattr(program, "_launch", counted)
    return calls


def _two_products(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return F.relu(x @ w) @ w.t() + x


def test_a_program_is_one_call(monkeypatch: pytest.MonkeyPatch) -> None:
    x, w = torch.randn(40, 60), torch.randn(60, 50)
    function, program = _compiled(_two_products, x, w)
    calls = _launches(program, monkeypatch)
    assert len(program.plan.launches) > 1
    torch.testing.assert_close(function(x, w), _two_products(x, w), rtol=1e-4, atol=1e-4)
    assert len(calls) == 1


def test_what_pytorch_computes_comes_in_between(monkeypatch: pytest.MonkeyPatch) -> None:
    def function(x: torch.Tensor) -> torch.Tensor:
        return torch.linalg.inv(x * 2 + 1) * 3

    x = torch.randn(8, 8) + 9 * torch.eye(8)
    with pytest.warns(FallbackWarning):
        compiled, program = _compiled(function, x, fallback="eager")
    calls = _launches(program, monkeypatch)
    for _ in range(2):
        torch.testing.assert_close(compiled(x), function(x))
    assert len(calls) == 4


def test_threads_of_pytorch_are_obeyed(monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.randn(1 << 18)
    compiled, program = _compiled(torch.sin, x)
    calls, before = _launches(program, monkeypatch), torch.get_num_threads()
    try:
        for count in (1, 2):
            torch.set_num_threads(count)
            torch.testing.assert_close(compiled(x), x.sin())
            elsewhere = threading.Thread(target=compiled, args=(x,))
            elsewhere.start()
            elsewhere.join()
    finally:
        torch.set_num_threads(before)
    assert calls == [1, 1, 2, 2]


def test_little_work_is_not_shared() -> None:
    def shared(rows: int) -> list[int]:
        x = torch.randn(rows, 256)
        compiled, program = _compiled(lambda x: x.softmax(-1), x)
        compiled(x)
        return [int(p.numbers[2]) for v in program._placed.values() for p in v.parts]  # pyright: ignore

    assert shared(16) == [1]
    assert shared(4096) == [1 << 16], "by all that there are"


@pytest.mark.parametrize("native", [False, True])
@pytest.mark.parametrize("asserts", [False, True])
def test_eight_threads_call_one_program(asserts: bool, native: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Simultaneous calls have separate arguments, scratch memory and messages, with and without the extension."""
    building().result()
    if not native:
        monkeypatch.setattr(runtime, "extension", lambda: None)
    w = torch.randn(60, 50)

    def function(x: torch.Tensor, w: torch.Tensor, i: torch.Tensor) -> torch.Tensor:
        return _two_products(x, w)[i]

    compiled, _ = _compiled(function, torch.randn(128, 60), w, torch.tensor([1, 2]), checked=asserts)
    start = threading.Barrier(8)

    def work(thread: int) -> None:
        x = torch.randn(128, 60, generator=torch.Generator().manual_seed(thread))
        bad = asserts and thread % 2 == 1
        i = torch.tensor([thread % 4, 200 + thread if bad else 0])
        expected = None if bad else function(x, w, i)
        start.wait()
        for _ in range(125):
            if expected is None:
                with pytest.raises(ExecutionError, match=f": {200 + thread}; "):
                    compiled(x, w, i)
            else:
                torch.testing.assert_close(compiled(x, w, i), expected, rtol=1e-4, atol=1e-4)

    with ThreadPoolExecutor(8) as pool:
        for done in [pool.submit(work, n) for n in range(8)]:
            done.result()


def test_threads_compile_different_programs(request: pytest.FixtureRequest) -> None:
    """`--kernels all` compiles 1,000, by eight threads."""
    threads, programs = (8, 1000) if request.config.getoption("--kernels") == "all" else (4, 4)
    x = torch.randn(3, 70)

    def work(n: int) -> None:
        compiled, _ = _compiled(lambda x: (x * n).sin().sum(-1), x)
        torch.testing.assert_close(compiled(x), (x * n).sin().sum(-1), rtol=1e-4, atol=1e-4)

    with ThreadPoolExecutor(threads) as pool:
        for done in [pool.submit(work, n) for n in range(programs)]:
            done.result()


def test_scratch_memory_is_kept() -> None:
    x, w = torch.randn(40, 60), torch.randn(60, 50)
    compiled, program = _compiled(_two_products, x, w)
    kept = []
    for _ in range(3):
        compiled(x, w)
        kept.append([t.data_ptr() for t in program._scratch])
    assert len(kept[0]) == 1  # of the first call, which goes through Python
    assert kept == kept[:1] * 3


def test_large_results_are_advised_huge_pages() -> None:
    maps = Path("/proc/self/smaps")
    if not maps.exists() or not hasattr(runtime.mmap, "MADV_HUGEPAGE"):
        pytest.skip("this system knows no such advice")
    x = torch.randn(16 << 20)
    compiled, _ = _compiled(torch.neg, x)
    place, found = (y := compiled(x)).data_ptr() + y.nbytes // 2, ""
    for line in maps.read_text().splitlines():
        head = line.split()[0]
        if "-" in head and not head.endswith(":"):
            first, end = (int(n, 16) for n in head.split("-"))
            inside = first <= place < end
        elif head == "VmFlags:" and inside:
            found = line
    assert "hg" in found.split()
    assert torch.equal(y, -x)


def test_tensors_that_do_not_lie_in_memory_as_they_read() -> None:
    x = torch.randn(8, 6)
    compiled, program = _compiled(lambda x: x * 2 + 1, x)
    for unusual in (torch._neg_view(x), x.t().contiguous().t(), torch.randn(17, 6)[1:17:2], x.requires_grad_()):
        with torch.no_grad():
            torch.testing.assert_close(compiled(unusual), unusual * 2 + 1)
    with pytest.raises(ExecutionError, match="on meta"):
        program.run([torch.empty(8, 6, device="meta")])
    with pytest.raises(ExecutionError, match=r"is float32\[6, 8\]"):
        program.run([torch.randn(6, 8)])


def test_memory_in_use_goes_into_huge_pages(tmp_path: Path) -> None:
    """Contents and addresses stay. Memory that cannot be collapsed, such as a mapped file, is unchanged."""
    numbers = torch.arange(3 << 20, dtype=torch.float32)
    file = tmp_path / "numbers"
    numbers.numpy().tofile(file)
    for tensor in (numbers.clone(), torch.from_file(str(file), size=numbers.numel())):
        address = tensor.data_ptr()
        collapse_pages(tensor)
        assert tensor.data_ptr() == address
        assert torch.equal(tensor, numbers)


SHARES = """
extern "C" void shares(int blocks, int threads, int* begins, int* ends, int* count) {
  all_blocks(blocks, threads, [=](int begin, int end) {
    const int n = __atomic_fetch_add(count, 1, __ATOMIC_RELAXED);
    begins[n] = begin, ends[n] = end;
  });
}
"""


@pytest.mark.parametrize("threads", [1, 2, 3])
@pytest.mark.parametrize("blocks", [0, 1, 5, 76, 1187])
def test_shares_are_all_blocks_and_the_last_ones_small(blocks: int, threads: int) -> None:
    """Shares partition the blocks. Without blocks there is no share, as shared values may have no memory."""
    library = ctypes.CDLL(str(build.build(printer.helper_section(()) + SHARES)))
    begins, ends, count = (ctypes.c_int * 64)(), (ctypes.c_int * 64)(), ctypes.c_int(0)
    library.shares(blocks, threads, begins, ends, ctypes.byref(count))
    found = sorted(zip(begins[: count.value], ends[: count.value], strict=True))
    assert [n for begin, end in found for n in range(begin, end)] == [*range(blocks)]
    sizes = [end - begin for begin, end in found]
    if threads == 1:
        assert sizes == [blocks][:blocks]
    else:
        assert len(sizes) <= 10 * threads
        assert all(size <= -(-blocks // (2 * threads)) for size in sizes)
        assert not sizes or sizes[-1] <= -(-blocks // (64 * threads)), "what one core may be behind the others"
