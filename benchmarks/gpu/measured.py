"""Programs that a GPU has timed, with the schedules that they had then: `benchmarks/results/h200-measured.json`.

    python -m benchmarks.gpu.measured JOURNAL... --date DATE  # adds the rows of journals, planned by this tree

The file has the loop programs of the cases (`programs`). Each case (`cases`) has its key, the number of its program,
the schedules of its nests, and by date the nanoseconds of ours and of eager PyTorch with a cold level-2 cache. Times
of another commit need a working tree of that commit, whose planner makes the schedules that were timed.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import click

from deplodock.dialects import make_context
from deplodock.dialects.loop import NestOp
from deplodock.dialects.support.parsing import parse_module
from deplodock.frontend.tuning.building import parse_schedule
from deplodock.passes.planning.model import Model, Prediction, model_of
from deplodock.passes.planning.nest_info import NestInfo
from deplodock.target.attribute import get_target
from deplodock.target.model import Target

FILE = Path(__file__).resolve().parents[1] / "results" / "h200-measured.json"


@dataclass(frozen=True)
class Measured:
    """A program that was timed.

    case      key of the case, with its type
    program   text of its nests, without schedules
    schedules of its nests
    times     date -> seconds of ours and of eager PyTorch
    """

    case: str
    program: str
    schedules: tuple[str, ...]
    times: dict[str, tuple[float, float]]

    @property
    def seconds(self) -> float:
        """Seconds of ours, the geometric mean over the dates."""
        return math.exp(sum(math.log(ours) for ours, _ in self.times.values()) / len(self.times))

    @property
    def half(self) -> int:
        """Half of the cases that this one is in, by a hash of its program: equal programs are in the same half."""
        return hashlib.sha256(f"{self.program} {self.schedules}".encode()).digest()[0] % 2

    @cached_property
    def _nests(self) -> list[tuple[Model, Any]]:
        module = parse_module(make_context(), self.program, f"{self.case}.mlir")
        nests = [op for op in module.walk() if isinstance(op, NestOp)]
        target = get_target("sm_90a")
        pairs = zip(nests, self.schedules, strict=True)
        return [(model_of(NestInfo(nest), target), parse_schedule(text)) for nest, text in pairs]

    @property
    def infos(self) -> list[NestInfo]:
        """The nests of the program, as planners see them."""
        return [model.info for model, _ in self._nests]

    def kernels(self, target: Target) -> list[Prediction]:
        """Returns the predictions of its kernels under the schedules that were timed."""
        return [model.on(target).predict(schedule) for model, schedule in self._nests]

    def predicted(self, target: Target) -> float:
        """Returns the predicted seconds of a replay."""
        return target.rates.replay + sum(p.seconds for p in self.kernels(target))


def read_measured(path: Path = FILE) -> list[Measured]:
    """Returns the cases of the file. Equal programs with equal schedules share their models."""
    found = json.loads(path.read_text(encoding="utf-8"))
    cases = [
        Measured(c["case"], found["programs"][c["program"]], tuple(c["schedules"]), _seconds(c["ns"]))
        for c in found["cases"]
    ]
    first: dict[tuple[str, tuple[str, ...]], Measured] = {}
    for case in cases:
        same = first.setdefault((case.program, case.schedules), case)
        if same is not case:
            case.__dict__["_nests"] = same._nests
    return cases


def _seconds(times: dict[str, Sequence[float]]) -> dict[str, tuple[float, float]]:
    return {date: (ours / 1e9, eager / 1e9) for date, (ours, eager) in times.items()}


def _rows(journals: Sequence[Path]) -> Iterator[tuple[str, int, int]]:
    """Yields key, nanoseconds of ours and of eager of the rows of journals that were timed."""
    for journal in journals:
        for line in journal.read_text(encoding="utf-8").splitlines():
            entry = json.loads(line)
            times = entry.get("row", {}).get("times", {}).get("cold", {})
            if "deplodock" in times and "eager" in times:
                yield entry["key"], *(round(times[arm]["median"] * 1e9) for arm in ("deplodock", "eager"))


@click.command(help=__doc__)
@click.argument("journals", nargs=-1, required=True, type=click.Path(path_type=Path, exists=True))
@click.option("--date", required=True, help="Of the measurement.")
@click.option("--out", type=click.Path(path_type=Path), default=FILE)
def main(journals: tuple[Path, ...], date: str, out: Path) -> None:
    """Add the rows of journals to the file."""
    from ..common.cases import cases

    by_key = {c.key: c for c in cases(("seed84", "classes"), "cuda", ("f32", "bf16"))}
    found = json.loads(out.read_text(encoding="utf-8")) if out.exists() else {"programs": [], "cases": []}
    known = {c["case"]: c for c in found["cases"]}
    for key, ours, eager in _rows(journals):
        if key not in known:
            program, schedules = _plan(by_key[key])
            if program not in found["programs"]:
                found["programs"].append(program)
            known[key] = {"case": key, "program": found["programs"].index(program), "schedules": schedules, "ns": {}}
        known[key]["ns"][date] = [ours, eager]
    parts = [",\n  ".join(map(json.dumps, some)) for some in (found["programs"], known.values())]
    out.write_text('{"programs": [\n  ' + parts[0] + '],\n "cases": [\n  ' + parts[1] + "]}\n", encoding="utf-8")
    click.echo(f"{len(known)} cases, {len(found['programs'])} programs")


def _plan(case: Any) -> tuple[str, list[str]]:
    """Returns the loop program of a case without schedules, and the schedules that the planner makes."""
    from deplodock.passes.analysis.nest_schedule import schedule_of

    from ..common.prepared import program

    module = program(case, "sm_90a", None, "reference").compilation.scheduled().clone()
    nests = [op for op in module.walk() if isinstance(op, NestOp)]
    schedules = [str(schedule_of(nest)) for nest in nests]
    for nest in nests:
        del nest.attributes["schedule"]
    return str(module), schedules


if __name__ == "__main__":
    main()
