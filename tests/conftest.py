"""Options and fixtures of all tests. Tests marked `gpu` are skipped without a CUDA device."""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Callable, Generator, Iterator
from typing import Any

import pytest

pytest.register_assert_rewrite("support")

os.environ["DEPLODOCK_RECORDS"] = "none"  # schedules are the planner's, whatever was tuned on this machine

if "PYTEST_XDIST_WORKER" in os.environ:
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # each core has a worker: threads of PyTorch would only wait


def _has_gpu() -> bool:
    import torch

    return torch.cuda.is_available()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--gates", default="0", help="static gates: `all`, or the seed of a slice")
    parser.addoption("--rehearsal", action="store_true", help="all steps of benchmarks/gpu_minutes.sh on a stub")
    parser.addoption("--people", default="slice", help="programs as people write them: `all` runs each as CUDA, too")
    parser.addoption("--shapes", default="slice", help="the 84 shapes, shrunk: `all` runs each in every type")
    parser.addoption("--kernels", default="few", help="kernels as C++ with sanitizers and for others' vectors: `all`")
    parser.addoption(
        "--gradients", default="slice", help="gradients of modules: `all`, each on the reference and the CPU"
    )
    parser.addoption("--optimizers", default="slice", help="optimizers: `all` takes steps with each of their options")
    parser.addoption("--specials", default="slice", help="special values: `all` operators in f32, bf16 and f16")
    parser.addoption("--views", default="slice", help="changes in place of views of views: `all` chains")
    parser.addoption("--pages", default="few", help="report pages in a browser: `all` with TinyLlama's layer")
    parser.addoption("--playground", default="", help="folder of docs/playground/build.py, to test it in a browser")
    parser.addoption("--growth", default="short", help="growing programs: `all` measures those that take long, too")


def pytest_configure(config: pytest.Config) -> None:
    """Keeps the order of files with `--dist loadfile`, so that quick files (`QUICK`) run last.

    xdist would run files with few tests last, and these take longest.
    """
    if hasattr(config.option, "loadscopereorder"):
        config.option.loadscopereorder = False


QUICK = ("tests/dialects/", "tests/passes/test_", "tests/passes/analysis/")
"""Beginnings of the paths of test files that take a short time."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    items.sort(key=lambda item: item.nodeid.startswith(QUICK))
    marked = [item for item in items if item.get_closest_marker("gpu")]
    if marked and not _has_gpu():
        for item in marked:
            item.add_marker(pytest.mark.skip(reason="needs a CUDA device"))


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Disables garbage collection while test files are imported, because their objects stay."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


def pytest_collection_finish() -> None:
    """Excludes imported modules from garbage collection, which then visits only objects that tests create."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 20)


@pytest.fixture(autouse=True)
def programs_for_a_gpu(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes a GPU the default target, except in tests marked `auto`.

    Tests inspect CUDA text. Without a GPU the reference interpreter runs the programs, which needs no C++ compiler.
    """
    if "torch" in sys.modules and "auto" not in request.keywords:
        from deplodock.frontend import executors

        monkeypatch.setattr(executors, "auto_target", lambda: executors.DEFAULT_GPU)


@pytest.fixture(autouse=True)
def a_common_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plans programs for the CPU independent of rates that were measured on this machine."""
    monkeypatch.setenv("DEPLODOCK_CORES", "none")


@pytest.fixture
def stub_cuda(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Yields a stub of a CUDA device, which runs on the host and checks every call (`tests/stub_cuda`)."""
    import stub_cuda

    from deplodock.backend.cuda.runtime import driver

    for name in ("cupy", "cupy.cuda", "cupy.cuda.function"):
        monkeypatch.setitem(sys.modules, name, None)
    with stub_cuda.install(monkeypatch.setattr):
        yield stub_cuda.DEVICE
    driver.library.cache_clear()
    driver.encode.cache_clear()


@pytest.fixture
def summarise(record_property: Callable[[str, object], None]) -> Callable[[str], None]:
    """Returns a function that adds a line to the terminal summary."""
    return lambda line: record_property("summary", line)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    for report in (r for outcome in ("passed", "failed") for r in terminalreporter.getreports(outcome)):
        for name, line in report.user_properties:
            if name == "summary":
                terminalreporter.write_line(str(line))
