"""Planted bugs in clusters of blocks: a verifier, the simulator or the emulator must detect each of them."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import numpy as np
from support.cluster_units import Neighbour
from support.hopper_running import allocated
from support.warpgroup_products import Product
from xdsl.dialects.builtin import ModuleOp

from deplodock.backend.cuda.printer import print_cuda
from deplodock.backend.emulator import EmulatedProgram, compile_many
from deplodock.backend.host.launch_plan import make_plan
from deplodock.backend.reference import run
from deplodock.backend.simulator import simulate
from deplodock.dialects import make_context
from deplodock.dialects.support.parsing import parse_module
from deplodock.errors import DeplodockError
from deplodock.passes.pass_manager import verify_module
from mutation.cluster_mutants import CUDA_MUTANTS, IR_MUTANTS, ClusterMutant
from mutation.hopper_mutants import tell_missed

PRODUCTS = {
    "product": Product(128, 128, 256, (64, 64), 64, 4, "tma", 2, cluster=2),
    "sums": Product(64, 64, 256, (64, 64), 64, 4, "tma", 2, cluster_k=2),
}
UNITS: dict[str, Neighbour] = {
    "exchange": Neighbour(2),
    "signalled": Neighbour(4, signalled=True),
    "copied": Neighbour(2, copied=True),
}
SUBJECTS = (*PRODUCTS, *UNITS)


@cache
def module_of(subject: str) -> ModuleOp:
    """Returns a subject at the kernel level, with barriers inserted."""
    return PRODUCTS[subject].lowered() if subject in PRODUCTS else allocated(UNITS[subject].text())


@cache
def text_of(subject: str, cuda: bool) -> str:
    """Returns the IR or the CUDA text of a subject."""
    if cuda:
        return print_cuda(module_of(subject))
    return str(module_of(subject)) if subject in PRODUCTS else UNITS[subject].text()


def inputs(subject: str) -> list[np.ndarray]:
    return (PRODUCTS[subject] if subject in PRODUCTS else UNITS[subject]).inputs()


@cache
def wanted(subject: str) -> np.ndarray:
    if subject not in PRODUCTS:
        return UNITS[subject].expected()
    (found,) = run(PRODUCTS[subject].parse(), inputs(subject), "typed")
    return np.asarray(found)


def _wrong(subject: str, outputs: list[np.ndarray]) -> bool:
    return bool((outputs[0].astype(np.float32) != wanted(subject).astype(np.float32)).any())


def judge_ir(subject: str, text: str) -> str | ModuleOp:
    """Returns the checker, verifier or simulator, that detects a bug in IR text, or the module if none does."""
    try:
        if subject in PRODUCTS:
            module = parse_module(make_context(), text, "mutant.mlir")
            verify_module(module)
        else:
            module = allocated(text)
        found = simulate(module, inputs(subject))
    except DeplodockError as error:
        return f"{type(error).__name__}: {error}"
    if findings := [f for f in found.report.findings if f.kind != "unwritten"]:
        return f"simulator: {findings[0]}"
    return "numbers" if _wrong(subject, found.outputs) else module


def judge_cuda(texts: list[tuple[str, str]]) -> list[str | None]:
    """Returns for each (subject, CUDA text) the checker that detects its bug, or None."""
    verdicts: list[str | None] = []
    for (subject, text), built in zip(texts, compile_many([t for _, t in texts]), strict=True):
        outputs, reports = EmulatedProgram(text, make_plan(module_of(subject)), built).run(inputs(subject), (0, 1, 7))
        by = f"emulator: {reports[0]}" if reports else None
        verdicts.append("numbers" if by is None and _wrong(subject, outputs) else by)
    return verdicts


def _report(
    mutants: list[ClusterMutant], verdicts: list[str | None], where: str, summarise: Callable[[str], None]
) -> None:
    missed = tell_missed(mutants, verdicts, f"clusters, {where}", summarise)
    assert not missed, missed


def test_bugs_in_the_ir_are_caught(summarise: Callable[[str], None]) -> None:
    """The emulator detects each bug that the simulator, which does not order asynchronous accesses, accepts."""
    assert not any(isinstance(judge_ir(s, text_of(s, False)), str) for s in SUBJECTS)
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
