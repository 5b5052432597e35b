"""`--print VALUE` and `deplodock.print`: all executors print the same lines."""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np
import pytest
import torch

import deplodock
from deplodock.backend.check_each import interpret
from deplodock.backend.cuda.runtime import nvrtc
from deplodock.backend.emulator import run_cuda_on_cpu
from deplodock.backend.host.launch_plan import make_plan
from deplodock.backend.simulator import simulate
from deplodock.dialects import make_context
from deplodock.dialects.payload import is_payload
from deplodock.dialects.support.parsing import parse_module
from deplodock.errors import CompileError
from deplodock.passes.pass_manager import run_passes
from deplodock.passes.pipelines import parse_passes
from deplodock.tools.cli import main
from deplodock.tools.modes import printing
from deplodock.tools.reports import load

CODE = "torch.relu(torch.randn(20, 12) @ torch.randn(12, 24))"


def lines_of(text: str) -> list[tuple[str, float]]:
    lines = re.findall(r"^(k\d+ %.*\]) = (\S+)$", text, re.M)
    return sorted((where, float(value)) for where, value in lines)


def near(a: Sequence[tuple[str, float]], b: Sequence[tuple[str, float]]) -> bool:
    return [w for w, _ in a] == [w for w, _ in b] and np.allclose([v for _, v in a], [v for _, v in b], atol=1e-4)


@pytest.mark.parametrize("target", ["cpu", "sm_80"])
@pytest.mark.parametrize("level", ["tile", "kernel"])
def test_every_executor_prints_the_same(target: str, level: str, capfd: pytest.CaptureFixture[str]) -> None:
    """The tile interpreter, the simulator, and the printed text on the CPU or in the emulator. Elements outside of the
    tensor are not printed. Without the option the text has no trace of it."""
    plain = load(None, CODE, target, record="none").compilation
    relu = re.search(r"(%\d+) = arith.maximumf", plain.text(level))
    assert relu is not None
    names = [f"{level}:{relu[1]}", f"{level}:k0:{relu[1]}[3,*{',*' * (level == 'kernel')}]"]
    loaded = load(None, CODE, target, record="none", insert=[printing(names)])
    module = loaded.compilation.at("kernel")
    arrays = [t.numpy() for t in loaded.captured.bind(loaded.program.args, loaded.program.kwargs)]
    capfd.readouterr()
    simulate(module, arrays).report.raise_errors()
    expected = lines_of(capfd.readouterr().out)
    assert "kernel.print" in loaded.compilation.text("kernel")
    assert "print" not in plain.text("kernel")
    if target == "cpu":
        assert main(["run", "-c", CODE, "--target", "cpu", *(w for n in names for w in ("--print", n))]) == 0
    else:
        _, reports = run_cuda_on_cpu(loaded.compilation.cuda, make_plan(module), arrays)
        assert not reports
        assert nvrtc.compile_cubin(loaded.compilation.cuda, target).kernels
    assert near(lines_of(capfd.readouterr().out), expected)
    if level == "tile":
        row = dict(expected)
        assert [f"k0 {relu[1]}[3, {j}]" in row for j in range(25)] == [True] * 24 + [False]
        tiles = plain.at("tile").clone()
        chosen = ",".join(f'"{name.removeprefix("tile:")}"' for name in names)
        run_passes(make_context(), tiles, parse_passes(f"tile-print-values{{values={chosen}}}"))
        interpret(tiles, arrays, "typed")
        assert near(lines_of(capfd.readouterr().out), expected)
        interpret(tiles, arrays, "exact")
        assert not capfd.readouterr().out


TILES = """
tile.kernel @k0(%x: memref<16x8xf32>, %y: memref<16x8xf32>) blocks (%b) in [4] warps 1 {
  %a = tile.load %x[d0 + %b * 4, d1] : memref<16x8xf32> -> tensor<4x8xf32>
  %unused = math.exp %a : tensor<4x8xf32>
  %c = arith.addf %a, %a : tensor<4x8xf32>
  tile.store %c, %y[d0 + %b * 4, d1] : tensor<4x8xf32>, memref<16x8xf32>
}
func.func @main(%x: tensor<16x8xf32>) -> tensor<16x8xf32> {
  %0 = tile.launch @k0(%x) : (tensor<16x8xf32>) -> tensor<16x8xf32>
  func.return %0 : tensor<16x8xf32>
}
"""


def test_a_pass_prints_at_any_point_of_the_tile_level(capsys: pytest.CaptureFixture[str]) -> None:
    """`deplodock.print` before layouts exist. Later passes keep each print, once: also of a value without other users,
    and of two prints of one value in their order."""
    module = parse_module(make_context(), TILES, "tiles.mlir")
    for op in [op for op in module.walk() if is_payload(op)]:
        deplodock.print(op.results[0], f"k0 %{op.results[0].name_hint}", [9, None])
    again = next(op for op in module.walk() if op.name == "arith.addf").results[0]
    deplodock.print(again, "k0 %again", [9, 2])
    x = torch.randn(16, 8).numpy()
    interpret(module, [x], "typed")
    expected = capsys.readouterr().out
    assert expected.count("\n") == 8 + 8 + 1
    text = [
        f"k0 %again[9, 2] = {float(x[9, 2] * 2):.9g}",
        *(f"k0 %c[9, {j}] = {float(x[9, j] * 2):.9g}" for j in range(8)),
    ]
    assert set(text) < set(expected.splitlines())
    run_passes(make_context(), module, parse_passes("tile-assign-layouts,cse,dce,canonicalize,tile-to-kernel"))
    names = re.findall(r'kernel.print "(.*?)"', str(module))
    assert names == re.findall(
        r'"(k0 %.*?)"', " ".join(f'"{n}"' for n in dict.fromkeys(re.findall(r"^(k0 %\w+)", expected, re.M)))
    )
    simulate(module, [x]).report.raise_errors()
    assert sorted(capsys.readouterr().out.splitlines()) == sorted(expected.splitlines())


def test_refusals(capsys: pytest.CaptureFixture[str]) -> None:
    program = ["run", "-c", "torch.relu(torch.randn(4, 8))", "--target", "cpu"]
    for options, message in (
        (["--print", "%99"], "expected a value of the kernels k0, but got %99; --ir tile prints their names"),
        (["--print", "k7:%0"], "expected a value of the kernel k7, but got %0"),
        (["--print", "%0[1]"], "expected an index of 2 numbers, but got 1"),
        (["--print", "%0[x]"], "expected a value such as %7, k0:%7 or %7[3,*]"),
        (["--print", "kernel:%x"], "expected numbers to print, but got memref"),
        (["--print", "%0", "--print", "kernel:%0"], "values of the levels tile and kernel"),
        (["--print", "%0", "--bench"], "--print and --bench exclude each other"),
        (["--print", "%0", "--json"], "--print and --json exclude each other"),
        (["--print", "%0", "--executor", "reference"], "--print and --executor reference exclude each other"),
    ):
        assert main([*program, *options]) in (1, 2)
        assert message in "".join(capsys.readouterr())
    with pytest.raises(CompileError, match="expected a value of a kernel"):
        deplodock.print(parse_module(make_context(), TILES, "t").body.block.last_op.body.block.args[0])  # type: ignore[union-attr]
