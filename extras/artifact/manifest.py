"""The folder in which a compiled program is kept: files, and a manifest that says what they have to be.

Everything in it is data: JSON, IR and CUDA as text, tensors as safetensors, and cubins, which are only given to the
GPU they were made for. Nothing is executed, imported or unpickled by loading it. `docs/artifact.md` describes the
format. What is truncated, changed, of another version or for another target is refused with one line.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from ...errors import CompileError

FORMAT = "deplodock-artifact"
VERSION = 7
"""Raised whenever an older deplodock could misread what a newer one writes."""

MANIFEST = "manifest.json"
MAX_MANIFEST = 64 << 20
"""Bytes of the largest manifest that is read."""

_NAME = re.compile(r"[a-z][a-z0-9_]*(?:\.[a-z0-9_]+)?")


class ArtifactError(CompileError):
    """A folder that is no artifact of ours, or one that is damaged or made for something else."""


def digest(data: bytes) -> str:
    """Returns the SHA-256 of `data` in hexadecimal."""
    return hashlib.sha256(data).hexdigest()


def canonical(value: object) -> bytes:
    """`value` as the one JSON text that stands for it."""
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()


def write_folder(path: Path, contents: dict[str, Any], files: dict[str, bytes]) -> None:
    """Write an artifact with these contents and files to the new folder `path`, all at once.

    Raises ArtifactError if there is something that is no artifact already, or if writing fails.
    """
    if path.exists() and not (path / MANIFEST).is_file():
        raise ArtifactError("is there already, and is no artifact", location=str(path))
    listed = {name: {"bytes": len(data), "sha256": digest(data)} for name, data in sorted(files.items())}
    manifest = {"format": FORMAT, "version": VERSION, "files": listed, **contents}
    manifest["digest"] = digest(canonical(manifest))
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = Path(tempfile.mkdtemp(dir=path.parent, prefix=".artifact-"))
        try:
            for name, data in files.items():
                (temporary / checked_name(name)).write_bytes(data)
            (temporary / MANIFEST).write_text(json.dumps(manifest, indent=1), encoding="utf-8")
            temporary.chmod(0o755)
            if path.exists():
                shutil.rmtree(path)
            os.replace(temporary, path)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)
    except OSError as error:
        raise ArtifactError(str(error.strerror), location=str(path)) from None


def checked_name(name: str) -> str:
    """`name` if it may be the name of a file of an artifact: lower case letters, digits, `_`, one dot."""
    if not _NAME.fullmatch(name):
        raise ArtifactError(f"{name!r} may not be the name of a file in an artifact")
    return name


@dataclass(frozen=True)
class Folder:
    """An artifact on disk whose manifest has been checked."""

    path: Path
    manifest: dict[str, Any]

    @staticmethod
    def open(path: str | os.PathLike[str]) -> Folder:
        """Read and check the manifest. Raises ArtifactError."""
        folder = Path(path)
        try:
            size = (folder / MANIFEST).stat().st_size
            if size > MAX_MANIFEST:
                raise ArtifactError("the manifest is too large", location=str(path))
            found: object = json.loads((folder / MANIFEST).read_bytes())
        except OSError:
            raise ArtifactError(f"is no artifact: it has no {MANIFEST}", location=str(path)) from None
        except (ValueError, RecursionError):
            raise ArtifactError("the manifest is damaged: it is no JSON", location=str(path)) from None
        if not isinstance(found, dict) or cast(dict[str, Any], found).get("format") != FORMAT:
            raise ArtifactError("is no artifact of deplodock", location=str(path))
        manifest = cast(dict[str, Any], found)
        if manifest.get("version") != VERSION:
            reason = f"is of version {str(manifest.get('version'))[:20]} of the format; this deplodock reads {VERSION}"
            raise ArtifactError(reason, location=str(path))
        own = {key: value for key, value in manifest.items() if key != "digest"}
        if manifest.get("digest") != digest(canonical(own)):
            raise ArtifactError("the manifest is damaged: its digest is wrong", location=str(path))
        return Folder(folder, manifest)

    def read(self, name: str) -> bytes:
        """A file of the artifact. Raises ArtifactError if it is not there or not what it was when it was written."""
        expected = self.manifest["files"].get(checked_name(name))
        if not isinstance(expected, dict):
            raise self.error(f"has no {name}")
        file = self.path / name
        try:
            if file.is_symlink() or file.stat().st_size != expected["bytes"]:
                raise self.error(f"{name} is damaged: it has not the size it was written with")
            data = file.read_bytes()
        except OSError:
            raise self.error(f"{name} is missing") from None
        if digest(data) != expected["sha256"]:
            raise self.error(f"{name} is damaged: its digest is wrong")
        return data

    def error(self, reason: str) -> ArtifactError:
        """An error about this artifact."""
        return ArtifactError(reason, location=str(self.path))
