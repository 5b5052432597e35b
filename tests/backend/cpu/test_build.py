"""The build cache: compiled objects are code, so they are stored and loaded only where no other user can write."""

from __future__ import annotations

import hashlib
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time
import warnings
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import torch
from torch import nn

import deplodock
from deplodock.backend.cpu import build
from deplodock.backend.host import build_cache, calls
from deplodock.backend.host.build_cache import SEAL, CacheWarning, cached_file, clean
from deplodock.backend.host.calls import building
from deplodock.errors import ExecutionError


@pytest.fixture
def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Returns a list to which builds append, and points the build cache to a folder of the test."""
    building().exception()  # by now a thread of an earlier test may be building into the cache
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    _use_temporary(tmp_path, monkeypatch)
    return []


def _use_temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Makes a folder of the test the folder for temporary files, and returns it."""
    folder = tmp_path / "temporary"
    folder.mkdir(exist_ok=True)
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


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
    with pytest.warns(CacheWarning, match="not yours alone: it is made again"):
        assert _cached(made).stat().st_mode & 0o022 == 0
    assert len(made) == 2


def test_a_link_is_not_followed(made: list[Path], tmp_path: Path) -> None:
    found = _cached(made)
    found.rename(tmp_path / "elsewhere.so")
    found.symlink_to(tmp_path / "elsewhere.so")
    with pytest.warns(CacheWarning, match="it is made again"):
        assert not _cached(made).is_symlink()
    assert len(made) == 2


def test_a_damaged_file_is_made_again(made: list[Path]) -> None:
    found = _cached(made)
    found.write_bytes(b"objekt" + found.read_bytes()[6:])
    with pytest.warns(CacheWarning, match="is not what was written there"):
        _cached(made)
    assert len(made) == 2


def test_a_folder_of_others_is_not_used(made: list[Path]) -> None:
    folder = _cached(made).parent
    folder.chmod(0o777)
    with pytest.warns(CacheWarning, match="chmod 700"):
        found = _cached(made)
    assert folder not in found.parents
    assert found.parent.stat().st_mode & 0o077 == 0
    assert len(made) == 2


def test_a_file_of_somebody_else_is_made_again(made: list[Path]) -> None:
    if os.getuid():
        pytest.skip("only root gives files away")
    os.chown(_cached(made), 12345, -1)
    with pytest.warns(CacheWarning, match="it is made again"):
        assert _cached(made).stat().st_uid == 0
    assert len(made) == 2


def test_a_folder_that_cannot_be_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    building().exception()
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    compiled, x = deplodock.compile(torch.relu, (torch.ones(7),), target="cpu"), torch.randn(7)
    with pytest.warns(CacheWarning):
        assert torch.equal(compiled(x), x.relu())


def test_files_are_kept_among_the_temporary_ones(
    made: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the home folder is read-only, the cache is in the folder for temporary files, and one warning says so."""
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        found = _cached(made)
        assert _cached(made) == found
    assert len(made) == 1
    assert found.parent.parent == tmp_path / "temporary" / f"deplodock-{os.getuid()}"
    assert found.parent.parent.stat().st_mode & 0o077 == 0
    (only,) = told
    assert warnings.formatwarning(str(only.message), only.category, only.filename, only.lineno).count("\n") == 1
    found.parent.parent.chmod(0o777)  # which others may have made
    with pytest.warns(CacheWarning):
        assert found.parent.parent not in _cached(made).parents


def test_the_call_extension_is_built_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    built = str(building().result().__file__)
    monkeypatch.setattr(calls, "run_compiler", lambda *how: shutil.copy(built, how[how.index("-o") + 1]))
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    folder = _use_temporary(tmp_path, monkeypatch)
    with pytest.warns(CacheWarning, match="is kept in"):
        assert str(calls.load_extension().__file__).startswith(str(folder))


def test_a_folder_that_is_read_only(made: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """Files of a read-only cache are used. Missing ones are built for this process only."""
    folder = _cached(made).parent
    monkeypatch.setattr(os, "access", lambda *_: False)
    assert _cached(made).parent == folder
    assert len(made) == 1
    with pytest.warns(CacheWarning, match="read-only"):
        found = cached_file("cpu", "other.so", lambda path: path.write_bytes(b"object") and None)
    assert [p.name for p in folder.iterdir()] == ["name.so"]
    assert found.read_bytes().startswith(b"object")


def test_what_fails_leaves_nothing(made: list[Path]) -> None:
    def make(path: Path) -> None:
        made.append(path)
        path.write_bytes(b"obj")
        raise ExecutionError("does not compile", operator="cpu")

    with pytest.raises(ExecutionError, match="does not compile"):
        cached_file("cpu", "name.so", make)
    assert len(made) == 1
    assert not [*made[0].parent.parent.iterdir()]


def test_what_was_not_used_for_longest_goes(made: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """The least recently used files of all kinds are deleted first. A file that was just used stays."""

    def file(kind: str, name: str, hours: int) -> Path:
        found = cached_file(kind, name, lambda path: path.write_bytes(bytes(1000 - SEAL)) and None)
        os.utime(found, (time.time() - 3600 * hours,) * 2)
        return found

    files = [file(kind, str(hours), hours) for hours, kind in enumerate(["cpu", "cubin"] * 4)]
    assert time.time() - cached_file("cubin", "7", pytest.fail).stat().st_mtime < 60  # used, so now it is new
    monkeypatch.setattr(build_cache, "LIMIT", 8000)
    clean(files[0].parent.parent)
    assert all(f.exists() for f in files)
    monkeypatch.setattr(build_cache, "LIMIT", 7000)
    clean(files[0].parent.parent)
    assert [f for f in files if f.exists()] == [files[i] for i in (0, 1, 2, 3, 7)]
    clean(files[0].parent.parent, limit=0)
    assert [f for f in files if f.exists()] == [files[0], files[7]]


def test_what_a_killed_process_leaves_goes(made: list[Path]) -> None:
    folder = _cached(made).parent
    old, new = folder / "making-a", folder / "making-b"
    for path in (old, new):
        path.mkdir()
        (path / "half").write_text("")
    os.utime(old, (time.time() - 7200,) * 2)
    clean(folder.parent)
    assert sorted(p.name for p in folder.iterdir()) == ["making-b", "name.so"]


def test_threads_make_the_same_and_different_files(made: list[Path]) -> None:
    def work(n: int) -> None:
        text = f"{n % 50}".encode() * 1000
        found = cached_file("cpu", f"{n % 50}.so", lambda path: path.write_bytes(text) and None)
        assert found.read_bytes()[:-SEAL] == text

    with ThreadPoolExecutor(8) as pool:
        for done in [pool.submit(work, n) for n in range(1000)]:
            done.result()


WRITER = """
import time
from deplodock.backend.host.build_cache import cached_file

def make(path):
    with path.open("wb") as file:
        for part in range(16):
            file.write(bytes([number % 256]) * 4096)
            file.flush()
            time.sleep(1e-4)  # most of the time a file is half written

for number in range(100000):
    cached_file("cpu", f"{number}.so", make)
    if number == 0:
        print("one is there", flush=True)
"""


def test_a_process_that_is_killed_leaves_no_broken_file(
    made: list[Path], tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    """Processes are killed by SIGKILL at random moments: 5 of them, or 50 with `--kernels all`."""
    moments, found = random.Random(0), 0
    for _ in range(50 if request.config.getoption("--kernels") == "all" else 5):
        with subprocess.Popen([sys.executable, "-c", WRITER], stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            process.stdout.readline()
            time.sleep(moments.uniform(0.001, 0.05))
            process.kill()
        for file in (tmp_path / "deplodock" / "cpu").glob("*.so"):
            data = file.read_bytes()
            assert data[:-SEAL] == bytes([int(file.stem) % 256]) * 65536
            assert hashlib.sha256(data[:-SEAL]).digest() == data[-SEAL:]
            found += 1
            file.unlink()
    assert found


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
