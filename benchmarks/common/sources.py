"""A digest of the compiler's sources, which marks artifacts and journals of another version. Imports no PyTorch."""

from __future__ import annotations

import hashlib
from functools import cache
from pathlib import Path


@cache
def sources_digest() -> str:
    """Returns the SHA-256 digest of deplodock's Python and C++ sources (`.py`, `.hpp`, `.cpp`)."""
    root, digest = Path(__file__).resolve().parents[2], hashlib.sha256()
    for package in ("backend", "dialects", "extras", "frontend", "passes", "target"):
        for file in sorted((root / package).rglob("*.*p*")):
            if file.suffix in (".py", ".hpp", ".cpp"):
                digest.update(file.read_bytes())
    return digest.hexdigest()
