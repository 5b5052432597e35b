"""The playground: its Python part without the packages that a browser lacks, and the page in headless Chromium."""

from __future__ import annotations

import json
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from support import ROOT

from deplodock.backend.dtypes import DTYPES
from deplodock.passes.tensor.emulate_float8 import FORMATS, encoded
from deplodock.tools import cli, dl_opt

PLAYGROUND = ROOT / "docs" / "playground"
EXAMPLES = {path.stem: path.read_text(encoding="utf-8") for path in sorted((PLAYGROUND / "examples").glob("*.mlir"))}

ABSENT = ("torch", "ml_dtypes", "safetensors", "click", "rich", "sqlite3", "multiprocessing")
"""Packages that the playground does not ship."""

SESSION = """
import json, sys, threading

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {absent}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

def refuse(*args):
    raise RuntimeError("can't start new thread")

sys.meta_path.insert(0, Absent())
sys.path.insert(0, {folder!r})
threading.Thread.start = refuse
import session

progress = []
print(session.facts())
for request in json.load(sys.stdin):
    print(session.respond(json.dumps(request), lambda *step: progress.append(step)))
print(json.dumps(progress))
"""
"""Program that answers requests as Python in a browser does: without some packages, and without threads."""


def request(text: str, **fields: Any) -> dict[str, Any]:
    return {"text": text, **fields}


REQUESTS = {
    "cuda": request(EXAMPLES["rms_norm"], check=True),
    "cpp": request(EXAMPLES["softmax"], target="cpu"),
    "tile": request(EXAMPLES["relu_matmul"], level="tile", target="sm_80"),
    "schedule": request(EXAMPLES["transpose"], schedule="block=32,32 warps=2"),
    "bf16": request(EXAMPLES["bf16_matmul"], check=True),
    "syntax": request(EXAMPLES["transpose"].replace("[d1, d0]", "[d1, d9]")),
    "undefined": request(EXAMPLES["transpose"].replace("index_map %x", "index_map %z")),
    "level": request(EXAMPLES["transpose"].replace("tensor.index_map %x[d1, d0]", "tile.relayout %x")),
    "torch": request("""
func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {
  %y = torch.relu(self = %x) : (tensor<4xf32>) -> tensor<4xf32>
  func.return %y : tensor<4xf32>
}"""),
    "bad schedule": request(EXAMPLES["transpose"], schedule="blocks=4"),
    "empty": request("// nothing\n"),
}
"""Name of a case -> the request."""


@cache
def responses() -> dict[str, Any]:
    """Returns the response to each of `REQUESTS`, the `facts`, and the reported `progress`."""
    program = SESSION.format(absent=set(ABSENT), folder=str(PLAYGROUND))
    requests = json.dumps([*REQUESTS.values()])
    done = subprocess.run([sys.executable, "-c", program], input=requests, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return dict(zip(["facts", *REQUESTS, "progress"], map(json.loads, done.stdout.splitlines()), strict=True))


def test_the_text_is_that_of_the_commands(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "program.mlir"
    file.write_text(EXAMPLES["rms_norm"])
    assert cli.main(["compile", str(file), "--target", "sm_90a"]) == 0
    assert responses()["cuda"]["result"]["text"] == capsys.readouterr().out
    file.write_text(f"module attributes {{deplodock.target = #deplodock.target<cpu>}} {{{EXAMPLES['softmax']}}}")
    assert dl_opt.main([str(file), "-p", "tensor-to-loop,loop-to-tile,tile-to-kernel", "-t", "cpp"]) == 0
    assert responses()["cpp"]["result"]["text"] == capsys.readouterr().out


def test_sections_contain_the_whole_text() -> None:
    sections = responses()["cpp"]["result"]["sections"]
    assert [s["title"] for s in sections] == ["facts", "helper functions", "", "host program"]
    assert sum(s["lines"] for s in sections) > 500
    (kernels,) = (s["html"] for s in sections if not s["folded"])
    assert "<i class=k>static </i>" in kernels
    (tile,) = responses()["tile"]["result"]["sections"]
    assert "<i class=k>tile.dot </i>" in tile["html"]


def test_passes_have_diffs_and_verdicts() -> None:
    passes = responses()["cuda"]["passes"]
    changed = [p for p in passes if p["state"] == "changed"]
    assert len(changed) == sum(bool(p["diff"]) for p in passes) > 5
    assert all(p["verdict"] == "same results" for p in changed)
    assert responses()["cuda"]["summary"].startswith(f"{len(changed)} of them changed the program and not its answer")
    assert responses()["progress"][0][:2] == ["tensor-plan-fusion", 0]
    assert not any(p["verdict"] for p in responses()["cpp"]["passes"])


def test_a_schedule_replaces_the_choice() -> None:
    assert "// k0: 6 blocks of 64 threads" in responses()["schedule"]["result"]["text"]


def test_bf16_is_compiled_and_not_executed() -> None:
    bf16 = responses()["bf16"]
    assert "wgmma" in bf16["result"]["text"]
    assert bf16["summary"] == "not executed: arrays of bf16 need the package ml_dtypes: pip install ml_dtypes"


@pytest.mark.parametrize(
    ("case", "place", "message"),
    [
        ("syntax", (3, 32), "program.mlir:3:32: error: expected a dimension of tensor<96x64xf32>, but got d9"),
        ("undefined", (3, 25), "program.mlir:3:25: error: values used but not defined: [%z]"),
        ("level", (3, 3), "program.mlir:3:3: error: "),
        ("torch", (1, None), "program.mlir:1: error: the torch level needs PyTorch"),
        ("bad schedule", (None, None), "error: plan-schedules: unknown option 'blocks'"),
        ("empty", (1, None), "program.mlir:1: error: the text is empty"),
    ],
)
def test_errors_are_one_line_with_a_place(case: str, place: tuple[int | None, ...], message: str) -> None:
    (error, *_), result = responses()[case]["errors"], responses()[case]["result"]
    assert (result, "\n" in error["message"]) == (None, False)
    assert error["message"].startswith(message), error
    assert (error["line"], error["column"]) == place


def test_sizes_and_precision_of_element_types() -> None:
    for row in DTYPES.values():
        assert row.bytes == row.numpy.itemsize
        if row.mantissa is not None:
            assert row.roundoff == float(ml_dtypes.finfo(row.numpy).eps) / 2


@pytest.mark.parametrize(("name", "dtype"), [("f8E4M3FN", ml_dtypes.float8_e4m3fn), ("f8E5M2", ml_dtypes.float8_e5m2)])
def test_eight_bit_floats_are_rounded_as_by_ml_dtypes(name: str, dtype: Any) -> None:
    form = FORMATS[name]
    exact: Any = np.arange(256, dtype=np.uint8).view(dtype).astype(np.float32)
    exact = np.sort(exact[np.isfinite(exact)])
    ties = (exact[1:] + exact[:-1]) / 2
    around = [np.nextafter(x, np.float32(to)) for x in (exact, ties) for to in (-np.inf, np.inf)]
    special = np.array([-0.0, 1e-30, 464.0, 65536.0, 1e30, -np.inf, np.inf], np.float32)
    numbers = np.concatenate([exact, ties, *around, special])
    clipped = numbers if form.infinite else np.clip(numbers, -form.largest, form.largest)
    assert [encoded(float(x), form) for x in numbers] == clipped.astype(dtype).view(np.uint8).tolist()
    assert encoded(float("nan"), form) == 0x7F
