"""Commands of the pages in Markdown, run in their order, with their outputs compared with those that the page shows.

What a page may contain:

- A block `sh`: commands, one a line. A backslash at the end of a line continues it.
- A block `console`: lines `$ command`, each followed by its output.
- A block `text`, `mlir`, `cuda`, `cpp`, `diff` or `json` directly after a block `sh`: the output of its commands.
- A block whose first line is a comment with nothing but the name of a file, `# double.py` or `// softmax.mlir`: a file
  that the reader saves. It is written before the commands that follow it.

A line `...` of a shown output matches any lines, and `...` in a line any text. Times and numerical errors are
not compared, because they differ from run to run. A command fails, and must fail, if its line ends with the comment
`# fails`. All other commands must succeed. `NOT_RUN` lists the commands that are not run, with reasons.
"""

from __future__ import annotations

import difflib
import os
import re
import runpy
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from textwrap import dedent
from typing import Any

import lit.ShCommands
import lit.ShUtil

from deplodock.tools.calls import call
from support import ROOT
from support.dl_lit import COMMANDS, NotInProcess

OUTPUTS = {"text", "mlir", "cuda", "cpp", "diff", "json"}
"""Languages of a block directly after a block `sh` that shows its output."""

NOT_RUN = {
    r"(pip install|make|source|pytest|\.ci/run)\b": "installs, or runs all tests: `.ci/run`",
    r"python (docs/playground/build.py|-m http.server)": "downloads the playground, or serves it until it is stopped",
    r"deplodock run program.py$": "is run with its package by tests/tools/test_out_of_tree.py",
    r"deplodock compile program.py --ir tensor -vv$": "is run with its package by tests/tools/test_out_of_tree.py",
    r"dl-opt twice.mlir": "is run with its package by tests/tools/test_out_of_tree.py",
}
"""Beginnings of commands that no test of pages runs, as patterns -> reason."""

EXCERPTS = {"README.md"}
"""Pages whose blocks show some lines of an output, in their order, without `...` and without indentation."""

PLACEHOLDERS = {"LEVEL": "tile"}
"""Word of a command for which the reader puts one of several words -> the word with which the command is run."""

SHORTER = {r"--budget \w+": r"\g<0> --trials 2"}
"""Changes of commands that would search for a long time."""

LONGEST = 120
"""Time limit in seconds of a program that does not run in this process."""

_ANY = "..."
_MEASURED = re.compile(r"\d[\d.,]*(?:e[+-]?\d+)? ?(?:ns|us|µs|ms|s|min|GB/s|TB/s|tokens/s)\b")
_PROGRESS = re.compile(r"^deplodock: [^\n]* so far\n", re.M)
_ERROR = re.compile(r"(?<=error) +[\d.]+(?:e[+-]?\d+)?")
_WRITES = r" (-o|>|--write-\w+) |^(cp|mkdir|rm) "
_FILE = re.compile(r"(?:#|//) ([\w./-]+\.\w+)$")


@dataclass(frozen=True)
class Block:
    """A fenced block.

    Args:
        line: number of its first line in the page, from 1.
        language: the word after the fence.
        text: its lines without common indentation.
        follows: whether only empty lines separate it from the block before it.
    """

    line: int
    language: str
    text: str
    follows: bool


@dataclass(frozen=True)
class File:
    """A file that the reader saves."""

    name: str
    text: str


@dataclass(frozen=True)
class Command:
    """A command line of a page.

    Args:
        page: the page, relative to the root of the repository.
        line: number of its line in the page, or of its block for a block `sh`.
        text: the command, without comment and continuation.
        output: the output that the page shows, or None.
        fails: whether the page declares that the command fails.
    """

    page: str
    line: int
    text: str
    output: str | None
    fails: bool = False

    @property
    def reason(self) -> str | None:
        """The reason why the command is not run, or None."""
        return next((reason for pattern, reason in NOT_RUN.items() if re.match(pattern, self.text)), None)


def pages() -> list[str]:
    """Returns all pages of the repository and its examples, relative to its root."""
    paths = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").rglob("*.md")]
    names = [path.relative_to(ROOT).as_posix() for path in paths]
    return sorted(name for name in names if not name.startswith("docs/generated/"))


def blocks(text: str) -> list[Block]:
    """Returns the fenced blocks of a page."""
    result: list[Block] = []
    lines = text.splitlines()
    start, fence, language, follows = 0, "", "", False
    for number, line in enumerate(lines, 1):
        match = re.match(r"\s*(```+)\s*([^\s`]*)[^`]*$", line)
        if not fence and match:
            start, fence, language = number, match[1], match[2]
        elif fence and match and match[1] == fence and not match[2]:
            content = dedent("\n".join(lines[start : number - 1]) + "\n")
            result.append(Block(start + 1, language, content, follows))
            fence, follows = "", True
        elif not fence and line.strip():
            follows = False
    assert not fence, f"line {start}: a block without an end"
    return result


def steps(page: str) -> list[File | Command]:
    """Returns the files and the commands of a page in their order.

    Args:
        page: path relative to the root of the repository.
    """
    result: list[File | Command] = []
    shown = blocks((ROOT / page).read_text(encoding="utf-8"))
    for number, block in enumerate(shown):
        first = block.text.partition("\n")[0]
        if block.language == "sh":
            after = shown[number + 1] if number + 1 < len(shown) else None
            has_output = (
                after and after.follows and after.language in OUTPUTS and not _FILE.match(after.text.split("\n")[0])
            )
            result += _shell_lines(page, block, after.text if after and has_output else None)
        elif block.language == "console":
            result += _console_lines(page, block)
        elif match := _FILE.match(first):
            result.append(File(match[1], block.text))
    return result


def commands(page: str) -> list[Command]:
    """Returns the commands of a page, which is a path relative to the root of the repository."""
    return [step for step in steps(page) if isinstance(step, Command)]


def _shell_lines(page: str, block: Block, output: str | None) -> Iterator[Command]:
    lines = [line.strip() for line in block.text.replace("\\\n", " ").splitlines()]
    lines = [line for line in lines if line and not line.startswith("#")]
    for number, line in enumerate(lines):
        yield _command(page, block.line, line, output if number == len(lines) - 1 else None)


def _console_lines(page: str, block: Block) -> Iterator[Command]:
    entries: list[tuple[int, str, list[str]]] = []
    for number, line in enumerate(block.text.splitlines(), block.line):
        if line.startswith("$ "):
            entries.append((number, line[2:], []))
            continue
        assert entries, f"{page}:{number}: a block `console` begins with `$ command`"
        start, text, output = entries[-1]
        if text.endswith("\\"):
            entries[-1] = start, f"{text[:-1]} {line.removeprefix('> ')}", output
        else:
            output.append(line)
    for number, text, output in entries:
        yield _command(page, number, text, "".join(f"{line}\n" for line in output))


def _command(page: str, number: int, line: str, output: str | None) -> Command:
    fails = bool(re.search(r"\s# fails$", line))
    text = re.sub(r"\s+#\s.*", "", line).strip()
    text = re.sub(r"^pip install [^&]*&& (?=deplodock|dl-opt)", "", text)
    for word, other in PLACEHOLDERS.items():
        text = re.sub(rf"\b{word}\b", other, text)
    return Command(page, number, re.sub(r" {2,}(?=\S)", " ", text), output, fails)


# Running


@dataclass(frozen=True)
class Outcome:
    """Result of a command: exit code, and stdout with stderr as a terminal shows them."""

    code: int
    output: str


_RESULTS: dict[tuple[Any, ...], tuple[Outcome, dict[str, bytes]]] = {}
"""Command and the files that it names -> its outcome and the files that it wrote: pages repeat long commands."""


def run(command: Command, folder: Path, alone: bool = False) -> Outcome:
    """Runs a command in a folder, or repeats the outcome of the same command with the same files.

    Commands of the compiler and Python files run in this process, because importing PyTorch takes seconds. A line with
    variables, wildcards or other syntax runs in a shell.

    Args:
        command: the command.
        folder: the current folder.
        alone: whether the command runs in a shell in any case, as a reader runs it.
    """
    text = command.text
    for pattern, replacement in SHORTER.items():
        text = re.sub(pattern, replacement, text)
    before = _files(folder)
    key = text, *(content for name, content in before.items() if name in text)
    if alone or "python" in text or key not in _RESULTS:
        try:
            if alone or re.search(r"[$`~]", text):
                raise NotInProcess
            outcome = _in_process(lit.ShUtil.ShParser(text, False, True).parse(), folder)
        except (NotInProcess, ValueError):
            outcome = _in_shell(text, folder)
        written = {name: content for name, content in _files(folder).items() if before.get(name) != content}
        _RESULTS[key] = outcome, written
    outcome, written = _RESULTS[key]
    for name, content in written.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
    return outcome


def _files(folder: Path) -> dict[str, bytes]:
    paths = (path for path in folder.rglob("*") if path.is_file() and "__pycache__" not in path.parts)
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in paths}


def _python(arguments: list[str]) -> int:
    """Runs a Python file as the main program, and forgets the modules that it imports from its folder."""
    file, *options = arguments
    saved_arguments, saved_path, modules = sys.argv, sys.path, set(sys.modules)
    sys.argv, sys.path = [file, *options], [str(Path(file).resolve().parent), *sys.path]
    try:
        runpy.run_path(file, run_name="__main__")
    finally:
        sys.argv, sys.path = saved_arguments, saved_path
        for name in set(sys.modules) - modules:
            path = getattr(sys.modules[name], "__file__", None)
            if path and Path(path).is_relative_to(Path.cwd()):
                del sys.modules[name]
    return 0


def _cat(arguments: list[str]) -> int:
    for name in arguments:
        sys.stdout.write(Path(name).read_text(encoding="utf-8"))
    return 0


_PROGRAMS = {**COMMANDS, "python": _python, "cat": _cat}


def _external(words: list[str], stdin: bytes, merge: bool) -> tuple[int, bytes, bytes]:
    """Runs another program, such as `head`. Returns its exit code, stdout and stderr."""
    done = subprocess.run(
        words,
        env=_environment(),
        input=stdin,
        stdout=-1,
        stderr=subprocess.STDOUT if merge else -1,
        check=False,
        timeout=LONGEST,
    )
    return done.returncode, done.stdout, done.stderr or b""


def _environment() -> dict[str, str]:
    return {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}


def _in_process(tree: Any, folder: Path) -> Outcome:
    """Runs a parsed line. Raises NotInProcess, before it runs anything, if the line needs a shell."""
    _check(tree)
    return _run(tree, folder)


def _check(tree: Any) -> None:
    if isinstance(tree, lit.ShCommands.Seq):
        if tree.op != "&&":
            raise NotInProcess
        _check(tree.lhs)
        _check(tree.rhs)
        return
    for command in tree.commands:
        words = command.args
        if not all(isinstance(word, str) for word in words) or words[0] in ("cd", "export", "set", "source"):
            raise NotInProcess
        if any(kind not in ((">",), ("<",)) for kind, _ in command.redirects):
            raise NotInProcess


def _run(tree: Any, folder: Path) -> Outcome:
    if isinstance(tree, lit.ShCommands.Seq):
        first = _run(tree.lhs, folder)
        if first.code:
            return first
        second = _run(tree.rhs, folder)
        return Outcome(second.code, first.output + second.output)
    data, messages, code = b"", "", 0
    for number, command in enumerate(tree.commands, 1):
        files = {kind: folder / name for (kind,), name in command.redirects}
        stdin = files["<"].read_bytes() if "<" in files else data
        merge = number == len(tree.commands) and ">" not in files
        program, *words = command.args
        if program in _PROGRAMS and not (program == "python" and words[0].startswith("-")):
            status, data, errors = call(_PROGRAMS[program], words, stdin, merge=merge)
        else:
            status, data, errors = _external([program, *words], stdin, merge)
        code, messages = code or status, messages + errors.decode()
        if ">" in files:
            files[">"].write_bytes(data)
            data = b""
    return Outcome(code, messages + data.decode())


def _in_shell(text: str, folder: Path) -> Outcome:
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", text],
        cwd=folder,
        env=_environment(),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        timeout=LONGEST,
    )
    return Outcome(done.returncode, done.stdout)


# Comparison


def normalised(text: str, folder: Path | None = None) -> list[str]:
    """Returns the lines of an output without parts that differ from run to run.

    Times and numerical errors become `TIME` and `error NUMBER`, several spaces inside of a line become one, and files
    of `folder` are relative to it. Lines about the progress of a slow step are removed.
    """
    if folder:
        text = text.replace(f"{folder.resolve()}/", "").replace(f"{folder}/", "")
    text = _ERROR.sub(" NUMBER", _MEASURED.sub("TIME", _PROGRESS.sub("", text)))
    return [re.sub(r"(?<=\S) {2,}", " ", line.rstrip()) for line in text.strip("\n").splitlines()]


def difference(shown: str, outcome: str, folder: Path | None = None) -> str:
    """Compares an output with the one that a page shows.

    Args:
        shown: text of the page, with `...` for parts that it leaves out.
        outcome: output of the command.
        folder: folder in which the command ran.

    Returns:
        The difference as text, empty if there is none.
    """
    expected, lines = normalised(shown), normalised(outcome, folder)
    parts = ["(?:.*\n)*?" if line.strip() == _ANY else _line_pattern(line) for line in expected]
    if re.fullmatch("".join(parts), "".join(f"{line}\n" for line in lines)):
        return ""
    return "\n".join(difflib.unified_diff(expected, lines, "the page", "the output", lineterm=""))


def _line_pattern(line: str) -> str:
    return ".*".join(re.escape(part) for part in line.split(_ANY)) + "\n"


def missing_line(shown: str, outcome: str) -> str:
    """Returns the first line of an excerpt that is not in the output after the lines before it, or an empty text."""
    printed = iter([_plain(line) for line in normalised(outcome)])
    return next((line for line in map(_plain, normalised(shown)) if line not in printed), "")


def _plain(line: str) -> str:
    """Returns a line of IR or CUDA without indentation, location and alignment."""
    return re.sub(r" loc\(#?\w+\)$|__align__\(\d+\) ", "", line).strip()


def faults(page: str, folder: Path) -> list[str]:
    """Runs the commands of a page in a folder, which must be the current one.

    Args:
        page: path relative to the root of the repository.
        folder: an empty folder. The files that the page shows are written to it.

    Returns:
        A text for each command that fails, succeeds although it ends with `# fails`, prints nothing although it
        writes no file, or prints another output than the page shows.
    """
    result: list[str] = []
    for step in steps(page):
        if isinstance(step, File):
            (folder / step.name).parent.mkdir(parents=True, exist_ok=True)
            (folder / step.name).write_text(step.text, encoding="utf-8")
        elif step.reason is None:
            fault = _fault(step, run(step, folder), folder)
            if fault:  # Other tests may have changed the state of this process, such as its warnings and plugins.
                fault = _fault(step, run(step, folder, alone=True), folder)
            result += [f"{page}:{step.line}: {step.text}\n{fault}"] if fault else []
    return result


def _fault(command: Command, outcome: Outcome, folder: Path) -> str:
    if bool(outcome.code) != command.fails:
        expectation = "fails" if command.fails else "succeeds"
        return f"exit code {outcome.code}, but the page says that it {expectation}:\n{outcome.output}"
    if command.output is None:
        silent = not outcome.output.strip() and not re.search(_WRITES, command.text)
        return "prints nothing and has no option that writes a file" if silent else ""
    if command.page in EXCERPTS:
        line = missing_line(command.output, outcome.output)
        return f"the output has no line {line!r} after the lines above it" if line else ""
    return difference(command.output, outcome.output, folder)
