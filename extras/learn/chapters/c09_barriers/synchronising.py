"""Judge of barriers: races, threads that miss a barrier, and barriers that are not needed."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable

import numpy as np
from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Operation

from .....backend.check_each import input_types, make_inputs
from .....backend.simulator import Finding, Report, SimulationResult, simulate
from .....dialects import kernel
from .....dialects.support.locations import location_text
from ...differences import describe
from ...judges import require_signature
from ...verdicts import Wrong

ORDER = ("divergent", "race")
"""Kinds of findings that are reported first: other errors may follow from them."""


def barriers(module: ModuleOp) -> list[Operation]:
    """Returns the barriers in the text of a program."""
    return [op for op in module.walk() if isinstance(op, kernel.BarrierOp)]


def require_synchronised(actual: ModuleOp, expected: ModuleOp, *, same_operations: bool = True) -> int:
    """Requires that a kernel is right, without races, with as few barriers as a right program.

    Args:
        actual: the program of the reader.
        expected: a right program.
        same_operations: whether only barriers may be added, moved or removed.

    Returns:
        the barriers that a block executes.

    Raises:
        Wrong: the first fault.
    """
    require_signature(actual, expected)
    if same_operations:
        _require_operations(actual, expected)
    run, right = _simulated(actual), _simulated(expected)
    pairs = enumerate(zip(run.outputs, right.outputs, strict=True))
    texts = [describe(a, e, np.isclose(a, e, rtol=1e-5, atol=1e-6), f"result {i}") for i, (a, e) in pairs]
    if faults := [*_findings(actual, run.report), *filter(None, texts)]:
        raise Wrong("; ".join(faults))
    launch, best = (r.report.launches[0] for r in (run, right))
    if launch.wavefronts < best.wavefronts:
        raise Wrong(
            "the results are right, but not all elements are exchanged through shared memory, as they should be"
        )
    count, least = launch.barriers, best.barriers
    if count > least:
        raise Wrong(
            f"no race, but a block executes {count} barriers where {least} {_are(least)} enough{_spare(actual)}"
        )
    return count


def _are(count: int) -> str:
    return "is" if count == 1 else "are"


def _require_operations(actual: ModuleOp, expected: ModuleOp) -> None:
    """Requires that two programs have the same operations except barriers. Raises Wrong."""
    mine, right = (
        Counter(op.name for op in m.walk() if not isinstance(op, kernel.BarrierOp)) for m in (actual, expected)
    )
    changed = [*(mine - right), *(right - mine)]
    if changed:
        raise Wrong(f"expected that only barriers are added, moved or removed, but the number of {changed[0]} changed")


def _simulated(module: ModuleOp) -> SimulationResult:
    return simulate(module, _inputs(module), races=True)


def _inputs(module: ModuleOp) -> list[np.ndarray]:
    return make_inputs(input_types(module))


def _findings(module: ModuleOp, report: Report) -> list[str]:
    """Returns a text about the most important finding of a report, or an empty list if there is none."""
    findings = sorted(report.findings, key=lambda f: ORDER.index(f.kind) if f.kind in ORDER else len(ORDER))
    if not findings:
        return []
    others = len(findings) - 1
    more = f" ({others} more {'finding' if others == 1 else 'findings'})" if others else ""
    return [f"{_text(findings[0])}{_order(module, findings[0])}{more}"]


def _order(module: ModuleOp, finding: Finding) -> str:
    """Returns a text about the barriers near the two operations of a race, or an empty text."""
    match = re.search(r":(\d+):\d+, with no barrier", finding.message)
    line = _line(finding.location)
    if match is None or not line:
        return ""
    earlier, later = int(match[1]), int(line)
    lines = [int(_line(location_text(op)) or 0) for op in barriers(module)]
    if later < earlier:
        outside = [n for n in lines if not later < n < earlier]
        text = f"; line {later} is executed after line {earlier}, in the next iteration of the loop"
        return f"{text}; the barrier in line {outside[0]} is outside of it" if outside else text
    before, after = [n for n in lines if n < earlier], [n for n in lines if n > later]
    if before:
        return f"; the barrier in line {before[-1]} is before both"
    return f"; the barrier in line {after[0]} is after both" if after else ""


def _text(finding: Finding) -> str:
    """Returns a finding with the numbers of lines in place of the name of the file."""
    message = re.sub(r" at [^ ]*?:(\d+):\d+", r" in line \1", finding.message)
    line = _line(finding.location)
    name = finding.op.split("(")[0].split(" = ")[-1].split()[0]
    return f"{f'line {line}, ' if line else ''}{name}: {message}"


def _line(location: str | None) -> str:
    match = re.search(r":(\d+):\d+", location or "")
    return match[1] if match else ""


def _spare(module: ModuleOp) -> str:
    """Returns a text about barriers whose removal causes no race, each by itself, or an empty text."""
    lines: list[str] = []
    for number, op in enumerate(barriers(module)):
        copy = module.clone()
        barriers(copy)[number].detach()
        if not _simulated(copy).report.findings:
            lines.append(_line(location_text(op)))
    return f": {_listed(lines)} not needed" if lines else ""


def _listed(lines: Iterable[str]) -> str:
    first, *others = lines
    if not others:
        return f"the one in line {first} is"
    return f"any one of those in lines {', '.join((first, *others[:-1]))} and {others[-1]} is"
