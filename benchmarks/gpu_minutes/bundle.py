"""Makes the bundle: the files that a GPU machine without a network needs in addition to the checkout.

python -m benchmarks.gpu_minutes.bundle [FOLDER] [--jobs N] [--only SUBSTRING] [--small]

FOLDER (build/gpu-bundle) gets:

- `wheels`, Python packages that the machine may lack,
- `prepared.tar.gz`, the compiled programs of the smoke test and of the 84 shapes,
- `helpers.npz`, expected results of CUDA device functions, computed by the emulator,
- `manifest.json`, with the digest of the compiler's sources.

The folder FOLDER-programs caches compiled programs between calls.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tarfile
from pathlib import Path

from ..common.cases import Case, cases
from ..common.prepared import artifact_name
from ..common.sources import sources_digest
from .machine import BUNDLED, NEEDED

ROOT = Path(__file__).resolve().parent.parent.parent

MOST_BYTES = 48 * 1024 * 1024
"""Largest size of a bundle. Checkout and bundle together must stay below 64 MiB."""

TARGET, DATA_TYPES = "sm_90a", ("f32", "bf16")


def wheels(folder: Path) -> None:
    """Downloads the wheels of `BUNDLED` packages that the folder lacks."""
    for module in BUNDLED:
        name = NEEDED[module]
        if not any(folder.glob(f"{name.partition('=')[0].replace('-', '_')}-*.whl")):
            options = ("download", "--quiet", "--no-deps", "--only-binary", ":all:", "--dest", str(folder))
            subprocess.run([sys.executable, "-m", "pip", *options, name], check=True)


def programs(folder: Path, archive: Path, options: argparse.Namespace) -> int:
    """Compiles missing programs into a folder, and packs the programs of the present sources into an archive.

    Args:
        folder: cache of compiled programs.
        archive: tar file to write.
        options: `jobs`, `only` and `small` of the command line.

    Returns:
        The number of programs in the archive.
    """
    command = [sys.executable, "-m", "benchmarks.common.prepared", str(folder), "--target", TARGET]
    command += ["--jobs", str(options.jobs), *(["--small"] if options.small else [])]
    selected: list[Case] = []
    for suite, only in (("smoke", ""), ("seed84", options.only)):
        subprocess.run([*command, "--suite", suite, "--only", only], cwd=ROOT, check=True)
        selected += cases([suite], "cuda", DATA_TYPES, only, options.small)
    names = [name for case in selected if (folder / (name := artifact_name(case, TARGET))).exists()]
    with tarfile.open(archive, "w:gz", compresslevel=6) as tar:
        for name in sorted(names):
            tar.add(folder / name, name)
    return len(names)


def helpers(file: Path) -> None:
    """Writes the expected results of the tests of device functions, computed by the emulator (`helper_units.py`)."""
    sys.path.insert(0, str(ROOT / "tests"))
    from support import helper_units

    helper_units.save_results(file)


def main() -> int:
    """Makes the bundle. Returns 1 if it is too large."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, nargs="?", default=ROOT / "build" / "gpu-bundle")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--only", default="", help="only programs whose key contains this text")
    parser.add_argument("--small", action="store_true", help="programs of the 84 shapes, shrunk")
    options = parser.parse_args()
    folder = options.folder.absolute()
    (folder / "wheels").mkdir(parents=True, exist_ok=True)
    wheels(folder / "wheels")
    programs_folder = folder.with_name(f"{folder.name}-programs")
    count = programs(programs_folder, folder / "prepared.tar.gz", options)
    helpers(folder / "helpers.npz")
    manifest = {"library": sources_digest(), "target": TARGET, "programs": count}
    (folder / "manifest.json").write_text(json.dumps(manifest, indent=1) + "\n", encoding="utf-8")
    size = sum(f.stat().st_size for f in folder.rglob("*") if f.is_file())
    print(f"{folder}: {count} programs, {size / 2**20:.1f} MiB")
    return int(size > MOST_BYTES)


if __name__ == "__main__":
    raise SystemExit(main())
