"""Results of many cases, one line each, written as they come: a benchmark that was stopped goes on where it was."""

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
"""Exit code of a process whose device takes no more work after an error: another process goes on."""

TRIES = 2
"""So often a case is begun that does not end, by a hang or by the end of its process."""


class Journal:
    """Rows by key, in a file of JSON lines, or in memory only.

    A case that raises is a row with `error`. One that takes longer than `limit` seconds ends the process, since a
    kernel that hangs cannot be stopped otherwise; after `TRIES` such ends it is a row with `error` as well.
    """

    def __init__(self, path: Path | None, limit: float = 120.0) -> None:
        self.path, self.limit = path, limit
        self.rows: dict[str, dict[str, Any]] = {}
        self.begun: dict[str, int] = {}
        for line in path.read_text(encoding="utf-8").splitlines() if path is not None and path.exists() else ():
            try:
                entry = json.loads(line)
            except ValueError:
                continue  # a line that was cut off when its process was killed
            if "begun" in entry or "stopped" in entry:
                key = entry.get("begun", entry.get("stopped"))
                self.begun[key] = self.begun.get(key, 0) + (1 if "begun" in entry else -1)
            else:
                self.rows[entry["key"]] = entry["row"]

    def _write(self, entry: dict[str, Any]) -> None:
        if self.path is not None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self.path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(entry) + "\n")

    def run(self, key: str, measure: Callable[[], dict[str, Any]]) -> dict[str, Any]:
        """The row of a case: from before, or measured now. Raises SystemExit if the device is lost."""
        if key in self.rows:
            return self.rows[key]
        if self.begun.get(key, 0) >= TRIES:
            return self._done(key, {"right": False, "error": f"did not end, {TRIES} times"})
        self._write({"begun": key})
        timer = threading.Timer(self.limit, _give_up, [key])
        timer.daemon = True
        if self.path is not None:
            timer.start()
        try:
            row = measure()
        except KeyboardInterrupt:  # which says nothing about the case
            self._write({"stopped": key})
            raise
        except Exception as error:  # whatever goes wrong is a result, and the next case is to run
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
