"""The folder for what takes long to make again. Its contents are code, so nobody but the user may write there."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from ..errors import ExecutionError


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
            raise ExecutionError(f"the cache {folder} has to be a folder of yours that only you may use (chmod 700)")
    return folder
