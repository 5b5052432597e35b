"""Measured rates of this CPU (`deplodock doctor --measure`), and the planner's use of them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from deplodock.backend.cpu import measure
from deplodock.dialects import make_context
from deplodock.dialects.loop import NestOp
from deplodock.dialects.support.parsing import parse_module
from deplodock.passes.planning.model import model_of
from deplodock.passes.planning.nest_info import NestInfo
from deplodock.passes.planning.plan_schedules import plan
from deplodock.target import host
from deplodock.target.architectures import CPU
from deplodock.target.host import Measured, cores, processor, read_measured, resolve_target
from deplodock.target.model import Core
from deplodock.tools.cli import main

FOUND = Measured(processor(), cores(), 11e9, 23e9, 700e9, 4)

PRODUCT = """
func.func @main(%x: tensor<512x512xDTYPE>, %w: tensor<512x512xDTYPE>) -> tensor<512x512xf32> {
  %y = loop.nest (%i, %j) in [512, 512] -> tensor<512x512xf32> {
    %s = loop.reduce add (%k) in [512] -> f32 {
      %a = loop.load %x[%i, %k] : tensor<512x512xDTYPE>
      %b = loop.load %w[%k, %j] : tensor<512x512xDTYPE>
      %c = payload.cast %a : DTYPE -> f32
      %d = payload.cast %b : DTYPE -> f32
      %p = arith.mulf %c, %d : f32
      loop.yield %p : f32
    }
    loop.yield %s : f32
  }
  func.return %y : tensor<512x512xf32>
}
"""


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Yields the path of the file of measurements, in a cache without measurements."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("DEPLODOCK_CORES")
    (tmp_path / "deplodock").mkdir(mode=0o700)
    host.measured_cores.cache_clear()
    yield host.measured_file()
    host.measured_cores.cache_clear()


def test_the_planner_reads_what_was_measured(file: Path) -> None:
    file.write_text(FOUND.written())
    found = resolve_target("cpu")
    assert (found.rates.memory, found.rates.store, found.rates.fma, found.sms) == (23e9, 11e9, 700e9, cores())
    assert found.rates.vector / CPU.rates.vector == 700e9 / CPU.fp32
    assert found.name == "cpu"
    assert found.core is not None
    assert found.core.streams == 4


def test_a_core_counts_on_its_part_of_a_large_cache(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "caches", lambda: {"L2": 1 << 21, "L3": 480 << 20})
    found = Measured("Intel(R) Xeon(R) Processor, AVX-512", 2, 11e9, 23e9, 700e9)
    monkeypatch.setattr(host, "known_cores", lambda: found)
    cores_of_intel = resolve_target("cpu")
    assert cores_of_intel.l2 == 64 << 20
    assert cores_of_intel.core is not None
    assert cores_of_intel.core.costs.page > Core.costs.page


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[1, 2]",
        FOUND.written()[:-10],
        FOUND.written().replace("11", "-11"),
        FOUND.written().replace("cores", "kernels"),
        Measured("another processor", cores(), 11e9, 23e9, 700e9).written(),
        Measured(processor(), 1000, 11e9, 23e9, 700e9).written(),
        Measured(processor(), cores(), 11e9, float("inf"), 700e9).written(),
        Measured(processor(), cores(), 11e9, 23e9, 700e9, 0).written(),
    ],
)
def test_what_is_damaged_or_of_another_machine_is_left(file: Path, text: str) -> None:
    file.write_text(text)
    assert resolve_target("cpu").rates.memory == CPU.rates.memory


@pytest.mark.parametrize(("flags", "lanes", "room", "rate"), [
    ("sse2 avx avx2", 8, 16, 1), ("sse2", 4, 16, 1), ("asimd", 4, 32, 1), ("avx2 avx512f avx512_bf16", 16, 32, 2),
    ("avx512f avx512_bf16 amx_bf16", 16, 32, 16),
])  # fmt: skip
def test_what_is_not_measured_is_as_the_system_says(
    file: Path, monkeypatch: pytest.MonkeyPatch, flags: str, lanes: int, room: int, rate: int
) -> None:
    monkeypatch.setattr(host, "_cpuinfo", lambda: ("a processor", flags.split()))
    monkeypatch.setattr(host, "cores", lambda: 6)
    found = resolve_target("cpu")
    assert found.core is not None
    assert (found.sms, found.core.lanes, found.core.registers, found.core.bf16_rate) == (6, lanes, room, rate)
    assert found.rates.fma == CPU.rates.fma * (6 * lanes) / (4 * 16)
    monkeypatch.setenv("DEPLODOCK_CORES", "none")
    host.measured_cores.cache_clear()
    assert resolve_target("cpu") is CPU


def test_products_of_bf16_take_less_time_where_it_is_multiplied_faster() -> None:
    for dtype, shorter in (("bf16", True), ("f16", False)):
        text = PRODUCT.replace("DTYPE", dtype)
        module = parse_module(make_context(), text, "product.mlir")
        nest = next(op for op in module.walk() if isinstance(op, NestOp))
        targets = (replace(CPU, core=Core(bf16_rate=rate)) for rate in (1.0, 2.0))
        slow, fast = (model_of(NestInfo(nest), t).predict(plan(nest, CPU)).seconds for t in targets)
        assert (fast < 0.9 * slow) == shorter


def test_doctor_measures(file: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--json"]) == 0
    assert "nothing" in json.loads(capsys.readouterr().out)["measured"]
    monkeypatch.setattr(measure, "measure", partial(measure.measure, 1 << 22, 100_000))
    assert main(["doctor", "--measure", "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    found = read_measured()
    assert found is not None
    assert 1e7 < min(found.copy, found.read)
    assert max(found.copy, found.read) < 1e13
    assert 1e8 < found.fma < 1e14
    assert told["measured"] == (
        f"copy {found.copy / 1e9:.1f} GB/s, read {found.read / 1e9:.1f} GB/s, {found.fma / 1e9:.0f} GFLOP/s, "
        f"a core from {found.streams} places in turn"
    )
    assert found.streams in measure.STREAMS
    assert "g++" in told["C++ compiler"]
    assert told["cores"].startswith(f"{cores()} of ")
