"""`deplodock records`: lists, exports, imports, merges and prunes records of measured schedules."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ..errors import DeplodockError
from .terminal import write_file

if TYPE_CHECKING:
    from ..passes.record_file import Entry, RecordFile


@click.group()
def records() -> None:
    """Show, exchange and clear up records of tuned schedules.

    Without FILE the commands use the records of the user: DEPLODOCK_RECORDS, or records.db in the cache.
    """


def _file(command: Callable[..., Any]) -> Callable[..., Any]:
    return click.option("--file", "path", metavar="FILE", help="The records; default: those of the user.")(command)


def open_records(path: str | None, new: bool = False) -> RecordFile:
    """Opens the records in a file, or the records of the user, which `new` creates. Raises DeplodockError."""
    from ..passes.record_file import RecordFile
    from ..target.host import NONE, RECORDS, records_file

    file = records_file() if path is None else Path(path)
    if file is None or path == NONE:
        raise DeplodockError(f"no records are kept, as {RECORDS} or the option says: name a file")
    if not new and not file.exists():
        raise DeplodockError(f"there are no records: {file} does not exist")
    if new and path is None:
        file.parent.mkdir(parents=True, mode=0o700, exist_ok=True)
    return RecordFile(file)


@records.command("list")
@_file
@click.option("--all", "everything", is_flag=True, help="Every trial, not only the best of each nest and device.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def list_records(path: str | None, everything: bool, as_json: bool) -> None:
    """Print the recorded schedules with their times."""
    from .tables import seconds

    with open_records(path) as file:
        entries, nests = file.entries(), file.nests()
    groups = [[*some] for _, some in groupby(entries, lambda e: (e.key, e.target, e.device))]
    shown = groups if everything else [[e for e in some if not e.failure][:1] for some in groups]
    if as_json:
        return click.echo(json.dumps([vars(e) for some in shown for e in some], indent=1))
    for some, listed in zip(groups, shown, strict=True):
        first, failed = some[0], sum(bool(e.failure) for e in some)
        head = f"{first.key}  {nests.get(first.key, ('', ''))[0]}, {first.target} on {first.device or 'no device'}"
        click.echo(f"{head}: {len(some)} schedules" + (f", {failed} of them failed" if failed else ""))
        for e in listed:
            took = e.failure or ("decided" if e.seconds is None else f"{seconds(e.seconds)} +-{e.noise:.1%}")
            click.echo(f"  {took}  {e.schedule.removeprefix('#tile.schedule')}")


@records.command()
@_file
@click.argument("output", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE.json")
def export(path: str | None, output: Path) -> None:
    """Write all records as JSON, for `--record` and `import`."""
    from ..target.host import device_of_cores

    with open_records(path) as file:
        write_file(output, json.dumps(file.data(device_of_cores()), indent=1) + "\n")


@records.command("import")
@_file
@click.argument("source", metavar="FILE.json")
def import_records(path: str | None, source: str) -> None:
    """Add the entries of a file of `export` or `compile --write-record`.

    Of two entries for the same schedule, nest and device the later one stays.
    """
    from ..passes.records import read_json

    with open_records(path, new=True) as file:
        click.echo(f"{file.absorb(read_json(source))} entries from {source}")


@records.command()
@_file
@click.argument("sources", nargs=-1, required=True, metavar="FILE...")
def merge(path: str | None, sources: tuple[str, ...]) -> None:
    """Add the records of other files, for example of other machines."""
    from ..passes.record_file import RecordFile

    with open_records(path, new=True) as file:
        for source in sources:
            if not Path(source).exists():
                raise DeplodockError(f"{source} does not exist")
            with RecordFile(source, read_only=True) as source_file:
                click.echo(f"{file.absorb(source_file.data())} entries from {source}")


@records.command()
@_file
@click.option("--failed", is_flag=True, help="Failed trials, which a search tries again then.")
@click.option("--older-than", type=float, metavar="DAYS", help="Entries that are older than DAYS.")
@click.option("--other-versions", is_flag=True, help="Entries of other versions of deplodock.")
@click.option("--device", help="Entries of this device.")
@click.option("--keep", type=click.IntRange(min=1), metavar="N", help="All except the fastest N of a nest on a device.")
def prune(
    path: str | None, failed: bool, older_than: float | None, other_versions: bool, device: str | None, keep: int | None
) -> None:
    """Delete the entries that any of the options selects."""
    from .. import __version__

    if not (failed or older_than is not None or other_versions or device is not None or keep):
        raise click.UsageError("select entries: --failed, --older-than, --other-versions, --device or --keep")
    oldest = 0.0 if older_than is None else time.time() - older_than * 86400
    with open_records(path) as file:
        fastest: set[Entry] = set()
        for _, some in groupby(file.entries(), lambda e: (e.key, e.target, e.device)):
            fastest |= {*[*some][:keep]}

        def gone(e: Entry) -> bool:
            is_foreign = other_versions and bool(e.version) and e.version != __version__
            return failed and bool(e.failure) or e.at < oldest or is_foreign or e.device == device or e not in fastest

        click.echo(f"{file.prune(gone)} entries deleted")
