"""Fills the blocks of docs/learn/small_compiler: code, texts of programs, counts of lines, and measured times.

`python docs/small_compiler_pages.py` writes the pages anew; a test compares them with the files. Each block
follows a comment of the page, which names its contents:

| comment | block |
|---|---|
| `<!-- code c4_fusion.inline -->` | the definition of an object of a chapter |
| `<!-- program c4_fusion -->` | RMSNorm as the chapter compiles it |
| `<!-- text cpu -->`, `<!-- text sm_90a -->` | RMSNorm as C++ or CUDA |
| `<!-- deplodock loop -->`, `<!-- deplodock cpp -->` | RMSNorm at a level of deplodock |
| `<!-- lines -->` | table of the modules of the small compiler with their lines |
| `<!-- times -->`, `<!-- coverage -->` | tables of `benchmarks/results/small_compiler.json` |

In tables, a number after the name of a file or a folder of the library is the number of its lines. It may differ from
the present number by a tenth.
"""

from __future__ import annotations

import ast
import json
import re
import sys
from collections import Counter
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import nn

import deplodock
from deplodock.backend.cpp.writer import HOST_MARK, KERNELS_MARK
from deplodock.dialects.support.printing import WIDTH, print_module

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "docs" / "learn" / "small_compiler"
EXAMPLE = ROOT / "examples" / "small_compiler"
RESULTS = ROOT / "benchmarks" / "results" / "small_compiler.json"

PROGRAM = nn.RMSNorm(2048), (torch.randn(32, 2048),)
"""The program of the pages: RMSNorm over 32 rows."""

CPU = "cpu{isa=avx512 cores=4}"
"""CPU of the C++ of deplodock, the same on every machine."""

BLOCK = re.compile(
    r"(<!-- (code|program|text|deplodock|lines|times|coverage) ?([\w.]*) -->\n\n)"
    r"(?P<block>(?P<fence>```+)\w+\n.*?^(?P=fence)\n|(?:\|[^\n]*\n)+)?",
    re.M | re.S,
)
"""A comment, and the block or the table after it."""

COUNT = re.compile(r"(`([\w/]+(?:\.py|/))` \| )([\d,]+)(?= \|)")
"""Name of a file or a folder in a table, and the number in the next cell."""

HELPERS = re.compile(r"^void k\d+_grid\(.*?^}\n", re.M | re.S)
"""Function that runs all blocks of a kernel on a CPU."""


def page(text: str) -> str:
    """Returns the text of a page with its blocks and counts filled."""
    return COUNT.sub(_counted, BLOCK.sub(_filled, text))


def _filled(match: re.Match[str]) -> str:
    return match[1] + BLOCKS[match[2]](match[3]) + ("" if match["block"] else "\n")


def _counted(match: re.Match[str]) -> str:
    written, lines = int(match[3].replace(",", "")), lines_of(ROOT / match[2])
    return match[0] if 9 * lines <= 10 * written <= 11 * lines else f"{match[1]}{lines:,}"


def lines_of(path: Path) -> int:
    """Returns the number of lines of a Python file, or of all in a folder."""
    files = path.rglob("*.py") if path.is_dir() else [path]
    return sum(len(file.read_text(encoding="utf-8").splitlines()) for file in files)


def code(place: str) -> str:
    """Returns the definition of an object in a module of the small compiler, with the text after a constant."""
    module, _, name = place.partition(".")
    source = (EXAMPLE / f"{module}.py").read_text(encoding="utf-8")
    body = ast.parse(source).body
    for node, following in zip(body, [*body[1:], None], strict=True):
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", node)]
        if name in [getattr(target, "id", getattr(target, "name", None)) for target in targets]:
            decorators = getattr(node, "decorator_list", [])
            start = decorators[0].lineno if decorators else node.lineno
            documented = isinstance(following, ast.Expr) and not isinstance(node, ast.FunctionDef | ast.ClassDef)
            end = following.end_lineno if documented else node.end_lineno
            return _block("python", "\n".join(source.splitlines()[start - 1 : end]))
    raise LookupError(f"{module}.py has no definition of {name}")


@cache
def _chapter(name: str, *target: str) -> Any:
    sys.path.insert(0, str(EXAMPLE.parent))
    try:
        return import_module(f"small_compiler.{name}").compile(*PROGRAM, *target).module
    finally:
        sys.path.remove(str(EXAMPLE.parent))


def program(chapter: str) -> str:
    """Returns RMSNorm as a chapter compiles it."""
    return _block("mlir", print_module(_chapter(chapter), width=WIDTH))


def text(target: str) -> str:
    """Returns the kernels of RMSNorm as C++ or CUDA, without helpers."""
    module = _chapter("c6_schedule", target)
    return _block(*_kernels(import_module("small_compiler.c7_text").text(module, target), target == "cpu"))


def _kernels(text: str, cpp: bool) -> tuple[str, str]:
    """Returns the language and the kernels of a text, without helpers and without the code that starts them."""
    kernels = text.partition(KERNELS_MARK)[2].partition(HOST_MARK)[0]
    return "cpp" if cpp else "cuda", HELPERS.sub("", kernels)


@cache
def _deplodock(target: str) -> Any:
    return deplodock.compile(*PROGRAM, target=target, executor="reference", record="none")


def by_deplodock(level: str) -> str:
    """Returns RMSNorm at a level of deplodock: `cpp` for a CPU, all others for `sm_90a`."""
    if level == "cpp":
        return _block(*_kernels(_deplodock(CPU).ir("cpp"), True))
    text = _deplodock("sm_90a").ir(level)
    return _block(*_kernels(text, False)) if level == "cuda" else _block("mlir", text)


def lines(_: str) -> str:
    """Returns a table of the modules of the small compiler with their first sentence and lines."""
    rows, paths = ["| chapter | module | content | lines |", "|---|---|---|---|"], sorted(EXAMPLE.glob("c*.py"))
    for path in paths:
        head = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
        chapter, _, sentence = head.partition("\n")[0].partition(": ")
        rows.append(f"| {chapter.removeprefix('Chapter ')} | `{path.name}` | {sentence} | {lines_of(path)} |")
    rows.append(f"| | all, with `__init__.py` | | {lines_of(EXAMPLE)} |")
    return "\n".join(rows) + "\n"


def times(_: str) -> str:
    """Returns a table of measured times."""
    results = json.loads(RESULTS.read_text(encoding="utf-8"))
    rows = [
        "| program | kernels | small compiler | deplodock | small / deplodock | eager |",
        "|---|---|---|---|---|---|",
    ]
    for name, row in results["programs"].items():
        small, real, eager = (row["times"][arm]["p20"] * 1e6 for arm in ("small", "deplodock", "eager"))
        kernels = f"{row['kernels']['small']}, {row['kernels']['deplodock']}"
        rows.append(f"| {name} | {kernels} | {small:,.0f} µs | {real:,.0f} µs | {small / real:.1f} | {eager:,.0f} µs |")
    return "\n".join(rows) + "\n"


def coverage(_: str) -> str:
    """Returns a table of the programs of language models: right or refused."""
    counts = json.loads(RESULTS.read_text(encoding="utf-8"))["coverage"]
    assert not counts["wrong"], counts["wrong"]
    rows = ["| programs of language models (`tests/data/seed84.json`) | number |", "|---|---|"]
    rows += [f"| right | {counts['right']} |"]
    reasons = Counter[str]()
    for reason, number in counts["refused"].items():
        reasons[re.sub(r"\[.*\]$", "", reason)] += number
    rows += [f"| refused: {reason} | {number} |" for reason, number in reasons.most_common()]
    return "\n".join(rows) + "\n"


def _block(language: str, text: str) -> str:
    fence = "````" if "```" in text else "```"
    return f"{fence}{language}\n{text.rstrip()}\n{fence}\n"


BLOCKS = {
    "code": code,
    "program": program,
    "text": text,
    "deplodock": by_deplodock,
    "lines": lines,
    "times": times,
    "coverage": coverage,
}
"""Word of a comment -> function that returns its block."""


def main() -> None:
    """Writes all pages anew."""
    for path in sorted(FOLDER.glob("*.md")):
        path.write_text(page(path.read_text(encoding="utf-8")), encoding="utf-8")


if __name__ == "__main__":
    main()
