"""Records in a file: what was measured of schedules, and what was decided, by what it is for.

The file is an SQLite database with a rollback journal, so it survives the end of a process at any moment and several
writers. A nest is known by `plan_key`, which no name is part of; times are compared only within one device. JSON
(`records.py`) is for exchange, and for people.
"""

from __future__ import annotations

import json
import sqlite3
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any

from .records import Record, RecordError, json_of, read_json, record_of

APPLICATION, VERSION = 0x64706C6B, 1
"""What tells our databases from others, and the version of the tables."""

PATIENCE = 30.0
"""Seconds that a writer waits for another one."""

PREDICTED = "predicted"
"""The device of times that are the planning model's, where nothing could be measured."""

_TABLES = """
CREATE TABLE nests (key TEXT PRIMARY KEY, what TEXT NOT NULL, text TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE trials (
  key TEXT NOT NULL, target TEXT NOT NULL, device TEXT NOT NULL, schedule TEXT NOT NULL, options TEXT NOT NULL,
  seconds REAL, noise REAL NOT NULL, predicted REAL NOT NULL, failure TEXT NOT NULL,
  version TEXT NOT NULL, code TEXT NOT NULL, at REAL NOT NULL,
  PRIMARY KEY (key, target, device, schedule, options)
) WITHOUT ROWID;
CREATE TABLE fusions (key TEXT PRIMARY KEY, kept TEXT NOT NULL, at REAL NOT NULL) WITHOUT ROWID;
CREATE TABLE constants (
  target TEXT NOT NULL, device TEXT NOT NULL, factors TEXT NOT NULL, about TEXT NOT NULL, at REAL NOT NULL,
  PRIMARY KEY (target, device)
) WITHOUT ROWID;
"""


@dataclass(frozen=True)
class Entry:
    """A schedule of a nest, and what came of it: a row of the table `trials`.

    key, target  what it is for: `plan_key` and `Target.name`
    device       where it was measured; empty for what was only decided, `PREDICTED` for the model's times
    options      of passes below `plan-schedules`, as JSON: a list of (pass, option, value)
    seconds      None where it was not measured, or failed
    noise        half the interval of 95 % of the time, relative to it
    predicted    seconds by the planning model; 0 where it was not asked
    failure      why it has no time: refused, wrong, killed; empty where it is good
    version      of deplodock
    code         a hash of the text of its kernels
    at           seconds since 1970
    """

    key: str
    target: str
    device: str
    schedule: str
    options: str = "[]"
    seconds: float | None = None
    noise: float = 0.0
    predicted: float = 0.0
    failure: str = ""
    version: str = ""
    code: str = ""
    at: float = 0.0


def is_database(path: str | Path) -> bool:
    """Whether a file is an SQLite database."""
    try:
        with Path(path).open("rb") as file:
            return file.read(16) == b"SQLite format 3\0"
    except OSError:
        return False


def read_record(path: str, device: str | None = None) -> Record:
    """Returns the record in a JSON file or a database; schedules that were measured on `device` precede others.

    Raises:
        RecordError: for a file that cannot be read, is damaged, or is of another version.
    """
    if is_database(path):
        with RecordFile(path, read_only=True) as file:
            return file.plans(device=device)
    return record_of(read_json(path), path)


class RecordFile(AbstractContextManager["RecordFile"]):
    """An open database; made where there is none. Raises RecordError for a file that is something else."""

    def __init__(self, path: str | Path, read_only: bool = False) -> None:
        self.path = str(path)
        with self._checked():
            if read_only:
                self._db = sqlite3.connect(f"{Path(path).resolve().as_uri()}?mode=ro", uri=True, timeout=PATIENCE)
            else:
                Path(path).parent.mkdir(parents=True, exist_ok=True)
                self._db = sqlite3.connect(self.path, timeout=PATIENCE)
            self._db.isolation_level = None
            self._prepare(read_only)

    def close(self) -> None:
        self._db.close()

    def __exit__(self, *_: object) -> None:
        self.close()

    def _refused(self, reason: str) -> RecordError:
        return RecordError(reason, argument="record", location=self.path)

    @contextmanager
    def _checked(self) -> Generator[None]:
        try:
            yield
        except (sqlite3.Error, OSError) as error:
            raise self._refused(str(error)) from None

    @contextmanager
    def _writing(self) -> Generator[sqlite3.Connection]:
        """A transaction: all of it, or nothing."""
        with self._checked():
            self._db.execute("BEGIN IMMEDIATE")
            try:
                yield self._db
            except BaseException:
                self._db.execute("ROLLBACK")
                raise
            self._db.execute("COMMIT")

    def _prepare(self, read_only: bool) -> None:
        """Make the tables, if there are none."""
        if self._number("user_version") == 0 and not read_only:
            with self._writing() as db:
                if self._number("user_version") == 0:  # nobody else has just done it
                    if self._db.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
                        raise self._refused("is a database of something else")
                    for statement in _TABLES.split(";"):
                        db.execute(statement)
                    db.execute(f"PRAGMA application_id = {APPLICATION}")
                    db.execute(f"PRAGMA user_version = {VERSION}")
        if self._number("application_id") != APPLICATION:
            raise self._refused("is a database of something else")
        if (version := self._number("user_version")) != VERSION:
            raise self._refused(f"is of version {version}, not {VERSION}")

    def _number(self, name: str) -> int:
        return int(self._db.execute(f"PRAGMA {name}").fetchone()[0])

    def _rows(self, query: str, *values: object) -> Iterator[Any]:
        with self._checked():
            yield from self._db.execute(query, values).fetchall()

    def _put(self, table: str, *rows: tuple[object, ...]) -> None:
        with self._writing() as db:
            for row in rows:
                db.execute(f"INSERT OR REPLACE INTO {table} VALUES ({', '.join('?' * len(row))})", row)

    def add(self, entries: Iterable[Entry]) -> None:
        """Put entries in, in place of those that are of the same schedule of the same nest on the same device."""
        self._put("trials", *map(astuple, entries))

    def add_nest(self, key: str, what: str, text: str) -> None:
        """Keep the text of a program that is one nest, from which the model can be asked again."""
        self._put("nests", (key, what, text))

    def add_fusion(self, key: str, kept: Sequence[int]) -> None:
        """Keep the positions of operations whose results are materialised; `key` is as in `Record.fusions`."""
        self._put("fusions", (key, json.dumps(kept), time.time()))

    def set_constants(self, target: str, device: str, factors: dict[str, float], about: dict[str, Any]) -> None:
        """Keep by what a target's constants are multiplied on a device, and what is to be said `about` the fit."""
        self._put("constants", (target, device, json.dumps(factors), json.dumps(about), time.time()))

    def constants(self, target: str, device: str) -> tuple[dict[str, float], dict[str, Any]] | None:
        """What `set_constants` kept."""
        query = "SELECT factors, about FROM constants WHERE target = ? AND device = ?"
        found = next(self._rows(query, target, device), None)
        return None if found is None else (json.loads(found[0]), json.loads(found[1]))

    def entries(self, **wanted: str) -> list[Entry]:
        """The entries whose columns are as `wanted`, those of one nest together, the fastest first."""
        where = " AND ".join(f"{name} = ?" for name in wanted) or "1"
        order = "ORDER BY key, target, device, seconds IS NULL, seconds, failure, schedule"
        return [Entry(*row) for row in self._rows(f"SELECT * FROM trials WHERE {where} {order}", *wanted.values())]

    def nests(self) -> dict[str, tuple[str, str]]:
        """Key -> what the nest is, for people, and its program."""
        return {key: (what, text) for key, what, text in self._rows("SELECT key, what, text FROM nests ORDER BY key")}

    def best(self, key: str, target: str, device: str) -> Entry | None:
        """The fastest entry that has not failed, of what was measured on `device`."""
        good = (e for e in self.entries(key=key, target=target, device=device) if not e.failure)
        return next((e for e in good if e.seconds is not None), None)

    def plans(self, target: str | None = None, device: str | None = None) -> Record:
        """What a compilation is to do: for each nest and target the fastest schedule on `device`, or else
        on another device, or else one that was only decided, or else predicted. Of equally fast ones it is the first,
        as in a search, of decisions the last."""
        record = Record(self.path)
        known = {key: what for key, what in self._rows("SELECT key, what FROM nests")}
        order = "device = ? DESC, device = ? ASC, seconds IS NULL, seconds, iif(seconds IS NULL, -at, at)"
        rows = self._rows(f"SELECT * FROM trials WHERE failure = '' ORDER BY {order}", device, PREDICTED)
        for entry in (Entry(*row) for row in rows):
            if target in (None, entry.target):
                schedules = record.schedules.setdefault(entry.target, {})
                if entry.key not in schedules:
                    schedules[entry.key] = entry.schedule, known.get(entry.key, "")
                    if entry.options != "[]":
                        record.options[entry.target, entry.key] = [(a, b, c) for a, b, c in json.loads(entry.options)]
        record.fusions.update({key: json.loads(kept) for key, kept in self._rows("SELECT key, kept FROM fusions")})
        return record

    def data(self, device: str | None = None) -> dict[str, Any]:
        """Everything, as JSON has it: the plans, readable as a record by themselves, those of `device` before others.
        After them comes the rest."""
        columns = "target", "device", "factors", "about"
        constants = [
            dict(zip(columns, (t, d, json.loads(f), json.loads(a)), strict=True))
            for t, d, f, a in self._rows("SELECT target, device, factors, about FROM constants ORDER BY 1, 2")
        ]
        nests = {key: {"what": what, "text": text} for key, (what, text) in self.nests().items()}
        trials = [vars(e) for e in self.entries()]
        return {**json_of(self.plans(device=device)), "trials": trials, "nests": nests, "constants": constants}

    def absorb(self, data: dict[str, Any]) -> int:
        """Put in what `data` gave, or a record of plans: of two entries for the same the later one stays. How many
        entries came. Raises RecordError for anything else."""
        record, now = record_of(data, self.path), time.time()
        try:
            entries = [Entry(**row) for row in data.get("trials", ())]
            nests = {key: (n["what"], n["text"]) for key, n in data.get("nests", {}).items()}
            constants = [(c["target"], c["device"], c["factors"], c["about"]) for c in data.get("constants", ())]
        except (TypeError, KeyError, AttributeError) as error:
            raise self._refused(f"is damaged: {error}") from None
        timed = {(e.key, e.target) for e in entries}
        for target, schedules in record.schedules.items():
            entries += [Entry(k, target, "", s, at=now) for k, (s, _) in schedules.items() if (k, target) not in timed]
            nests |= {k: (what, "") for k, (_, what) in schedules.items() if k not in nests}
        known = {(e.key, e.target, e.device, e.schedule, e.options): e.at for e in self.entries()}
        fresh = [e for e in entries if known.get((e.key, e.target, e.device, e.schedule, e.options), -1.0) < e.at]
        self.add(fresh)
        have = self.nests()
        for key, (what, text) in nests.items():
            if key not in have or text and not have[key][1]:
                self.add_nest(key, what, text)
        for key, kept in record.fusions.items():
            self.add_fusion(key, kept)
        for target, device, factors, about in constants:
            if self.constants(target, device) is None:
                self.set_constants(target, device, factors, about)
        return len(fresh)

    def prune(self, gone: Callable[[Entry], bool]) -> int:
        """Delete the entries that are `gone`, and nests that none is left of. How many entries these were."""
        found = [e for e in self.entries() if gone(e)]
        with self._writing() as db:
            for e in found:
                where = "key = ? AND target = ? AND device = ? AND schedule = ? AND options = ?"
                db.execute(f"DELETE FROM trials WHERE {where}", (e.key, e.target, e.device, e.schedule, e.options))
            db.execute("DELETE FROM nests WHERE key NOT IN (SELECT key FROM trials)")
        with self._checked():
            self._db.execute("VACUUM")
        return len(found)
