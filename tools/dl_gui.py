"""dl-gui: xDSL's terminal interface with our dialects and passes."""

from __future__ import annotations

import sys


def main() -> int:
    """The entry point of the `dl-gui` command: `dl-gui [FILE]`."""
    try:
        from xdsl.interactive.app import InputApp
    except ModuleNotFoundError as error:
        print(f"dl-gui: error: {error}; install deplodock[gui]", file=sys.stderr)
        return 1
    from ..dialects import get_all_dialects
    from ..passes import get_all_passes

    file = sys.argv[1] if len(sys.argv) > 1 else None
    text = None
    if file is not None:
        try:
            with open(file, encoding="utf-8") as stream:
                text = stream.read()
        except OSError as error:
            print(f"dl-gui: error: {file}: {error.strerror}", file=sys.stderr)
            return 1
    passes = tuple((name, factory()) for name, factory in get_all_passes().items())
    InputApp(tuple(get_all_dialects().items()), passes, file, text).run()
    return 0
