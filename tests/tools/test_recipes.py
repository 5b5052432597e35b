"""Checks docs/howto: the recipes change the files that the table lists. Commands and options of CONTRIBUTING.md exist.

The recipes change a copy of the library. A program that uses all changes runs on the copy.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from support import ROOT, TESTS
from support.library_copies import Checkout, copy_library, environment_of
from support.recipes import RECIPES, add_other_atoms

PAGE = (ROOT / "docs" / "howto" / "index.md").read_text(encoding="utf-8")
GUIDE = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def changed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, dict[str, str]]]:
    """Returns a copy of the library with all changes, and the diff of each change."""
    copy = copy_library(tmp_path_factory.mktemp("recipes"), "docs/architecture.md", "docs/pass_diagram.py")
    checkout = Checkout(copy)
    diffs: dict[str, dict[str, str]] = {}
    for name, carry_out in RECIPES.items():
        carry_out(copy)
        diffs[name] = checkout.changes()
        checkout.commit()
    add_other_atoms(copy)
    return copy, diffs


def row_of(name: str, diff: dict[str, str]) -> str:
    """Returns a row of the table: existing files with their changed lines, and the numbers of new and deleted files."""
    existing = [f"`{path}` {lines}" for path, lines in diff.items() if lines not in ("new", "deleted")]
    kinds = [f"{n} {kind}" for kind in ("new", "deleted") if (n := [*diff.values()].count(kind))]
    return f"| {name} | {len(existing)} | {', '.join(existing) or 'none'} | {', '.join(kinds) or 'none'} |"


@pytest.mark.parametrize("name", RECIPES)
def test_the_table_has_the_counts_of_the_diffs(name: str, changed: tuple[Path, dict[str, dict[str, str]]]) -> None:
    row = row_of(name, changed[1][name])
    assert f"\n{row}\n" in PAGE, f"the diff says\n{row}"


def test_the_table_has_no_other_rows() -> None:
    table = PAGE[PAGE.index("| change | files |") :].split("\n\n")[0].splitlines()[2:]
    assert [line.split(" | ")[0].removeprefix("| ") for line in table] == [*RECIPES]


PROGRAM = '''
import contextlib, io, re, runpy, sys
from pathlib import Path

import deplodock
import stub_cuda
import torch
from deplodock.backend.cuda.runtime.nvrtc import compile_cubin
from deplodock.backend.simulator import simulate
from deplodock.frontend.arrays import random_arrays, softmax, trace
from deplodock.frontend.capture.arrays import to_numpy
from deplodock.tools.dl_opt import main as dl_opt

assert Path(deplodock.__file__).parent == Path(sys.argv[1]), deplodock.__file__
rows = random_arrays((4, 32))
result = deplodock.compile_module(trace(softmax, (4, 32)), rows, target="sm_100", executor="reference")(*rows)
torch.testing.assert_close(result, torch.from_numpy(rows[0]).softmax(-1))

text = """func.func @main(%x: tensor<4x32xf32>) -> tensor<4xf32> {
  %y = approx.tanh %x : tensor<4x32xf32>
  %s = tensor.reduce add %y over [1] : tensor<4x32xf32> -> tensor<4xf32>
  func.return %s : tensor<4xf32>
}"""
for executor in ("reference", "simulator"):
    result = deplodock.compile_module(text, rows, target="sm_100", executor=executor)(*rows)
    torch.testing.assert_close(result, torch.from_numpy(rows[0]).tanh().sum(1))
narrow = """func.func @main(%x: tensor<4xbf16>) -> tensor<4xbf16> {
  %y = approx.tanh %x : tensor<4xbf16>
  func.return %y : tensor<4xbf16>
}"""
try:
    deplodock.compile_module(narrow, target="sm_100", level="tensor")
except deplodock.CompileError as error:
    assert "approx.tanh" in str(error) and "convert to f32 first" in str(error), error
else:
    raise AssertionError("arithmetic in bf16")

def function(x, w, y):
    return x @ w, torch.tanh(y / 30) * 30, torch.tanh(y), y.abs().amax(-1), (y * y + 1).rsqrt()

args = torch.randn(64, 8).bfloat16(), torch.randn(8, 64).bfloat16(), torch.randn(2, 1024)
program = deplodock.compile(function, args, target="sm_100", executor="cuda")
kernels, text = program.ir("kernel"), program.ir("cuda")
for word in ("approx.tanh", "approx.absmax", "payload.rsqrt_approx"):
    assert word in kernels, word
assert "approx.scaled_tanh" in program.ir("tile")
for word in ("mma_m16n8k8(", "tanh_approx(", "absmax(", "rsqrt_approx("):
    assert text.count(word) > 1, word
simulated = simulate(program.compilation.at("kernel"), [to_numpy(a) for a in args])
assert not simulated.report.findings, simulated.report
with stub_cuda.install(setattr, capability=(10, 0), multiprocessors=40):
    run = [t.cpu() for t in program(*(a.to("cuda") for a in args))]
for output, by_simulator, expected in zip(run, simulated.outputs, function(*args), strict=True):
    torch.testing.assert_close(output, expected, rtol=1e-2, atol=1e-3)
    torch.testing.assert_close(torch.from_numpy(by_simulator.astype("f4")), expected.float(), rtol=1e-2, atol=1e-3)
(use,) = {k.spills for k in compile_cubin(text, "sm_80").kernels.values()}
assert use == 0

root = Path(sys.argv[1])
lit_test = root / "tests/filecheck/passes/tile/tile-approximate-rsqrt.mlir"
printed = io.StringIO()
with contextlib.redirect_stdout(printed):
    assert dl_opt([str(lit_test), "-p", "tile-approximate-rsqrt"]) == 0
(line,) = re.findall("CHECK: (.*)", lit_test.read_text())
assert line in printed.getvalue()
page = root / "docs/architecture.md"
drawn = runpy.run_path(root / "docs/pass_diagram.py")["with_diagram"](page.read_text())
assert "<br/>tile-approximate-rsqrt<br/>tile-assign-layouts" in drawn
'''

ATOMS = """
import numpy as np
from deplodock.backend.cuda.printer import print_cuda
from deplodock.backend.cuda.runtime.nvrtc import compile_cubin
from deplodock.backend.simulator import simulate
from deplodock.dialects.kernel import MmaOp
from support import f64_products, tensor_core_products, tf32_products
from support.emulation import emulated_kernels

products = {
    "m16n8k8.row.col.f32.f16": tensor_core_products.Product(33, 8, 8, (16, 8), 8, 1, type="f16", out="f32"),
    "m16n8k4.row.col.f32.tf32": tf32_products.Product(32, 32, 12, (32, 32), 4, 2, "km", "kn"),
    "m16n8k8.row.col.f64.f64": f64_products.Product(32, 16, 16, (32, 16), 8, 2),
    "m8n8k4.row.col.f64.f64": f64_products.Product(9, 8, 8, (8, 8), 8, 1),
}
kernels = {name: p.lowered() for name, p in products.items()}
emulated = emulated_kernels(kernels)
for name, p in products.items():
    arguments = p.inputs()
    (atom,) = {op.atom.instruction for op in kernels[name].walk() if isinstance(op, MmaOp)}
    assert f"{name}." in atom, atom
    expected = p.multiplied(*(a.astype(np.float64) for a in arguments[:2]))
    if "tf32" in name:
        expected = p.expected()
    elif "f16" in name:
        expected = expected + arguments[2]
    (run,), reports = emulated[name].run(arguments)
    assert not reports, reports[0]
    for result in (run, simulate(kernels[name], arguments).outputs[0]):
        np.testing.assert_allclose(result, expected, rtol=1e-4, atol=1e-5)
    assert not compile_cubin(print_cuda(kernels[name]), "sm_90a").warnings
"""


def test_further_rows_of_atoms(changed: tuple[Path, dict[str, dict[str, str]]]) -> None:
    """Of several atoms for a type, the first one that fits is used."""
    environment = environment_of(changed[0], TESTS)
    done = subprocess.run([sys.executable, "-c", ATOMS], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_a_program_uses_all_changes(changed: tuple[Path, dict[str, dict[str, str]]]) -> None:
    """A program for the added target uses the added atom, runs on the stubbed driver, and compiles to machine code."""
    copy, _ = changed
    command = [sys.executable, "-c", PROGRAM, str(copy)]
    done = subprocess.run(
        command, env=environment_of(copy, copy / "site", TESTS), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


COMMANDS = re.findall(r"`((?:cd tests && )?(?:make|python) [^`]*)`", GUIDE)


@pytest.mark.parametrize("line", dict.fromkeys(line for line in COMMANDS if line.startswith("make")))
def test_a_target_of_make_exists(line: str) -> None:
    subprocess.run(["make", "-n", *line.split()[1:]], cwd=ROOT, capture_output=True, check=True)


def test_the_commands_of_python_have_these_options() -> None:
    """Options in the rows of Python commands exist in the scripts. `tests/oracle.py check` runs without programs."""
    rows = [(command, row) for row in GUIDE.splitlines() for command in COMMANDS if f"`{command}`" in row]
    python = [(command.rpartition(" && ")[2].split(), row) for command, row in rows if "python " in command]
    files = [f"tests/{words[2]}/__main__.py" if words[1] == "-m" else words[1] for words, _ in python]
    assert {*files} == {"tests/oracle.py", "tests/prose.py", "tests/prose_sheet.py", "tests/fuzz/__main__.py"}
    for file, (_, row) in zip(files, python, strict=True):
        text = (ROOT / file).read_text(encoding="utf-8")
        assert [option for option in re.findall(r"--\w[\w-]*", row) if f'"{option}"' not in text] == []
    check = [sys.executable, "tests/oracle.py", "check", "--only", "no such program"]
    assert subprocess.run(check, cwd=ROOT, check=False).returncode == 0


def test_the_options_of_pytest_exist(request: pytest.FixtureRequest) -> None:
    named = re.findall(r"`(?:[^`]* )?(--\w+) all`", GUIDE)
    assert len(named) > 5
    for option in named:
        request.config.getoption(option)
