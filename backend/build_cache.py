"""Files that take long to make again. They are code, so they lie where nobody but the user may write."""

from __future__ import annotations

import atexit
import hashlib
import os
import shutil
import stat
import tempfile
import warnings
from collections.abc import Callable
from functools import cache
from pathlib import Path

from ..errors import ExecutionError

SEAL = hashlib.sha256().digest_size
"""Bytes at the end of a file of the cache, the SHA-256 of those before; who loads machine code does not see them."""


class CacheWarning(UserWarning):
    """Nothing can be kept."""


def cache_folder(kind: str) -> Path:
    """The user's own folder for `kind` of things, made with mode 0700 if it is missing.

    It lies under `$XDG_CACHE_HOME/deplodock` (`~/.cache/deplodock`). Raises ExecutionError if the folder belongs to
    somebody else or others may write to it.
    """
    root = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    root.mkdir(parents=True, exist_ok=True)
    folder = root / "deplodock"
    for folder in (root / "deplodock", root / "deplodock" / kind):
        folder.mkdir(mode=0o700, exist_ok=True)
        found = folder.lstat()
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
            raise ExecutionError(
                f"the cache {folder} has to be a folder of yours that only you may use (chmod 700)", operator="cache"
            )
    return folder


def digest(*parts: str) -> str:
    """A name for what is made of these texts and nothing else."""
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def cached_file(kind: str, name: str, make: Callable[[Path], None]) -> Path:
    """The file `name` for `kind` of things, written by `make` in a scratch folder if it is missing, damaged or not the
    user's alone: a link, or one that others own or may write.

    It appears all at once: readers see the old state or the new one. Where the cache cannot be written, a folder of
    this process takes its place, and a CacheWarning says why. Raises what `make` raises.
    """
    try:
        folder = cache_folder(kind)
        problem = None if os.access(folder, os.W_OK) else f"{folder} is read-only"
    except (OSError, ExecutionError) as error:
        folder, problem = None, str(error)
    if folder is not None and _is_whole(folder / name):
        return folder / name
    if folder is None or problem is not None:
        warnings.warn(f"nothing is kept, so every process makes it again: {problem}", CacheWarning, stacklevel=3)
        folder, name = _own_folder(), f"{kind}-{name}"
    target = folder / name
    if not _is_whole(target):
        with tempfile.TemporaryDirectory(dir=folder) as scratch:
            made = Path(scratch) / name
            make(made)
            with made.open("ab") as file:
                file.write(hashlib.sha256(made.read_bytes()).digest())
            made.chmod(made.stat().st_mode & 0o700)
            os.replace(made, target)
    return target


@cache
def _own_folder() -> Path:
    """A folder for this process alone."""
    folder = tempfile.mkdtemp(prefix="deplodock-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return Path(folder)


def _is_whole(path: Path) -> bool:
    """Whether the file is there, the user's alone, and as it was written."""
    data = path.read_bytes() if _is_own(path) else b""
    return bool(data) and hashlib.sha256(data[:-SEAL]).digest() == data[-SEAL:]


def _is_own(path: Path) -> bool:
    """Whether there is such a file, which belongs to the user and which nobody else may write."""
    try:
        found = path.lstat()
    except OSError:
        return False
    return stat.S_ISREG(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & 0o022
