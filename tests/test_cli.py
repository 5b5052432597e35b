"""The `deplodock` command: what it prints, and that whatever is wrong is one line and a non-zero exit."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from deplodock.tools import cli

RMSNORM = "nn.RMSNorm(64)(torch.randn(1, 5, 64))"


def run(capsys: pytest.CaptureFixture[str], *args: str) -> tuple[int, str, str]:
    code = cli.main(list(args))
    out, err = capsys.readouterr()
    return code, out, err


@pytest.mark.parametrize("level", cli.LEVELS)
def test_every_level_prints(capsys: pytest.CaptureFixture[str], level: str) -> None:
    code, out, err = run(capsys, "compile", "-c", RMSNORM, "--ir", level)
    assert (code, err) == (0, "")
    marks = {"cuda": "__global__", "torch": "torch.rms_norm", "tensor": "tensor.reduce", "loop": "loop.nest"}
    assert marks.get(level, f"{level}.") in out


def test_run_compares_and_says_who_ran(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "run", "-c", RMSNORM, "--executor", "reference")
    assert code == 0
    assert "executor: reference (asked for)" in out
    assert "ok" in out


@pytest.mark.parametrize("executor", ["reference", "simulator", "emulator"])
def test_every_host_executor_is_right(capsys: pytest.CaptureFixture[str], executor: str) -> None:
    code, out, _ = run(capsys, "run", "-c", RMSNORM, "--executor", executor, "--json")
    outcome = json.loads(out)
    assert code == 0
    assert outcome["executor"] == executor
    assert outcome["ok"]
    assert 0 <= outcome["results"][0]["error"] <= outcome["results"][0]["tolerance"] < 1e-4


def test_a_wrong_result_fails(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    from deplodock.backend import reference

    right = reference.run
    monkeypatch.setattr(reference, "run", lambda *a, **k: [r * 1.001 for r in right(*a, **k)])
    code, out, _ = run(capsys, "run", "-c", RMSNORM, "--executor", "reference")
    assert code == 1
    assert "WRONG" in out


def test_verbose_shows_kernels_and_diffs(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, "compile", "-c", RMSNORM, "--ir", "tile", "-vv")
    assert code == 0
    assert "decompose-torch,float8-as-bits,cse,dce" in err
    assert "kernel k0: " in err
    opened = [line for line in out.splitlines() if line.startswith(">>> t:")]
    closed = [line for line in out.splitlines() if line.startswith("<<< t:")]
    assert ">>> t:lower-loop-to-tile" in opened
    assert [o[4:] for o in opened] == [c[4:] for c in closed]


TO_TILES = ["plan-fusion", "lower-tensor-to-loop", "plan-schedules", "lower-loop-to-tile"]
PRODUCT = ["tile-recognize-contractions", "tile-choose-atoms", "tile-assign-layouts", "tile-stage-operands"]
SCHEDULED = {
    "nn.RMSNorm(2048)(torch.randn(1, 32, 2048))": [*TO_TILES, "tile-stage-rows", "tile-assign-layouts"],
    "F.gelu(nn.Linear(2048, 2048, dtype=torch.bfloat16)(torch.randn(8192, 2048, dtype=torch.bfloat16)))": [
        *TO_TILES,
        "tile-order-blocks",
        "tile-persist-blocks",
        *PRODUCT,
        "tile-specialize-warps",
        "lower-tile-to-kernel",
    ],
    "F.scaled_dot_product_attention(*torch.randn(3, 1, 16, 512, 64, dtype=torch.bfloat16), is_causal=True)": [
        *TO_TILES[:2],
        "merge-reductions",
        *TO_TILES[2:],
        *PRODUCT,
        "tile-specialize-warps",
        "tile-split-masked-loops",
        "lower-tile-to-kernel",
    ],
}


@pytest.mark.parametrize("code", SCHEDULED)
def test_every_scheduling_pass_that_matched_is_a_diff(capsys: pytest.CaptureFixture[str], code: str) -> None:
    """A diff each, in this order, in which what a pass did not touch is context."""
    assert cli.main(["compile", "-c", code, "--ir", "tile", "-vv"]) == 0
    out = capsys.readouterr().out
    shown = [n for n in re.findall(r"^>>> t:(\S+)$", out, re.M) if n not in ("cse", "dce")]
    assert [n for n in shown if n in SCHEDULED[code]] == SCHEDULED[code]
    diffs = dict(re.findall(r"^>>> t:(\S+)$(.*?)^<<< t:", out, re.M | re.S))
    for name, most in (("plan-schedules", 2), ("tile-choose-atoms", 12), ("tile-persist-blocks", 9)):
        if name in diffs:
            assert 0 < len(re.findall(r"^[+-]", diffs[name], re.M)) <= most, diffs[name]


def test_explain_shows_what_was_considered(capsys: pytest.CaptureFixture[str]) -> None:
    code = "F.gelu(nn.Linear(512, 1024, dtype=torch.bfloat16)(torch.randn(256, 512, dtype=torch.bfloat16)))"
    assert cli.main(["compile", "--explain", "--target", "sm_80", "-c", code]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert re.match(r"k0: a nest over \[256, 1024\], sums over \[\[512\]\].* schedules for sm_80 \(A100\)", lines[0])
    times = [float(m[1]) for line in lines if (m := re.match(r"  \d+\. ([\d.]+) us, limited by ", line))]
    assert times == sorted(times)
    assert len(times) == 8
    assert "atom = mma" in lines[1]


def test_json_has_the_kernels(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "compile", "-c", RMSNORM, "--ir", "loop", "--json")
    found = json.loads(out)
    assert code == 0
    assert found["kernels"][0]["bytes"] == 4 * (2 * 5 * 64 + 64)
    assert "loop.nest" in found["text"]


def test_every_launch_is_reported(capsys: pytest.CaptureFixture[str]) -> None:
    """A long sum is split over blocks and a second kernel; kernels that are the same are launched twice."""
    code, out, _ = run(capsys, "compile", "-c", "torch.randn(100000).sum()", "--json", "--target", "sm_80")
    kernels = json.loads(out)["kernels"]
    assert code == 0
    assert [(k["name"], k["launches"]) for k in kernels] == [("k0", 1), ("k1", 1)]
    parts = kernels[0]["blocks"]
    assert [k["bytes"] for k in kernels] == [4 * (100000 + parts), 4 * (parts + 1)]
    twice = "x = torch.randn(64, 64); w = torch.randn(64, 64); (x[:0] + 1, x.softmax(-1), w.softmax(-1))"
    code, out, _ = run(capsys, "compile", "-c", twice, "--json")
    assert [(k["name"], k["launches"], k["bytes"]) for k in json.loads(out)["kernels"]] == [("k0", 2, 2 * 4 * 64 * 64)]


BAD = {
    "python error": (["run", "-c", "torch.randn(3) + undefined_name"], "undefined_name"),
    "syntax error": (["run", "-c", "torch.relu(("], "<expression>"),
    "shape mismatch": (["compile", "-c", "torch.matmul(torch.randn(3, 4), torch.randn(5, 6))"], ""),
    "unknown operator": (["compile", "-c", "torch.linalg.svd(torch.randn(3, 3))"], "svd"),
    "unsupported argument": (["compile", "-c", "torch.polygamma(61, torch.rand(3))"], "orders above 60"),
    "missing file": (["run", "no_such_file.py"], "no_such_file.py"),
    "unknown target": (["compile", "-c", RMSNORM, "--target", "sm_1"], "sm_1"),
    "hostile target": (["compile", "-c", RMSNORM, "--target", "sm_90a; rm"], "target"),
    "unknown executor": (["run", "-c", RMSNORM, "--executor", "abacus"], "abacus"),
    "unknown level": (["compile", "-c", RMSNORM, "--ir", "sky"], "sky"),
    "unknown option": (["compile", "--sky"], "--sky"),
    "nothing to compile": (["compile"], "-c"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_is_one_line(capsys: pytest.CaptureFixture[str], case: str) -> None:
    args, expected = BAD[case]
    code, out, err = run(capsys, *args)
    assert code != 0
    assert out == ""
    assert expected in err
    assert "Traceback" not in err
    assert "internal error" not in err
    diagnostics = [line for line in err.splitlines() if "error: " in line]
    assert len(diagnostics) == 1, err


@pytest.mark.skipif(sys.platform != "linux", reason="uses a shell")
def test_closed_pipe_is_quiet() -> None:
    command = f'{Path(sys.executable).with_name("deplodock")} compile -c "{RMSNORM}" --ir tensor | head -1'
    done = subprocess.run(["bash", "-o", "pipefail", "-c", command], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.count("\n") == 1


def test_doctor_reports(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "doctor", "--json")
    found = json.loads(out)
    assert code == 0
    assert found["xdsl"] == "0.74.0"
    assert {"GPU", "NVRTC", "CuPy", "C++ compiler"} <= set(found)


VARYING = "nn.Linear(8, 4)(torch.randn(3, 8))"


def test_sizes_that_vary(capsys: pytest.CaptureFixture[str]) -> None:
    code, text, _ = run(capsys, "compile", "-c", VARYING, "--dynamic", "input:0=batch:1:1000", "--ir", "tensor")
    assert code == 0
    assert "#batch = #payload.symbol<batch[1:1001]>" in text
    code, out, _ = run(capsys, "run", "-c", VARYING, "--dynamic", "input:-2=batch", "--executor", "emulator", "--json")
    assert code == 0
    assert json.loads(out)["ok"]


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("input=batch", "is not INPUT:DIMENSION=SIZE"),
        ("other:0=batch", "there is no input 'other'; there are input"),
        ("input:0=batch:5:3", "batch lies in no range: 5 to 3"),
    ],
)
def test_sizes_that_are_none(capsys: pytest.CaptureFixture[str], option: str, message: str) -> None:
    code, _, err = run(capsys, "compile", "-c", VARYING, "--dynamic", option)
    assert code == 1
    assert message in err


def test_the_permission_to_compute_in_parts(capsys: pytest.CaptureFixture[str]) -> None:
    product = ["-c", "torch.randn(256, 256) @ torch.randn(256, 256)"]
    assert cli.main(["compile", *product, "--ir", "tile"]) == 0
    assert "narrow" not in capsys.readouterr().out
    assert cli.main(["compile", *product, "--ir", "tile", "--narrow", "parts"]) == 0
    assert "narrow = parts" in capsys.readouterr().out
    assert cli.main(["compile", *product, "--narrow", "a_bit"]) == 1
    assert "a_bit is none of never" in capsys.readouterr().err
