"""Prints the texts of files for a reader who has not seen the code: docstrings below their signatures, and comments
above the line that they explain. The reader restates each text, and the writer compares.

    python tests/prose_sheet.py [--sample N --seed NUMBER] [PATH ...]
"""

from __future__ import annotations

import ast
import io
import random
import tokenize
from collections.abc import Iterator
from pathlib import Path

import click
from prose import ROOT, files

COUNTED = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


def texts(source: str) -> list[tuple[int, str, str]]:
    """Returns the line, the code and the text of all docstrings and comments of a Python file, in its order."""
    tree, lines = ast.parse(source), source.splitlines()
    comments = dict(_comments(source))
    rows = [*_docstrings(tree, lines)]
    for line in sorted(comments):
        if line - 1 in comments:
            continue
        last = next(n for n in range(line, len(lines) + 1) if n + 1 not in comments)
        trailing = lines[line - 1].partition("#")[0].strip()
        code = trailing or next((text.strip() for text in lines[last:] if text.strip()), "")
        rows.append((line, code, " ".join(comments[n] for n in range(line, last + 1))))
    return sorted(rows)


def _docstrings(tree: ast.Module, lines: list[str]) -> Iterator[tuple[int, str, str]]:
    if text := ast.get_docstring(tree):
        yield 1, "", text
    for node in ast.walk(tree):
        if isinstance(node, COUNTED) and (text := ast.get_docstring(node)):
            head = " ".join(line.strip() for line in lines[node.lineno - 1 : node.body[0].lineno - 1])
            yield node.lineno, head, text
        body = node.body if isinstance(node, ast.Module | ast.ClassDef) else []
        for before, after in zip(body, body[1:], strict=False):
            if isinstance(before, ast.Assign | ast.AnnAssign) and isinstance(after, ast.Expr):
                if isinstance(after.value, ast.Constant) and isinstance(after.value.value, str):
                    yield before.lineno, lines[before.lineno - 1].strip(), after.value.value


def _comments(source: str) -> Iterator[tuple[int, str]]:
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        text = token.string.lstrip("# ")
        if token.type == tokenize.COMMENT and not text.startswith(("pyright:", "noqa", "type:", "fmt:")):
            yield token.start[0], text


@click.command(help=__doc__)
@click.option("--sample", type=int, help="Take so many files at random.")
@click.option("--seed", type=int, default=0, help="The seed of the sample.")
@click.argument("paths", nargs=-1, type=click.Path(exists=True, path_type=Path))
def main(sample: int | None, seed: int, paths: tuple[Path, ...]) -> None:
    chosen = [f for f in files() if not paths or any(f.is_relative_to(p.resolve()) for p in paths)]
    chosen = [f for f in chosen if texts(f.read_text())]
    if sample:
        chosen = sorted(random.Random(seed).sample(chosen, min(sample, len(chosen))))
    number = 0
    for path in chosen:
        click.echo(f"\n=== {path.relative_to(ROOT)}")
        for line, code, text in texts(path.read_text()):
            number += 1
            click.echo(f"\n[{number}] line {line}: {code}\n    " + text.strip().replace("\n", "\n    "))


if __name__ == "__main__":
    main()
