"""Process that judges answers: reads requests from stdin and writes a verdict for each to stdout, one JSON a line.

The host imports the judges and the modules that they need. For each request it forks, so that a judge starts with
everything imported. The child limits itself (`confinement.py`), runs the judge on a copy of the answer in a folder of
its own, and writes its verdict to a pipe. The host ends the child, and all processes that it left, after the verdict or
at the end of the time.

A request is `{"exercise": "3.1", "path": "..."}`. The host runs as `python -m deplodock.extras.learn.host`.
"""

from __future__ import annotations

import ctypes
import faulthandler
import json
import os
import select
import shutil
import signal
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import NoReturn

from ...errors import DeplodockError
from .answers import Answer
from .confinement import confine
from .course import Exercise, exercises
from .verdicts import Verdict, Wrong

WALL_SECONDS_PER_SECOND = 4
"""Wall seconds of an answer for each processor second that it may take. An answer that sleeps ends by this limit, and
one that runs on a busy machine does not. Set by hand."""

MAX_VERDICT = 1 << 20
"""Bytes of a verdict that the host reads."""

OUTPUT_LINES = 20
"""Last lines of the output of an answer that a verdict contains."""

_BECOME_SUBREAPER = 36


def serve(find: Callable[[str], Exercise] = lambda number: exercises(number)[0]) -> None:
    """Answers requests until stdin ends.

    Args:
        find: returns the exercise of a number.
    """
    ctypes.CDLL(None).prctl(_BECOME_SUBREAPER, 1, 0, 0, 0)  # Orphans of a child become children of this process.
    verdicts = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    for line in sys.stdin:
        request = json.loads(line)
        verdict = judge(find(request["exercise"]), Path(request["path"]))
        print(json.dumps(verdict.as_json()), file=verdicts, flush=True)


def judge(exercise: Exercise, path: Path) -> Verdict:
    """Judges an answer in a process of its own.

    Args:
        exercise: the exercise.
        path: file of the answer. The judge gets a copy.
    """
    for module in exercise.modules:
        import_module(module)
    folder = Path(tempfile.mkdtemp(prefix="deplodock-learn-"))
    try:
        copy = folder / exercise.file
        shutil.copyfile(path, copy)
        start = time.monotonic()
        verdict = _in_child(exercise, copy)
        output = (folder / "output.txt").read_text(encoding="utf-8", errors="replace").splitlines()
        return replace(verdict, seconds=time.monotonic() - start, output="\n".join(output[-OUTPUT_LINES:]))
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _in_child(exercise: Exercise, path: Path) -> Verdict:
    """Forks, judges in the child, and returns its verdict, or one about the way in which the child ended."""
    (path.parent / "output.txt").touch()
    source, sink = os.pipe()
    sys.stdout.flush()
    if (child := os.fork()) == 0:
        os.close(source)
        _judge_and_end(exercise, path, sink)
    os.close(sink)
    ended = os.pidfd_open(child)
    text = b""
    end = time.monotonic() + exercise.seconds * WALL_SECONDS_PER_SECOND
    while not text.endswith(b"\n") and len(text) < MAX_VERDICT and (remaining := end - time.monotonic()) > 0:
        readable = select.select([source, ended], [], [], remaining)[0]
        if source in readable and (part := os.read(source, 1 << 16)):
            text += part
        elif readable:
            break
    os.close(ended)
    in_time = time.monotonic() < end
    os.close(source)
    status = _end_all(child, grace=0.2 if text else 0.0)
    try:
        solved, sentence = json.loads(text)
        return Verdict(exercise.number, solved is True, str(sentence))
    except ValueError:
        return Verdict(exercise.number, False, _end_text(exercise, status, in_time))


def _end_text(exercise: Exercise, status: int, in_time: bool) -> str:
    """Returns a sentence about a child that ended without a verdict."""
    limit = f"the answer takes more than {exercise.seconds} s: look for a loop that does not end"
    if not in_time:
        return limit
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        if number in (signal.SIGXCPU, signal.SIGKILL):
            return limit
        return f"the process of the answer ended by {signal.Signals(number).name}"
    return "the answer ended its process before it was judged: remove the call that exits"


def _end_all(child: int, grace: float) -> int:
    """Ends the child and all other descendants of this process. Returns the status of the child."""
    end, status = time.monotonic() + grace, None
    while status is None and time.monotonic() < end:
        done, reaped = os.waitpid(child, os.WNOHANG)
        if done:
            status = reaped
        else:
            time.sleep(0.005)
    while descendants := _children():
        for pid in descendants:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        for pid in descendants:
            reaped = os.waitpid(pid, 0)[1]
            status = reaped if pid == child and status is None else status
    return status or 0


def _children() -> list[int]:
    """Returns the numbers of the child processes of this process."""
    return [int(pid) for pid in Path(f"/proc/self/task/{os.getpid()}/children").read_text(encoding="ascii").split()]


def _judge_and_end(exercise: Exercise, path: Path, sink: int) -> NoReturn:
    """Judges an answer in this process, writes whether it is solved and a sentence to `sink`, and ends the process."""
    answer = Answer(path)
    solved, sentence = False, ""
    try:
        os.setsid()
        output = os.open(path.parent / "output.txt", os.O_WRONLY | os.O_APPEND)
        nothing = os.open(os.devnull, os.O_RDONLY)
        for stream, descriptor in ((0, nothing), (1, output), (2, output)):
            os.dup2(descriptor, stream)
        sys.stdout, sys.stderr = (open(n, "w", encoding="utf-8", closefd=False) for n in (1, 2))
        faulthandler.disable()
        os.chdir(path.parent)
        os.environ |= {name: str(path.parent) for name in ("HOME", "TMPDIR", "XDG_CACHE_HOME")}
        tempfile.tempdir = None
        if "torch" in sys.modules:
            import_module("torch").set_num_threads(1)
        confine(path.parent, exercise.seconds, exercise.memory)
        solved, sentence = True, exercise.judge(answer)
    except Wrong as wrong:
        sentence = str(wrong)
    except MemoryError:
        sentence = f"the answer needs more than {exercise.memory >> 20} MB of memory"
    except BaseException as error:
        sentence = _error_text(answer, error)
    try:
        sys.stdout.flush()
        sys.stderr.flush()
        os.write(sink, json.dumps([solved, sentence]).encode() + b"\n")
    finally:
        os._exit(0)


def _error_text(answer: Answer, error: BaseException) -> str:
    """Returns a sentence about an exception that an answer raised, with its line of the answer if there is one."""
    line = answer.line_of(error)
    place = "" if line is None else f"line {line}: "
    if isinstance(error, SystemExit):
        return f"{place}the answer ends its process: remove the call that exits"
    kind = "" if isinstance(error, DeplodockError | PermissionError) else f"{type(error).__name__}: "
    return f"{place}{kind}{error}"


if __name__ == "__main__":
    serve()
