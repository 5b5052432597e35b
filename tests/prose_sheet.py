"""Prints the texts of files for a reader who has not seen the code: docstrings below their signatures, and comments
above the line that they explain. The reader restates each text, and the writer compares.

    python tests/prose_sheet.py [--sample N --seed NUMBER] [PATH ...]
"""

from __future__ import annotations

import ast
import random
from collections.abc import Iterator
from inspect import cleandoc
from pathlib import Path

import click
from prose import ROOT, comments, docstrings, files

DIRECTIVES = ("pyright:", "noqa", "type:", "fmt:")
"""Beginnings of comments that are for tools."""


def rows(source: str) -> list[tuple[int, str, str]]:
    """Returns the line, the code and the text of all docstrings and comments of a Python file, in its order."""
    lines = source.splitlines()
    by_line = {line: text for line, text in comments(source) if not text.startswith(DIRECTIVES)}
    result = [*_docstrings(ast.parse(source), lines)]
    for line in sorted(by_line):
        if line - 1 in by_line:
            continue
        last = next(n for n in range(line, len(lines) + 1) if n + 1 not in by_line)
        trailing = lines[line - 1].partition("#")[0].strip()
        code = trailing or next((text.strip() for text in lines[last:] if text.strip()), "")
        result.append((line, code, " ".join(by_line[n] for n in range(line, last + 1))))
    return sorted(result)


def _docstrings(tree: ast.Module, lines: list[str]) -> Iterator[tuple[int, str, str]]:
    """Yields docstrings with the code above them: a signature, or the line of an assignment."""
    for node in ast.walk(tree):
        for line, text in docstrings(node):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef) and line == node.body[0].lineno:
                first = getattr(node, "lineno", line)
                yield first, " ".join(part.strip() for part in lines[first - 1 : line - 1]), cleandoc(text)
            else:
                statement = max(n.lineno for n in ast.walk(node) if isinstance(n, ast.stmt) and n.lineno < line)
                yield statement, lines[statement - 1].strip(), cleandoc(text)


@click.command(help=__doc__)
@click.option("--sample", type=int, help="Take so many files at random.")
@click.option("--seed", type=int, default=0, help="The seed of the sample.")
@click.argument("paths", nargs=-1, type=click.Path(exists=True, path_type=Path))
def main(sample: int | None, seed: int, paths: tuple[Path, ...]) -> None:
    chosen = [f for f in files() if not paths or any(f.is_relative_to(p.resolve()) for p in paths)]
    chosen = [f for f in chosen if rows(f.read_text())]
    if sample:
        chosen = sorted(random.Random(seed).sample(chosen, min(sample, len(chosen))))
    number = 0
    for path in chosen:
        click.echo(f"\n=== {path.relative_to(ROOT)}")
        for line, code, text in rows(path.read_text()):
            number += 1
            click.echo(f"\n[{number}] line {line}: {code}\n    " + text.strip().replace("\n", "\n    "))


if __name__ == "__main__":
    main()
