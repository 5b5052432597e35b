"""Cache of compiled files on disk. The files are code, so their folders must be writable only by the user."""

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
"""Bytes of the SHA-256 at the end of a cached file, by which damage is detected. Loaders of code ignore these bytes."""

LIMIT = 4 << 30
"""Largest size of all caches of the user, in bytes. Above it the least recently used files are removed, until a quarter
is free."""

IN_USE = 600
"""Time in seconds since its last use before a file may be removed, because a process may be about to load it."""

ABANDONED = 3600
"""Age in seconds of scratch folders that are removed. An older one must belong to a killed process."""


class CacheWarning(UserWarning):
    """Warning that the cache cannot be written, or that a cached file was damaged."""


def cache_folder(kind: str, root: Path | None = None) -> Path:
    """Returns a folder of the cache, made with mode 0700.

    Args:
        kind: name of the folder.
        root: folder that contains the folders of all kinds; default: `$XDG_CACHE_HOME/deplodock`.

    Raises:
        ExecutionError: if the folder belongs to another user, or if others have any access to it.
    """
    root = root or user_folder()
    root.parent.mkdir(parents=True, exist_ok=True)
    folder = root / kind
    for folder in (root, root / kind):
        folder.mkdir(mode=0o700, exist_ok=True)
        status = folder.lstat()
        if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid() or status.st_mode & 0o077:
            raise ExecutionError(
                f"the cache {folder} has to be a folder of yours that only you may use (chmod 700)", operator="cache"
            )
    return folder


def digest(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()


def cached_bytes(kind: str, name: str, make: Callable[[], bytes]) -> bytes:
    """Returns the contents of a cached file.

    Args:
        kind: folder of the cache.
        name: name of the file.
        make: function that returns the contents, called if the file is missing.

    Warns and raises as `cached_file`.
    """
    path = cached_file(kind, name, lambda target: target.write_bytes(make()) and None)
    return path.read_bytes()[:-SEAL]


def cached_file(kind: str, name: str, make: Callable[[Path], None]) -> Path:
    """Returns the path of a cached file, written if it is missing, damaged, a link, or writable by others.

    Writing is atomic. If the cache cannot be written, a private temporary folder replaces it, with one CacheWarning.

    Args:
        kind: folder of the cache.
        name: name of the file.
        make: function that writes the file to a path in a scratch folder. Its exceptions are passed on.

    Warns:
        CacheWarning: if a file was damaged or writable by others.
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
    # Read before the check, because another process may write the file after the check.
    present = os.path.lexists(target)
    if not _is_whole(target):
        if present:
            _warn(f"{target} is not what was written there, or not yours alone: it is made again")
        with tempfile.TemporaryDirectory(dir=folder, prefix=_SCRATCH) as scratch:
            written = Path(scratch) / name
            make(written)
            with written.open("ab") as file:
                file.write(hashlib.sha256(written.read_bytes()).digest())
            written.chmod(written.stat().st_mode & 0o700)
            os.replace(written, target)
        clean(folder.parent)
    return target


def clean(root: Path, limit: int | None = None) -> None:
    """Removes scratch folders of killed processes, and the least recently used files above a size.

    Several processes may clean at the same time.

    Args:
        root: folder that contains the folders of all kinds.
        limit: largest size in bytes; default: `LIMIT`.
    """
    limit, now = LIMIT if limit is None else limit, time.time()
    files: list[tuple[float, int, Path]] = []
    for path in root.glob("*/*"):
        with suppress(OSError):
            status = path.lstat()
            if stat.S_ISREG(status.st_mode):
                files.append((status.st_mtime, status.st_size, path))
            elif path.name.startswith(_SCRATCH) and now - status.st_mtime > ABANDONED:
                shutil.rmtree(path)
    total = sum(size for _, size, _ in files)
    allowed = total if total <= limit else limit * 3 // 4
    for used, size, path in sorted(files):
        if total <= allowed or now - used < IN_USE:
            break
        with suppress(OSError):
            path.unlink()
            total -= size


_SCRATCH = "making-"


def _temporary_folder(kind: str) -> Path:
    """Returns a private temporary folder, the same for all processes if its name is free."""
    try:
        return cache_folder(kind, Path(tempfile.gettempdir()) / f"deplodock-{os.getuid()}")
    except (OSError, ExecutionError):
        return cache_folder(kind, _process_folder())


@cache
def _process_folder() -> Path:
    folder = tempfile.mkdtemp(prefix="deplodock-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return Path(folder)


def _warn(text: str) -> None:
    """Warns without a source line."""
    warnings.warn_explicit(text, CacheWarning, "deplodock", 0)


_warn_once = cache(_warn)


def _is_whole(path: Path) -> bool:
    """Returns true if a file exists, is writable by the user alone, and has the right SHA-256. Marks it as used."""
    try:
        status = path.lstat()
        is_private = stat.S_ISREG(status.st_mode) and status.st_uid == os.getuid() and not status.st_mode & 0o022
        data = path.read_bytes() if is_private else b""
    except OSError:
        return False
    if not data or hashlib.sha256(data[:-SEAL]).digest() != data[-SEAL:]:
        return False
    if time.time() - status.st_mtime > IN_USE / 2:
        with suppress(OSError):  # a read-only cache
            os.utime(path)
    return True
