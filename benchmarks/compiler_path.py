"""Counts the part of the compiler that a program uses: the entered functions, their lines and files, by level.

    python benchmarks/compiler_path.py [--strategy simple] [--files] [--functions] [PROGRAM ...]

A program is one of `PROGRAMS`, compiled to CUDA for sm_90a in a process of its own. All lines of
an entered function count, from its decorators to its end, with nested functions. The number of docstring lines is also
printed separately. Code that runs at import does not count.
"""

from __future__ import annotations

import ast
import re
import sys
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from importlib import import_module
from multiprocessing import get_context
from pathlib import Path
from pkgutil import walk_packages
from textwrap import fill
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
"""Name -> function that returns a program and its arguments: `x + y`, `relu(matmul(x + b, w))` and RMSNorm."""

LEVELS = {
    "capture": "frontend/capture/",
    "driver": r"frontend/|backend/host/|passes/\w+\.py|\w+\.py",
    "torch": r"passes/(torch|convert/torch_to_tensor)/|dialects/torch/",
    "tensor": r"passes/(tensor/|convert/tensor_to_loop)|dialects/tensor/",
    "loop": r"(passes|dialects)/loop/",
    "planning": r"passes/planning/",
    "tile": r"passes/(tile|convert/loop_to_tile)/|dialects/(tile|layouts)/",
    "kernel": r"passes/(kernel|host|convert/tile_to_kernel)/|dialects/kernel/",
    "analysis": r"passes/analysis/|dialects/shapes/",
    "printer": r"backend/(cuda|cpp)/",
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
    """Returns the line numbers of the functions by file, relative to the library."""
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


def docstring_lines(source: str) -> set[int]:
    """Returns the lines of the docstrings in the source text of a Python file."""
    lines = set[int]()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and ast.get_docstring(node) is not None:
            lines.update(range(node.body[0].lineno, (node.body[0].end_lineno or 0) + 1))
    return lines


def measure(name: str, strategy: str = "model") -> tuple[dict[str, int], int, list[str]]:
    """Compiles a program of `PROGRAMS` with a planner strategy (`model` or `simple`).

    Returns:
        The number of entered lines by file, the number of docstring lines among them, and the entered functions as
        `file:line name`, in the order of their first call.
    """
    for module in walk_packages(deplodock.__path__, "deplodock."):
        if module.name.split(".")[1] in ("backend", "dialects", "frontend", "passes", "target"):
            import_module(module.name)
    function, args = PROGRAMS[name]()
    how = {"target": "sm_90a", "record": "none", "strategy": strategy}
    codes = entered(lambda: deplodock.compile(function, args, **how).ir("cuda"))
    functions = [f"{Path(c.co_filename).relative_to(ROOT)}:{c.co_firstlineno} {c.co_qualname}" for c in codes]
    lines = lines_of(codes)
    texts = {file: (ROOT / file).read_text(encoding="utf-8") for file in lines}
    docstrings = sum(len(numbers & docstring_lines(texts[file])) for file, numbers in lines.items())
    return {file: len(numbers) for file, numbers in lines.items()}, docstrings, functions


HEADINGS = {
    "driver": "The driver: from a call of `deplodock.compile` to passes that run one after the other",
    "capture": "Capture: from Python to the torch dialect",
    "torch": "From ATen operators to tensors",
    "tensor": "Fusion: which tensors are kept in memory",
    "loop": "From tensors to nests of loops",
    "planning": "A schedule for each nest",
    "tile": "From nests to programs of blocks over tiles, and the layouts of tiles",
    "kernel": "From tiles to the program of one thread",
    "printer": "The text",
    "analysis": "Questions that passes ask: accesses, ranges, affine forms",
    "common": "Shared by all levels: locations, payload, printing",
}
"""Level -> heading of its part of the page."""

INTRODUCTION = """# Reading the compiler

The functions that `relu(matmul(x + b, w))` enters on its way to CUDA with the simple strategies, in the order of their
first call. {lines} lines of {functions} functions in {files} files. A file stands where its first function is called;
the number behind its name counts the lines of its functions. Methods are named without their class, private functions
are left out.

`python benchmarks/compiler_path.py --strategy simple --page relu > docs/reading.md` writes this page, and a test
compares it with the compiler.
"""


def level_of(file: str) -> str:
    """Returns the level of a file of the library."""
    return next(level for level, pattern in LEVELS.items() if re.match(pattern, file))


def summary_of(file: str) -> str:
    """Returns the first sentence of the docstring of a file."""
    text = ast.get_docstring(ast.parse((ROOT / file).read_text(encoding="utf-8"))) or ""
    return re.split(r"(?<=[.:;])\s|\n\n", text, maxsplit=1)[0].replace("\n", " ").rstrip(".:;")


def page(lines: dict[str, int], places: list[str]) -> str:
    """Returns the page docs/reading.md: a part for each level, a paragraph for each file.

    `lines` is the number of entered lines by file, `places` the entered functions as `file:line name`.
    """
    functions: dict[str, dict[str, None]] = {}
    for place in places:
        file, name = place.split(":")[0], place.split()[-1].split(".")[-1]
        if not name.startswith(("_", "<")):
            functions.setdefault(file, {})[name] = None
    parts: dict[str, list[str]] = {level: [] for level in HEADINGS}
    for file, names in functions.items():
        listed = ", ".join(f"`{name}`" for name in names)
        head = f"**[{file}](../{file})**, {lines.get(file, 0)} lines: {summary_of(file)}."
        parts[level_of(file)].append(
            fill(head, 120) + "\n\n" + fill(listed, 118, initial_indent="> ", subsequent_indent="> ")
        )
    count = {"lines": sum(lines.values()), "functions": len(places), "files": len(lines)}
    texts = [f"## {HEADINGS[level]}\n\n" + "\n\n".join(files) + "\n" for level, files in parts.items() if files]
    return "\n".join([INTRODUCTION.format(**count), *texts])


@click.command()
@click.argument("programs", nargs=-1, type=click.Choice([*PROGRAMS]))
@click.option("--strategy", type=click.Choice(["model", "simple"]), default="model", help="As of `deplodock compile`.")
@click.option("--files", is_flag=True, help="Also list the files, the longest first.")
@click.option("--page", "as_page", is_flag=True, help="Print the functions as a page of Markdown instead.")
@click.option("--functions", is_flag=True, help="Also list the functions in the order of their first call.")
def main(programs: tuple[str, ...], strategy: str, files: bool, as_page: bool, functions: bool) -> None:
    """Compile PROGRAMS (default: all) to CUDA and count."""
    names = programs or tuple(PROGRAMS)
    with ProcessPoolExecutor(1, get_context("spawn"), max_tasks_per_child=1) as pool:
        for name, (lines, docstrings, calls) in zip(names, pool.map(partial(measure, strategy=strategy), names)):
            if as_page:
                click.echo(page(lines, calls), nl=False)
                continue
            levels = Counter[str]()
            for file, count in lines.items():
                levels[level_of(file)] += count
            total = levels.total()
            counts = f"{total} lines ({docstrings} of docstrings) of {len(calls)} functions in {len(lines)} files"
            click.echo(f"{name}: {counts}")
            click.echo("".join(f"{count:7} {count / total:4.0%}  {level}\n" for level, count in levels.most_common()))
            if files:
                click.echo("".join(f"{lines[file]:7}  {file}\n" for file in sorted(lines, key=lambda f: -lines[f])))
            if functions:
                click.echo("".join(f"{place}\n" for place in calls))


if __name__ == "__main__":
    main()
