"""The commands in all documents work, and the README shows the output of its commands.

Installation commands are excluded; `.ci/run` runs them.
"""

from __future__ import annotations

import re
import shlex
import string
import subprocess
import sys
from pathlib import Path

import levels
import pass_diagram
import pytest
import walkthrough
from support import ROOT, TESTS
from support.dl_lit import COMMANDS, call

from deplodock.passes.pipelines import parse_passes
from deplodock.tools import dl_opt

PIPELINE = r"dl-opt [^\n`]*?-p '?((?:[\w,-]|\{[^}]*\})+)"
"""What follows `-p`, with its options."""

RMSNORM = "nn.RMSNorm(64)(torch.randn(1, 3, 64))"


def commands(file: str) -> list[str]:
    """Returns the lines of the `sh` blocks of a document, without comments and the installation before a command."""
    blocks = re.findall(r"^```sh\n(.*?)^```", (ROOT / file).read_text(encoding="utf-8"), re.M | re.S)
    lines = [
        re.sub(r"\s+#.*", "", line).strip() for block in blocks for line in block.replace("\\\n", " ").splitlines()
    ]
    lines = [re.sub(r"^pip install .*?&& ", "", line) for line in lines]
    return [line for line in lines if re.match(r"(dl-opt|deplodock) ", line)]


def shortened(line: str) -> str:
    """Returns the line with searches limited to two trials."""
    return re.sub(r"--budget \w+", r"\g<0> --trials 2", line)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns the folder in which the commands run in order. Some read files that earlier ones wrote."""
    return tmp_path_factory.mktemp("docs")


PAGES = ("README.md", "docs/commands.md", "docs/schedules.md", "docs/levels.md")
"""Pages whose blocks of commands are run. Both blocks of levels.md are run at one level; another test compares all."""

LINES = [line.replace("LEVEL", "tile") for page in PAGES for line in commands(page)]


@pytest.mark.parametrize(("page", "least"), [("README.md", 7), ("docs/commands.md", 7), ("docs/levels.md", 2)])
def test_there_are_commands(page: str, least: int) -> None:
    assert len(commands(page)) >= least


EVERY_PAGE = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").rglob("*.md")])
MENTIONED = re.compile(r"`((?:cd tests && )?(?:deplodock|dl-opt|dl-gui|python|make) [^`]*)`")


def mentioned() -> list[str]:
    """Returns the commands in the sentences and tables of all pages, outside of blocks."""
    texts = (re.sub(r"^```.*?^```", "", path.read_text(encoding="utf-8"), flags=re.M | re.S) for path in EVERY_PAGE)
    return [*dict.fromkeys(command for text in texts for command in MENTIONED.findall(text))]


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
        subcommand = [w for w in words[1:2] if w[0] in string.ascii_lowercase and words[0] == "deplodock"]
        code, out, errors = call(COMMANDS[words[0]], [*subcommand, "--help"], b"")
        assert code == 0, errors
        assert [option for option in options if not re.search(rf"{option}\b", out.decode())] == []


@pytest.mark.auto
@pytest.mark.parametrize("line", [*dict.fromkeys(LINES)])
def test_command_of_a_page(line: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs a line in this process, after the lines above it, which may have written the files that it reads."""
    monkeypatch.chdir(folder)
    out = b""
    for command in re.split(r" (?=&& |\| )", shortened(line)):
        words = shlex.split(command)
        given, words = (out, words[1:]) if words[0] == "|" else (b"", words[words[0] == "&&" :])
        code, out, errors = call(COMMANDS[words[0]], words[1:], given)
        assert code == 0, errors
        assert b"error" not in errors
    assert out.strip() or (folder / line.rpartition("-o ")[2]).read_bytes()


README = (ROOT / "README.md").read_text(encoding="utf-8")
SHOWN = re.findall(r"^```console\n\$ ([^\n]*)\n(.*?)^```", README, re.M | re.S)


@pytest.mark.parametrize(("command", "shown"), SHOWN, ids=["loop IR", "CUDA"])
def test_the_readme_shows_lines_of_the_output_in_their_order(command: str, shown: str) -> None:
    words = shlex.split(command)
    code, out, errors = call(COMMANDS[words[0]], words[1:], b"")
    assert code == 0, errors
    printed = iter(plain_lines(out.decode()))
    for line in plain_lines(shown):
        assert line in printed, f"the output has no line {line!r} after the lines above it"


def plain_lines(text: str) -> list[str]:
    """Returns the lines of IR or CUDA without indentation, locations and attributes of alignment."""
    return [re.sub(r" loc\(#?\w+\)$|__align__\(\d+\) ", "", line).strip() for line in text.splitlines()]


@pytest.mark.skipif(sys.platform != "linux", reason="uses a shell")
@pytest.mark.parametrize("start", ["deplodock", "dl-opt"])
def test_a_command_of_the_readme_in_a_shell(start: str, folder: Path) -> None:
    line = next(line for line in commands("README.md") if line.startswith(start))
    path = f'PATH="{Path(sys.executable).parent}:$PATH"; '
    done = subprocess.run(["bash", "-c", path + line], cwd=folder, capture_output=True, text=True, check=False)
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
        assert {re.sub(r"\{.*", "", name) for name in named} <= known
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
