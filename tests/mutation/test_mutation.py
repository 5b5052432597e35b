"""Planted bugs: a verifier, the simulator, the exact domain or the emulator must detect nearly all of them.

`pytest -s tests/mutation/test_mutation.py` prints each mutant with its detector. The terminal summary has the
score.

A mutant must change results. These changes are no bugs and are left out:

- a bound that is one too large inside of a wide access, or over padding that already has the identity value,
- a loop or grid with additional masked tiles,
- a maximum without NaN whose NaN is propagated by another operand,
- a corrected reference value in a reduction that is not carried,
- narrower accesses, and `thread` for `lane` if only the low bits are used.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

import pytest

from mutation.checking import Verdict, judge_module, judge_texts
from mutation.editing import LOWERED, Mutant, StaleMutantError
from mutation.kernel_mutants import KERNEL_MUTANTS
from mutation.lowering_mutants import LOWERING_MUTANTS
from mutation.printer_mutants import PRINTER_MUTANTS
from mutation.schedule_mutants import SCHEDULE_MUTANTS
from mutation.subjects import PROGRAMS, subject
from mutation.tile_mutants import TILE_MUTANTS

MUTANTS = [*LOWERING_MUTANTS, *TILE_MUTANTS, *KERNEL_MUTANTS, *PRINTER_MUTANTS, *SCHEDULE_MUTANTS]

AREAS = ("lowering", "loop IR", "tile IR", "kernel IR", "printer", "printed text", "schedules")


@dataclass(frozen=True)
class Result:
    """A mutant and the verdict of the checker that detected it, or None."""

    mutant: Mutant
    verdict: Verdict | None

    def __str__(self) -> str:
        by = self.verdict.by if self.verdict else "NOT CAUGHT"
        return f"{by:36} {self.mutant.area:12} {self.mutant.subject:18} {self.mutant.name}"


@pytest.mark.parametrize("name", PROGRAMS)
def test_nobody_objects_to_a_program_without_bugs(name: str) -> None:
    s = subject(name)
    for level in LOWERED:
        assert judge_module(s, s.at(level), level) is None, level


def test_nobody_objects_to_printed_text_without_bugs() -> None:
    assert set(judge_texts([(subject(n), subject(n).cuda) for n in PROGRAMS])) == {None}


def test_edits_of_the_compiler_apply() -> None:
    """Each mutant of a pass or of the printer finds the code that it changes."""
    stale: list[str] = []
    for mutant in MUTANTS:
        try:
            with mutant.change():
                pass
        except StaleMutantError as error:
            stale.append(f"{mutant.name}: {error}")
    assert stale == []


def test_planted_bugs_are_caught(summarise: Callable[[str], None]) -> None:
    results, stale = _plant_all()
    caught = [r for r in results if r.verdict]
    for r in results:
        print(r)
    for area in AREAS:
        inside = [r for r in results if r.mutant.area == area]
        summarise(f"{area}: {sum(r.verdict is not None for r in inside)} of {len(inside)} planted bugs caught")
    by = Counter((r.verdict.by if r.verdict else "").split(" (")[0] for r in caught)
    summarise(f"all: {len(caught)} of {len(results)}; by " + ", ".join(f"{k} {n}" for k, n in by.most_common()))
    for line in [str(r) for r in results if not r.verdict] + [f"changes nothing any more: {s}" for s in stale]:
        summarise(line)

    assert len({(m.subject, m.area, m.name) for m in MUTANTS}) == len(MUTANTS)
    assert len(stale) <= len(MUTANTS) // 20, stale
    assert all(sum(r.mutant.area == area for r in results) >= 10 for area in AREAS)
    assert len(results) >= 200
    assert len(caught) >= 0.95 * len(results)
    assert all(r.verdict for r in results if "align" in r.mutant.name)


def _plant_all() -> tuple[list[Result], list[str]]:
    """Returns all mutants with their verdicts, and the names of mutants that change nothing."""
    results: list[Result] = []
    printed: list[tuple[Mutant, str]] = []
    stale: list[str] = []
    for mutant in MUTANTS:
        try:
            planted = mutant.plant(subject(mutant.subject))
        except StaleMutantError as error:
            stale.append(f"{mutant.subject}: {mutant.name}: {error}")
            continue
        if planted.text is not None:
            printed.append((mutant, planted.text))
        else:
            results.append(Result(mutant, planted.verdict))
    verdicts = judge_texts([(subject(m.subject), text) for m, text in printed])
    results += [Result(m, v) for (m, _), v in zip(printed, verdicts, strict=True)]
    return results, stale
