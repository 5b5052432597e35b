"""Makes the bundle that travels with the checkout to a machine with a GPU and no network.

python -m benchmarks.gpu_minutes.bundle [FOLDER] [--jobs N] [--only SUBSTRING] [--small]

FOLDER (build/gpu-bundle) gets:

- `wheels` of packages that the machine may lack,
- `prepared.tar.gz`, the compiled programs of the smoke test and of the 84 shapes,
- `helpers.npz`, the results of device functions as the emulator computes them,
- `manifest.json` with the digest of the sources.

FOLDER-programs keeps compiled programs between calls.
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
from ..common.prepared import name_of
from ..common.sources import library
from .machine import CARRIED, NEEDED

ROOT = Path(__file__).resolve().parent.parent.parent

MOST_BYTES = 48 * 1024 * 1024
"""Size of a bundle. Checkout and bundle together must stay below 64 MiB."""

TARGET, DATA_TYPES = "sm_90a", ("f32", "bf16")


def wheels(folder: Path) -> None:
    """Downloads the wheels that the folder lacks."""
    for module in CARRIED:
        name = NEEDED[module]
        if not any(folder.glob(f"{name.partition('=')[0].replace('-', '_')}-*.whl")):
            how = ("download", "--quiet", "--no-deps", "--only-binary", ":all:", "--dest", str(folder))
            subprocess.run([sys.executable, "-m", "pip", *how, name], check=True)


def programs(folder: Path, archive: Path, options: argparse.Namespace) -> int:
    """Compiles the programs that the folder lacks, and packs those of these sources.

    Args:
        folder: compiled programs of earlier calls.
        archive: file to write.
        options: `jobs`, `only` and `small` of the command line.

    Returns:
        The number of programs in the archive.
    """
    command = [sys.executable, "-m", "benchmarks.common.prepared", str(folder), "--target", TARGET]
    command += ["--jobs", str(options.jobs), *(["--small"] if options.small else [])]
    found: list[Case] = []
    for suite, only in (("smoke", ""), ("seed84", options.only)):
        subprocess.run([*command, "--suite", suite, "--only", only], cwd=ROOT, check=True)
        found += cases([suite], "cuda", DATA_TYPES, only, options.small)
    names = [name for case in found if (folder / (name := name_of(case, TARGET))).exists()]
    with tarfile.open(archive, "w:gz", compresslevel=6) as tar:
        for name in sorted(names):
            tar.add(folder / name, name)
    return len(names)


def helpers(file: Path) -> None:
    """Writes what the emulator computes for the units of the device functions."""
    sys.path.insert(0, str(ROOT / "tests"))
    from support import helper_units

    helper_units.save_results(file)


def main() -> int:
    """Makes the bundle. Returns 1 if it is too large."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, nargs="?", default=ROOT / "build" / "gpu-bundle")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--only", default="", help="only programs with this in their names")
    parser.add_argument("--small", action="store_true", help="programs of the 84 shapes, shrunk")
    options = parser.parse_args()
    folder = options.folder.absolute()
    (folder / "wheels").mkdir(parents=True, exist_ok=True)
    wheels(folder / "wheels")
    kept = folder.with_name(f"{folder.name}-programs")
    count = programs(kept, folder / "prepared.tar.gz", options)
    helpers(folder / "helpers.npz")
    manifest = {"library": library(), "target": TARGET, "programs": count}
    (folder / "manifest.json").write_text(json.dumps(manifest, indent=1) + "\n", encoding="utf-8")
    size = sum(f.stat().st_size for f in folder.rglob("*") if f.is_file())
    print(f"{folder}: {count} programs, {size / 2**20:.1f} MiB")
    return int(size > MOST_BYTES)


if __name__ == "__main__":
    raise SystemExit(main())
