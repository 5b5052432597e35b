"""The suites of `benchmarks/`: cases, continued runs, the comparison of two runs, and the page of results."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner
from support import ROOT


@pytest.fixture
def benchmarks(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Returns a function that imports a module of `benchmarks`."""
    monkeypatch.syspath_prepend(str(ROOT))
    return lambda name: import_module(f"benchmarks.{name}")


def row(ours: float, eager: float, right: bool = True, spread: float = 0.02, **more: Any) -> dict[str, Any]:
    def timing(median: float) -> dict[str, Any]:
        return {"median": median, "p20": median * (1 - spread), "p80": median * (1 + spread), "repetitions": 31}

    named = {"suite": "classes", "group": "tiny", "case": "relu 64", "dtype": "f32", "threads": 2, "commit": "abc"}
    times = {"call": {"eager": timing(eager), "deplodock": timing(ours)}}
    return {**named, "right": right, "errors": {}, "times": times, **more}


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_the_cases_are_programs(device: str, benchmarks: Any) -> None:
    """Each case runs on meta tensors of its shapes, and the keys of cases are unique."""
    found = benchmarks("common.cases").cases(("seed84", "classes"), device, ["f32", "bf16"])
    assert len(found) == len({c.key for c in found}) > 2 * 84
    assert len([c for c in found if c.group.targets]) == len(found) - 2 * 84
    for case in found:
        meta = {
            name: torch.empty(
                tuple(shape[1:] if name in case.integers else shape),
                dtype=torch.int64 if name in case.integers else torch.float32,
                device="meta",
            )
            for name, shape in case.shapes.items()
        }
        assert eval(case.expression, {"torch": torch, "F": torch.nn.functional, **meta}).numel(), case.key


def test_inputs_are_the_same_for_the_same_seed(benchmarks: Any) -> None:
    (case,) = benchmarks("common.cases").cases(("classes",), "cpu", [], only="softmax 16x64")
    function, args = case.make()
    assert torch.equal(args[0], case.make()[1][0])
    assert torch.equal(function(*args), args[0].softmax(-1))
    (case,) = benchmarks("common.cases").cases(("classes",), "cuda", [], only="cross_entropy bf16 32x1024")
    x, t = case.make()[1]
    assert (x.shape, x.dtype, t.shape, t.dtype) == ((32, 1024), torch.bfloat16, (32,), torch.int64)
    assert 0 <= t.min() < t.max() < 1024


def test_a_run_on_the_cores_goes_on_and_is_written(
    benchmarks: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A repeated run does not measure finished cases again. Its result file names the machine."""
    monkeypatch.setattr(torch, "compile", lambda function, **_: function)  # which takes long
    journal, out = tmp_path / "cases.jsonl", tmp_path / "found.json"
    done = {"right": True, "errors": {}, "times": row(1.0, 3.0)["times"]}
    journal.write_text(json.dumps({"key": "classes: tiny: relu 64 f32", "row": done}) + "\n")
    run = ["classes", "--device", "cpu", "--mode", "torch.compile", "--only", "relu 64"]
    first = CliRunner().invoke(benchmarks("suite.run").main, [*run, "--journal", str(journal)])
    assert first.output.startswith("classes tiny relu 64 f32: ok  3.00 of the best"), first.output
    second = CliRunner().invoke(benchmarks("suite.run").main, [*run, "--out", str(out)])
    assert second.exit_code == 0, second.output
    found = benchmarks("common.results").read(out)
    assert {"gpu", "processor", "measured", "torch", "xdsl"} <= set(found["environment"])
    (measured,) = found["rows"]
    assert measured["right"]
    assert {"case", "dtype", "threads", "commit"} <= set(measured)
    assert set(measured["errors"]) == set(measured["times"]["call"]) == {"eager", "torch.compile", "deplodock"}
    assert not list(tmp_path.glob(".*"))


def test_rooms_import_what_all_share_and_themselves() -> None:
    """A folder of `benchmarks` imports `common`, `convnets` and itself, and needs no change of `sys.path`."""
    rooms = {path.stem for path in (ROOT / "benchmarks").glob("*/*.py")} - {"torch_compile"}  # which the tests have too
    for path in sorted((ROOT / "benchmarks").glob("*/*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and node.level > 1:
                assert (node.module or "").split(".")[0] in ("common", "convnets"), path
            elif isinstance(node, ast.ImportFrom) and not node.level:
                assert node.module not in rooms, path
            elif isinstance(node, ast.Import):
                assert not rooms & {alias.name for alias in node.names}, path


def test_every_module_is_imported() -> None:
    """All imports of the benchmarks from the library and from the tests exist."""
    code = """
from importlib import import_module
from pathlib import Path
for path in sorted(Path("benchmarks").rglob("*.py")):
    if path.stem not in ("__main__", "libraries"):  # one runs, one needs packages that are not installed
        import_module(".".join(path.with_suffix("").parts))
"""
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_a_command_starts() -> None:
    command = [sys.executable, "-m", "benchmarks.suite.compare", "--help"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "usage" in done.stdout.lower()


def test_results_of_the_same_case_are_replaced(benchmarks: Any, tmp_path: Path) -> None:
    results, path = benchmarks("common.results"), tmp_path / "a.json"
    results.merge(path, {"gpu": None, "threads": 2}, [row(1.0, 2.0), row(1.0, 2.0, threads=1)])
    results.merge(path, {"gpu": None, "threads": 2}, [row(4.0, 2.0)])
    assert [results.ratio(r) for r in results.read(path)["rows"]] == [0.5, 2.0]
    assert results.ratio(row(1.0, 2.0, times={})) is None
    assert results.ratio(row(1.0, 2.0), "max-autotune") is None
    assert results.geomean([1.0, 4.0]) == pytest.approx(2.0)


@pytest.mark.parametrize(
    ("ours", "eager", "spread", "verdict"),
    [
        (1.5, 2.0, 0.02, "slower"),
        (0.7, 2.0, 0.02, "faster"),
        (1.01, 2.0, 0.05, "same"),
        (1.5, 3.0, 0.02, "same"),  # the machine was slower
        (1.0, 3.0, 0.02, "faster"),  # ours was not
        (1.5, 2.0, 0.90, "same"),
    ],
)
def test_a_change_is_more_than_the_noise(
    ours: float, eager: float, spread: float, verdict: str, benchmarks: Any
) -> None:
    found = benchmarks("suite.compare").change(row(1.0, 2.0), row(ours, eager, spread=spread))
    assert found.verdict == verdict
    assert found.low <= found.value <= found.high


def test_noise_is_the_same_in_files(benchmarks: Any) -> None:
    from deplodock.backend.host.timing import Timing

    t = Timing(1.0, 0.9, 1.2, 20)
    assert benchmarks("common.results").noise(t.as_dict()) == pytest.approx(t.noise, rel=1e-2)


def test_the_page_of_results_is_up_to_date(benchmarks: Any) -> None:
    module = benchmarks("suite.results_page")
    files = [f for f in sorted(module.FOLDER.glob("*.json")) if "rows" in module.read(f)]
    text = module.PAGE.read_text(encoding="utf-8")
    assert text == module.page(files), "run `python -m benchmarks.suite.results_page`"


def test_the_page_says_on_what_it_was_measured(benchmarks: Any, tmp_path: Path) -> None:
    """The page names the machine, wrong and predicted results, and cases with other baselines."""
    results, page = benchmarks("common.results"), benchmarks("suite.results_page").page
    about = {
        "gpu": "NVIDIA H200",
        "processor": "x",
        "cores": 2,
        "measured": None,
        "torch": "2",
        "cuda": "13",
        "xdsl": "0",
    }
    predicted = {"predicted": "predicted for sm_90a", "seconds": 2e-6, "floor": 1e-6, "spills": 0, "kernels": []}
    results.merge(tmp_path / "h200-2026-01-02.json", about, [row(1.0, 2.0, right=False, note="by eye")])
    failed = [row(1.0, 2.0, False, times={}, suite=suite, error=f"no {suite}") for suite in ("seed84", "decode")]
    results.merge(tmp_path / "h200-2026-01-02.json", about, failed)
    results.merge(tmp_path / "p.json", about, [row(1.0, 2.0, right=None, times={}, **predicted)])
    text = page(sorted(tmp_path.glob("*.json")))
    for wanted in (
        "## NVIDIA H200: 2026-01-02",
        "2 threads",
        "At abc",
        "2.00 +- 0.03 WRONG",
        "By eye",
        "no seed84",
        "no decode",
        "## Predicted, not",
    ):
        assert wanted in text, text


def test_the_table_of_cliffs_has_an_earlier_version(
    benchmarks: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second process measures the earlier version, here the same one; a version that refuses a case prints it."""
    cliffs, path = benchmarks("cpu.cliffs"), tmp_path / "cliffs.json"
    monkeypatch.setattr(cliffs, "ROUNDS", 1)
    monkeypatch.setattr(cliffs.deplodock, "compile", lambda *_, **__: 1 / 0)
    words = ["--only", "cumsum 64x256x64", "--before", str(ROOT), "--json", str(path)]
    text = CliRunner().invoke(cliffs.main, words, catch_exceptions=False).output
    row = json.loads(path.read_text())["cases"][0]
    assert row["now"] == "refused"
    assert row["eager/before"] == pytest.approx(row["eager"] / row["before"], rel=3e-3)
    assert "| refused |" in text.splitlines()[-1]
