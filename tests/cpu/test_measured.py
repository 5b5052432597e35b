"""What is measured of the cores of a machine, and what the planner makes of it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from deplodock.backend.cpu import measure
from deplodock.dialects import cores, target
from deplodock.dialects.cores import Measured, read_measured
from deplodock.tools.cli import main

FOUND = Measured(cores.processor(), cores.cores(), 11e9, 23e9, 700e9)


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The file of measurements, of a user who has none yet."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(target, "read_measured", read_measured)
    (tmp_path / "deplodock").mkdir(mode=0o700)
    target.measured_cores.cache_clear()
    target.calibrated.cache_clear()
    yield cores.measured_file()
    target.measured_cores.cache_clear()
    target.calibrated.cache_clear()


def test_the_planner_reads_what_was_measured(file: Path) -> None:
    file.write_text(FOUND.written())
    found = target.get_target("cpu")
    assert (found.rates.memory, found.rates.store, found.rates.fma, found.sms) == (23e9, 11e9, 700e9, cores.cores())
    assert found.rates.vector / target.CPU.rates.vector == 700e9 / target.CPU.fp32
    assert found.label == "cpu"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[1, 2]",
        FOUND.written()[:-10],
        FOUND.written().replace("11", "-11"),
        FOUND.written().replace("cores", "kernels"),
        Measured("another processor", cores.cores(), 11e9, 23e9, 700e9).written(),
        Measured(cores.processor(), 1000, 11e9, 23e9, 700e9).written(),
        Measured(cores.processor(), cores.cores(), 11e9, float("inf"), 700e9).written(),
    ],
)
def test_what_is_damaged_or_of_another_machine_is_left(file: Path, text: str) -> None:
    file.write_text(text)
    assert target.get_target("cpu") is target.CPU


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
        f"copy {found.copy / 1e9:.1f} GB/s, read {found.read / 1e9:.1f} GB/s, {found.fma / 1e9:.0f} GFLOP/s"
    )
    assert "g++" in told["C++ compiler"]
    assert told["cores"].startswith(f"{cores.cores()} of ")
