"""`deplodock run ARTIFACT`: runs every program of an artifact and compares it with the reference."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ...progress import steps
from ...tools import terminal
from ...tools.modes import FILE, Params, Source, refuse_ignored

if TYPE_CHECKING:
    from ...frontend.api import CompiledFunction


def is_artifact(path: str) -> bool:
    """Returns true if a path is a folder with the manifest of an artifact."""
    return (Path(path) / "manifest.json").is_file()


class ArtifactSource(Source):
    """Command-line source ARTIFACT: a folder that `save` has written."""

    metavar = "ARTIFACT"
    marker = "manifest.json"
    about = {
        "run": "An ARTIFACT, which holds nothing of PyTorch, is run on random inputs and compared with the reference,"
        " by default on the GPU or else in the emulator."
    }
    options = {"run": [click.Option(["--weights"], help="ARTIFACT: a checkpoint, where it was saved without weights.")]}
    modes = {"run": {"an ARTIFACT": FILE | {"seed", "executor", "weights"}}}
    refusals = dict.fromkeys(("compile", "tune"), "{file} is compiled already; `deplodock run {file}` runs it")

    def matches(self, file: str) -> bool:
        return is_artifact(file)

    def run(self, context: click.Context, params: Params) -> None:
        """Runs every program of an artifact on random inputs and compares its results with the reference.

        Args:
            context: context of the command.
            params: its parameters.

        Raises:
            SystemExit: with the code 1 if a result is wrong.
        """
        refuse_ignored(context, "an ARTIFACT")
        with terminal.progress():
            with steps("loading PyTorch"):
                from ...frontend.executors import check_executor
                from ...tools import reports
                from .programs import Folder, load
            executor, file = params.executor, str(params.file)
            if check_executor(executor, compiled=True) is not None and Folder.open(file).manifest["target"] != "cpu":
                # Not the reference, which would be compared with itself.
                executor = "emulator"
            artifact = load(file, weights=params.weights, executor=executor)
            outcomes = {name: _outcome(p, params.seed) for name, p in artifact.programs.items()}
        reports.print_outcomes(outcomes, params.as_json)


def _outcome(program: CompiledFunction, seed: int) -> dict[str, Any]:
    """Returns the comparison of a program with the reference on random inputs, for `reports.print_outcomes`."""
    import torch
    from torch.utils import _pytree as pytree

    from ...tools.reports import outcome_of

    def values(example: object) -> object:
        """Returns a random input like `example`: normal floats, or integers 0, which are valid positions."""
        if not isinstance(example, torch.Tensor):
            return example
        random = torch.randn(example.shape) if example.is_floating_point() else torch.zeros(example.shape)
        return random.to(example.dtype)

    torch.manual_seed(seed)
    captured = program.captured
    args, kwargs = pytree.tree_unflatten([values(e) for e in captured.examples], captured.in_spec)
    return outcome_of(program, captured.bind(args, kwargs), "an artifact holds nothing of PyTorch")
