"""`model`: the planner's pick, and no search."""

from __future__ import annotations

from ..trial import Candidate
from .history import History


class ModelPolicy(History):
    """Asks for what the planner takes, and for nothing else."""

    def _next(self) -> Candidate | None:
        return None
