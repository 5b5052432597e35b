"""Prints the part of the compiler that a program enters: functions, lines and files, with the share of each level.

    python benchmarks/compiler_path.py [--files] [--functions] [PROGRAM ...]

A program is one of `PROGRAMS`, compiled to CUDA for sm_90a in a process of its own. A function counts with all its
lines, from its decorators to its end, nested functions included. Code that runs at import does not count.
"""

from __future__ import annotations

import ast
import re
import sys
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from importlib import import_module
from multiprocessing import get_context
from pathlib import Path
from pkgutil import walk_packages
from types import CodeType, FrameType
from typing import Any

import click
import torch

import deplodock

ROOT = Path(deplodock.__file__).parent

Program = tuple[Callable[..., Any], tuple[torch.Tensor, ...]]

PROGRAMS: dict[str, Callable[[], Program]] = {
    "add": lambda: (lambda x, y: x + y, (torch.randn(64, 64), torch.randn(64, 64))),
    "relu": lambda: (
        lambda x, w, b: torch.relu(torch.matmul(x + b, w)),
        (torch.randn(64, 64), torch.randn(64, 64), torch.randn(64)),
    ),
    "norm": lambda: (torch.nn.RMSNorm(2048), (torch.randn(1, 32, 2048),)),
}
"""Name -> the function and its arguments: `x + y`, `relu(matmul(x + b, w))` and RMSNorm."""

LEVELS = {
    "capture": r"frontend/(capture/|memory\.py)",
    "driver": r"frontend/|passes/\w+\.py|\w+\.py",
    "torch": r"passes/(torch|convert/torch_to_tensor)/|dialects/torch/",
    "tensor": r"passes/(tensor/|convert/tensor_to_loop)|dialects/tensor/",
    "loop": r"(passes|dialects)/loop/",
    "planning": r"passes/planning/",
    "tile": r"passes/(tile|convert/loop_to_tile)/|dialects/(tile|layouts)/",
    "kernel": r"passes/(kernel|host|convert/tile_to_kernel)/|dialects/kernel/",
    "analysis": r"passes/analysis/|dialects/shapes/",
    "printer": r"backend/cuda/",
    "common": "",
}
"""Level -> a regular expression for its files. A file belongs to the first level that matches."""


def entered(run: Callable[[], object]) -> list[CodeType]:
    """Returns the functions of the library that `run` enters, in the order of their first call."""
    codes: dict[CodeType, None] = {}

    def note(frame: FrameType, event: str, argument: Any) -> None:
        if event == "call":
            codes.setdefault(frame.f_code)

    sys.setprofile(note)
    try:
        run()
    finally:
        sys.setprofile(None)
    inside = (c for c in codes if c.co_filename.startswith(f"{ROOT}/") and c.co_filename != __file__)
    return [c for c in inside if c.co_name == "<lambda>" or not c.co_name.startswith("<")]


def lines_of(codes: list[CodeType]) -> dict[str, set[int]]:
    """Returns the lines of the functions by file."""
    starts: dict[str, set[int]] = {}
    for code in codes:
        starts.setdefault(code.co_filename, set()).add(code.co_firstlineno)
    lines: dict[str, set[int]] = {}
    for file, first in starts.items():
        for node in ast.walk(ast.parse(Path(file).read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef | ast.Lambda):
                start = min([node.lineno, *(d.lineno for d in getattr(node, "decorator_list", []))])
                if start in first:
                    numbers = range(start, (node.end_lineno or start) + 1)
                    lines.setdefault(str(Path(file).relative_to(ROOT)), set()).update(numbers)
    return lines


def measure(name: str) -> tuple[dict[str, int], list[str]]:
    """Compiles a program. Returns the number of lines by file, and the functions as `file:line name` in order."""
    for module in walk_packages(deplodock.__path__, "deplodock."):
        if module.name.split(".")[1] in ("backend", "dialects", "frontend", "passes", "target"):
            import_module(module.name)
    function, args = PROGRAMS[name]()
    codes = entered(lambda: deplodock.compile(function, args, target="sm_90a", record="none").ir("cuda"))
    places = [f"{Path(c.co_filename).relative_to(ROOT)}:{c.co_firstlineno} {c.co_qualname}" for c in codes]
    return {file: len(numbers) for file, numbers in lines_of(codes).items()}, places


@click.command()
@click.argument("programs", nargs=-1, type=click.Choice([*PROGRAMS]))
@click.option("--files", is_flag=True, help="Also list the files, the longest first.")
@click.option("--functions", is_flag=True, help="Also list the functions in the order of their first call.")
def main(programs: tuple[str, ...], files: bool, functions: bool) -> None:
    """Compile PROGRAMS (default: all) to CUDA and count."""
    names = programs or tuple(PROGRAMS)
    with ProcessPoolExecutor(1, get_context("spawn"), max_tasks_per_child=1) as pool:
        for name, (lines, places) in zip(names, pool.map(measure, names)):
            levels = Counter[str]()
            for file, count in lines.items():
                levels[next(level for level, pattern in LEVELS.items() if re.match(pattern, file))] += count
            total = levels.total()
            click.echo(f"{name}: {total} lines of {len(places)} functions in {len(lines)} files")
            click.echo("".join(f"{count:7} {count / total:4.0%}  {level}\n" for level, count in levels.most_common()))
            if files:
                click.echo("".join(f"{lines[file]:7}  {file}\n" for file in sorted(lines, key=lambda f: -lines[f])))
            if functions:
                click.echo("".join(f"{place}\n" for place in places))


if __name__ == "__main__":
    main()
