"""`deplodock records`: measured schedules are listed, exchanged and deleted."""

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

    FILE is the user's own where it is left out: what DEPLODOCK_RECORDS says, or records.db in the cache.
    """


def _file(command: Callable[..., Any]) -> Callable[..., Any]:
    return click.option("--file", "path", metavar="FILE", help="The records; left out, the user's own.")(command)


def open_records(path: str | None, new: bool = False) -> RecordFile:
    """Opens the records in a file, or the user's own, which `new` creates. Raises DeplodockError if there are none."""
    from ..passes.record_file import RecordFile
    from ..target.host import NONE, RECORDS, records_file

    found = records_file() if path is None else Path(path)
    if found is None or path == NONE:
        raise DeplodockError(f"no records are kept, as {RECORDS} or the option says: name a file")
    if not new and not found.exists():
        raise DeplodockError(f"there are no records: {found} does not exist")
    if new and path is None:
        found.parent.mkdir(parents=True, mode=0o700, exist_ok=True)
    return RecordFile(found)


@records.command("list")
@_file
@click.option("--all", "everything", is_flag=True, help="Every trial, not only the best of each nest and device.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def list_records(path: str | None, everything: bool, as_json: bool) -> None:
    """Print what was tuned, and how fast it is."""
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
    """Write all as JSON, which `--record` and `import` read, too."""
    from ..target.host import device_of_cores

    with open_records(path) as file:
        write_file(output, json.dumps(file.data(device_of_cores()), indent=1) + "\n")


@records.command("import")
@_file
@click.argument("source", metavar="FILE.json")
def import_records(path: str | None, source: str) -> None:
    """Take in what `export` or `compile --write-record` wrote; of two entries for the same the later one stays."""
    from ..passes.records import read_json

    with open_records(path, new=True) as file:
        click.echo(f"{file.absorb(read_json(source))} entries from {source}")


@records.command()
@_file
@click.argument("sources", nargs=-1, required=True, metavar="FILE...")
def merge(path: str | None, sources: tuple[str, ...]) -> None:
    """Take in the records of other files, of other machines, say."""
    from ..passes.record_file import RecordFile

    with open_records(path, new=True) as file:
        for source in sources:
            if not Path(source).exists():
                raise DeplodockError(f"{source} does not exist")
            with RecordFile(source, read_only=True) as other:
                click.echo(f"{file.absorb(other.data())} entries from {source}")


@records.command()
@_file
@click.option("--failed", is_flag=True, help="Those that failed; the search would try them again.")
@click.option("--older-than", type=float, metavar="DAYS", help="Those that are older than so many days.")
@click.option("--other-versions", is_flag=True, help="Those of other versions of deplodock.")
@click.option("--device", help="Those of this device.")
@click.option("--keep", type=click.IntRange(min=1), metavar="N", help="All but the fastest N of a nest on a device.")
def prune(
    path: str | None, failed: bool, older_than: float | None, other_versions: bool, device: str | None, keep: int | None
) -> None:
    """Delete entries: those for which any of the options holds."""
    from .. import __version__

    if not (failed or older_than is not None or other_versions or device is not None or keep):
        raise click.UsageError("say what is to go: --failed, --older-than, --other-versions, --device or --keep")
    oldest = 0.0 if older_than is None else time.time() - older_than * 86400
    with open_records(path) as file:
        kept: set[Entry] = set()
        for _, some in groupby(file.entries(), lambda e: (e.key, e.target, e.device)):
            kept |= {*[*some][:keep]}

        def gone(e: Entry) -> bool:
            other = other_versions and bool(e.version) and e.version != __version__
            return failed and bool(e.failure) or e.at < oldest or other or e.device == device or e not in kept

        click.echo(f"{file.prune(gone)} entries deleted")
