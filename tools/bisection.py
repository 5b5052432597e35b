"""`deplodock run --bisect`: the outcome of a bisection as text and as JSON."""

from __future__ import annotations

from typing import Any

from ..dialects.support.printing import quantity
from ..frontend.api import CompiledFunction
from ..frontend.bisection.search import Bisection, Culprit, bisect
from .reports import Loaded

_TITLES = {
    "capture": "the capture: the torch level does not compute {name}",
    "operator": "the operator {name}",
    "pass": "the pass {name}",
    "executor": "the text and its executor {name}: the kernel level is right",
}


def bisect_loaded(loaded: Loaded, executor: str) -> Bisection:
    """Returns the bisection of a program of the command line."""
    program, captured = loaded.program, loaded.captured
    arguments = captured.bind(program.args, program.kwargs)
    return bisect(CompiledFunction(captured, loaded.compilation, executor), arguments, program.call_peer)


def outcome_text(outcome: Bisection, diff: bool) -> str:
    """Returns a bisection as text. `diff`: whether to print the changes of the IR by the pass."""
    if outcome.culprit is None:
        return f"all results are PyTorch's (executor {outcome.executor}): no part is to blame\n"
    executed = f"{outcome.executed} of {quantity(outcome.versions, 'version')} of the program executed"
    lines = [*_culprit_lines(outcome.culprit), executed]
    if outcome.culprit.diff:
        lines += outcome.culprit.diff if diff else ["-v prints what the pass changed"]
    return "".join(f"{line}\n" for line in lines)


def _culprit_lines(culprit: Culprit) -> list[str]:
    place = f"{culprit.location}: " if culprit.location else ""
    symptom = str(culprit.mismatch) if culprit.mismatch else culprit.error
    return [f"{place}the values leave PyTorch's at {_TITLES[culprit.part].format(name=culprit.name)}", f"  {symptom}"]


def as_dict(outcome: Bisection) -> dict[str, Any]:
    """Returns a bisection as data for JSON."""
    culprit = None if outcome.culprit is None else outcome.culprit.as_dict()
    return {
        "executor": outcome.executor,
        "culprit": culprit,
        "versions": outcome.versions,
        "executed": outcome.executed,
    }
