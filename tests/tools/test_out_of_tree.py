"""The examples of external packages work when they are installed, and are short."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from support import ROOT
from support.library_copies import declared_entry_points, install_package

EXAMPLE = ROOT / "examples" / "out_of_tree"
BIN = Path(sys.executable).parent


def install(folder: Path, entry_points: str, example: Path = EXAMPLE) -> dict[str, str]:
    """Installs an example into `folder`. Returns the environment in which Python finds it there."""
    install_package(folder, "strength_reduction", entry_points, *example.glob("strength_*.py"))
    return {**os.environ, "PYTHONPATH": str(folder), "PATH": f"{BIN}{os.pathsep}{os.environ.get('PATH', '')}"}


def test_the_plugin_passes_its_own_lit_test(tmp_path: Path) -> None:
    site, work = tmp_path / "site", tmp_path / "work"
    site.mkdir()
    shutil.copytree(EXAMPLE, work)
    environment = install(site, declared_entry_points(EXAMPLE))
    command = [str(BIN / "lit"), "-v", str(work)]
    # lit hands on only some variables, so the two that matter are put into its configuration.
    with (work / "lit.cfg").open("a") as config:
        for name in ("PATH", "PYTHONPATH"):
            config.write(f"config.environment[{name!r}] = {environment[name]!r}\n")
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Passed: 1" in done.stdout


def test_without_the_plugin_the_pass_is_unknown(tmp_path: Path) -> None:
    command = [str(BIN / "dl-opt"), str(EXAMPLE / "double-to-sum.mlir"), "-p", "double-to-sum"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "unknown pass 'double-to-sum'" in done.stderr


def commands(environment: dict[str, str], *lines: list[str], code: str = "") -> list[tuple[int, str, str]]:
    """Runs command lines of `deplodock`, then `code`, in one process, which imports PyTorch only once.

    Returns the exit status, the output and the messages of each command line.
    """
    script = f"""
import contextlib, io, json
from deplodock.tools.cli import main
results = []
for line in {[*lines]!r}:
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(io.StringIO()) as err:
        status = main(line)
    results.append([status, out.getvalue(), err.getvalue()])
{code}
print(json.dumps(results))
"""
    done = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return [tuple(result) for result in json.loads(done.stdout)]


def test_the_plugin_is_part_of_a_compilation(tmp_path: Path) -> None:
    """The plug-in's pass runs at the position that `-p` gives it, and the result is right."""
    environment = install(tmp_path, declared_entry_points(EXAMPLE))
    above = "torch-to-tensor,reduce-strength,verify-level{level=tensor}"
    rest = "tensor-to-loop,loop-to-tile,tile-to-kernel"
    end = ["-c", "torch.randn(4, 8) * 2", "-p", f"{above},{rest}"]
    compiled, run = commands(environment, ["compile", "--ir", "tensor", *end], ["run", "--executor", "simulator", *end])
    assert (compiled[0], run[0]) == (0, 0), compiled[2] + run[2]
    assert "arith.addf %x, %x" in compiled[1]
    assert "ok" in run[1]


SEARCH = """
import torch
from deplodock.frontend.capture.export import capture
from deplodock.frontend.compilation import compile_captured
from deplodock.frontend.tuning.building import lower
from deplodock.frontend.tuning.policies import DEFAULT_POLICY, make_policy
from deplodock.frontend.tuning.task import tasks_of
from deplodock.frontend.tuning.trial import Trial
from deplodock.frontend.tuning.search import space_of

class Four(torch.nn.Module):
    def forward(self, x):
        return x * 4

pipeline = "torch-to-tensor,tensor-to-loop,loop-to-tile,double-to-sum,dce,tile-to-kernel"
(task,) = tasks_of(compile_captured(capture(Four(), (torch.randn(64, 64),)), "cpu", pipeline=pipeline))
policy = make_policy(DEFAULT_POLICY, space_of(task), 1)
texts = {}
for _ in range(12):
    (candidate,) = policy.ask(1)
    option = dict((o, v) for p, o, v in candidate.options if p == "double-to-sum").get("doublings", "1")
    texts[option] = lower(task.source, candidate)[1]
    policy.tell(Trial(candidate, candidate.predicted * (0.5 if option == "2" else 1.0)))
fastest = min(policy.trials.values(), key=lambda t: t.seconds).candidate
print(fastest.options, *("* 4.0f" in texts[n] for n in "12"), *("sum + sum" in texts[n] for n in "12"))
"""


def test_the_search_finds_the_parameter_of_the_plugin(tmp_path: Path) -> None:
    """The option of the plug-in's pass is a decision of the search space, without a line in the tuner.

    The default policy finds the value that makes the kernel fast.
    """
    environment = install(tmp_path, declared_entry_points(EXAMPLE))
    done = subprocess.run([sys.executable, "-c", SEARCH], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "(('double-to-sum', 'doublings', '2'),) True False False True\n"


def test_an_operator_of_somebody_else(tmp_path: Path) -> None:
    """An external operator with its schema, decomposition, op and interpreter."""
    example = EXAMPLE.parent / "custom_operator"
    environment = install(tmp_path, declared_entry_points(example), example)
    line = [str(BIN / "deplodock"), "run", str(example / "program.py"), "--executor", "simulator"]
    done = subprocess.run(line, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "compared with PyTorch" in done.stdout
    line = [str(BIN / "dl-opt"), str(example / "twice.mlir"), "-p", "cse,dce", "--check-each"]
    done = subprocess.run(line, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "changed the program and not its answer" in done.stderr
    line[-3:] = ["-p", "dce", "--check-each"]
    unregistered = declared_entry_points(example).replace("[deplodock.interpreters]", "[other]")
    (tmp_path / "strength_reduction-0.1.0.dist-info" / "entry_points.txt").write_text(unregistered)
    done = subprocess.run(line, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "strength.twice" in done.stderr


def test_a_pass_of_somebody_else_is_part_of_every_compilation(tmp_path: Path) -> None:
    """The entry point adds a lowering to the default pipeline of the command, of `compile` and of `torch.compile`.

    Without it the plug-in's op is refused at the border of the tensor level.
    """
    example = EXAMPLE.parent / "custom_operator"
    declared = declared_entry_points(example)
    environment = install(tmp_path, declared, example)
    line = ["compile", str(example / "program.py"), "--ir", "tensor", "-vv"]
    code = """
import torch, deplodock
x = torch.randn(8)
for f in (deplodock.compile(torch.ops.strength.twice, (x,), target="cpu"),
          torch.compile(torch.ops.strength.twice, backend="deplodock", options={"target": "cpu"})):
    torch.testing.assert_close(f(x), x * 2)
"""
    ((status, out, err),) = commands(environment, line, code=code)
    assert status == 0, err
    lowering = out[out.index(">>> t:lower-strength") :]
    assert "-    %0 = strength.twice %x" in lowering
    assert re.search(r"\+ .*arith.addf %x, %x", lowering)
    (tmp_path / "strength_reduction-0.1.0.dist-info" / "entry_points.txt").write_text(
        declared.replace("[deplodock.insertions]", "[other]")
    )
    inserted = [*line, "--insert", "lower-strength:before=tensor-emulate-float8"]
    (status, _, err), (again, _, messages) = commands(environment, line, inserted)
    assert status == 1
    assert "strength.twice: not legal at the tensor level" in err
    assert again == 0, messages


def test_a_plugin_that_cannot_be_imported_is_named_with_its_line(tmp_path: Path) -> None:
    environment = install(tmp_path, "[deplodock.passes]\nbroken = strength_broken:Pass\n")
    (tmp_path / "strength_broken.py").write_text("import os\n\nraise KeyError('gone')\n")
    command = [str(BIN / "dl-opt"), "--list-passes"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "plugin 'strength_broken:Pass' cannot be imported: KeyError: 'gone'" in done.stderr
    assert f"{tmp_path / 'strength_broken.py'}:3" in done.stderr


@pytest.mark.parametrize(("kind", "name"), [("passes", "cse"), ("dialects", "arith"), ("pipelines", "default")])
def test_a_plugin_may_not_take_a_name_in_use(tmp_path: Path, kind: str, name: str) -> None:
    environment = install(tmp_path, f"[deplodock.{kind}]\n{name} = strength_reduction:DoubleToSumPass\n")
    command = [str(BIN / "dl-opt"), "--list-passes"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert f"{name!r}" in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("example", "most_lines"), [("out_of_tree", 140), ("custom_operator", 140), ("kernel_operations", 210)]
)
def test_the_example_is_small(example: str, most_lines: int) -> None:
    assert sum(path.read_text().count("\n") for path in (EXAMPLE.parent / example).glob("*.*")) <= most_lines
