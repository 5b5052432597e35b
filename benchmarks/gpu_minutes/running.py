"""Runs steps with their limits and keeps what became of them, so that another call goes on."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

from steps import Step

TRIES = 3
"""So often a step that does not end by itself is begun."""

TOO_SHORT = 15.0
"""Seconds: with less than this no step is begun."""

DONE = ("done", "failed", "skipped", "over its limit")


_PR_SET_PDEATHSIG = 1


def _end_with_parent() -> None:
    """A command does not outlive a script that is killed (prctl(2)), or two of them would run on one device."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


class Runner:
    """The state of every step is in `folder/state.json`: its status, exit code, seconds and tries."""

    def __init__(self, root: Path, folder: Path, deadline: float) -> None:
        self.root, self.folder, self.deadline = root, folder, deadline
        self.path, self.begun = folder / "state.json", False
        self.states: dict[str, dict[str, Any]] = json.loads(self.path.read_text()) if self.path.exists() else {}
        self.environment = {**os.environ, "XDG_CACHE_HOME": os.environ.get("XDG_CACHE_HOME", str(folder / "cache"))}
        self.environment |= {"TORCHINDUCTOR_CACHE_DIR": str(folder / "cache" / "inductor")}

    def is_done(self, step: Step) -> bool:
        """Whether a step is not to be run again."""
        return self.states.get(step.name, {}).get("status") in DONE

    def run(self, step: Step) -> None:
        """Run a step as long as it may and the budget lasts, unless it is done."""
        state = self.states.setdefault(step.name, {"status": "not begun", "seconds": 0.0, "tries": 0})
        if self.is_done(step):
            return
        if step.skipped is not None:
            self._save(state, status="skipped", why=step.skipped)
            return
        while not self.is_done(step):
            left, rest = step.limit - state["seconds"], self.deadline - time.monotonic()
            if left <= 0 or state["tries"] >= TRIES:
                self._save(state, status="over its limit")
            elif self.begun and (rest < min(left, TOO_SHORT) or not step.on and rest < left):
                return  # the next call has time for it
            else:
                self._begin(step, state, left, rest)

    def _begin(self, step: Step, state: dict[str, Any], left: float, rest: float) -> None:
        before, self.begun = self._progress(step), True
        self._save(state, status="running", tries=state["tries"] + 1)
        start = time.monotonic()
        print(f"{step.name} ...", flush=True)
        code = self._execute(step, min(left, rest))
        seconds = time.monotonic() - start
        tries = state["tries"]
        if code is None:
            status = "over its limit" if left <= rest else "unfinished"
            tries -= status == "unfinished"
        elif code not in (0, 1) and step.on and self._progress(step) > before:
            status = "unfinished"  # a process lost its device, or a case its time, but others were done before
            tries = 0
        else:
            status = "done" if code == 0 else "failed"
        self._save(state, status=status, tries=tries, code=code, seconds=state["seconds"] + seconds)
        print(f"{step.name}: {status}, {seconds:.0f} s", flush=True)

    def _progress(self, step: Step) -> int:
        """How much there is of its results."""
        return step.results.stat().st_size if step.results is not None and step.results.exists() else 0

    def _execute(self, step: Step, limit: float) -> int | None:
        """The exit code of the command; None if it was stopped at its limit, with all that it had started."""
        with (self.folder / f"{step.name}.log").open("a", encoding="utf-8") as log:
            log.write(f"$ {' '.join(step.command)}\n")
            log.flush()
            whole: dict[str, Any] = {
                "preexec_fn": _end_with_parent,
                "stdout": log,
                "stderr": subprocess.STDOUT,
                "stdin": subprocess.DEVNULL,
                "start_new_session": True,
            }
            try:
                process = subprocess.Popen(step.command, cwd=self.root, env=self.environment, **whole)
            except OSError as error:
                log.write(f"cannot be started: {error}\n")
                return 127
            try:
                return process.wait(timeout=limit)
            except subprocess.TimeoutExpired:
                return None
            finally:
                self._end(process)

    def _end(self, process: subprocess.Popen[bytes]) -> None:
        for number in (signal.SIGTERM, signal.SIGKILL):
            try:
                os.killpg(process.pid, number)
                process.wait(timeout=5)
            except (ProcessLookupError, subprocess.TimeoutExpired):
                continue

    def _save(self, state: dict[str, Any], **changes: Any) -> None:
        state.update(changes)
        temporary = self.path.with_suffix(".new")
        temporary.write_text(json.dumps(self.states, indent=1) + "\n", encoding="utf-8")
        os.replace(temporary, self.path)
