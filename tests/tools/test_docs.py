"""Commands, options, passes and files that the sentences of all documents mention exist. Generated parts are current.

`test_pages.py` runs the commands in blocks.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import click
import levels
import pass_diagram
import pytest
import walkthrough
from support import ROOT, TESTS
from support.dl_lit import COMMANDS
from support.pages import File, commands, pages, steps

from deplodock.passes.pipelines import parse_passes
from deplodock.tools import dl_opt
from deplodock.tools.calls import call
from deplodock.tools.cli import cli

PIPELINE = r"dl-opt [^\n`]*?-p '?((?:[\w,-]|\{[^}]*\})+)"
"""What follows `-p`, with its options."""

MENTIONED = re.compile(r"`((?:cd tests && )?(?:deplodock|dl-opt|dl-gui|python|make) [^`]*)`")


def mentioned() -> list[str]:
    """Returns the commands in the sentences and tables of all pages, outside of blocks.

    Python files that the reader of the page saves are not commands of the repository.
    """
    lines: list[str] = []
    for page in pages():
        text = re.sub(r"^```.*?^```", "", (ROOT / page).read_text(encoding="utf-8"), flags=re.M | re.S)
        saved = {f"python {step.name}" for step in steps(page) if isinstance(step, File)}
        lines += [line for line in MENTIONED.findall(text) if " ".join(line.split()[:2]) not in saved]
    return [*dict.fromkeys(lines)]


def subcommands(words: list[str]) -> list[str]:
    """Returns the subcommands at the beginning of a command line: `learn`, `check` of `deplodock learn check 3`."""
    command: click.Command | None = cli if words[0] == "deplodock" else None
    names: list[str] = []
    for word in words[1:]:
        command = command.get_command(click.Context(command), word) if isinstance(command, click.Group) else None
        if command is None:
            break
        names.append(word)
    return names


@pytest.mark.parametrize("line", mentioned())
def test_a_mentioned_command_has_its_options(line: str) -> None:
    """The command exists, and its help, or the text of its Python file, has the options that the sentence names."""
    words = line.rpartition("&& ")[2].split()
    options = [word.partition("=")[0] for word in words if re.match(r"--?[a-z]", word)]
    if words[0] == "make":
        done = subprocess.run(["make", "-n", *words[1:]], cwd=ROOT, capture_output=True, check=False)
        assert done.returncode == 0, done.stderr
    elif words[0] == "python":
        stem = words[2].replace(".", "/") if words[1] == "-m" else words[1].removesuffix(".py")
        paths = (ROOT / f"{stem}.py", ROOT / stem / "__main__.py", TESTS / stem / "__main__.py")
        text = next(path for path in paths if path.exists()).read_text(encoding="utf-8")
        assert [option for option in options if option not in ("-m", *re.findall(r"--[\w-]+", text))] == []
    elif words[0] != "dl-gui":
        code, out, errors = call(COMMANDS[words[0]], [*subcommands(words), "--help"], b"")
        assert code == 0, errors
        assert [option for option in options if not re.search(rf"{option}\b", out.decode())] == []


@pytest.mark.skipif(sys.platform != "linux", reason="uses a shell")
@pytest.mark.parametrize("start", ["deplodock", "dl-opt"])
def test_a_command_of_the_readme_in_a_shell(start: str, tmp_path: Path) -> None:
    lines = [command.text for command in commands("README.md")]
    line = next(line for line in lines if line.startswith(start) and not line.startswith("dl-opt program.mlir"))
    path = f'PATH="{Path(sys.executable).parent}:$PATH"; '
    done = subprocess.run(["bash", "-c", path + line], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "error" not in done.stderr
    assert done.stdout.strip()


def test_passes_and_levels_named_in_the_documents_exist(capsys: pytest.CaptureFixture[str]) -> None:
    assert dl_opt.main(["--list-passes"]) == 0
    known = {line.split()[0] for line in capsys.readouterr().out.splitlines() if line[:1].isalpha()}
    folders = "passes|dialects|examples|frontend|backend|tools|target|benchmarks|tests|extras|docs"
    written = ("README.md", "CONTRIBUTING.md", "docs/architecture.md", "docs/commands.md", "docs/glossary.md")
    for page in (*(ROOT / name for name in written), *(ROOT / "docs" / "design").glob("*.md")):
        text = page.read_text(encoding="utf-8")
        named = [p for group in re.findall(PIPELINE, text) for p in re.split(r",(?![^{]*\})", group)]
        assert named or page.name not in ("README.md", "architecture.md")
        loaded = set(re.findall(r"--load [\w.]+ -p ([\w-]+)", text))  # passes of a file of the reader
        assert {re.sub(r"\{.*", "", name) for name in named} <= known | loaded
        paths = [*re.findall(rf"`((?:{folders})/[\w/.-]+)`", text), *re.findall(r"\]\((?!https?:)([^)#]+)", text)]
        for path in paths:
            assert (ROOT / path).exists() or (page.parent / path).exists(), f"{page.name}: {path}"


def test_the_walk_through_the_schedule_is_what_the_passes_do() -> None:
    written = (ROOT / "docs" / "schedules.md").read_text(encoding="utf-8")
    assert written == walkthrough.page(), "run `make docs`"


def test_the_levels_are_what_is_printed() -> None:
    written = (ROOT / "docs" / "levels.md").read_text(encoding="utf-8")
    assert written == levels.page(), "run `make docs`"
    lines = [*written.splitlines(), *"".join(levels.texts(levels.TENSOR_CORES).values()).splitlines()]
    assert [line for line in lines if len(line) > 120] == []


def test_the_diagram_of_passes_is_that_of_the_registry() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    assert pass_diagram.with_diagram(page) == page, "run `make docs`"
    drawn = pass_diagram.diagram()
    general = {"verify-level", "cse", "dce", "canonicalize"}
    run = {p.name for p in parse_passes("default")} - general
    assert {name for name in run if f"{name}<br/>" in drawn or f'{name}"]' in drawn} == run
    with pytest.raises(ValueError, match="0 flowcharts"):
        pass_diagram.with_diagram("a page")
