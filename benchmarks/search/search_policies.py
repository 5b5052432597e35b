"""How fast policies come to the best schedule: curves over the 40 kernels of `fixture.py`.

    python -m benchmarks.search.search_policies [--policies bayes,mcts] [--seeds 3] [--trials 32] [--only SUBSTRING]

For each policy and number of trials: the share of the optimum's speed that the candidate has which was measured to be
the fastest, on average, and on how many kernels it is at least 98 %. A trial is the median of `--samples` samples with
5 % noise: of as many as `deplodock tune` takes of a candidate that is not clearly slower. `--libraries` adds what
Optuna and Nevergrad propose on the same spaces. `--json FILE` and `--plot FILE.svg` keep it.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from statistics import mean
from typing import Any

import click

from deplodock.frontend.tuning.policies import POLICIES as OWN
from deplodock.frontend.tuning.running import MOST
from deplodock.frontend.tuning.trial import Policy
from deplodock.progress import steps
from deplodock.tools.tables import curves as plotted

from .fixture import Kernel, Measured, kernels
from .libraries import LIBRARIES
from .policies import POLICIES as FURTHER

POLICIES = OWN | FURTHER

NEARLY = 0.98
"""The share of the optimum that counts as found."""

SHOWN = (1, 2, 4, 8, 16, 32, 64)


def run(kernel: Kernel, make: Callable[[Any, int], Policy], seed: int, trials: int, samples: int) -> list[float]:
    """After each trial the share of the optimum that the fastest by then has."""
    policy, evaluator = make(kernel, seed), Measured(kernel, seed, samples)
    shares: list[float] = []
    best, share = float("inf"), 0.0
    while len(shares) < trials and (asked := policy.ask(1)):
        for trial in evaluator.measure(asked):
            policy.tell(trial)
            if trial.seconds is not None and trial.seconds < best:
                best, share = trial.seconds, kernel.share(trial.candidate)
            shares.append(share)
    return shares + [share] * (trials - len(shares))


@click.command(help=__doc__, context_settings={"max_content_width": 120})
@click.option("--policies", default=",".join(POLICIES))
@click.option("--libraries", is_flag=True)
@click.option("--seeds", default=3)
@click.option("--trials", default=32)
@click.option("--samples", default=MOST)
@click.option("--only", default="")
@click.option("--json", "file", default=None)
@click.option("--plot", default=None)
def main(policies: str, libraries: bool, seeds: int, trials: int, samples: int, only: str, **kept: str | None) -> None:
    made = {name: POLICIES[name] for name in policies.split(",")} | (LIBRARIES if libraries else {})
    fixture = [k for k in kernels() if only in k.name]
    found: dict[str, dict[str, list[list[float]]]] = {}
    with steps("searching", len(made) * len(fixture), "searches") as step:
        for name, make in made.items():
            found[name] = {}
            for kernel in fixture:
                found[name][kernel.name] = [run(kernel, make, seed, trials, samples) for seed in range(seeds)]
                step()
            print(_row(name, [c for curves in found[name].values() for c in curves]), flush=True)
    if kept["file"]:
        rounded = {p: {k: [[round(s, 4) for s in c] for c in v] for k, v in r.items()} for p, r in found.items()}
        Path(kept["file"]).write_text(json.dumps({"trials": trials, "samples": samples, "shares": rounded}) + "\n")
    if kept["plot"]:
        lines = {n: _mean([c for curves in r.values() for c in curves]) for n, r in found.items()}
        title = f"share of the optimum by trials, mean of {len(fixture)} kernels"
        Path(kept["plot"]).write_text(plotted(title, lines))


def _mean(curves: list[list[float]]) -> list[tuple[float, float]]:
    """The points of the average of curves."""
    return [(t + 1.0, mean(column)) for t, column in enumerate(zip(*curves, strict=True))]


def _row(name: str, curves: list[list[float]]) -> str:
    """A line: on average, and of how many kernels, after some numbers of trials."""
    at = [t for t in SHOWN if t <= len(curves[0])]
    cells = [
        f"{t}: {mean(c[t - 1] for c in curves):.3f} {mean(float(c[t - 1] >= NEARLY) for c in curves):4.0%}" for t in at
    ]
    return f"{name:10s} {'   '.join(cells)}"


if __name__ == "__main__":
    main()
