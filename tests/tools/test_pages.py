"""Runs the commands of every page except those of docs/learn, and compares their outputs with the shown ones.

`support/pages.py` documents the parts of a page, and lists the commands that are not run.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from support.pages import NOT_RUN, Command, commands, difference, faults, missing_line, pages, steps

PAGES = [page for page in pages() if not page.startswith("docs/learn/") and steps(page)]


@pytest.mark.auto
@pytest.mark.parametrize("page", PAGES)
def test_the_commands_of_a_page(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    result = faults(page, tmp_path)
    assert not result, "\n\n".join(result)


@pytest.mark.parametrize(("page", "least"), [("README.md", 7), ("docs/commands.md", 30), ("docs/levels.md", 2)])
def test_there_are_commands(page: str, least: int) -> None:
    assert sum(command.reason is None for command in commands(page)) >= least


@pytest.mark.parametrize("pattern", NOT_RUN)
def test_commands_that_are_not_run_are_those_of_a_page(pattern: str) -> None:
    texts = [command.text for page in pages() for command in commands(page)]
    assert [text for text in texts if re.match(pattern, text)]


def test_languages_of_blocks_with_commands() -> None:
    """`bash` or `shell` in place of `sh` would not be run."""
    from support.pages import ROOT, blocks

    for page in pages():
        languages = {block.language for block in blocks((ROOT / page).read_text(encoding="utf-8"))}
        assert not languages & {"bash", "shell", "shell-session", "zsh"}, page


OUTPUT = "executor: cpu, 1 kernel\nresult 0: error 2.31e-07  ok\neager: 21.4 us\ndeplodock: 4.07 us\n"


@pytest.mark.parametrize(
    "shown",
    [
        OUTPUT,
        f"deplodock: loading PyTorch: 12 s so far\n{OUTPUT}",
        OUTPUT.replace("21.4", "3,021").replace("2.31e-07", "1e-9"),
        "executor: cpu, 1 kernel\n...\ndeplodock: 4.07 us\n",
        "...\n",
        "executor: cpu, ...\nresult 0: error 2.31e-07 ok\neager: 21.4 us\ndeplodock: 4 ms\n...\n",
    ],
)
def test_equal_outputs(shown: str) -> None:
    assert difference(shown, OUTPUT) == ""


@pytest.mark.parametrize(
    "shown",
    [
        "",
        OUTPUT.replace("1 kernel", "2 kernels"),
        OUTPUT.replace("eager: 21.4 us\n", ""),
        "...\nexecutor: cpu, 1 kernel\n",
        "executor: cpu, 1 kernel\n...\ndeplodock: 4.07 us\n...\neager: 21.4 us\n",
        OUTPUT.replace("  ok", "  wrong"),
    ],
)
def test_other_outputs(shown: str) -> None:
    assert "---" in difference(shown, OUTPUT)


def test_an_excerpt_has_lines_in_their_order() -> None:
    assert missing_line("eager: 9 us\n  deplodock: 1 us\n", OUTPUT) == ""
    assert missing_line("deplodock: 9 us\neager: 1 us\n", OUTPUT) == "eager: TIME"


PAGE = """# A page

```python
# double.py
import sys
print(int(sys.argv[1]) * 2)
```

```console
$ python double.py 4
8
$ python double.py \\
    5
10
$ python double.py x  # fails
...
ValueError: invalid literal for int() with base 10: 'x'
$ dl-opt --list-passes | grep ^cse  # a pass
cse ...
```

```sh
python double.py 6 > doubled.txt
cat doubled.txt
```

```text
12
```
"""

FAULTS = {
    "8\n$": ("9\n$", "page.md:10: python double.py 4\n", "-9\n+8"),
    "    5\n": ("    x\n", "page.md:12: python double.py x\n", "exit code 1, but the page says that it succeeds"),
    "double.py x  # fails": ("double.py 7  # fails", "page.md:15:", "exit code 0, but the page says that it fails"),
    "\n12\n": ("\n13\n", "page.md:23: cat doubled.txt\n", "-13\n+12"),
    "doubled.txt\n```": ("nothing.txt\n```", "page.md:23: cat nothing.txt\n", "No such file"),
}
"""Text of the page -> its replacement, and two parts of the message."""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Returns the current folder, whose pages are those of the repository."""
    monkeypatch.setattr("support.pages.ROOT", tmp_path)
    (tmp_path / "reader").mkdir()
    monkeypatch.chdir(tmp_path / "reader")
    return tmp_path


def test_a_page(folder: Path) -> None:
    (folder / "page.md").write_text(PAGE)
    assert len(steps("page.md")) == 7
    assert commands("page.md")[1] == Command("page.md", 12, "python double.py 5", "10\n")
    assert faults("page.md", folder / "reader") == []


@pytest.mark.parametrize("text", FAULTS)
def test_a_page_with_a_fault(text: str, folder: Path) -> None:
    other, place, message = FAULTS[text]
    (folder / "page.md").write_text(PAGE.replace(text, other, 1))
    (fault,) = faults("page.md", folder / "reader")
    assert fault.startswith(place)
    assert message in fault
