"""Journals: files with the results of a run, one JSON line per case, from which an interrupted run continues.

A journal has three kinds of lines: `{"begun": KEY}` when a case starts, `{"key": KEY, "row": {...}}` with its result,
and `{"stopped": KEY}` if the user interrupts it. A case that was begun without a result has hung or has ended its
process.
"""

from __future__ import annotations

import faulthandler
import json
import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

DEVICE_LOST = 70
"""Exit code of a process whose GPU is unusable after an error, or whose case hangs. A new process can continue."""

MAX_STARTS = 2
"""Largest number of starts of a case, if each earlier one hung or ended its process."""


class Journal:
    """The rows of a run by the keys of their cases, kept in a file or, without a path, in memory.

    A case that raises gets a row with the key `error`. A case that takes longer than `limit` seconds ends the process,
    because a hanging kernel cannot be stopped in another way. After `MAX_STARTS` such ends its row is an error.

    Attributes:
        rows: finished cases.
        unfinished: number of starts without a result, by key.
    """

    def __init__(self, path: Path | None, limit: float = 120.0) -> None:
        self.path, self.limit = path, limit
        self.rows: dict[str, dict[str, Any]] = {}
        self.unfinished: dict[str, int] = {}
        for line in path.read_text(encoding="utf-8").splitlines() if path is not None and path.exists() else ():
            try:
                entry = json.loads(line)
            except ValueError:
                continue  # The process was killed while it wrote this line.
            if "begun" in entry or "stopped" in entry:
                key = entry.get("begun", entry.get("stopped"))
                self.unfinished[key] = self.unfinished.get(key, 0) + (1 if "begun" in entry else -1)
            else:
                self.rows[entry["key"]] = entry["row"]

    def _write(self, entry: dict[str, Any]) -> None:
        if self.path is not None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self.path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(entry) + "\n")

    def run(self, key: str, measure: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """Returns the row of a case, from the journal or by a call of `measure`.

        Raises:
            SystemExit: the GPU is unusable after an error.
        """
        if key in self.rows:
            return self.rows[key]
        if self.unfinished.get(key, 0) >= MAX_STARTS:
            return self._done(key, {"right": False, "error": f"did not end, {MAX_STARTS} times"})
        self._write({"begun": key})
        timer = threading.Timer(self.limit, _give_up, [key])
        timer.daemon = True
        if self.path is not None:
            timer.start()
        try:
            row = measure()
        except KeyboardInterrupt:
            # An interruption by the user does not count as an attempt.
            self._write({"stopped": key})
            raise
        except Exception as error:
            # Any failure is the result of this case. The next case must still run.
            row = {"right": False, "error": f"{type(error).__name__}: {' '.join(str(error).split())[:400]}"}
        finally:
            timer.cancel()
        self._done(key, row)
        if "error" in row and not _device_works():
            raise SystemExit(DEVICE_LOST)
        return row

    def _done(self, key: str, row: dict[str, Any]) -> dict[str, Any]:
        self.rows[key] = row
        self._write({"key": key, "row": row})
        return row


def _give_up(key: str) -> None:
    print(f"{key} does not end", file=sys.stderr)
    faulthandler.dump_traceback(all_threads=True)
    os._exit(DEVICE_LOST)


def _device_works() -> bool:
    try:
        if torch.cuda.is_available():
            torch.cuda.synchronize()
            torch.zeros(1, device="cuda").add_(1)
            torch.cuda.synchronize()
    except RuntimeError:
        return False
    return True
