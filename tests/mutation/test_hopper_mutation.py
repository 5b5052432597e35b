"""Planted synchronisation bugs of sm_90a: a verifier, the simulator or the emulator must detect nearly all."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import numpy as np
import pytest
from support.hopper_running import allocated, expected, inputs
from xdsl.dialects.builtin import ModuleOp

from deplodock.backend.cuda.printer import print_cuda
from deplodock.backend.emulator import EmulatedProgram, compile_many
from deplodock.backend.host.launch_plan import make_plan
from deplodock.backend.simulator import simulate
from deplodock.errors import DeplodockError
from mutation.hopper_mutants import CUDA_MUTANTS, IR_MUTANTS, SUBJECTS, TextMutant, tell_missed


@cache
def text_of(subject: str, cuda: bool) -> str:
    """Returns the IR or the CUDA text of a subject."""
    text = SUBJECTS[subject].text()
    return print_cuda(allocated(text)) if cuda else text


def _wrong(subject: str, outputs: list[np.ndarray]) -> bool:
    return bool((outputs[0].astype(np.float32) != expected(SUBJECTS[subject])).any())


def judge_ir(subject: str, text: str) -> str | ModuleOp:
    """Returns the checker, verifier or simulator, that detects a bug in IR text, or the module if none does."""
    bars = f'memref<{SUBJECTS[subject].stages}x!kernel.mbarrier, "shared">'
    try:
        module = allocated(text.replace("BARS", bars))
    except DeplodockError as error:
        return f"verifier: {error}"
    try:
        found = simulate(module, inputs(SUBJECTS[subject]))
    except DeplodockError as error:
        return f"simulator: {error}"
    if findings := [f for f in found.report.findings if f.kind != "unwritten"]:
        return f"simulator: {findings[0]}"
    return "numbers" if _wrong(subject, found.outputs) else module


def judge_cuda(texts: list[tuple[str, str]]) -> list[str | None]:
    """Returns for each (subject, CUDA text) the checker that detects its bug, or None."""
    verdicts: list[str | None] = []
    for (subject, text), built in zip(texts, compile_many([t for _, t in texts]), strict=True):
        plan = make_plan(allocated(text_of(subject, False)))
        outputs, reports = EmulatedProgram(text, plan, built).run(inputs(SUBJECTS[subject]), (0, 1, 7))
        by = f"emulator: {reports[0]}" if reports else None
        verdicts.append("numbers" if by is None and _wrong(subject, outputs) else by)
    return verdicts


@pytest.mark.parametrize("subject", SUBJECTS)
def test_nobody_objects_without_bugs(subject: str) -> None:
    assert not isinstance(judge_ir(subject, text_of(subject, False)), str)


def _report(
    mutants: list[TextMutant], verdicts: list[str | None], where: str, summarise: Callable[[str], None]
) -> None:
    missed = tell_missed(mutants, verdicts, f"sm_90a, {where}", summarise)
    assert len(missed) <= len(mutants) // 20, missed


def test_bugs_in_the_ir_are_caught(summarise: Callable[[str], None]) -> None:
    """The emulator detects each bug that the simulator, which does not order asynchronous accesses, accepts."""
    judged = [judge_ir(m.subject, m.apply(text_of(m.subject, False))) for m in IR_MUTANTS]
    left = iter(
        judge_cuda(
            [(m.subject, print_cuda(j)) for m, j in zip(IR_MUTANTS, judged, strict=True) if not isinstance(j, str)]
        )
    )
    verdicts = [j if isinstance(j, str) else next(left) for j in judged]
    _report(IR_MUTANTS, verdicts, "IR", summarise)


def test_bugs_in_the_text_are_caught(summarise: Callable[[str], None]) -> None:
    sound = [(s, text_of(s, True)) for s in SUBJECTS]
    broken = [(m.subject, m.apply(text_of(m.subject, True))) for m in CUDA_MUTANTS]
    verdicts = judge_cuda([*sound, *broken])
    assert verdicts[: len(sound)] == [None] * len(sound)
    _report(CUDA_MUTANTS, verdicts[len(sound) :], "CUDA", summarise)
