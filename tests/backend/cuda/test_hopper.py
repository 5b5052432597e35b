"""Hand-written kernels for sm_90a (TMA circular buffers, warp partitions, warpgroup matmuls) in every executor."""

from __future__ import annotations

import ctypes
from types import SimpleNamespace

import pytest
from support.hopper_programs import Gemm
from support.hopper_running import allocated, emulate, simulated, wrong

from deplodock.backend.cuda.printer import print_cuda
from deplodock.backend.cuda.runtime import driver
from deplodock.backend.cuda.runtime.nvrtc import compile_cubin
from deplodock.backend.host.launch_plan import TensorMap, make_plan
from deplodock.errors import ExecutionError

GEMMS = {
    "plain": Gemm(),
    "one slot": Gemm(stages=1, m=64, n=64, k=128),
    "two warpgroups": Gemm(stages=3, lag=True, groups=2, columns=128),
    "stored through shared memory": Gemm(stages=2, lag=True, staged=True, persistent=True),
    "stored by matrices": Gemm(stages=2, m=64, n=64, k=128, lag=True, staged=True, matrices=True),
    "all": Gemm(
        m=128, n=256, k=256, stages=3, groups=2, columns=128, lag=True, staged=True, persistent=True, matrices=True
    ),
}


@pytest.mark.parametrize("name", GEMMS)
def test_emulated(name: str) -> None:
    """The emulated CUDA computes the product exactly, without a report of races."""
    gemm = GEMMS[name]
    found, reports = emulate(gemm)
    assert [str(r) for r in reports] == []
    assert wrong(gemm, found) == 0


@pytest.mark.parametrize("name", GEMMS)
def test_simulated(name: str) -> None:
    """The simulated IR is exact, has all necessary waits, arrivals and fences, and moves the expected bytes."""
    gemm = GEMMS[name]
    found, report = simulated(gemm)
    assert [str(f) for f in report.findings] == []
    assert wrong(gemm, found) == 0
    across, down = gemm.n // gemm.columns, gemm.m // gemm.rows
    a, b = 2 * gemm.m * gemm.k * across, 2 * gemm.n * gemm.k * down
    (counts,) = report.launches
    assert (counts.loaded, counts.stored[2]) == ({0: a, 1: b}, 2 * gemm.m * gemm.n)
    assert counts.flops == 2 * gemm.m * gemm.n * gemm.k


@pytest.mark.parametrize("name", ["plain", "all"])
def test_compiles_without_spills_or_warnings(name: str) -> None:
    """ptxas does not spill registers and does not serialise the wgmma instructions (warnings C75xx)."""
    compiled = compile_cubin(print_cuda(allocated(GEMMS[name].text())), "sm_90a")
    assert compiled.warnings == ()
    assert all(use.spills == 0 and use.stack == 0 for use in compiled.kernels.values())


def test_tensor_maps_of_a_launch() -> None:
    """The launch plan lists the tensor maps of a launch, one for each buffer that TMA accesses."""
    plan = make_plan(allocated(GEMMS["stored through shared memory"].text()))
    shapes = [(128, 192), (128, 192), (128, 128)]
    assert plan.launches[0].maps == tuple(TensorMap(i, s, "bf16", (64, 64), 128) for i, s in enumerate(shapes))
    assert [b.written for b in plan.buffers] == [False, False, True]


def test_a_map_as_the_driver_wants_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """cuTensorMapEncodeTiled gets the fastest dimension first, and strides in bytes without that of single elements."""
    asked: list[tuple[object, ...]] = []

    def encode_tiled(target: ctypes.c_void_p, *arguments: object) -> int:
        assert (target.value or 0) % 64 == 0
        asked.append(tuple(list(a) if isinstance(a, ctypes.Array) else getattr(a, "value", a) for a in arguments))
        return 0 if len(asked) == 1 else 1

    driver.encode.cache_clear()
    monkeypatch.setattr(driver, "library", lambda: SimpleNamespace(cuTensorMapEncodeTiled=encode_tiled))
    wanted = TensorMap(0, (6, 20, 80), "f16", (2, 16, 64), 128)
    record = driver.encode(wanted, 4096)
    assert (record.shape, record.dtype.itemsize) == ((1,), 128)
    assert asked == [(6, 3, 4096, [80, 20, 6], [160, 3200], [64, 16, 2], [1, 1, 1], 0, 3, 2, 0)]
    with pytest.raises(ExecutionError, match="the driver refuses a map of f16"):
        driver.encode(wanted, 8192)
