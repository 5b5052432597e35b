"""Section "Levels": the Python source, the program at each level, and its C++ or CUDA, side by side."""

from __future__ import annotations

from .html import element, highlighted, joined
from .program import ReportedProgram
from .sections import Section

KINDS = {"cuda": "cpp", "cpp": "cpp"}


def section(program: ReportedProgram) -> Section:
    """Returns the section."""
    panes = [
        element("div", element("h3", level), element("pre", joined(highlighted(text, KINDS.get(level, "mlir")), "\n")))
        for level, text in program.texts.items()
    ]
    return Section("levels", "Levels", joined(panes))
