"""The benchmark of compile time runs, and its parts add up. Speed itself is not tested."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from support import ROOT

SCRIPT = ROOT / "benchmarks" / "compiler" / "compile_time.py"


def test_shares_are_printed_and_written(tmp_path: Path) -> None:
    out = tmp_path / "times.json"
    command = [sys.executable, str(SCRIPT), "-n", "1", "-o", str(out), "-c", "torch.relu(torch.randn(8))"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode in (0, 1), done.stderr  # 1 says that a limit was passed
    found = json.loads(out.read_text())
    assert {"dl-opt", "deplodock compile", "our passes", "shares", "machine"} <= found.keys()
    shares = found["shares"]
    assert all(name in done.stdout for name in shares)
    assert {"import torch", "export", "torch to tensor", "print CUDA"} <= shares.keys()
    assert all(s["clock"] > 0 for name, s in shares.items() if not name.startswith("rest"))
    ours = ("torch to tensor", "tensor to loop", "loop to tile", "tile to kernel", "print CUDA")
    assert found["our passes"]["processor"] == sum(shares[name]["processor"] for name in ours)
    assert found["our passes"]["clock"] < found["deplodock compile"]["clock"]


def test_a_program_that_is_refused_is_an_error() -> None:
    command = [sys.executable, str(SCRIPT), "-n", "1", "-c", "torch.no_such_function(1)"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "no_such_function" in done.stderr
    assert not done.stdout
