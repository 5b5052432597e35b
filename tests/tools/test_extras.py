"""Optional packages are plug-ins: without the folder and entry points of one, everything else works."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import click
import pytest
from support.library_copies import copy_library, environment_of, install_package

from deplodock.tools import cli
from deplodock.tools.modes import FileCommand, modes_of

PROGRAM = """
import sys
from importlib import import_module
from pathlib import Path
from pkgutil import walk_packages
import deplodock
from deplodock.tools.cli import main

root = Path(sys.argv[1])
assert Path(deplodock.__file__).parent == root, deplodock.__file__
names = [m.name for m in walk_packages([str(root)], "deplodock.") if not m.name.endswith((".__main__", ".setup"))]
for name in names:
    try:
        import_module(name)
    except ModuleNotFoundError as error:
        assert not error.name.startswith("deplodock"), (name, error)
code = ["-c", "torch.relu(torch.randn(4, 8))"]
assert main(["compile", *code, "--ir", "kernel"]) == 0
assert main(["run", *code, "--executor", "simulator"]) == 0
assert main(["tune", *code, "--device", "predicted", "--trials", "2", "--records", "none"]) == 0
for line in sys.argv[2:]:
    code = main(line.split())
    print("EXIT", code)
print("SAVE", hasattr(deplodock, "load"), len(names))
"""

GONE = {
    "standalone": ("compile -c torch.ones(3).exp() --emit standalone", "No such option '--emit'"),
    "ray_workers": ("tune -c torch.ones(3).exp() --ray local", "No such option '--ray'"),
    "llm": ("generate owner/name --prompt-ids 1", "No such command 'generate'"),
    "report": ("compile -c torch.ones(3).exp() --report x.html", "No such option '--report'"),
    "artifact": ("run -c torch.ones(3).exp() --weights x", "No such option '--weights'"),
    "stablehlo": ("run nosuch.stablehlo", "nosuch.stablehlo: error: cannot read the file"),
    "onnx": ("run nosuch.onnx", "nosuch.onnx: error: cannot read the file"),
}
"""Package -> a command that is no longer there, and its refusal."""


def without(packages: set[str], folder: Path) -> Path:
    """Returns a copy of the library without some packages of `extras/` and their entry points."""
    copy = copy_library(folder)
    project = (copy / "pyproject.toml").read_text(encoding="utf-8")
    for name in packages:
        shutil.rmtree(copy / "extras" / name, ignore_errors=True)
        (copy / "extras" / f"{name}.py").unlink(missing_ok=True)
        project, count = re.subn(rf'^\w+ = "deplodock\.extras\.{name}\b.*\n', "", project, flags=re.M)
        assert count
    (copy / "pyproject.toml").write_text(project, encoding="utf-8")
    return copy


@pytest.mark.parametrize("packages", ["llm ray_workers", "artifact llm onnx ray_workers report stablehlo standalone"])
def test_the_rest_works_without(packages: str, tmp_path: Path) -> None:
    """All other modules are imported, and a program is compiled, run and tuned."""
    removed = set(packages.split())
    copy = without(removed, tmp_path)
    command = [sys.executable, "-c", PROGRAM, str(copy), *(GONE[name][0] for name in sorted(removed))]
    done = subprocess.run(
        command, env=environment_of(copy), cwd=tmp_path, capture_output=True, text=True, check=False, timeout=300
    )
    assert done.returncode == 0, done.stderr
    assert len(re.findall("EXIT [12]", done.stdout)) == len(removed), done.stdout + done.stderr
    for name in removed:
        assert GONE[name][1] in done.stderr
    assert f"SAVE {'artifact' not in removed}" in done.stdout


def test_saving_without_the_package_is_refused(tmp_path: Path) -> None:
    copy = without({"artifact", "llm"}, tmp_path)
    code = "import deplodock, torch; deplodock.compile(torch.relu, (torch.ones(3),)).save('x')"
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, env=environment_of(copy), cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "no installed package has the function 'save'" in done.stderr


STRANGER = """
import click
from deplodock.frontend.tuning.policies import ModelPolicy
from deplodock.tools.modes import FILE, Source

@click.command()
def hello():
    click.echo("hello")

def names(compilation):
    return "levels of " + compilation.target + chr(10)

class Text(Source):
    metavar = "TEXT"
    modes = {"run": {"a TEXT": FILE | {"loudly"}}}
    options = {"run": [click.Option(["--loudly"], is_flag=True)]}
    refusals = dict.fromkeys(("compile", "tune"), "{file} is only a text")

    def matches(self, file):
        return file.endswith(".txt")

    def run(self, context, given):
        click.echo(given.file.upper() if given.loudly else given.file)

class Sizes(Source):
    metavar = "SIZES"

    def matches(self, file):
        return file.endswith(".sizes")

    def program(self, file):
        import torch
        from deplodock.tools.evaluate import Program
        return Program(torch.neg, (torch.ones(3),), expected=lambda x: [-x], peer="arithmetic")
"""

GROUPS = """
[deplodock.commands]
hello = stranger:hello
[deplodock.emitters]
names = stranger:names
[deplodock.policies]
first = stranger:ModelPolicy
[deplodock.sources]
text = stranger:Text
sizes = stranger:Sizes
[deplodock.api]
greet = stranger:names
"""

CALLS = """
import deplodock
from deplodock.tools.cli import main
code = ["-c", "torch.relu(torch.randn(4, 8))"]
assert main(["hello"]) == 0
assert main(["run", "a.txt", "--loudly"]) == 0
assert main(["compile", "a.txt"]) == 2
assert main(["compile", "a.sizes"]) == 0
assert main(["run", "a.sizes", "--executor", "reference"]) == 0
assert main(["run", *code, "--loudly"]) == 2
assert main(["compile", *code, "--emit", "names"]) == 0
assert main(["tune", *code, "--device", "predicted", "--policy", "first", "--records", "none"]) == 0
assert deplodock.greet.__module__ == "stranger"
assert "greet" in dir(deplodock)
"""


def test_a_strangers_package_adds_the_same(tmp_path: Path) -> None:
    """An external package adds a command, a kind of FILE with an option, an `--emit` text, a policy and a function."""
    (tmp_path / "stranger.py").write_text(STRANGER)
    install_package(tmp_path, "stranger", GROUPS)
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", CALLS], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("hello\nA.TXT\n")
    assert "compared with arithmetic\n" in done.stdout
    assert "\nlevels of sm_90a\n" in done.stdout
    assert "1 trials" in done.stdout
    assert "a.txt is only a text" in done.stderr
    assert "--loudly has no effect with a program" in done.stderr


def test_every_parameter_is_read_in_some_mode() -> None:
    """Each parameter of a command is read in some mode, and the tables of modes name no others."""
    context = click.Context(cli.cli)
    for name in cli.cli.list_commands(context):
        command = cli.cli.get_command(context, name)
        assert command is not None
        if isinstance(command, FileCommand) or name == "generate":
            named = {p.name for p in command.get_params(click.Context(command)) if not p.is_eager}
            assert set().union(*modes_of(name).values()) == named
