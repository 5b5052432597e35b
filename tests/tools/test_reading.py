"""`docs/reading.md` names the files and functions that a compilation enters, in their order."""

from __future__ import annotations

import difflib
import re
import subprocess
import sys
from pathlib import Path

import deplodock

ROOT = Path(deplodock.__file__).parent
COMMAND = ["benchmarks/compiler_path.py", "--strategy", "simple", "--page", "relu"]


def test_the_page_follows_the_compiler() -> None:
    made = subprocess.run([sys.executable, *COMMAND], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    page = (ROOT / "docs" / "reading.md").read_text(encoding="utf-8")
    changes = [*difflib.unified_diff(names(page), names(made), "docs/reading.md", "the compiler", lineterm="", n=0)]
    assert not changes, "\n".join([f"run python {' '.join(COMMAND)} > docs/reading.md:", *changes])


def names(page: str) -> list[str]:
    """Returns the files and functions of a page, which are in bold type and in code, without numbers of lines."""
    found = re.findall(r"\*\*\[([^\]]+)\]|^> (.*)", page, re.M)
    assert len(found) > 100
    return [name for file, line in found for name in ([file] if file else re.findall(r"`(\w+)`", line))]
