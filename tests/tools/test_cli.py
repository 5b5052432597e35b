"""The `deplodock` command: its output, and its errors, which are one line with a non-zero exit code."""

from __future__ import annotations

import json
import re
import socket
import subprocess
import sys
import types
from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.passes import ModulePass

import deplodock
from deplodock import passes
from deplodock.errors import ExecutionError
from deplodock.tools import cli, dl_opt
from deplodock.tools.calls import call

RMSNORM = "nn.RMSNorm(64)(torch.randn(1, 5, 64))"


def run(capsys: pytest.CaptureFixture[str], *args: str) -> tuple[int, str, str]:
    code = cli.main(list(args))
    out, err = capsys.readouterr()
    return code, out, err


@pytest.mark.parametrize("level", cli.LEVELS)
def test_every_level_prints(capsys: pytest.CaptureFixture[str], level: str) -> None:
    code, out, err = run(capsys, "compile", "-c", RMSNORM, "--ir", level)
    assert (code, err) == (0, "")
    marks = {"cuda": "__global__", "torch": "torch.rsqrt", "tensor": "tensor.reduce", "loop": "loop.nest"}
    assert marks.get(level, f"{level}.") in out


def test_run_compares_and_says_who_ran(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "run", "-c", RMSNORM, "--executor", "reference")
    assert code == 0
    assert "executor: reference (asked for), the tensor level" in out
    assert "ok" in out


@pytest.mark.parametrize("executor", ["reference", "simulator", "emulator"])
def test_every_host_executor_is_right(capsys: pytest.CaptureFixture[str], executor: str) -> None:
    code, out, _ = run(capsys, "run", "-c", RMSNORM, "--executor", executor, "--json")
    outcome = json.loads(out)
    assert code == 0
    assert outcome["executor"] == executor
    assert (outcome["level"], outcome["kernels"]) == (("tensor", None) if executor == "reference" else ("kernel", 1))
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
    assert "convert-torch-to-tensor,tensor-emulate-float8,cse,dce" in err
    assert "kernel k0: " in err
    opened = [line for line in out.splitlines() if line.startswith(">>> t:")]
    closed = [line for line in out.splitlines() if line.startswith("<<< t:")]
    assert ">>> t:convert-loop-to-tile" in opened
    assert [o[4:] for o in opened] == [c[4:] for c in closed]


TO_TILES = ["tensor-plan-fusion", "convert-tensor-to-loop", "plan-schedules", "convert-loop-to-tile"]
PRODUCT = ["tile-select-mma", "tile-assign-layouts", "tile-stage-dot-operands"]
SCHEDULED = {
    "nn.RMSNorm(2048)(torch.randn(1, 32, 2048))": [*TO_TILES, "tile-assign-layouts"],
    "F.gelu(nn.Linear(2048, 2048, dtype=torch.bfloat16)(torch.randn(8192, 2048, dtype=torch.bfloat16)))": [
        *TO_TILES,
        "tile-swizzle-grid",
        "tile-persistent-blocks",
        *PRODUCT,
        "tile-warp-specialize",
        "tile-pipeline-dots",
        "convert-tile-to-kernel",
    ],
    "F.scaled_dot_product_attention(*torch.randn(3, 1, 16, 512, 64, dtype=torch.bfloat16), is_causal=True)": [
        *TO_TILES[:2],
        "loop-fuse-reductions",
        *TO_TILES[2:],
        "tile-fuse-fma",
        *PRODUCT,
        "tile-warp-specialize",
        "tile-defer-lane-sums",
        "tile-delay-dots",
        "tile-split-masked-loops",
        "tile-pipeline-dots",
        "convert-tile-to-kernel",
    ],
}


@pytest.mark.parametrize("code", SCHEDULED)
def test_every_scheduling_pass_that_matched_is_a_diff(capsys: pytest.CaptureFixture[str], code: str) -> None:
    """`-vv` prints a diff for each scheduling pass that changed the IR, in order, with few changed lines."""
    assert cli.main(["compile", "-c", code, "--ir", "tile", "-vv"]) == 0
    out = capsys.readouterr().out
    shown = [n for n in re.findall(r"^>>> t:(\S+)$", out, re.M) if n not in ("cse", "dce")]
    assert [n for n in shown if n in SCHEDULED[code]] == SCHEDULED[code]
    diffs = dict(re.findall(r"^>>> t:(\S+)$(.*?)^<<< t:", out, re.M | re.S))
    for name, most in (("plan-schedules", 2), ("tile-select-mma", 12), ("tile-persistent-blocks", 9)):
        if name in diffs:
            assert 0 < len(re.findall(r"^[+-]", diffs[name], re.M)) <= most, diffs[name]


def test_explain_shows_what_was_considered(capsys: pytest.CaptureFixture[str]) -> None:
    code = "F.gelu(nn.Linear(512, 1024, dtype=torch.bfloat16)(torch.randn(256, 512, dtype=torch.bfloat16)))"
    assert cli.main(["compile", "--explain", "--target", "sm_80", "-c", code]) == 0
    text = capsys.readouterr().out
    assert text.startswith("fusion: 1 kernel, ")
    lines = text[text.index("k0: ") :].splitlines()
    assert re.match(r"k0: a nest over \[256, 1024\], sums over \[\[512\]\].* schedules for sm_80 \(A100\)", lines[0])
    times = [float(m[1]) for line in lines if (m := re.match(r"  \d+\. ([\d.]+) us.*, limited by ", line))]
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
    """A long sum is split into two kernels. Equal kernels are one kernel with several launches."""
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
    "unsupported argument": (["compile", "-c", "torch.polygamma(61, torch.rand(3))"], "only 0 to 60"),
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


IGNORED = {
    "--emit and --ir": (["compile", "-c", RMSNORM, "--emit", "standalone", "--ir", "loop"], "--ir", "--emit"),
    "two outputs": (["compile", "-c", RMSNORM, "--explain", "--print-pipeline"], "--print-pipeline", "--explain"),
    "explained schedule": (["compile", "-c", RMSNORM, "--explain", "--schedule", "warps=1"], "--schedule", "--explain"),
    "phases of a program": (["compile", "-c", RMSNORM, "--phase", "decode"], "--phase", "a program"),
    "explained model": (["compile", "owner/name", "--explain"], "--explain", "a MODEL"),
    "standalone model": (["compile", "owner/name", "--emit", "standalone"], "--emit", "a MODEL"),
    "level of an artifact": (["compile", "owner/name", "-o", "x", "--ir", "tile"], "--ir", "a MODEL and -o"),
    "weights of a program": (["run", "-c", RMSNORM, "--weights", "x"], "--weights", "a program"),
    "target of an artifact": (["run", "ARTIFACT", "--target", "sm_80"], "--target", "an ARTIFACT"),
    "timed artifact": (["run", "ARTIFACT", "--bench"], "--bench", "an ARTIFACT"),
    "artifact again": (["generate", "ARTIFACT", "--prompt-ids", "1", "--context", "9"], "--context", "an ARTIFACT"),
    "weights of a model": (["generate", "owner/name", "--prompt-ids", "1", "--weights", "x"], "--weights", "a MODEL"),
    "draws": (["generate", "owner/name", "--prompt-ids", "1", "--top-p", "0.5"], "--top-p", "--temperature"),
    "two programs": (["compile", "-c", RMSNORM, "file.py"], "-c", "FILE"),
    "two schedules": (["compile", "-c", RMSNORM, "-p", "cse", "--schedule", "warps=1"], "--schedule", "--pipeline"),
    "two texts": (["compile", "-c", RMSNORM, "-vv", "--json"], "-vv", "--json"),
}


@pytest.mark.parametrize("case", IGNORED)
def test_an_option_that_would_be_ignored_is_refused(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, case: str
) -> None:
    args, first, second = IGNORED[case]
    (tmp_path / "manifest.json").touch()
    code, out, err = run(capsys, *(str(tmp_path) if a == "ARTIFACT" else a for a in args))
    message = json.loads(out)["error"]["message"] if "--json" in args else err
    assert (code, out == "") == (2, "--json" not in args)
    assert message.count("\n") == ("--json" not in args)
    assert first in message
    assert second in message


def test_errors_under_json_are_json(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, "compile", "--json", "-c", "torch.linalg.svd(torch.randn(3, 3))")
    found = json.loads(out)["error"]
    assert (code, err) == (1, "")
    assert "svd" in found["operator"]
    assert found["location"] == "<expression>:1"
    code, out, err = run(capsys, "compile", "--json", "--sky")
    assert (code, err) == (2, "")
    assert "--sky" in json.loads(out)["error"]["message"]


def test_explanations_are_json_too(capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "compile", "--json", "--explain", "-c", RMSNORM)
    (kernel,) = json.loads(out)["kernels"]
    times = [c["seconds"] for c in kernel["candidates"] if "seconds" in c]
    assert code == 0
    assert times
    assert times[0] <= 1.02 * min(times)
    assert "chunk = [64]" in kernel["candidates"][0]["schedule"]
    code, out, _ = run(capsys, "compile", "--json", "--print-pipeline", "-c", RMSNORM, "--ir", "tensor")
    assert json.loads(out)["pipeline"].startswith("verify-level{level=torch},")


def test_infinite_errors_are_json(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    from deplodock.backend import reference

    right = reference.run
    monkeypatch.setattr(reference, "run", lambda *a, **k: [r * float("nan") for r in right(*a, **k)])
    code, out, _ = run(capsys, "run", "--json", "-c", RMSNORM, "--executor", "reference")
    assert code == 1
    assert json.loads(out, parse_constant=pytest.fail)["results"][0]["error"] is None


def test_a_model_is_not_run_but_what_is_says_how(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    code, _, err = run(capsys, "run", "owner/name")
    assert code == 2
    assert "deplodock generate owner/name" in err
    assert "Is a directory" not in run(capsys, "run", str(tmp_path))[2]


@pytest.mark.parametrize("folder", ["no/such/folder", "owner/name", "./nothing"])
@pytest.mark.parametrize("prompt", ["--prompt", "--prompt-ids"])
def test_a_model_that_is_nowhere_is_refused_at_once(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, folder: str, prompt: str
) -> None:
    """If the model hub does not answer, an unknown model is refused without further requests."""
    from deplodock.extras.llm import models

    monkeypatch.setattr(models, "hub_answers", lambda: False)
    monkeypatch.setattr(socket, "getaddrinfo", lambda *a, **k: pytest.fail("the network was asked"))
    code, _, err = run(capsys, "generate", folder, prompt, "1")
    assert code == 1
    assert "there is no such folder or file" in err or "the hub cannot be reached" in err


SCRIPTS = {
    "only definitions": "import torch\ndef f(x): return x\n",
    "nothing": "",
    "a script": "import torch\nx = torch.randn(3)\ny = x + 1\nprint(y)\n",
    "only text": 'import torch\n"text"\n',
}


@pytest.mark.parametrize("case", SCRIPTS)
def test_a_file_that_defines_no_program_is_refused(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, case: str
) -> None:
    path = tmp_path / "program.py"
    path.write_text(SCRIPTS[case])
    code, _, err = run(capsys, "compile", str(path))
    assert code == 1
    assert err.startswith(f"{path}")
    assert "error: " in err


def test_what_is_not_compared_is_not_ok(capsys: pytest.CaptureFixture[str]) -> None:
    """Results that depend on random numbers cannot be compared with PyTorch, nor the reference with itself."""
    drawn = "torch.randn(4).bernoulli()"
    code, out, _ = run(capsys, "run", "-c", drawn, "--executor", "reference", "--json")
    found = json.loads(out)
    assert (code, found["ok"], found["compared_with"]) == (0, None, None)
    code, out, _ = run(capsys, "run", "-c", drawn, "--executor", "reference")
    assert "not compared" in out
    assert not re.search(r"\bok\b", out)
    found = json.loads(run(capsys, "run", "-c", drawn, "--executor", "simulator", "--json")[1])
    assert found["ok"] is True
    assert found["compared_with"].startswith("the reference")


def test_an_artifact_is_compared_with_the_reference_by_something_else(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    saved = str(tmp_path / "saved")
    deplodock.compile(torch.nn.Linear(4, 3), (torch.randn(2, 4),)).save(saved)
    code, out, _ = run(capsys, "run", saved, "--json")
    found = json.loads(out)["main"]
    assert (code, found["ok"]) == (0, True)
    assert found["compared_with"].startswith("the reference")
    assert found["executor"] in ("emulator", "cuda")
    code, out, _ = run(capsys, "run", saved, "--executor", "reference", "--json")
    assert (code, json.loads(out)["main"]["ok"]) == (0, None)


def test_an_unusable_compiler_is_found_before_anything_is_compiled(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from deplodock.frontend import executors
    from deplodock.frontend.capture import export

    def missing() -> str:
        raise ExecutionError("NVRTC is not available (no library)")

    monkeypatch.setattr(executors, "compiler_build", missing)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setitem(sys.modules, "cupy", types.ModuleType("cupy"))
    monkeypatch.setattr(export, "capture", lambda *a, **k: pytest.fail("captured before"))
    code, _, err = run(capsys, "run", "-c", RMSNORM, "--executor", "cuda")
    assert (code, err) == (1, "deplodock: error: no CUDA to run on: NVRTC is not available (no library)\n")
    assert executors.check_executor("auto", compiled=True) is None


def test_verbose_does_not_begin_with_every_pass(capsys: pytest.CaptureFixture[str]) -> None:
    _, _, err = run(capsys, "compile", "-c", RMSNORM, "--ir", "loop", "-v")
    assert err.startswith("kernel k0: ")
    assert "convert-torch-to-tensor" not in err


def test_a_schedule_in_text(capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = run(capsys, "compile", "-c", RMSNORM, "--ir", "tile", "--schedule", "block=1,1,64 warps=2")
    assert "#tile.schedule<block = [1, 1, 64], chunk = [64], warps = 2>" in out
    for text, message in (
        ("blok=1", "plan-schedules: unknown option 'blok'"),
        ("block=3,3,3", "expected powers of two in block, but got 3"),
        ("", 'schedule: expected key=value pairs such as "block=64,128 warps=4"'),
    ):
        code, _, err = run(capsys, "compile", "-c", RMSNORM, "--schedule", text)
        assert code == 1
        assert message in err
    compiled = deplodock.compile(torch.relu, (torch.randn(64, 64),), schedule="block=4,64 warps=4")
    assert "block = [4, 64], warps = 4" in compiled.ir("tile")


def test_a_pipeline_in_text(capsys: pytest.CaptureFixture[str]) -> None:
    """`-p default` equals no option. A pipeline must pass the border of each level, in order."""
    _, default, _ = run(capsys, "compile", "-c", RMSNORM)
    _, given, _ = run(capsys, "compile", "-c", RMSNORM, "-p", "default")
    assert given.replace("// deplodock options: --pipeline default\n", "") == default
    above = "torch-to-tensor,canonicalize,verify-level{level=tensor}"
    _, line, _ = run(capsys, "compile", "-c", RMSNORM, "-p", above, "--print-pipeline", "--ir", "tensor")
    assert line.endswith("canonicalize,verify-level{level=tensor}\n")
    for text, message in (
        (above, "pipeline: ends before the loop level"),
        ("cse", "pipeline: has to pass verify-level{level=...} at tensor"),
        ("tensor-to-loop,torch-to-tensor", "in this order"),
        ("default,nope", "unknown pass 'nope'"),
    ):
        code, _, err = run(capsys, "compile", "-c", RMSNORM, "-p", text)
        assert code == 1
        assert message in err
    x = torch.randn(8)
    assert (
        deplodock.compile(torch.relu, (x,), pipeline="default").pipeline == deplodock.compile(torch.relu, (x,)).pipeline
    )


@dataclass(frozen=True)
class CrashPass(ModulePass):
    """A pass that raises a KeyError."""

    name = "crash-here"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        raise KeyError("no such thing")


def test_a_bug_in_a_pass_is_named_with_its_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(passes.OWN_PASSES, "crash-here", f"{__name__}:CrashPass")
    code, _, err = run(capsys, "compile", "-c", RMSNORM, "-p", "torch-to-tensor,crash-here", "--ir", "tensor")
    line = Path(__file__).read_text(encoding="utf-8").splitlines().index('        raise KeyError("no such thing")') + 1
    assert code == 1
    assert f"internal error in pass 'crash-here': KeyError: 'no such thing' at {__file__}:{line}" in err


def test_what_is_printed_says_where_it_comes_from(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """MLIR and CUDA name version, source and options, also through `dl-opt`, but no dates and folders."""
    path = tmp_path / "program.py"
    path.write_text(f"import torch\nfrom torch import nn\n{RMSNORM}\n")
    command = ["compile", str(path), "--target", "sm_80", "--schedule", "warps=1"]
    _, mlir, _ = run(capsys, *command, "--ir", "loop")
    facts = {"version": deplodock.__version__, "source": "program.py"}
    for name, text in {**facts, "options": "--schedule warps=1"}.items():
        assert f'deplodock.{name} = "{text}"' in mlir
    assert str(tmp_path) not in mlir.replace(f'loc("{path}"', "")
    _, cuda, _ = run(capsys, *command)
    assert cuda.startswith(f"// deplodock version: {facts['version']}\n// deplodock source: program.py\n")
    assert "target = #deplodock.target<sm_80>" in mlir and "\n// deplodock target: sm_80\n" in cuda  # noqa: PT018
    line = ["-p", "loop-to-tile{warps=1},tile-to-kernel", "-t", "cuda{arch=sm_80}"]
    code, again, err = call(dl_opt.main, line, mlir.encode())
    assert (code, err) == (0, b"")
    assert again.decode() == cuda


@pytest.mark.parametrize("level", cli.LEVELS[:-1])
def test_lines_of_python_survive_a_pipe(capsys: pytest.CaptureFixture[str], tmp_path: Path, level: str) -> None:
    path = tmp_path / "program.py"
    path.write_text("import torch\nx = torch.randn(8)\ny = x + 1\ny.exp()\n")
    _, text, _ = run(capsys, "compile", str(path), "--ir", level)
    below = {"torch": "torch-to-tensor", "tensor": "tensor-to-loop", "loop": "loop-to-tile", "tile": "tile-to-kernel"}
    code, out, err = call(dl_opt.main, ["-p", below.get(level, "cse")], text.encode())
    assert (code, err) == (0, b"")
    for found in (text, out.decode()):
        assert f'loc("{path}":3:0)' in found or f'loc("{path}":4:0)' in found, found


@pytest.mark.skipif(sys.platform != "linux", reason="uses a shell")
def test_closed_pipe_is_quiet() -> None:
    command = f'{Path(sys.executable).with_name("deplodock")} compile -c "{RMSNORM}" --ir tensor -vv | head -1'
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
    assert "f32_matmul_precision" not in capsys.readouterr().out
    assert cli.main(["compile", *product, "--ir", "tile", "--f32-matmul-precision", "bf16x3"]) == 0
    assert "f32_matmul_precision = bf16x3" in capsys.readouterr().out
    assert cli.main(["compile", *product, "--f32-matmul-precision", "a_bit"]) == 1
    assert "a_bit is none of ieee" in capsys.readouterr().err


@pytest.mark.parametrize("statement", ["main(['run', '-c', 'torch.ones(3) + 1'])", "deplodock.compile"])
def test_without_pytorch_it_says_what_to_install(statement: str) -> None:
    start = "import sys; sys.modules['torch'] = None; import deplodock; from deplodock.tools.cli import main; "
    done = subprocess.run([sys.executable, "-c", start + statement], capture_output=True, text=True, check=False)
    assert "PyTorch is needed to capture and run programs, and is not installed: pip install torch" in done.stderr
    assert "internal error" not in done.stderr
