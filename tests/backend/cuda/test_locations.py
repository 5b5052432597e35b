"""Source locations: lines of the user's Python are comments in the CUDA; the user's names cannot change the code."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from deplodock.tools import cli

MODEL = """\
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.lin = nn.Linear(6, 4)

    def forward(self, x):
        y = self.lin(x)
        z = torch.tanh(y)
        return z.softmax(-1)


model = Net()
inputs = torch.randn(3, 6)
"""


def compiled(
    tmp_path: Path, text: str, capsys: pytest.CaptureFixture[str], level: str = "cuda"
) -> tuple[int, str, str]:
    file = tmp_path / "model.py"
    file.write_text(text, encoding="utf-8")
    code = cli.main(["compile", str(file), "--ir", level])
    out, err = capsys.readouterr()
    return code, out, err


def test_lines_of_a_file_are_comments_in_the_cuda(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = compiled(tmp_path, MODEL, capsys)
    assert code == 0
    lines = out.splitlines()
    assert {re.sub(r".*:", "", line) for line in lines if re.match(r" *// .*model\.py:\d+$", line)} == {
        "11",
        "12",
        "13",
    }
    tanh = next(i for i, line in enumerate(lines) if "tanhf(" in line and "static" not in line)
    assert lines[tanh - 1].endswith("model.py:12")


def test_a_refusal_shows_the_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = compiled(tmp_path, MODEL.replace("z.softmax(-1)", "torch.linalg.svd(z)"), capsys)
    assert (code, out) == (1, "")
    assert re.search(
        r"model\.py:13: error: torch\.linalg\.svd\(z\): .*\n +return torch\.linalg\.svd\(z\)$", err.rstrip()
    )


def test_hostile_names_stay_out_of_the_cuda(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    hostile = r"""self.add_module('x */ #include "evil" \n asm("trap"); //', nn.Linear(6, 4))
        self.lin = self.get_submodule('x */ #include "evil" \n asm("trap"); //')"""
    code, out, _ = compiled(tmp_path, MODEL.replace("self.lin = nn.Linear(6, 4)", hostile), capsys)
    assert code == 0
    assert not re.search(r'#include|asm\("trap|\*/|"evil"', out.split("// --- kernels")[1])
    parameters = re.findall(r"__restrict__ (\w+)[,)]", out)
    assert len(parameters) == 4
    assert all(re.fullmatch(r"[a-z][a-z0-9_]*", p) for p in parameters)
