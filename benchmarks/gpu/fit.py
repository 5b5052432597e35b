"""Fits the constants of the planning model to times measured on an H200, and lists the cases with large errors.

    python -m benchmarks.gpu.fit  # the constants, and the cases whose prediction is off by more than 20 %
    python -m benchmarks.gpu.fit --check  # fits one half and tests the other, each way
    python -m benchmarks.gpu.fit --write  # fits all cases and writes target/fitted.json

The measured times come from `benchmarks/gpu/measured.py`. No program is run.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import click
import numpy as np

from deplodock.frontend.tuning.calibration import robust_fit
from deplodock.passes.planning.model import Prediction
from deplodock.target.architectures import FITTED, TARGETS
from deplodock.target.model import Target

from .measured import Measured, read_measured

NAME, DEVICE = "sm_90a", "NVIDIA H200"

UNFITTED = replace(TARGETS[NAME], rates=(TARGETS[NAME].fusion or TARGETS[NAME]).rates)
"""The target with constants from manuals and publications."""

CONSTANTS = {
    "memory": "bytes/s from device memory",
    "cache": "bytes/s from the level-2 cache by loads of threads",
    "bulk": "bytes/s from the level-2 cache by TMA",
    "store": "bytes/s of results while nothing else is done",
    "vector": "f32 operations/s",
    "special": "exponentials, divisions, roots/s",
    "fma": "multiply-adds on CUDA cores, operations/s",
    "mma": "mma.sync in 16 bits, operations/s",
    "clock": "cycles/s while tensor cores work",
    "launch": "s before a kernel does anything",
    "ramp": "s of the first loads and the last stores",
    "latency": "s from a load to its value",
    "bulk_latency": "s from the request of a TMA tile to its arrival",
    "overlap": "exponent of the norm of multiprocessors, cache and memory",
    "issue_warps": "warps that issue arithmetic between products at full rate",
    "fma_warps": "warps that reach half of the rate of multiply-adds",
    "shared_read": "quads of multiply-adds in the time of a 16-byte read of shared memory",
    "replay": "s of a replay in addition to its kernels",
}
"""The constants that are fitted, fields of `Rates`, each with its unit and meaning."""

LARGE_ERROR = 0.2
"""Relative error above which a case is listed."""


def fit(cases: Sequence[Measured]) -> dict[str, float]:
    """Returns for each constant the factor that fits the model to the measured cases."""
    names = [f"rates.{name}" for name in CONSTANTS]
    plain, measured = UNFITTED, np.array([c.seconds for c in cases])

    def residuals(logs: Any) -> Any:
        target = plain.scaled({n: math.exp(v) for n, v in zip(names, logs, strict=True)})
        return np.log(measured / _predicted(cases, target))

    logs = robust_fit(residuals, len(names), np.ones(len(cases)))
    return {name: round(math.exp(v), 3) for name, v in zip(names, logs, strict=True)}


def _predicted(cases: Sequence[Measured], target: Target) -> Any:
    predictions: dict[tuple[str, tuple[str, ...]], float] = {}
    for c in cases:
        if (c.program, c.schedules) not in predictions:
            predictions[c.program, c.schedules] = c.predicted(target)
    return np.array([predictions[c.program, c.schedules] for c in cases])


def errors(cases: Sequence[Measured], target: Target) -> tuple[float, float]:
    """Returns the median and the 90th percentile of the relative errors of predictions."""
    off = np.abs(_predicted(cases, target) / [c.seconds for c in cases] - 1)
    return round(float(np.median(off)), 3), round(float(np.percentile(off, 90)), 3)


def halves(cases: Sequence[Measured]) -> list[dict[str, Any]]:
    """Returns for each half of the cases its size, and its errors before and after a fit to the other half."""
    plain, rows = UNFITTED, list[dict[str, Any]]()
    for half in (0, 1):
        tested = [c for c in cases if c.half == half]
        factors = fit([c for c in cases if c.half != half])
        before, after = errors(tested, plain), errors(tested, plain.scaled(factors))
        rows.append({"cases": len(tested), "before": before, "after": after})
    return rows


def dominant_terms(kernels: Sequence[Prediction]) -> str:
    """Returns a text on the longest kernel: its bottleneck, microseconds by term of the model, and its occupancy."""
    longest = max(kernels, key=lambda p: p.seconds)
    parts = {name: seconds * 1e6 for name, seconds in longest.times.parts.items() if seconds > 0.5e-6}
    terms = ", ".join(f"{name} {us:.1f}" for name, us in sorted(parts.items(), key=lambda item: -item[1]))
    return f"{longest.limit}; {terms}; {longest.blocks} blocks, {longest.resident} resident, {longest.waves} waves"


def table() -> str:
    """Returns the constants before and after the fit, as lines of Markdown."""
    lines = ["| constant | before | fitted | unit and meaning |", "|---|---|---|---|"]
    for name, meaning in CONSTANTS.items():
        before, after = (getattr(t.rates, name) for t in (UNFITTED, TARGETS[NAME]))
        lines.append(f"| {name} | {before:.4g} | {after:.4g} | {meaning} |")
    return "\n".join(lines)


@click.command(help=__doc__, context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--check", is_flag=True, help="Fit one half and test the other.")
@click.option("--write", is_flag=True, help="Fit all cases and write the constants.")
def main(check: bool, write: bool) -> None:
    """Prints the errors of the model, or cross-validates and fits its constants."""
    cases = read_measured()
    if check or write:
        tested = halves(cases)
        for half in tested:
            click.echo("{cases} cases: median and p90 of the error {before} before, {after} after".format(**half))
    if write:
        factors = fit(cases)
        off = errors(cases, UNFITTED), errors(cases, UNFITTED.scaled(factors))
        record = {"device": DEVICE, "cases": len(cases), "off": off, "halves": tested}
        fitted = json.loads(FITTED.read_text(encoding="utf-8")) | {NAME: {**record, "factors": factors}}
        FITTED.write_text(json.dumps(fitted, indent=1) + "\n", encoding="utf-8")
        return
    click.echo(table())
    target = TARGETS[NAME]
    rows = [(c.predicted(target) / c.seconds, c) for c in cases]
    large_errors = [(ratio, c) for ratio, c in sorted(rows, key=lambda row: row[0]) if abs(ratio - 1) > LARGE_ERROR]
    click.echo(f"\n{len(large_errors)} of {len(cases)} cases are off by more than {LARGE_ERROR:.0%}:")
    for ratio, c in large_errors:
        click.echo(f"{ratio:5.2f} of {c.seconds * 1e6:8.2f} us  {c.case}: {dominant_terms(c.kernels(target))}")
    click.echo("median {:.3f}, p90 {:.3f}".format(*errors(cases, target)))


if __name__ == "__main__":
    main()
