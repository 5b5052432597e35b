"""`deplodock.load`: the programs of an artifact, called as before they were saved."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .api import CompiledFunction
from .artifact import read
from .artifact.manifest import ArtifactError


@dataclass(frozen=True)
class Artifact:
    """The programs of an artifact by name, and what was saved with them."""

    target: str
    programs: dict[str, CompiledFunction]
    extra: dict[str, Any]

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run the program `main`, or the only one. Raises ArtifactError if there are several others."""
        if "main" not in self.programs and len(self.programs) != 1:
            raise ArtifactError(f"has several programs: {', '.join(self.programs)}")
        program = self.programs.get("main") or next(iter(self.programs.values()))
        return program(*args, **kwargs)

    def refresh(self) -> None:
        """Packs the weights of all programs again in the next call, as `CompiledFunction.refresh`."""
        for program in self.programs.values():
            program.refresh()


def load(
    path: str | Path, *, target: str | None = None, weights: str | Path | None = None, executor: str = "auto"
) -> Artifact:
    """Loads the programs of an artifact.

    Args:
        path: folder of the artifact, every file of which is checked before any is used.
        target: target that the artifact has to be compiled for; left out, each is accepted.
        weights: checkpoint for parameters that were saved without values.
        executor: who runs the programs, as for `compile`.

    Raises:
        ArtifactError: for a folder that is no artifact, or a damaged one.
        TargetError: for an artifact of another target.
        WeightError: for a checkpoint that does not fit.
    """
    stored = read(path, target, weights)
    programs = {name: CompiledFunction(*program, executor) for name, program in stored.programs.items()}
    return Artifact(stored.target, programs, stored.extra)
