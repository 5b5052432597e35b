"""A file that repeats a crash: the IR in front of the pass that failed, and the passes that were still to run."""

from __future__ import annotations

from collections.abc import Sequence
from io import StringIO
from pathlib import Path

from xdsl.dialects.builtin import ModuleOp
from xdsl.passes import ModulePass
from xdsl.printer import Printer

from ..passes.pipelines import pipeline_text
from ..passes.running import Observer


class Recorder(Observer):
    """Keeps what is needed to write a reproducer for whichever pass fails."""

    def __init__(self, passes: Sequence[ModulePass]) -> None:
        self._remaining = list(passes)
        self._module: ModuleOp | None = None

    @property
    def current(self) -> str:
        """The name of the pass that is running; empty in between."""
        return self._remaining[0].name if self._module is not None else ""

    def before(self, module_pass: ModulePass, module: ModuleOp) -> None:
        self._module = module.clone()

    def after(self, module_pass: ModulePass, module: ModuleOp) -> None:
        self._module = None
        del self._remaining[0]

    def write(self, path: Path) -> None:
        """Write the reproducer to `path`; the first line says how to run it. Raises OSError."""
        assert self._module is not None
        text = StringIO()
        Printer(stream=text, print_debuginfo=True, print_generic_format=True).print_op(self._module)
        path.write_text(
            f"// RUN: dl-opt %s -p '{pipeline_text(self._remaining)}'\n{text.getvalue()}\n", encoding="utf-8"
        )
