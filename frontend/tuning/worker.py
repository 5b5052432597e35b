"""Worker process that can be killed, for code that may hang or fault.

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
"""Argument of prctl(2): sets the signal that a process receives when its parent ends."""


class WorkerFailed(DeplodockError):
    """Raised for a request without a result: the worker raised an exception, ended, or was killed at the limit."""


class Worker:
    """Process that holds one object and calls its methods.

    Args:
        make: function that makes the object in the process.
        arguments: its arguments.
        threads: number of OpenMP threads, or None.

    Attributes:
        pipe: connection that is readable if there is an answer; None while no process runs.
    """

    def __init__(self, make: Callable[..., Any], *arguments: Any, threads: int | None = None) -> None:
        self._made = make, arguments
        self._threads = threads
        self._process: subprocess.Popen[bytes] | None = None
        self.pipe: Connection | None = None

    def start(self) -> None:
        """Starts the process if it does not run, without waiting for it."""
        if self._process is not None:
            return
        self.pipe, theirs = Pipe()
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(p or os.getcwd() for p in sys.path)}
        if self._threads is not None:
            environment["OMP_NUM_THREADS"] = str(self._threads)
        command = [sys.executable, "-m", __name__, str(theirs.fileno())]
        with theirs:  # The process group excludes the worker from an interrupt at the terminal; this process ends it.
            self._process = subprocess.Popen(
                command, pass_fds=[theirs.fileno()], env=environment, stdin=subprocess.DEVNULL, process_group=0
            )
        self.pipe.send(self._made)

    def ask(self, method: str, *arguments: Any) -> None:
        """Requests a call of a method; `answer` returns the result."""
        self.start()
        assert self.pipe is not None
        try:
            self.pipe.send((method, arguments))
        except OSError:  # The process has ended, and `answer` raises WorkerFailed.
            pass

    def answer(self, limit: float) -> Any:
        """Returns the result of the last request. The next request starts a new process if this one was killed.

        Raises:
            WorkerFailed: if there is no result. The process is killed after `limit` seconds.
        """
        assert self.pipe is not None
        try:
            if not self.pipe.poll(limit):
                self.kill()
                raise WorkerFailed(f"killed: it did not end within {limit:.3g} s")
            kind, result = self.pipe.recv()
        except (EOFError, OSError):
            raise WorkerFailed(f"killed: {self._end()}") from None
        if kind == "error":
            raise WorkerFailed(result)
        return result

    def call(self, method: str, *arguments: Any, limit: float) -> Any:
        """Requests a call of a method and returns its result. Raises WorkerFailed as `answer`."""
        self.ask(method, *arguments)
        return self.answer(limit)

    def _end(self) -> str:
        """Returns the reason for the end of the process: a signal or an exit code."""
        assert self._process is not None
        try:
            code = self._process.wait(5)
        except subprocess.TimeoutExpired:
            code = 0
        self.kill()
        return signal.Signals(-code).name if code < 0 else f"it ended with {code}"

    def kill(self) -> None:
        """Kills the process and its children."""
        if self._process is not None:
            try:
                os.killpg(self._process.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
            self._process.wait()
            self._process = None
        if self.pipe is not None:
            self.pipe.close()
            self.pipe = None


def _serve(pipe: Connection) -> None:
    """Answers requests until the other end of the pipe is closed."""
    served: Any = None
    if sys.platform == "linux":  # The worker ends with its parent, even if a candidate hangs.
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    gc.freeze()
    # IR consists of many small objects. With Python's defaults, collections would be frequent and find no garbage.
    gc.set_threshold(100_000, 50, 100)
    while True:
        try:
            request, arguments = pipe.recv()
            if callable(request):
                served = request(*arguments)
                continue
            pipe.send(_answer(served, request, arguments))
        except (EOFError, OSError):
            return


def _answer(served: Any, method: str, arguments: tuple[Any, ...]) -> tuple[str, Any]:
    try:
        return "done", getattr(served, method)(*arguments)
    except DeplodockError as error:
        return "error", str(error)
    except Exception as error:
        return "error", f"{type(error).__name__}: {' '.join(str(error).split())[:300]} at {raised_at(error)}"


if __name__ == "__main__":
    _serve(Connection(int(sys.argv[1])))
