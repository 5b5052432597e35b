"""The example of a third-party pass works as it would once installed, and is as small as promised."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).resolve().parent.parent / "examples" / "out_of_tree"
BIN = Path(sys.executable).parent


def install(folder: Path, entry_points: str) -> dict[str, str]:
    """Put the example into `folder` the way pip does; returns the environment in which Python finds it there."""
    shutil.copy(EXAMPLE / "strength_reduction.py", folder)
    info = folder / "strength_reduction-0.1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: strength-reduction\nVersion: 0.1.0\n")
    (info / "entry_points.txt").write_text(entry_points)
    return {**os.environ, "PYTHONPATH": str(folder), "PATH": f"{BIN}{os.pathsep}{os.environ.get('PATH', '')}"}


def declared_entry_points() -> str:
    groups = tomllib.loads((EXAMPLE / "pyproject.toml").read_text())["project"]["entry-points"]
    return "".join(
        f"[{group}]\n" + "".join(f"{name} = {target}\n" for name, target in entries.items())
        for group, entries in groups.items()
    )


def test_the_plugin_passes_its_own_lit_test(tmp_path: Path) -> None:
    site, work = tmp_path / "site", tmp_path / "work"
    site.mkdir()
    shutil.copytree(EXAMPLE, work)
    environment = install(site, declared_entry_points())
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


@pytest.mark.parametrize(("kind", "name"), [("passes", "cse"), ("dialects", "arith")])
def test_a_plugin_may_not_take_a_name_in_use(tmp_path: Path, kind: str, name: str) -> None:
    environment = install(tmp_path, f"[deplodock.{kind}]\n{name} = strength_reduction:DoubleToSumPass\n")
    command = [str(BIN / "dl-opt"), "--list-passes"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert f"{name!r}" in done.stderr
    assert done.stderr.count("\n") == 1


def test_the_example_is_small() -> None:
    assert sum(path.read_text().count("\n") for path in EXAMPLE.iterdir() if path.is_file()) < 100
