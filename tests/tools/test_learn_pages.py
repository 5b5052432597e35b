"""Runs the commands of the chapters in docs/learn, and compares their outputs with the shown ones.

`support/pages.py` documents the parts of a page.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from support.pages import faults, pages, steps

CHAPTERS = [page for page in pages() if page.startswith("docs/learn/") and steps(page)]


@pytest.mark.auto
@pytest.mark.parametrize("page", CHAPTERS)
def test_the_commands_of_a_chapter(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    result = faults(page, tmp_path)
    assert not result, "\n\n".join(result)
