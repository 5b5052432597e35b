"""Judging of answers by a host process (`host.py`)."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

from .course import CourseError, Exercise
from .verdicts import Verdict


class Judges:
    """Connection to a host process, which judges one answer at a time.

    with Judges() as judges:
        verdict = judges.judge(exercise, path)
    """

    def __init__(self, command: Sequence[str] = (sys.executable, "-m", f"{__package__}.host")) -> None:
        """Sets the command that starts a host.

        Args:
            command: program and arguments.
        """
        self._command = command

    def __enter__(self) -> Judges:
        self._host: subprocess.Popen[str] | None = None
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._host is not None:
            self._host.terminate() if error else self._host.communicate()
            self._host.wait()

    def judge(self, exercise: Exercise, path: Path) -> Verdict:
        """Judges an answer. The first call starts the host.

        Args:
            exercise: the exercise.
            path: file of the answer.

        Raises:
            CourseError: the file cannot be read, or the host ended.
        """
        if not path.is_file():
            raise CourseError(f"expected an answer in {path}; `deplodock learn {exercise.number}` makes the file")
        if self._host is None:
            self._host = subprocess.Popen(
                self._command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, encoding="utf-8"
            )
        assert self._host.stdin is not None
        assert self._host.stdout is not None
        print(json.dumps({"exercise": exercise.number, "path": str(path.resolve())}), file=self._host.stdin, flush=True)
        if not (line := self._host.stdout.readline()):
            raise CourseError("the process that judges answers ended; the lines above have the reason")
        return Verdict(**json.loads(line))
