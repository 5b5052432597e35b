"""Runs steps within their limits, and records their states, so that another call continues."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .steps import Step

TRIES = 3
"""Number of times that a step without an end of its own is begun."""

SHORTEST_STEP_SECONDS = 15.0
"""With less time than this no step is begun."""

DONE = ("done", "failed", "skipped", "over its limit")

_PR_SET_PDEATHSIG = 1


def _end_with_parent() -> None:
    """Ends the process with the script (prctl(2)): otherwise two commands would share one device."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


class Runner:
    """Steps and their states.

    `state.jsonl` has a line for each change of a state: status, exit code, seconds, tries and the last line that the
    command printed. `log.txt` has everything that commands print.
    """

    def __init__(self, root: Path, folder: Path, deadline: float, environment: Mapping[str, str] | None = None) -> None:
        self.root, self.deadline = root, deadline
        self.environment = dict(environment if environment is not None else os.environ)
        self.path, self.log, self.begun = folder / "state.jsonl", folder / "log.txt", False
        self.states: dict[str, dict[str, Any]] = {}
        for line in self.path.read_text(encoding="utf-8").splitlines() if self.path.exists() else ():
            try:
                entry = json.loads(line)
            except ValueError:
                continue  # cut off when the script was killed
            self.states[entry.pop("step")] = entry

    def is_done(self, step: Step) -> bool:
        """Returns true if a step is not to be run again."""
        return self.states.get(step.name, {}).get("status") in DONE

    def run(self, step: Step) -> None:
        """Runs a step within its limit and the budget, unless it is done."""
        state = self.states.setdefault(step.name, {"status": "not begun", "seconds": 0.0, "tries": 0})
        if self.is_done(step):
            return
        if step.skipped is not None:
            self._save(step, status="skipped", says=step.skipped)
            return
        while not self.is_done(step):
            left, rest = step.limit - state["seconds"], self.deadline - time.monotonic()
            if left <= 0 or state["tries"] >= TRIES:
                self._save(step, status="over its limit")
            elif self.begun and (rest < min(left, SHORTEST_STEP_SECONDS) or not step.on and rest < left):
                return  # the next call has time for it
            else:
                self._begin(step, state, left, rest)

    def _begin(self, step: Step, state: dict[str, Any], left: float, rest: float) -> None:
        before, self.begun = self._progress(step), True
        self._save(step, status="running", tries=state["tries"] + 1)
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
        last = self._last_line()
        self._save(step, status=status, tries=tries, code=code, seconds=state["seconds"] + seconds, says=last)
        print(f"{step.name}: {status}, {seconds:.0f} s  {last}", flush=True)

    def _progress(self, step: Step) -> int:
        """Returns the size of the results."""
        return step.results.stat().st_size if step.results is not None and step.results.exists() else 0

    def _last_line(self) -> str:
        with self.log.open("rb") as log:
            log.seek(max(0, self.log.stat().st_size - 4096))
            lines = log.read().decode(errors="replace").split("\n$ ")[-1].splitlines()[1:]
        return next((line.strip(" =")[:200] for line in reversed(lines) if line.strip(" =")), "")

    def _execute(self, step: Step, limit: float) -> int | None:
        """Returns the exit code of the command; None if it was stopped at its limit, with all that it had started."""
        with self.log.open("a", encoding="utf-8") as log:
            log.write(f"\n$ {' '.join(step.command)}\n")
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

    def _save(self, step: Step, **changes: Any) -> None:
        self.states[step.name].update(changes)
        with self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"step": step.name, **self.states[step.name]}) + "\n")
