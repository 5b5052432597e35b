"""Converts journals from another machine to a result file.

python -m benchmarks.suite.from_journals JOURNAL... --gpu "NVIDIA H200" --torch 2.11.0+cu130 --cuda 13.0 \\
    --commit C --date D
"""

from __future__ import annotations

from pathlib import Path

import click

from ..common.cases import DTYPES, cases
from ..common.journal import Journal
from ..common.results import FOLDER, Row, merge


@click.command(help=__doc__)
@click.argument("journals", nargs=-1, required=True, type=click.Path(path_type=Path, exists=True))
@click.option("--gpu", required=True, help="Name of the device.")
@click.option("--torch", required=True, help="Version of PyTorch.")
@click.option("--cuda", required=True, help="Version of CUDA.")
@click.option("--commit", required=True, help="Commit that was measured.")
@click.option("--date", required=True, help="Date of the measurement.")
@click.option("--suffix", default="", help="Added to the suite names, for a run with other baselines.")
def main(journals: tuple[Path, ...], gpu: str, torch: str, cuda: str, commit: str, date: str, suffix: str) -> None:
    """Writes the rows of JOURNALS to a result file."""
    cases_by_key = {c.key: c for c in cases(("seed84", "classes"), "cuda", [*DTYPES])}
    versions = {"gpu": gpu, "torch": torch, "cuda": cuda, "deplodock": "0.1.0", "xdsl": "0.74.0"}
    rows: list[Row] = []
    for path in journals:
        for key, row in Journal(path).rows.items():
            c = cases_by_key[key]
            key_columns = {"suite": c.suite + suffix, "group": c.group.name, "case": c.name, "dtype": c.dtype}
            rows.append({**key_columns, "threads": 1, "commit": commit, **row})
    name = f"{gpu.lower().removeprefix('nvidia ').replace(' ', '-')}-{date}.json"
    merge(FOLDER / name, {"processor": None, "cores": 0, "measured": None, **versions}, rows)
    click.echo(f"{len(rows)} rows in {name}; `python -m benchmarks.suite.results_page` renews docs/results.md")


if __name__ == "__main__":
    main()
