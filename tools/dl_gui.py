"""dl-gui: xDSL's terminal interface with our dialects and passes."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from .. import __version__
from ..errors import CompileError

ABOUT = """
An interface in the terminal: IR on the left, on the right what the passes that
were chosen make of it.

It is xDSL's own, with our dialects, pipelines and passes by level. The right
side has four views (keys 1 to 4): the IR, the passes with their marks and
remarks, the diff of the chosen pass, and the CUDA or C++ of a program at the
kernel level. The key c executes the program after each pass and shows a verdict
for each (`dl-opt --check-each`).
"""


def main(argv: Sequence[str] | None = None) -> int:
    """The entry point of the `dl-gui` command: `dl-gui [FILE]`. Returns the exit code."""
    parser = argparse.ArgumentParser("dl-gui", description=ABOUT, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", nargs="?", help="the IR to begin with; a small example if left out")
    parser.add_argument("--version", action="version", version=f"dl-gui of deplodock {__version__}")
    parser.add_argument("-p", "--passes", default="", help="the passes to begin with, as for dl-opt")
    arguments = parser.parse_args(argv)
    file: str | None = arguments.file
    try:
        text = None if file is None else Path(file).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
        print(f"dl-gui: error: {file}: {reason}", file=sys.stderr)
        return 1
    try:
        from .gui import PassExplorer
    except ModuleNotFoundError as error:
        print(f"dl-gui: error: {error}; pip install 'deplodock[gui]'", file=sys.stderr)
        return 1
    try:
        PassExplorer(file, text, arguments.passes).run()
    except CompileError as error:
        print(f"dl-gui: error: {error}", file=sys.stderr)
        return 1
    return 0
