"""Compares search policies: how close they come to the best schedule of the 40 kernels of `fixture.py`.

    python -m benchmarks.search.search_policies [--policies bayes,mcts] [--seeds 3] [--trials 32] [--only SUBSTRING]

After some numbers of trials, prints for each policy two figures about the candidate that was measured to be fastest:
its speed relative to the optimum, averaged over the kernels, and the fraction of searches in which this is at least
98 %. A trial is the median of `--samples` samples with 5 % noise; the default is the number of samples that
`deplodock tune` takes of a competitive candidate. `--libraries` adds the optimizers of Optuna and Nevergrad.
`--json FILE` and `--plot FILE.svg` write the curves.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from statistics import mean
from typing import Any

import click

from deplodock.frontend.tuning.policies import POLICIES as LIBRARY_POLICIES
from deplodock.frontend.tuning.running import MAX_ROUNDS
from deplodock.frontend.tuning.trial import Policy
from deplodock.progress import steps
from deplodock.tools.tables import curves as plotted

from .fixture import Kernel, Measured, kernels
from .libraries import LIBRARIES
from .policies import POLICIES as BENCHMARK_POLICIES

POLICIES = LIBRARY_POLICIES | BENCHMARK_POLICIES

FOUND_SHARE = 0.98
"""Least speed relative to the optimum that counts as success."""

SHOWN_TRIALS = (1, 2, 4, 8, 16, 32, 64)
"""Numbers of trials after which figures are printed."""


def run(kernel: Kernel, make: Callable[[Any, int], Policy], seed: int, trials: int, samples: int) -> list[float]:
    """Runs one search.

    Args:
        kernel: the kernel with its synthetic machine.
        make: creates the policy from the kernel and a seed.
        seed: seed of the policy and of the noise.
        trials: number of trials.
        samples: samples per trial.

    Returns:
        After each trial, the true speed of the fastest measured candidate relative to the optimum.
    """
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
@click.option("--samples", default=MAX_ROUNDS)
@click.option("--only", default="")
@click.option("--json", "file", default=None)
@click.option("--plot", default=None)
def main(policies: str, libraries: bool, seeds: int, trials: int, samples: int, only: str, **files: str | None) -> None:
    makers = {name: POLICIES[name] for name in policies.split(",")} | (LIBRARIES if libraries else {})
    fixture = [k for k in kernels() if only in k.name]
    shares: dict[str, dict[str, list[list[float]]]] = {}
    with steps("searching", len(makers) * len(fixture), "searches") as step:
        for name, make in makers.items():
            shares[name] = {}
            for kernel in fixture:
                shares[name][kernel.name] = [run(kernel, make, seed, trials, samples) for seed in range(seeds)]
                step()
            print(_row(name, [c for curves in shares[name].values() for c in curves]), flush=True)
    if files["file"]:
        rounded = {p: {k: [[round(s, 4) for s in c] for c in v] for k, v in r.items()} for p, r in shares.items()}
        Path(files["file"]).write_text(json.dumps({"trials": trials, "samples": samples, "shares": rounded}) + "\n")
    if files["plot"]:
        lines = {n: _mean([c for curves in r.values() for c in curves]) for n, r in shares.items()}
        title = f"share of the optimum by trials, mean of {len(fixture)} kernels"
        Path(files["plot"]).write_text(plotted(title, lines))


def _mean(curves: list[list[float]]) -> list[tuple[float, float]]:
    """Returns the mean of curves as points (number of trials, value)."""
    return [(t + 1.0, mean(column)) for t, column in enumerate(zip(*curves, strict=True))]


def _row(name: str, curves: list[list[float]]) -> str:
    """Returns the line of a policy: after `SHOWN_TRIALS` trials the mean speed, and the fraction of successes."""
    at = [t for t in SHOWN_TRIALS if t <= len(curves[0])]
    cells = [
        f"{t}: {mean(c[t - 1] for c in curves):.3f} {mean(float(c[t - 1] >= FOUND_SHARE) for c in curves):4.0%}"
        for t in at
    ]
    return f"{name:10s} {'   '.join(cells)}"


if __name__ == "__main__":
    main()
