"""A file that repeats a crash: the IR in front of the pass that failed, and the passes that were still to run."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from io import StringIO
from pathlib import Path

from xdsl.dialects.builtin import ModuleOp
from xdsl.passes import ModulePass
from xdsl.printer import Printer

from ..errors import CompileError
from ..passes.pass_manager import Observer
from ..passes.pipelines import pipeline_text

_HEAD = "// dl-opt --run-reproducer, passes: "
"""How the first line begins; no `RUN:` line, which a test runner would collect."""


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

    def write(self, path: Path | None = None) -> Path:
        """Write the reproducer to `path`, or to a new file among the temporary ones; the first line has the passes.
        Returns where it is. Raises OSError."""
        assert self._module is not None
        text = StringIO()
        Printer(stream=text, print_debuginfo=True, print_generic_format=True).print_op(self._module)
        if path is None:
            handle, name = tempfile.mkstemp(".mlir", f"deplodock-{self.current}-")
            os.close(handle)
            path = Path(name)
        path.write_text(f"{_HEAD}{pipeline_text(self._remaining)}\n{text.getvalue()}\n", encoding="utf-8")
        return path


def passes_of(text: str, name: str) -> str:
    """The passes that the reproducer `text` is to be given. Raises CompileError for any other text."""
    first, _, _ = text.partition("\n")
    if not first.startswith(_HEAD):
        raise CompileError(f"is no reproducer: the first line does not begin with {_HEAD.strip()!r}", location=name)
    return first.removeprefix(_HEAD).strip()
