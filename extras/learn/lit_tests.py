"""Judging of lit tests: a test must pass on the right pass, and fail on passes with a planted fault.

A lit test is a file with a program, a line `RUN:` with the command, and lines `CHECK:` about its output. The commands
`dl-opt`, `filecheck` and `not` run in this process.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from ...tools import dl_opt
from ...tools.calls import call
from .verdicts import Wrong


@dataclass(frozen=True)
class Mutant:
    """A pass with a planted fault.

    Attributes:
        noun: the fault in words, such as `fires on every constant`.
        old: part of the text of the right pass.
        new: text that replaces it.
    """

    noun: str
    old: str
    new: str

    def of(self, text: str) -> str:
        """Returns the text of a right pass with the fault. Raises ValueError if the text has no such part."""
        if self.old not in text:
            raise ValueError(f"{self.noun}: the pass has no {self.old!r}")
        return text.replace(self.old, self.new)


@dataclass(frozen=True)
class TestRun:
    """Result of a lit test.

    Attributes:
        passed: whether all commands succeeded.
        message: first message of the command that failed, or an empty text.
    """

    passed: bool
    message: str = ""


def require_catches(test: Path, file: str, right: str, mutants: Sequence[Mutant]) -> str:
    """Requires that a lit test passes on the right pass and fails on all mutants.

    Args:
        test: path of the test. The passes are written next to it.
        file: name of the file that the test loads.
        right: text of the right pass.
        mutants: the faults.

    Returns:
        a sentence with the counts.

    Raises:
        Wrong: the test has no RUN line, fails on the right pass, or passes on a mutant.
    """
    commands = run_lines(test.read_text(encoding="utf-8"))
    _require_form(commands, file)
    source = test.parent / file
    source.write_text(right, encoding="utf-8")
    if not (run := run_test(test, commands)).passed:
        raise Wrong(f"the test must pass on the right pass, but it fails: {run.message}")
    survivors: list[str] = []
    for mutant in mutants:
        source.write_text(mutant.of(right), encoding="utf-8")
        if run_test(test, commands).passed:
            survivors.append(mutant.noun)
    count = len(mutants)
    if survivors:
        caught = f"the test passes on the right pass, and catches {count - len(survivors)} of {count} faults"
        raise Wrong(f"{caught}. It also passes on a pass that {'; on one that '.join(survivors)}")
    return f"the test passes on the right pass, and fails on all {count} passes with a fault"


def _require_form(commands: Sequence[str], file: str) -> None:
    if not commands:
        raise Wrong("the test has no line `// RUN: command`, so nothing runs")
    text = " ".join(commands)
    if not re.search(r"\bfilecheck\b", text):
        raise Wrong("no RUN line ends with `| filecheck %s`, so the lines CHECK are comments that no command reads")
    if f"%S/{file}" not in text:
        raise Wrong(f"no RUN line loads the pass: expected `--load %S/{file}`, where %S is the folder of the test")


def run_lines(text: str) -> list[str]:
    """Returns the commands of the RUN lines of a test. A backslash at the end continues a line."""
    commands: list[str] = []
    continues = False
    for line in re.findall(r"\bRUN: *(.*)", text):
        joined = f"{commands.pop()} {line}" if continues else line
        continues = joined.endswith("\\")
        commands.append(joined.removesuffix("\\").strip())
    return commands


def run_test(test: Path, commands: Sequence[str]) -> TestRun:
    """Runs the commands of a test, up to the first that fails.

    Args:
        test: path of the test, for `%s` and `%S`.
        commands: commands of its RUN lines, each with pipes.

    Raises:
        Wrong: a command has other syntax, or filecheck is not installed.
    """
    for command in commands:
        data, failure = b"", ""
        for words in _pipeline(command):
            words = [w.replace("%s", str(test)).replace("%S", str(test.parent)) for w in words]
            negated = words[0] == "not"
            words = words[1:] if negated else words
            code, data, errors = call(_main(words), words[1:], data)
            if (code == 0) == negated and not failure:
                lines = errors.decode().replace(f"{test.parent}/", "").splitlines() or [f"{words[0]} succeeds"]
                failure = " | ".join(line.strip() for line in lines[:3])
        if failure:
            return TestRun(False, failure)
    return TestRun(True)


def _pipeline(command: str) -> list[list[str]]:
    """Returns the words of each part of `a | b`."""
    lexer = shlex.shlex(command, posix=True, punctuation_chars="|&;<>")
    lexer.whitespace_split = True
    parts: list[list[str]] = [[]]
    try:
        for word in lexer:
            if word == "|":
                parts.append([])
            elif re.fullmatch(r"[|&;<>]+", word):
                raise Wrong(f"RUN: {command}: only pipes are supported here, no {word}")
            else:
                parts[-1].append(word)
    except ValueError as error:
        raise Wrong(f"RUN: {command}: {error}") from None
    if not all(parts) or ["not"] in parts:
        raise Wrong(f"RUN: {command}: expected a command on both sides of each |")
    return parts


def _main(words: Sequence[str]) -> Callable[[list[str]], int | None]:
    """Returns the function of a command, which takes its arguments."""
    if words[0] == "dl-opt":
        return dl_opt.main
    if words[0] != "filecheck":
        raise Wrong(f"RUN: {words[0]}: expected dl-opt, filecheck or not")
    try:
        from filecheck.main import main
    except ModuleNotFoundError:
        raise Wrong("this exercise needs filecheck: pip install filecheck") from None
    return lambda arguments: main(["filecheck", *arguments])
