"""The answer of a reader: a file, read as a program in IR, as Python or as plain text."""

from __future__ import annotations

import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from xdsl.dialects.builtin import ModuleOp
from xdsl.utils.exceptions import VerifyException

from ...dialects import make_context
from ...dialects.support.calls import main_function
from ...dialects.support.parsing import parse_module
from ...errors import DeplodockError
from ...passes.pass_manager import verify_module
from .verdicts import Wrong

HOLE = "..."
"""Text that marks a hole in comments and files of plain text."""


@dataclass(frozen=True)
class Answer:
    """A file of the reader.

    Attributes:
        path: path of the file.
    """

    path: Path

    @property
    def text(self) -> str:
        """The text of the file."""
        return self.path.read_text(encoding="utf-8")

    def program(self) -> ModuleOp:
        """Parses and verifies the file as IR with a function `@main`.

        Raises:
            Wrong: the file is no valid program. The message has the line and the reason.
        """
        try:
            module = parse_module(make_context(), self.text, self.path.name)
            verify_module(module)
            main_function(module)
        except (DeplodockError, VerifyException) as error:
            raise Wrong(f"the program is not valid: {error}") from None
        return module

    def namespace(self) -> dict[str, Any]:
        """Executes the file as Python and returns its global names.

        Raises:
            Wrong: the file is no valid Python. Exceptions of the code itself are not caught.
        """
        try:
            code = compile(self.text, str(self.path), "exec")
        except SyntaxError as error:
            raise Wrong(f"line {error.lineno}: {error.msg}") from None
        names: dict[str, Any] = {"__name__": "answer", "__file__": str(self.path)}
        exec(code, names)
        return names

    def value(self, names: dict[str, Any], name: str) -> Any:
        """Returns a name that the file must define.

        Args:
            names: the global names of the file (`namespace`).
            name: the name.

        Raises:
            Wrong: the file does not define the name, or its value is `...`, the hole.
        """
        if name not in names:
            raise Wrong(f"expected the file to define {name}, but it does not")
        if names[name] is ...:
            raise Wrong(f"{name} is still a hole (...): replace it")
        return names[name]

    def line_of(self, error: BaseException) -> int | None:
        """Returns the innermost line of the file that an exception passed through, or None."""
        frames = [f for f in traceback.extract_tb(error.__traceback__) if f.filename == str(self.path)]
        return frames[-1].lineno if frames else None
