"""`deplodock compile PROGRAM.mlir` and `deplodock run PROGRAM.mlir`: IR at each level, for GPUs and the CPU."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import deplodock
from deplodock.tools import cli

LEVELS = ("torch", "tensor", "loop", "tile", "kernel")
CODE = "x = torch.randn(6, 10); w = torch.randn(10, 5); torch.relu(x @ w)"


def run(capsys: pytest.CaptureFixture[str], *args: str) -> tuple[int, str, str]:
    code = cli.main([*args])
    out, err = capsys.readouterr()
    return code, out, err


def written(capsys: pytest.CaptureFixture[str], folder: Path, level: str, *options: str) -> Path:
    """Returns a file with the program at a level."""
    path = folder / f"{level}.mlir"
    assert run(capsys, "compile", "-c", CODE, "--ir", level, "-o", str(path), *options)[0] == 0
    return path


@pytest.mark.parametrize("level", LEVELS)
def test_ir_at_each_level_runs_and_gives_the_same_cuda(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, level: str
) -> None:
    path = written(capsys, tmp_path, level, "--target", "sm_80")
    _, expected, _ = run(capsys, "compile", "-c", CODE, "--target", "sm_80")
    assert run(capsys, "compile", str(path))[1] == expected  # the text names its target
    code, out, _ = run(capsys, "run", str(path), "--executor", "simulator", "--json")
    outcome = json.loads(out)
    assert code == 0
    assert outcome["executor"] == "simulator"
    assert (
        outcome["compared_with"]
        == f"the {'simulator' if level == 'kernel' else 'reference'} at the {level} level, in float64"
    )
    assert 0 < outcome["results"][0]["error"] <= outcome["results"][0]["tolerance"] < 1e-4


def test_a_wrong_result_ends_with_1(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = written(capsys, tmp_path, "tensor")
    right = deplodock.backend.simulator.simulate

    def wrong(*args: object, **options: object) -> object:
        result = right(*args, **options)  # type: ignore[arg-type]
        result.outputs[0][2, 3] += 0.01
        return result

    monkeypatch.setattr("deplodock.backend.simulator.simulate", wrong)
    code, out, _ = run(capsys, "run", str(path), "--executor", "simulator")
    assert code == 1
    assert "WRONG" in out


def test_ir_for_a_gpu_runs_on_cores_from_the_tensor_level(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = written(capsys, tmp_path, "tensor")
    code, out, _ = run(capsys, "run", str(path), "--target", "cpu", "--schedule", "block=2,4")
    assert code == 0
    assert out.startswith("executor: cpu")
    assert "ok" in out


def test_integers_and_sizes_that_vary(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "sizes.mlir"
    code = "x = torch.randint(9, (4, 3)); x + 1"
    options = ("--dynamic", "x:0=n:1:64", "--ir", "loop", "-o", str(path))
    assert run(capsys, "compile", "-c", code, *options)[0] == 0
    code, out, _ = run(capsys, "run", str(path), "--executor", "simulator", "--json")
    (result,) = json.loads(out)["results"]
    assert (code, result["error"], result["ok"]) == (0, 0.0, True)
    assert result["type"].startswith("int64[")


@pytest.mark.parametrize(
    ("command", "option", "expected"),
    [
        ("run", "--bench", "--bench has no effect with a program of IR"),
        ("compile", "--explain", "--explain has no effect with a program of IR"),
        ("tune", "", "expected a FILE.py, but got IR; `deplodock run"),
    ],
)
def test_options_that_need_a_python_program_are_refused(
    capsys: pytest.CaptureFixture[str], command: str, option: str, expected: str
) -> None:
    code, _, err = run(capsys, command, "program.mlir", *filter(None, [option]))
    assert code == 2
    assert expected in err


def test_text_that_is_no_ir_is_refused_with_its_place(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "bad.mlir"
    path.write_text("func.func @main() {\n  loop.nothing\n}\n")
    code, _, err = run(capsys, "run", str(path))
    assert code == 1
    assert "bad.mlir:2" in err
    code, _, err = run(capsys, "run", str(tmp_path / "none.mlir"))
    assert code == 1
    assert "none.mlir: error: cannot read the file: No such file" in err
