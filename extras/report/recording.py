"""Records the passes of a compilation for the page."""

from __future__ import annotations

from ...errors import CompileError
from ...frontend.compilation import Compilation
from ...tools.recording import Recording


def record(compilation: Compilation, check_each: bool) -> tuple[Compilation, Recording, CompileError | None]:
    """Compiles a program again, to the text, and records its passes.

    Args:
        compilation: the program, with any options.
        check_each: whether to execute the program after every pass.

    Returns:
        the new compilation, the recording, and the error that ended it, or None.
    """
    recording = Recording(check_each)
    fresh = compilation.of(compilation.module, [recording])
    try:
        for level in fresh.levels:
            recording.level = level
            fresh.text(level)
    except CompileError as error:
        recording.fail(error)
        return fresh, recording, error
    return fresh, recording, None
