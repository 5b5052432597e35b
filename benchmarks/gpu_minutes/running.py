"""Runs steps within their time limits, and records their states, so that another call continues."""

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

MAX_STARTS = 3
"""Largest number of starts of a step without a new result: the machine may have been lost in each of them."""

SHORTEST_STEP_SECONDS = 15.0
"""Least remaining budget with which a step is started."""

FINAL_STATUSES = ("done", "failed", "skipped", "over its limit")

_PR_SET_PDEATHSIG = 1


def _end_with_parent() -> None:
    """Makes the kernel kill this process when the script dies (prctl(2)), so that two commands never share the GPU."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


class Runner:
    """Runs the commands of steps and records their states.

    `state.jsonl` has a line for each change of a state: status, exit code, seconds, tries (starts without a new result)
    and the last line that the command printed. `log.txt` has the output of all commands.

    Attributes:
        states: last state of each step by its name.
        has_run: whether this call has started a step.
    """

    def __init__(self, root: Path, folder: Path, deadline: float, environment: Mapping[str, str] | None = None) -> None:
        self.root, self.deadline = root, deadline
        self.environment = dict(environment if environment is not None else os.environ)
        self.path, self.log, self.has_run = folder / "state.jsonl", folder / "log.txt", False
        self.states: dict[str, dict[str, Any]] = {}
        for line in self.path.read_text(encoding="utf-8").splitlines() if self.path.exists() else ():
            try:
                entry = json.loads(line)
            except ValueError:
                continue  # The script was killed while it wrote this line.
            self.states[entry.pop("step")] = entry

    def is_done(self, step: Step) -> bool:
        """Returns true if a step has a final status and must not run again."""
        return self.states.get(step.name, {}).get("status") in FINAL_STATUSES

    def run(self, step: Step) -> None:
        """Runs a step within its limit and the budget, unless it is done. Returns early if the budget is too short."""
        state = self.states.setdefault(step.name, {"status": "not begun", "seconds": 0.0, "tries": 0})
        if self.is_done(step):
            return
        if step.skipped is not None:
            self._save(step, status="skipped", says=step.skipped)
            return
        while not self.is_done(step):
            step_seconds, budget_seconds = step.limit - state["seconds"], self.deadline - time.monotonic()
            if step_seconds <= 0 or state["tries"] >= MAX_STARTS:
                self._save(step, status="over its limit")
            elif self.has_run and (
                budget_seconds < min(step_seconds, SHORTEST_STEP_SECONDS)
                or not step.resumable
                and budget_seconds < step_seconds
            ):
                return  # The next call has more time.
            else:
                self._begin(step, state, step_seconds, budget_seconds)

    def _begin(self, step: Step, state: dict[str, Any], step_seconds: float, budget_seconds: float) -> None:
        old_size, self.has_run = self._progress(step), True
        self._save(step, status="running", tries=state["tries"] + 1)
        start = time.monotonic()
        print(f"{step.name} ...", flush=True)
        exit_code = self._execute(step, min(step_seconds, budget_seconds))
        seconds = time.monotonic() - start
        tries = state["tries"]
        if exit_code is None:
            status = "over its limit" if step_seconds <= budget_seconds else "unfinished"
            tries -= status == "unfinished"
        elif exit_code not in (0, 1) and step.resumable and self._progress(step) > old_size:
            # The GPU was lost or a case took too long, but other cases have finished: start the step again.
            status = "unfinished"
            tries = 0
        else:
            status = "done" if exit_code == 0 else "failed"
        message = self._last_line()
        self._save(step, status=status, tries=tries, code=exit_code, seconds=state["seconds"] + seconds, says=message)
        print(f"{step.name}: {status}, {seconds:.0f} s  {message}", flush=True)

    def _progress(self, step: Step) -> int:
        """Returns the size of a step's results file in bytes; it grows with each result."""
        return step.results.stat().st_size if step.results is not None and step.results.exists() else 0

    def _last_line(self) -> str:
        with self.log.open("rb") as log:
            log.seek(max(0, self.log.stat().st_size - 4096))
            lines = log.read().decode(errors="replace").split("\n$ ")[-1].splitlines()[1:]
        return next((line.strip(" =")[:200] for line in reversed(lines) if line.strip(" =")), "")

    def _execute(self, step: Step, limit: float) -> int | None:
        """Returns the exit code of a command, or None if it was stopped after `limit` seconds, with its children."""
        with self.log.open("a", encoding="utf-8") as log:
            log.write(f"\n$ {' '.join(step.command)}\n")
            log.flush()
            options: dict[str, Any] = {
                "preexec_fn": _end_with_parent,
                "stdout": log,
                "stderr": subprocess.STDOUT,
                "stdin": subprocess.DEVNULL,
                "start_new_session": True,
            }
            try:
                process = subprocess.Popen(step.command, cwd=self.root, env=self.environment, **options)
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
