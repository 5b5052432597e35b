"""CONTRIBUTING.md is true: its recipes, carried out in a copy of the library, touch the files of its table, a program
that uses all changes runs on the copy, and its commands exist."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from support import ROOT, TESTS
from support.library_copies import Checkout, copy_library, environment_of
from support.recipes import RECIPES

PAGE = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def changed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, dict[str, str]]]:
    """A copy of the library with all changes, and the diff of each."""
    copy = copy_library(tmp_path_factory.mktemp("recipes"), "docs/architecture.md", "docs/pass_diagram.py")
    checkout = Checkout(copy)
    diffs: dict[str, dict[str, str]] = {}
    for name, carry_out in RECIPES.items():
        carry_out(copy)
        diffs[name] = checkout.changes()
        checkout.commit()
    return copy, diffs


def row_of(name: str, diff: dict[str, str]) -> str:
    """Returns a row of the table: existing files with their lines, and how many files are new and deleted."""
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


PROGRAM = """
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
"""


def test_a_program_uses_all_changes(changed: tuple[Path, dict[str, dict[str, str]]]) -> None:
    """The program is planned with the atom for the target, runs by the stubbed driver, and has machine code."""
    copy, _ = changed
    command = [sys.executable, "-c", PROGRAM, str(copy)]
    done = subprocess.run(
        command, env=environment_of(copy, copy / "site", TESTS), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr


COMMANDS = re.findall(r"`((?:cd tests && )?(?:make|python) [^`]*)`", PAGE)


@pytest.mark.parametrize("line", dict.fromkeys(line for line in COMMANDS if line.startswith("make")))
def test_a_target_of_make_exists(line: str) -> None:
    subprocess.run(["make", "-n", *line.split()[1:]], cwd=ROOT, capture_output=True, check=True)


def test_the_commands_of_python_have_these_options() -> None:
    """The oracle is asked about no program; the options of the fuzzer are among those that it lists."""
    python = {line.partition(" && ")[2] or line for line in COMMANDS if not line.startswith("make")}
    files = {line.split()[1] for line in python}
    assert files == {"-m", "tests/oracle.py", "tests/prose.py"}
    assert all((ROOT / file).exists() for file in files - {"-m"})
    check = [sys.executable, "tests/oracle.py", "check", "--only", "no such program"]
    assert subprocess.run(check, cwd=ROOT, check=False).returncode == 0
    (fuzz,) = (line.split() for line in python if "-m" in line.split())
    usage = [sys.executable, *fuzz[1:3], "--help"]
    listed = subprocess.run(usage, cwd=TESTS, capture_output=True, text=True, check=True)
    assert [option for option in fuzz if option.startswith("--") and option not in listed.stdout] == []


def test_the_options_of_pytest_exist(request: pytest.FixtureRequest) -> None:
    named = re.findall(r"`(?:[^`]* )?(--\w+) all`", PAGE)
    assert len(named) > 5
    for option in named:
        request.config.getoption(option)
