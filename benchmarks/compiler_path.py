"""How much of the compiler a program needs: lines and files of the functions that its compilation enters.

    python benchmarks/compiler_path.py [--files]

The program is `torch.nn.RMSNorm(2048)`, compiled to CUDA. A function counts with all its lines, from its decorators to
its end, functions inside of it included; what runs while modules are imported does not count.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from pkgutil import walk_packages
from types import CodeType, FrameType
from typing import Any

import click
import torch

import deplodock

ROOT = Path(deplodock.__file__).parent


def entered(run: Callable[[], object]) -> set[CodeType]:
    """The functions of the library that `run` enters."""
    codes: set[CodeType] = set()

    def note(frame: FrameType, event: str, argument: Any) -> None:
        if event == "call":
            codes.add(frame.f_code)

    sys.setprofile(note)
    try:
        run()
    finally:
        sys.setprofile(None)
    return {c for c in codes if c.co_filename.startswith(f"{ROOT}/") and c.co_filename != __file__}


def lines_of(codes: set[CodeType]) -> dict[str, set[int]]:
    """File -> the lines of the functions."""
    starts: dict[str, set[int]] = {}
    for code in codes:
        starts.setdefault(code.co_filename, set()).add(code.co_firstlineno)
    found: dict[str, set[int]] = {}
    for file, first in starts.items():
        for node in ast.walk(ast.parse(Path(file).read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef | ast.Lambda):
                start = min([node.lineno, *(d.lineno for d in getattr(node, "decorator_list", []))])
                if start in first:
                    lines = range(start, (node.end_lineno or start) + 1)
                    found.setdefault(file, set()).update(lines)
    return found


@click.command()
@click.option("--files", is_flag=True, help="Also list the files, the longest first.")
def main(files: bool) -> None:
    """Compile RMSNorm to CUDA and count."""
    for module in walk_packages(deplodock.__path__, "deplodock."):
        if module.name.split(".")[1] in ("backend", "dialects", "frontend", "passes"):
            import_module(module.name)
    norm, x = torch.nn.RMSNorm(2048), torch.randn(1, 32, 2048)
    lines = lines_of(entered(lambda: deplodock.compile(norm, (x,), target="sm_90a").ir("cuda")))
    if files:
        for file in sorted(lines, key=lambda f: -len(lines[f])):
            click.echo(f"{len(lines[file]):5}  {Path(file).relative_to(ROOT)}")
    click.echo(f"{sum(map(len, lines.values()))} lines of functions in {len(lines)} files")


if __name__ == "__main__":
    main()
