"""A process that works for this one and can be killed: what it runs may hang, or fault, and nothing else is lost.

    python -m deplodock.frontend.tuning.worker FD

A worker makes one object and calls its methods, one at a time; objects, arguments and results go through a pipe.
"""

from __future__ import annotations

import ctypes
import gc
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import Any

from ...errors import DeplodockError, raised_at

PR_SET_PDEATHSIG = 1
"""Argument of prctl(2): the signal that a process gets at the end of the one that started it."""


class WorkerFailed(DeplodockError):
    """What was asked of a worker has no result: it raised, it ended, or it was killed at its limit."""


class Worker:
    """A process with an object that `make(*arguments)` gives there; `threads` are those of OpenMP, if they are said."""

    def __init__(self, make: Callable[..., Any], *arguments: Any, threads: int | None = None) -> None:
        self._made = make, arguments
        self._threads = threads
        self._process: subprocess.Popen[bytes] | None = None
        self._pipe: Connection | None = None

    def start(self) -> None:
        """Start the process, if it does not run. It does not wait for it."""
        if self._process is not None:
            return
        self._pipe, theirs = Pipe()
        path = os.pathsep.join(p or os.getcwd() for p in sys.path)
        environment = {**os.environ, "PYTHONPATH": path}
        if self._threads is not None:
            environment["OMP_NUM_THREADS"] = str(self._threads)
        command = [sys.executable, "-m", __name__, str(theirs.fileno())]
        with theirs:  # a group of its own: an interrupt at the terminal is for us, who end it
            self._process = subprocess.Popen(
                command, pass_fds=[theirs.fileno()], env=environment, stdin=subprocess.DEVNULL, process_group=0
            )
        self._pipe.send(self._made)

    def ask(self, method: str, *arguments: Any) -> None:
        """Have a method called; `answer` gets the result."""
        self.start()
        assert self._pipe is not None
        try:
            self._pipe.send((method, arguments))
        except OSError:  # it has ended: `answer` will say so
            pass

    def answer(self, limit: float) -> Any:
        """The result of what was asked. Raises WorkerFailed where there is none in `limit` seconds, and kills the
        process; the next thing asked starts another one."""
        assert self._pipe is not None
        try:
            if not self._pipe.poll(limit):
                self.kill()
                raise WorkerFailed(f"killed: it did not end within {limit:.3g} s")
            kind, found = self._pipe.recv()
        except (EOFError, OSError):
            raise WorkerFailed(f"killed: {self._end()}") from None
        if kind == "error":
            raise WorkerFailed(found)
        return found

    def call(self, method: str, *arguments: Any, limit: float) -> Any:
        """`ask` and `answer`."""
        self.ask(method, *arguments)
        return self.answer(limit)

    @property
    def pipe(self) -> Connection | None:
        """What becomes readable when there is an answer."""
        return self._pipe

    def _end(self) -> str:
        """How the process ended, which is over."""
        assert self._process is not None
        try:
            code = self._process.wait(5)
        except subprocess.TimeoutExpired:
            code = 0
        self.kill()
        return signal.Signals(-code).name if code < 0 else f"it ended with {code}"

    def kill(self) -> None:
        """End the process and all that it has started."""
        if self._process is not None:
            try:
                os.killpg(self._process.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
            self._process.wait()
            self._process = None
        if self._pipe is not None:
            self._pipe.close()
            self._pipe = None


def _serve(pipe: Connection) -> None:
    """Do what is asked, until nobody is there who asks."""
    made: Any = None
    if sys.platform == "linux":  # A candidate that hangs would otherwise go on when this process's parent is killed.
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    gc.freeze()
    gc.set_threshold(100_000, 50, 100)  # modules are many small objects, and none of ours has to be looked at
    while True:
        try:
            what, arguments = pipe.recv()
        except (EOFError, OSError):
            return
        if callable(what):
            made = what(*arguments)
            continue
        try:
            answer = "done", getattr(made, what)(*arguments)
        except DeplodockError as error:
            answer = "error", str(error)
        except Exception as error:
            answer = "error", f"{type(error).__name__}: {' '.join(str(error).split())[:300]} at {raised_at(error)}"
        try:
            pipe.send(answer)
        except OSError:
            return


if __name__ == "__main__":
    _serve(Connection(int(sys.argv[1])))
