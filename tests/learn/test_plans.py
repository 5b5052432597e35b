"""The program of chapter 4 that the judge uses is the one that the page prints."""

from __future__ import annotations

import re

from support import ROOT

from deplodock.dialects.support.printing import print_module
from deplodock.extras.learn.chapters.c04_fusion.programs import normalised_matmul


def test_the_page_prints_the_program_of_the_judge() -> None:
    page = (ROOT / "docs/learn/04_fusion.md").read_text(encoding="utf-8")
    shown = re.findall(r"^ +(%\d+ = .*tensor<.*>) \.\.\.$", page, re.M)
    printed = re.findall(r"^ +(%\d+ = .*)$", print_module(normalised_matmul(64, 256, 512)), re.M)
    assert len(shown) >= 24
    assert shown[:24] == printed
