"""The SQLite database of measured and chosen schedules, to which `deplodock tune` writes.

- Its rollback journal protects the file if a process ends at any moment, and allows several writers.
- The key of a nest is a hash of its structure (`plan_key`), without names. So an entry serves every program that
  contains the nest.
- Times are compared within one device only.

The JSON form (`records.py`) is for exchange and for reading.
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
"""SQLite application id of our databases, and the version of their tables."""

WRITER_WAIT_SECONDS = 30.0
"""Seconds that a writer waits for another writer."""

PREDICTED = "predicted"
"""Device name of entries whose times come from the planning model because nothing could be measured."""

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
    """A schedule of a nest and its measured time: a row of the table `trials`.

    Attributes:
        key: key of the nest (`plan_key`).
        target: `Target.name`.
        device: device of the measurement. Empty for a schedule that was chosen without measurement, `PREDICTED` for
            times of the planning model.
        schedule: text of the schedule.
        options: options of passes below `plan-schedules`, as a JSON list of (pass, option, value).
        seconds: time of the kernels; None if it was not measured or the schedule failed.
        noise: half of the 95 % confidence interval of the time, relative to the time.
        predicted: seconds by the planning model; 0 without a prediction.
        failure: why there is no time (refused, wrong result, killed); empty if the schedule is valid.
        version: version of deplodock.
        code: hash of the text of the kernels.
        at: time of the entry in seconds since 1970.
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
    """Returns true if a file is an SQLite database."""
    try:
        with Path(path).open("rb") as file:
            return file.read(16) == b"SQLite format 3\0"
    except OSError:
        return False


def read_record(path: str, device: str | None = None) -> Record:
    """Returns the plans in a JSON file or a database. Schedules that were measured on `device` have precedence.

    Raises:
        RecordError: the file cannot be read, is damaged, or has another version.
    """
    if is_database(path):
        with RecordFile(path, read_only=True) as file:
            return file.plans(device=device)
    return record_of(read_json(path), path)


class RecordFile(AbstractContextManager["RecordFile"]):
    """Open database of records. A missing file is created, unless `read_only`.

    Raises RecordError if the file is not such a database.
    """

    def __init__(self, path: str | Path, read_only: bool = False) -> None:
        self.path = str(path)
        with self._checked():
            if read_only:
                self._db = sqlite3.connect(
                    f"{Path(path).resolve().as_uri()}?mode=ro", uri=True, timeout=WRITER_WAIT_SECONDS
                )
            else:
                Path(path).parent.mkdir(parents=True, exist_ok=True)
                self._db = sqlite3.connect(self.path, timeout=WRITER_WAIT_SECONDS)
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
        """Runs the `with` block as one transaction."""
        with self._checked():
            self._db.execute("BEGIN IMMEDIATE")
            try:
                yield self._db
            except BaseException:
                self._db.execute("ROLLBACK")
                raise
            self._db.execute("COMMIT")

    def _prepare(self, read_only: bool) -> None:
        """Creates the tables if there are none, and checks the kind and the version of the database."""
        if self._number("user_version") == 0 and not read_only:
            with self._writing() as db:
                # Read again inside of the transaction, because another process may have created the tables.
                if self._number("user_version") == 0:
                    if self._db.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]:
                        raise self._refused("expected a database of deplodock, but got another database")
                    for statement in _TABLES.split(";"):
                        db.execute(statement)
                    db.execute(f"PRAGMA application_id = {APPLICATION}")
                    db.execute(f"PRAGMA user_version = {VERSION}")
        if self._number("application_id") != APPLICATION:
            raise self._refused("expected a database of deplodock, but got another database")
        if (version := self._number("user_version")) != VERSION:
            raise self._refused(f"expected version {VERSION} of the database, but got {version}")

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
        """Adds entries. An entry replaces that of the same schedule and options of the same nest on the same device."""
        self._put("trials", *map(astuple, entries))

    def add_nest(self, key: str, description: str, text: str) -> None:
        """Adds a nest, so that its schedules can be predicted again later.

        Args:
            key: key of the nest (`plan_key`).
            description: description of the nest for users.
            text: text of a program that consists of the nest.
        """
        self._put("nests", (key, description, text))

    def add_fusion(self, key: str, roots: Sequence[int]) -> None:
        """Adds a fusion plan: the positions of the operations whose results are materialised (`Record.fusions`)."""
        self._put("fusions", (key, json.dumps(roots), time.time()))

    def set_constants(self, target: str, device: str, factors: dict[str, float], about: dict[str, Any]) -> None:
        """Stores the factors that correct a target's constants on a device.

        Args:
            target: name of the target.
            device: name of the device.
            factors: name of a constant (`Target.numbers`) -> factor.
            about: facts about the fit, as JSON data.
        """
        self._put("constants", (target, device, json.dumps(factors), json.dumps(about), time.time()))

    def constants(self, target: str, device: str) -> tuple[dict[str, float], dict[str, Any]] | None:
        """Returns the factors and the facts of `set_constants`, or None."""
        query = "SELECT factors, about FROM constants WHERE target = ? AND device = ?"
        row = next(self._rows(query, target, device), None)
        return None if row is None else (json.loads(row[0]), json.loads(row[1]))

    def entries(self, **columns: str) -> list[Entry]:
        """Returns the entries with these values of columns, grouped by nest, the fastest first."""
        where = " AND ".join(f"{name} = ?" for name in columns) or "1"
        order = "ORDER BY key, target, device, seconds IS NULL, seconds, failure, schedule"
        return [Entry(*row) for row in self._rows(f"SELECT * FROM trials WHERE {where} {order}", *columns.values())]

    def nests(self) -> dict[str, tuple[str, str]]:
        """Returns key -> (description of the nest, text of its program)."""
        return {
            key: (description, text)
            for key, description, text in self._rows("SELECT key, what, text FROM nests ORDER BY key")
        }

    def best(self, key: str, target: str, device: str) -> Entry | None:
        """Returns the fastest valid entry that was measured on a device, or None.

        Args:
            key: key of the nest.
            target: `Target.name`.
            device: name of the device.
        """
        valid = (e for e in self.entries(key=key, target=target, device=device) if not e.failure)
        return next((e for e in valid if e.seconds is not None), None)

    def plans(self, target: str | None = None, device: str | None = None) -> Record:
        """Returns the plans for a compilation.

        For each nest and target it is the fastest schedule on `device`. Without one it is the fastest on another
        device, then the latest that was chosen without measurement, then the best prediction.

        Args:
            target: `Target.name`; None for all targets.
            device: name of the local device, or None.
        """
        record = Record(self.path)
        descriptions = dict(self._rows("SELECT key, what FROM nests"))
        order = "device = ? DESC, device = ? ASC, seconds IS NULL, seconds, iif(seconds IS NULL, -at, at)"
        rows = self._rows(f"SELECT * FROM trials WHERE failure = '' ORDER BY {order}", device, PREDICTED)
        for entry in (Entry(*row) for row in rows):
            if target in (None, entry.target):
                schedules = record.schedules.setdefault(entry.target, {})
                if entry.key not in schedules:
                    schedules[entry.key] = entry.schedule, descriptions.get(entry.key, "")
                    if entry.options != "[]":
                        record.options[entry.target, entry.key] = [(a, b, c) for a, b, c in json.loads(entry.options)]
        record.fusions.update({key: json.loads(roots) for key, roots in self._rows("SELECT key, kept FROM fusions")})
        return record

    def data(self, device: str | None = None) -> dict[str, Any]:
        """Returns all contents as JSON data, which is also a valid record of plans.

        `device`: the device whose schedules have precedence in the plans.
        """
        columns = "target", "device", "factors", "about"
        constants = [
            dict(zip(columns, (t, d, json.loads(f), json.loads(a)), strict=True))
            for t, d, f, a in self._rows("SELECT target, device, factors, about FROM constants ORDER BY 1, 2")
        ]
        nests = {key: {"what": description, "text": text} for key, (description, text) in self.nests().items()}
        trials = [vars(e) for e in self.entries()]
        return {**json_of(self.plans(device=device)), "trials": trials, "nests": nests, "constants": constants}

    def absorb(self, data: dict[str, Any]) -> int:
        """Adds the contents of another database (the result of `data`), or of a record of plans.

        Of two entries for the same schedule, nest and device the later one stays. Returns the number of new entries.
        Raises RecordError if `data` is neither.
        """
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
            nests |= {k: (description, "") for k, (_, description) in schedules.items() if k not in nests}
        dates = {(e.key, e.target, e.device, e.schedule, e.options): e.at for e in self.entries()}
        fresh = [e for e in entries if dates.get((e.key, e.target, e.device, e.schedule, e.options), -1.0) < e.at]
        self.add(fresh)
        present = self.nests()
        for key, (description, text) in nests.items():
            if key not in present or text and not present[key][1]:
                self.add_nest(key, description, text)
        for key, roots in record.fusions.items():
            self.add_fusion(key, roots)
        for target, device, factors, about in constants:
            if self.constants(target, device) is None:
                self.set_constants(target, device, factors, about)
        return len(fresh)

    def prune(self, obsolete: Callable[[Entry], bool]) -> int:
        """Deletes the entries for which `obsolete` is true, and nests without entries. Returns the number of
        deleted entries."""
        deleted = [e for e in self.entries() if obsolete(e)]
        with self._writing() as db:
            for e in deleted:
                where = "key = ? AND target = ? AND device = ? AND schedule = ? AND options = ?"
                db.execute(f"DELETE FROM trials WHERE {where}", (e.key, e.target, e.device, e.schedule, e.options))
            db.execute("DELETE FROM nests WHERE key NOT IN (SELECT key FROM trials)")
        with self._checked():
            self._db.execute("VACUUM")
        return len(deleted)
