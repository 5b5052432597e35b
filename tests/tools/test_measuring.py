"""`deplodock run` with `--bench`, `--profile`, `--predict`, `--plot` and `--trace`."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
import torch

from deplodock.backend.cuda.kernel_texts import entries
from deplodock.backend.host.timing import Timing, in_turns
from deplodock.frontend.bench import OURS, Measurement
from deplodock.frontend.profile import Cost, Profile
from deplodock.target.attribute import get_target
from deplodock.target.host import cores, processor
from deplodock.tools.cli import main
from deplodock.tools.tables import Bar, bars, bench_table, profile_table, seconds, write_plot

pytestmark = pytest.mark.auto

CODE = ["-c", "torch.softmax(torch.randn(64, 33) @ torch.randn(33, 65), -1)"]


def run(capsys: pytest.CaptureFixture[str], *options: str, code: int = 0) -> Any:
    assert main(["run", *CODE, *options, "--json"]) == code
    return json.loads(capsys.readouterr().out)


def test_all_of_it(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Times on the CPU, also per kernel, and predictions for a GPU. Inductor compiles slowly and is excluded."""
    monkeypatch.setattr(torch, "compile", lambda function, **_: function)
    plot, trace = tmp_path / "times.svg", tmp_path / "trace.json"
    found = run(capsys, "--bench", "--profile", "--predict", "--plot", str(plot), "--trace", str(trace))
    assert set(found["bench"]["times"]["call"]) == {"eager", "torch.compile", OURS}
    assert found["bench"]["right"] is True
    assert found["bench"]["environment"]["threads"] > 0
    profile, prediction = found["profile"], found["prediction"]
    assert profile["source"].startswith(f"measured on {processor()}, {cores()} cores, ")
    assert profile["source"].endswith(f"; roofs are those of {get_target('cpu').card}")
    assert prediction["source"] == "predicted for sm_90a (H200) by the planning model, not measured"
    assert profile["call_seconds"] > 0
    assert profile["seconds"] > 0
    assert prediction["call_seconds"] is None
    for kernels in (profile["kernels"], prediction["kernels"]):
        assert sum(k["share"] for k in kernels) == pytest.approx(1)
        assert all(k["lines"] == ["<expression>:1"] for k in kernels)
        assert sum(k["flops"] for k in kernels) >= 2 * 64 * 33 * 65
    assert len(ElementTree.parse(plot).getroot().findall("{*}rect")) == 1 + 3
    names = {k["name"] for k in profile["kernels"]}
    assert {*profile["machine_code"]["kernels"]} == names
    check_trace(json.loads(trace.read_text()), names)


def check_trace(found: Any, kernels: set[str]) -> None:
    """Asserts the format of trace events: times in microseconds, named processes, no overlap within a process."""
    assert set(found) == {"traceEvents", "displayTimeUnit", "otherData"}
    names = {e["pid"]: e["args"]["name"] for e in found["traceEvents"] if e["ph"] == "M"}
    events = [e for e in found["traceEvents"] if e["ph"] == "X"]
    assert len(names) + len(events) == len(found["traceEvents"])
    for number, name in names.items():
        mine = [e for e in events if e["pid"] == number]
        assert all(type(e[key]) in (int, float) and e[key] >= 0 for e in mine for key in ("ts", "dur"))
        assert all(a["ts"] + a["dur"] <= b["ts"] + 0.01 for a, b in zip(mine, mine[1:], strict=False))
        assert ({e["name"] for e in mine} == kernels) == name.startswith("kernels, ")
    assert "plan-schedules" in {e["name"] for e in events}


def test_a_program_of_a_gpu_that_is_not_here_is_predicted(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    trace = tmp_path / "trace.json"
    found = run(capsys, "--profile", "--target", "sm_80", "--trace", str(trace))
    assert found["profile"]["source"] == "predicted for sm_80 (A100) by the planning model, not measured"
    assert "bench" not in found
    check_trace(json.loads(trace.read_text()), {k["name"] for k in found["profile"]["kernels"]})


def test_what_does_not_run_here_is_not_timed(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    cases = {
        "an interpreter": ("--bench", "--executor", "reference"),
        "no CUDA device": ("--bench", "--target", "sm_90a"),
        "does not end in .svg": ("--bench", "--plot", str(tmp_path / "times.png")),
    }
    for message, options in cases.items():
        assert message in run(capsys, *options, code=1)["error"]["message"]
    assert "give both" in run(capsys, "--plot", "x.svg", code=2)["error"]["message"]


def test_tables_fit() -> None:
    times = {arm: Timing(1.234e-3, 1.2e-3, 1.3e-3, 31) for arm in ("eager", "torch.compile", "max-autotune", OURS)}
    errors = dict.fromkeys(times, 1e-7)
    gpu = Measurement(errors, True, "", {"cold": times, "hot": times, "call": times})
    cost = Cost("k0", 3, 1e-3, 1.0, 1 << 20, 1 << 20, 0.5, "memory", ("<block = [1, 2048], warps = 4>",), ("a.py:3",))
    for width in (60, 80, 120):
        for text in (bench_table(gpu, width), profile_table(Profile("measured", (cost,)), width)):
            assert max(map(len, text.splitlines())) <= width
    assert "k0 x 3" in profile_table(Profile("measured", (cost,)), 80)
    assert "a.py:3" in profile_table(Profile("measured", (cost,)), 80)


def test_noise_is_that_of_a_median() -> None:
    """For normally distributed samples about 95 % of the medians are within the noise."""
    import random

    rng, inside = random.Random(0), 0
    for _ in range(400):
        t = Timing.of([rng.gauss(1.0, 0.05) for _ in range(31)])
        inside += abs(t.median - 1.0) <= t.noise * t.median
    assert 0.9 < inside / 400 < 0.98


def test_arms_take_turns() -> None:
    order: list[str] = []
    arms = {name: lambda name=name: order.append(name) or 1.0 for name in "abc"}
    assert in_turns(arms, 2) == {"a": [1.0] * 2, "b": [1.0] * 2, "c": [1.0] * 2}
    assert "".join(order) == "abccba"


def test_numbers(tmp_path: Path) -> None:
    assert [seconds(t) for t in (5.4e-7, 9.996e-4, 1.2345e-2, 3.0)] == ["0.54 us", "1 ms", "12.3 ms", "3 s"]
    path = tmp_path / "bars.svg"
    write_plot(str(path), bars("x < y", [Bar("a & b", 2.0, 1.0, 3.0, "2")]))
    assert [t.text for t in ElementTree.parse(path).getroot().findall("{*}text")] == ["x < y", "a & b", "2"]


NCU = """#!/bin/sh
echo "$@" > "$NCU_SAW"
[ -n "$NCU_REFUSES" ] && { echo "==ERROR== ERR_NVGPUCTRPERM - no permission"; exit 1; }
of_peak=throughput.avg.pct_of_peak_sustained_elapsed
cat <<END
==PROF== Connected to process 12
"ID","Process ID","Kernel Name","dram__bytes.sum","dram__$of_peak","sm__$of_peak"
"","","","byte","%","%"
"0","12","$NCU_SEES","1,000","80","20.5"
"1","12","$NCU_SEES","3,000","90","20.5"
END
"""


def test_ncu_counts_where_it_is(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stub_cuda: Any
) -> None:
    """On a GPU the profile has counters of ncu. Without permission to count it has the times only."""
    (tmp_path / "ncu").write_text(NCU)
    (tmp_path / "ncu").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=os.pathsep)
    monkeypatch.setenv("NCU_SAW", str(tmp_path / "saw"))
    assert main(["compile", *CODE, "--ir", "cuda"]) == 0
    monkeypatch.setenv("NCU_SEES", entries(capsys.readouterr().out)["k0"])
    found = run(capsys, "--profile", "--trace", str(tmp_path / "trace.json"))["profile"]
    assert found["source"].startswith("measured on NVIDIA H200 (stub)")
    by_name = {k["name"]: k for k in found["kernels"]}
    assert by_name["k0"]["counters"] == pytest.approx({"bytes": 2000, "memory": 0.85, "compute": 0.205})
    assert by_name["k0"]["limit"] == "memory"
    command = (tmp_path / "saw").read_text()
    assert command.endswith("--json --executor cuda\n")
    assert "--profile" not in command
    assert "trace" not in command
    monkeypatch.setenv("NCU_REFUSES", "1")
    assert main(["run", *CODE, "--profile"]) == 0
    assert "Nothing is counted: ncu: counts nothing: ERR_NVGPUCTRPERM" in capsys.readouterr().out
