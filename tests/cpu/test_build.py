"""Built objects are code: they are kept, and loaded, only where nobody but the user may write."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from torch import nn

import deplodock
from deplodock.backend.build_cache import cached_file
from deplodock.backend.cpu import build
from deplodock.errors import ExecutionError


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """What has been made in a cache of its own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return []


def _cached(made: list[Path]) -> Path:
    def make(path: Path) -> None:
        made.append(path)
        path.write_bytes(b"object")

    found = cached_file("cpu", "name.so", make)
    assert found.read_bytes().startswith(b"object")
    return found


def test_a_file_is_made_once(made: list[Path]) -> None:
    assert _cached(made) == _cached(made)
    assert len(made) == 1
    assert _cached(made).stat().st_mode & 0o077 == 0


def test_a_file_that_others_may_write_is_made_again(made: list[Path]) -> None:
    _cached(made).chmod(0o662)
    assert _cached(made).stat().st_mode & 0o022 == 0
    assert len(made) == 2


def test_a_link_is_not_followed(made: list[Path], tmp_path: Path) -> None:
    found = _cached(made)
    found.rename(tmp_path / "elsewhere.so")
    found.symlink_to(tmp_path / "elsewhere.so")
    assert not _cached(made).is_symlink()
    assert len(made) == 2


def test_a_damaged_file_is_made_again(made: list[Path]) -> None:
    found = _cached(made)
    found.write_bytes(b"objekt" + found.read_bytes()[6:])
    _cached(made)
    assert len(made) == 2


def test_a_folder_of_others_is_refused(made: list[Path]) -> None:
    _cached(made).parent.chmod(0o777)
    with pytest.raises(ExecutionError, match="chmod 700"):
        _cached(made)


def test_many_kernels_are_compiled_in_parts(made: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    model, x = nn.Sequential(*(nn.Linear(40 + i, 41 + i) for i in range(5))).eval(), torch.randn(50, 40)
    compiled = deplodock.compile(model, (x,), target="cpu")
    text = compiled.compilation.cpp
    kernels = re.findall(r"^static void (k\d+)\(", text, re.MULTILINE)
    assert len(kernels) >= 4
    assert build.parts(text, 8) == [text]
    monkeypatch.setattr(build, "KERNELS", 2)
    parts = build.parts(text, 8)
    assert len(parts) == len(kernels) // 2
    for kernel in kernels:
        assert sum(f"static void {kernel}(" in part for part in parts) == 1
    monkeypatch.setattr(build, "cores", lambda: 8)
    torch.testing.assert_close(compiled(x), model(x).detach())


def test_a_program_is_built_once_for_each_processor(made: list[Path]) -> None:
    text = deplodock.compile(torch.relu, (torch.ones(5),), target="cpu").compilation.cpp
    assert build.build(text) == build.build(text)
    assert build.build(text) != build.build(text, "x86-64-v2")
    with pytest.raises(ExecutionError, match="does not compile"):
        build.build("nonsense")
