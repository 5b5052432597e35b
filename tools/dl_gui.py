"""dl-gui: xDSL's terminal interface with our dialects and passes."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from .. import __version__

ABOUT = """
An interface in the terminal: IR on the left, on the right what the passes that
were chosen make of it.

It is xDSL's own, with our dialects and passes. It holds IR on both sides, so it
shows neither diffs nor CUDA, and executes nothing.
`dl-opt FILE -p PASSES` does, with
--print-only-changed, -t cuda and --check-each.
"""


def main(argv: Sequence[str] | None = None) -> int:
    """The entry point of the `dl-gui` command: `dl-gui [FILE]`. Returns the exit code."""
    parser = argparse.ArgumentParser("dl-gui", description=ABOUT, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", nargs="?", help="the IR to begin with; a small example if left out")
    parser.add_argument("--version", action="version", version=f"dl-gui of deplodock {__version__}")
    file: str | None = parser.parse_args(argv).file
    try:
        text = None if file is None else Path(file).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
        print(f"dl-gui: error: {file}: {reason}", file=sys.stderr)
        return 1
    try:
        from xdsl.interactive.app import InputApp
    except ModuleNotFoundError as error:
        print(f"dl-gui: error: {error}; pip install 'deplodock[gui]'", file=sys.stderr)
        return 1
    from ..dialects import get_all_dialects
    from ..passes.pipelines import get_all_passes

    passes = tuple((name, factory()) for name, factory in get_all_passes().items())
    InputApp(tuple(get_all_dialects().items()), passes, file, text).run()
    return 0
