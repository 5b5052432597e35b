"""The program in a cell of a notebook, as a kind of FILE of the commands."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from ....tools.modes import Source

if TYPE_CHECKING:
    from ....tools.evaluate import Program

_CELLS: dict[str, tuple[str, Mapping[str, Any]]] = {}
"""Name of a cell that runs -> its code, and the names of the notebook."""

_IR = re.compile(r"(?:\s|//[^\n]*\n)*(?:builtin\.module|(?:func|tile|kernel)\.\w+|[#!]\w+ *=)")
"""Start of a text of IR."""


class CellSource(Source):
    """The Python code in a cell that `%%deplodock` runs."""

    metavar = "CELL"

    def matches(self, file: str) -> bool:
        return file in _CELLS

    def program(self, file: str) -> Program:
        """Returns the program in a cell. The names of the notebook are in scope."""
        from ....tools.evaluate import evaluate

        code, names = _CELLS[file]
        return evaluate(code, file, names)


def number_of_cell(shell: Any) -> int:
    """Returns the number of the cell that runs, as IPython shows it: 3 for `In[3]`."""
    frame = inspect.currentframe()
    while frame is not None:
        label = shell.compile.format_code_name(frame.f_code.co_filename)
        if label is not None and (match := re.search(r"\d+", label[1])) is not None:
            return int(match[0])
        frame = frame.f_back
    return shell.execution_count


@contextmanager
def cell_as_file(cell: str, shell: Any) -> Iterator[str]:
    """Makes the text of a cell a FILE of the commands, and yields its name. The file starts at the line of the magic.

    Args:
        cell: the text below the magic: Python, or IR.
        shell: the shell of IPython.
    """
    text, number = f"\n{cell}", number_of_cell(shell)
    name: str = shell.compile.cache(text, number, raw_code=text)
    if _IR.match(cell) is not None:
        with TemporaryDirectory(prefix="deplodock-") as folder:
            path = Path(folder) / f"cell_{number}.mlir"
            path.write_text(text, encoding="utf-8")
            yield str(path)
        return
    _CELLS[name] = text, {n: v for n, v in shell.user_ns.items() if not n.startswith("_")}
    try:
        yield name
    finally:
        del _CELLS[name]
