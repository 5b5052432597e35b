"""Files that take long to make again. They are code, so only the user may write where they are stored."""

from __future__ import annotations

import atexit
import hashlib
import os
import shutil
import stat
import tempfile
import time
import warnings
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path

from ...errors import ExecutionError
from ...target.host import user_folder

SEAL = hashlib.sha256().digest_size
"""Bytes at the end of a file of the cache, the SHA-256 of those before; loaders of machine code ignore them."""

LIMIT = 4 << 30
"""Bytes that all caches of the user may take; then what was not used for longest goes, until a quarter is free."""

IN_USE = 600
"""Seconds for which nothing goes that was used: some process may be about to load it."""

ABANDONED = 3600
"""Seconds after which a scratch folder is one of a process that was killed."""


class CacheWarning(UserWarning):
    """Nothing can be kept, or what was kept was not what had been written."""


def cache_folder(kind: str, root: Path | None = None) -> Path:
    """Returns the folder of the user for files of a `kind`, with mode 0700, under `root` (`$XDG_CACHE_HOME/deplodock`).
    Raises ExecutionError if it belongs to another user or others may write to it."""
    root = root or user_folder()
    root.parent.mkdir(parents=True, exist_ok=True)
    folder = root / kind
    for folder in (root, root / kind):
        folder.mkdir(mode=0o700, exist_ok=True)
        found = folder.lstat()
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o077:
            raise ExecutionError(
                f"the cache {folder} has to be a folder of yours that only you may use (chmod 700)", operator="cache"
            )
    return folder


def digest(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def cached_bytes(kind: str, name: str, make: Callable[[], bytes]) -> bytes:
    """Returns the contents of a file of the cache, which `make` returns. Warns and raises as `cached_file`."""
    path = cached_file(kind, name, lambda target: target.write_bytes(make()) and None)
    return path.read_bytes()[:-SEAL]


def cached_file(kind: str, name: str, make: Callable[[Path], None]) -> Path:
    """Returns the file `name` of a `kind`, written by `make` in a scratch folder if it is missing, damaged or not the
    user's alone: a link, or one that others own or may write. A CacheWarning tells of all but the first.

    Readers see the old state or the new one. Where the cache cannot be written, a private temporary folder takes its
    place, and a CacheWarning says so once. Raises what `make` raises.
    """
    try:
        folder = cache_folder(kind)
        problem = None if os.access(folder, os.W_OK) else f"{folder} is read-only"
    except OSError as error:
        folder, problem = None, f"{user_folder()} cannot be written: {error.strerror}"
    except ExecutionError as error:
        folder, problem = None, str(error)
    if folder is not None and _is_whole(folder / name):
        return folder / name
    if folder is None or problem is not None:
        folder = _temporary_folder(kind)
        _warn_once(f"{problem}; what is compiled is kept in {folder.parent} until temporary files are removed")
    target = folder / name
    present = os.path.lexists(target)  # Before the check: another process may finish the same file after it.
    if not _is_whole(target):
        if present:
            _warn(f"{target} is not what was written there, or not yours alone: it is made again")
        with tempfile.TemporaryDirectory(dir=folder, prefix=_SCRATCH) as scratch:
            made = Path(scratch) / name
            make(made)
            with made.open("ab") as file:
                file.write(hashlib.sha256(made.read_bytes()).digest())
            made.chmod(made.stat().st_mode & 0o700)
            os.replace(made, target)
        clean(folder.parent)
    return target


def clean(root: Path, limit: int | None = None) -> None:
    """Removes scratch folders of killed processes in the caches under `root`, and the files that were not used for
    longest where all have more than `limit` bytes. Other processes may do the same at the same time."""
    limit, now = LIMIT if limit is None else limit, time.time()
    files: list[tuple[float, int, Path]] = []
    for path in root.glob("*/*"):
        with suppress(OSError):
            found = path.lstat()
            if stat.S_ISREG(found.st_mode):
                files.append((found.st_mtime, found.st_size, path))
            elif path.name.startswith(_SCRATCH) and now - found.st_mtime > ABANDONED:
                shutil.rmtree(path)
    total = sum(size for _, size, _ in files)
    wanted = total if total <= limit else limit * 3 // 4
    for used, size, path in sorted(files):
        if total <= wanted or now - used < IN_USE:
            break
        with suppress(OSError):
            path.unlink()
            total -= size


_SCRATCH = "making-"


def _temporary_folder(kind: str) -> Path:
    """Returns a private folder among the temporary ones, the same in each process if its name is free."""
    try:
        return cache_folder(kind, Path(tempfile.gettempdir()) / f"deplodock-{os.getuid()}")
    except (OSError, ExecutionError):
        return cache_folder(kind, _own_folder())


@cache
def _own_folder() -> Path:
    folder = tempfile.mkdtemp(prefix="deplodock-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return Path(folder)


def _warn(text: str) -> None:
    """Warns in one line, without a source line."""
    warnings.warn_explicit(text, CacheWarning, "deplodock", 0)


_warn_once = cache(_warn)


def _is_whole(path: Path) -> bool:
    """Returns true if a file is there, the user's alone, and as it was written; it then counts as used now."""
    try:
        found = path.lstat()
        own = stat.S_ISREG(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & 0o022
        data = path.read_bytes() if own else b""
    except OSError:
        return False
    if not data or hashlib.sha256(data[:-SEAL]).digest() != data[-SEAL:]:
        return False
    if time.time() - found.st_mtime > IN_USE / 2:
        with suppress(OSError):  # a cache that is read-only
            os.utime(path)
    return True
