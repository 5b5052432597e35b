"""Programs that were timed on a GPU, with their schedules: `benchmarks/results/h200-measured.json`.

    python -m benchmarks.gpu.measured JOURNAL... --date DATE  # adds the rows of journals, planned by this checkout

The file has a list of loop-level programs (`programs`). Each case (`cases`) has its key, the index of its program, the
schedules of its nests, and by date the nanoseconds of deplodock and of eager PyTorch with a cold level-2 cache. The
times must be added by a checkout of the commit that was timed, because its planner makes the schedules again.
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
    """A program that was timed on a GPU.

    Attributes:
        case: key of the benchmark case.
        program: loop IR of the program, without schedules.
        schedules: schedule of each nest, in order.
        times: date -> seconds of deplodock and of eager PyTorch.
    """

    case: str
    program: str
    schedules: tuple[str, ...]
    times: dict[str, tuple[float, float]]

    @property
    def seconds(self) -> float:
        """Seconds of deplodock, the geometric mean over the dates."""
        return math.exp(sum(math.log(ours) for ours, _ in self.times.values()) / len(self.times))

    @property
    def half(self) -> int:
        """0 or 1: the half of the cases for cross-validation. Equal programs and schedules are in the same half."""
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
        """The `NestInfo` of each nest of the program, the input of the planner."""
        return [model.info for model, _ in self._nests]

    def kernels(self, target: Target) -> list[Prediction]:
        """Returns the prediction for each kernel of the program, with the schedules that were timed."""
        return [model.on(target).predict(schedule) for model, schedule in self._nests]

    def predicted(self, target: Target) -> float:
        """Returns the predicted seconds of one replay of the program's CUDA graph."""
        return target.rates.replay + sum(p.seconds for p in self.kernels(target))


def read_measured(path: Path = FILE) -> list[Measured]:
    """Returns the cases of the file. Cases with equal programs and schedules share one parsed program."""
    content = json.loads(path.read_text(encoding="utf-8"))
    cases = [
        Measured(c["case"], content["programs"][c["program"]], tuple(c["schedules"]), _seconds(c["ns"]))
        for c in content["cases"]
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
    """Yields for each timed row of the journals its key, and the nanoseconds of deplodock and of eager PyTorch."""
    for journal in journals:
        for line in journal.read_text(encoding="utf-8").splitlines():
            entry = json.loads(line)
            times = entry.get("row", {}).get("times", {}).get("cold", {})
            if "deplodock" in times and "eager" in times:
                yield entry["key"], *(round(times[arm]["median"] * 1e9) for arm in ("deplodock", "eager"))


@click.command(help=__doc__)
@click.argument("journals", nargs=-1, required=True, type=click.Path(path_type=Path, exists=True))
@click.option("--date", required=True, help="Date of the measurement.")
@click.option("--out", type=click.Path(path_type=Path), default=FILE)
def main(journals: tuple[Path, ...], date: str, out: Path) -> None:
    """Adds the rows of journals to the file."""
    from ..common.cases import cases

    by_key = {c.key: c for c in cases(("seed84", "classes"), "cuda", ("f32", "bf16"))}
    content = json.loads(out.read_text(encoding="utf-8")) if out.exists() else {"programs": [], "cases": []}
    cases_by_key = {c["case"]: c for c in content["cases"]}
    for key, ours, eager in _rows(journals):
        if key not in cases_by_key:
            program, schedules = _plan(by_key[key])
            if program not in content["programs"]:
                content["programs"].append(program)
            cases_by_key[key] = {
                "case": key,
                "program": content["programs"].index(program),
                "schedules": schedules,
                "ns": {},
            }
        cases_by_key[key]["ns"][date] = [ours, eager]
    parts = [",\n  ".join(map(json.dumps, some)) for some in (content["programs"], cases_by_key.values())]
    out.write_text('{"programs": [\n  ' + parts[0] + '],\n "cases": [\n  ' + parts[1] + "]}\n", encoding="utf-8")
    click.echo(f"{len(cases_by_key)} cases, {len(content['programs'])} programs")


def _plan(case: Any) -> tuple[str, list[str]]:
    """Returns the loop IR of a case without schedules, and the planner's schedule for each nest."""
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
