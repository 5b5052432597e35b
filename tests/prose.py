"""Counts habits of prose and of names that make a text hard to read, in docstrings, comments and Python names.

    python tests/prose.py [--show HABIT] [--folders] [--write] [PATH ...]

`tests/tools/test_prose.py` compares the counts with `tests/data/prose.json`; a count may only fall. `--write` records
the present counts.
"""

from __future__ import annotations

import ast
import io
import json
import re
import tokenize
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import click

ROOT = Path(__file__).resolve().parent.parent
RECORD = ROOT / "tests" / "data" / "prose.json"
SKIPPED = ("build", "tests")
"""Folders that are not counted, except the helpers in `tests/support`."""

QUESTION_WORDS = ("What", "Whether", "How", "Where", "Which", "Who", "Whoever", "Whose", "When", "Why")
NO_NOUNS = (
    *("All", "Also", "And", "Another", "As", "At", "Before", "Both", "But", "By", "Each", "Every", "For", "From", "If"),
    *("In", "It", "Its", "Not", "Nothing", "Of", "On", "One", "Only", "Other", "Others", "Same", "So", "Such", "That"),
    *("Their", "Them", "Then", "There", "These", "They", "This", "Those", "To", "With", "Without", "Would"),
)
"""First words of a docstring that are neither a verb nor the beginning of a noun phrase."""

PHRASES = {
    "relative what": r"(?<!^)\bwhat\b",
    "persons": r"\b(nobody|whoever|somebody|anybody|someone|who|whom)\b",
    "spatial verbs": r"\b(lies?|lying|stands?|goes|comes|in front of|behind|besides?)\b",
    "stacked relatives": r"\b(of which|of whom|of those|that of|those of|these of)\b",
    "says, tells": r"\b(says?|tells?|told)\b",
    "so many": r"\b(so many|so much|as many as)\b",
}
"""Habit -> a regular expression that is searched in docstrings and comments, without the code in them."""

NAMES = (
    *("found", "own", "given", "known", "left", "kept", "made", "rest", "wanted", "around", "each", "there", "apart"),
    *("beside", "told", "said", "again", "whose", "them", "what", "which", "alike", "ahead"),
)
"""Participles, pronouns, adverbs and prepositions: no names of variables, parameters, functions or classes."""

LONGEST_SENTENCE = 30
"""Words of a sentence."""

LONGEST_SELF_EVIDENT = 6
"""Lines of a private function that needs no docstring."""

MOST_PLAIN_PARAMETERS = 2
"""Parameters of a public function that needs no `Args` section."""

GRAMMAR = "the return and for with that from one are its thi into none all true".split()
"""Words of a docstring that add nothing to a name, without a final s."""


class Hit(NamedTuple):
    """One occurrence of a habit, with a text that shows it."""

    habit: str
    path: str
    line: int
    text: str


def files() -> list[Path]:
    """Returns the Python files that are counted: the library, the benchmarks, the examples and the tests' helpers."""
    folders = [f for f in ROOT.iterdir() if f.is_dir() and not f.name.startswith((".", "_")) and f.name not in SKIPPED]
    folders.append(ROOT / "tests" / "support")
    return sorted([*ROOT.glob("*.py"), *(path for folder in folders for path in folder.rglob("*.py"))])


def hits(source: str, path: str = "") -> Iterator[Hit]:
    """Yields the occurrences of all habits in the source text of a Python file."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        for line, text in docstrings(node):
            yield from (Hit(habit, path, line, shown) for habit, shown in _prose(text))
            if habit := _opener(text):
                yield Hit(habit, path, line, text.partition("\n")[0])
        if isinstance(node, ast.FunctionDef) and (text := ast.get_docstring(node)):
            yield from (Hit(habit, path, node.lineno, shown) for habit, shown in _of_function(node, text))
        if (name := _defined_name(node)) and name[1] in NAMES:
            yield Hit(f"name {name[1]}", path, *name)
    for line, comment in comments(source):
        yield from (Hit(habit, path, line, shown) for habit, shown in _prose(comment))


def comments(source: str) -> Iterator[tuple[int, str]]:
    """Yields the line and the text of the comments in the source text of a Python file."""
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string.lstrip("# ")


def docstrings(node: ast.AST) -> Iterator[tuple[int, str]]:
    """Yields the line and the text of the docstrings in a body: of the body itself, and below assignments."""
    if not isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
        return
    for before, statement in zip([None, *node.body], node.body):
        documented = before is None or isinstance(before, ast.Assign | ast.AnnAssign)
        match statement:
            case ast.Expr(ast.Constant(str(text))) if documented:
                yield statement.lineno, text.strip()
            case _:
                pass


def _prose(text: str) -> Iterator[tuple[str, str]]:
    """Yields the habits of phrases and sentences in a text, each with an excerpt."""
    plain = re.sub(r"```.*?```|`[^`]*`", "", text, flags=re.DOTALL)
    for habit, pattern in PHRASES.items():
        for match in re.finditer(pattern, plain):
            yield habit, plain[max(0, match.start() - 40) : match.end() + 40]
    for sentence in re.split(r"(?<=[.:;])\s+|\n\s*\n|\n\s*[-*|]", plain):
        if len(sentence.split()) > LONGEST_SENTENCE:
            yield "long sentences", sentence


def _opener(text: str) -> str:
    """Returns the habit of the first words of a docstring, or ""."""
    first = re.match(r"[A-Z][a-z]+", text)
    if first and first[0] in QUESTION_WORDS:
        return "question openers"
    return "openers without a noun" if (first and first[0] in NO_NOUNS) or text.startswith("The same") else ""


def _of_function(node: ast.FunctionDef, text: str) -> Iterator[tuple[str, str]]:
    """Yields the habits of a function's docstring that depend on its signature."""
    parameters = [a.arg for a in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs)]
    count = len([p for p in parameters if p not in ("self", "cls")])
    private = node.name.startswith("_")
    if not private and count > MOST_PLAIN_PARAMETERS and "Args:" not in text and not _is_described(node):
        yield "public functions without Args", node.name
    lines = (node.end_lineno or node.lineno) - node.lineno + 1 - len(text.splitlines())
    if private and not node.name.startswith("__") and lines <= LONGEST_SELF_EVIDENT and _repeats(node, text):
        yield "docstrings that repeat the name", f"{node.name}: {text}"


def _is_described(node: ast.FunctionDef) -> bool:
    """Returns true for a command, whose options have help texts, and for a method that xDSL calls for an operation."""
    decorators = [ast.unparse(d) for d in node.decorator_list]
    return any(re.search(r"\.command\b|\bclick\.|^impl\(", d) for d in decorators)


def _words(text: str) -> set[str]:
    """Returns the words of a text or of names in snake and camel case, in lower case without a final s."""
    split = re.sub(r"([a-z])([A-Z])", r"\1 \2", text).replace("_", " ")
    return {word.lower().rstrip("s") for word in re.findall(r"[A-Za-z]{3,}", split)}


def _repeats(node: ast.FunctionDef, text: str) -> bool:
    """Returns true if a docstring has at most two words that are neither in the signature nor in `GRAMMAR`."""
    signature = ast.unparse(node.args) + " " + (ast.unparse(node.returns) if node.returns else "") + " " + node.name
    return len(_words(text) - _words(signature) - {*GRAMMAR}) <= 2


def _defined_name(node: ast.AST) -> tuple[int, str] | None:
    """Returns the line and the name that a node defines, without underscores at its ends."""
    match node:
        case ast.arg(arg=name) | ast.Name(id=name, ctx=ast.Store()) | ast.FunctionDef(name=name):
            return node.lineno, name.strip("_")
        case ast.ClassDef(name=name):
            return node.lineno, name.strip("_").lower()
        case _:
            return None


def hits_in(paths: list[Path]) -> Iterator[Hit]:
    """Yields the occurrences of all habits in files of the repository."""
    for path in paths:
        yield from hits(path.read_text(encoding="utf-8"), str(path.relative_to(ROOT)))


def well_opened(paths: list[Path]) -> tuple[int, int]:
    """Returns the number of docstrings in files, and of those that open with a verb or the noun of a noun phrase."""
    nodes = (node for path in paths for node in ast.walk(ast.parse(path.read_text("utf-8"))))
    texts = [text for node in nodes for _, text in docstrings(node)]
    return len(texts), sum(not _opener(text) for text in texts)


def counts(paths: list[Path]) -> Counter[str]:
    """Returns the number of occurrences of each habit in files of the repository."""
    return Counter(hit.habit for hit in hits_in(paths))


@click.command(help=__doc__)
@click.argument("paths", nargs=-1, type=click.Path(exists=True, path_type=Path))
@click.option("--show", default="", help="List the occurrences of a habit, or of `all`.")
@click.option("--folders", is_flag=True, help="Count each folder by itself.")
@click.option("--write", is_flag=True, help="Record the counts of the whole repository.")
def main(paths: tuple[Path, ...], show: str, folders: bool, write: bool) -> None:
    chosen = [p for path in paths for p in ([path] if path.is_file() else sorted(path.rglob("*.py")))] or files()
    chosen = [path.resolve() for path in chosen]
    if write:
        RECORD.write_text(json.dumps(dict(sorted(counts(files()).items())), indent=2) + "\n", encoding="utf-8")
    elif show:
        for hit in hits_in(chosen):
            if show in (hit.habit, "all"):
                habit = f"{hit.habit}: " if show == "all" else ""
                click.echo(f"{hit.path}:{hit.line}: {habit}{' '.join(hit.text.split())[:140]}")
    else:
        rooms: dict[str, list[Path]] = {}
        for path in chosen:
            rooms.setdefault(str(path.parent.relative_to(ROOT)) if folders else "all", []).append(path)
        for room, inside in rooms.items():
            texts, opened = well_opened(inside)
            click.echo(f"{room}: {len(inside)} files, {texts} docstrings, {opened} open with a verb or a noun")
            click.echo("".join(f"{number:7}  {habit}\n" for habit, number in counts(inside).most_common()))


if __name__ == "__main__":
    main()
