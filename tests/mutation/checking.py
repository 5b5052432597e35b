"""Runs the checkers on a mutant: verifiers, simulator, exact domain, comparison in floats, emulator."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import torch
from xdsl.dialects.builtin import ModuleOp

from deplodock.backend.check_each import reduction_length, within
from deplodock.backend.emulator import EmulatedModule, EmulatedProgram, compile_many
from deplodock.backend.interpreter.exact import ExactDomain
from deplodock.backend.reference import run
from deplodock.backend.simulator import simulate
from deplodock.dialects import loop
from deplodock.errors import CompileError, DeplodockError, ExecutionError
from deplodock.frontend.capture.arrays import to_torch
from deplodock.frontend.comparison import compare, tolerances
from deplodock.passes.pass_manager import verify_module
from deplodock.passes.verify_level import Level, border_violations

from .subjects import Array, Subject

_CHUNK = 3
"""Least number of iterations of a chunk in the execution of staged reductions."""


@dataclass(frozen=True)
class Verdict:
    """Detection of a mutant: the checker (`by`) and its message (`why`)."""

    by: str
    why: str


@dataclass(frozen=True)
class Expected:
    """Expected results of a subject, computed at the tensor level by NumPy."""

    domain: ExactDomain
    exact: list[Array]
    typed: list[Array]
    real: list[Array]
    hard_typed: list[Array]
    hard_real: list[Array]
    length: int
    eager: list[torch.Tensor]


@cache
def expected(subject: Subject) -> Expected:
    """Returns the expected results of a subject, computed once."""
    module, domain = subject.compilation.at("tensor"), ExactDomain()
    with np.errstate(all="ignore"):
        exact, typed, real = (run(module, subject.inputs, d) for d in (domain, "typed", "real"))
        hard_typed, hard_real = (run(module, subject.hard_inputs, d) for d in ("typed", "real"))
    eager = [subject.program.function(*subject.torch_inputs)]
    return Expected(domain, exact, typed, real, hard_typed, hard_real, reduction_length(module), eager)


def judge_module(subject: Subject, module: ModuleOp, level: Level) -> Verdict | None:
    """Checks a module, a mutant of the subject at `level`. Returns the verdict, or None if no checker detects it."""
    try:
        verify_module(module)
    except DeplodockError as error:
        return Verdict("verifier", str(error))
    for violation in border_violations(module, level):
        return Verdict("border", str(violation))
    try:
        with np.errstate(all="ignore"):
            return _execute(subject, module, level)
    except CompileError as error:
        return Verdict("simulator" if level == "kernel" else "interpreter", str(error))


def _execute(subject: Subject, module: ModuleOp, level: Level) -> Verdict | None:
    want = expected(subject)
    staged = any(isinstance(op, loop.StagedReduceOp) for op in module.walk())
    for chunk in (None, max(_CHUNK, want.length // 4 - 1)) if staged else (None,):

        def execute(inputs: Sequence[Array], domain: Any, chunk: int | None = chunk) -> list[Array] | Verdict:
            if level != "kernel":
                return run(module, list(inputs), domain, chunk=chunk)
            found, report = simulate(module, inputs, domain=domain)
            if report.findings:
                return Verdict(f"simulator: {report.findings[0].kind}", str(report.findings[0]))
            return found

        got = execute(subject.inputs, want.domain)
        if isinstance(got, Verdict):
            return got
        if why := _differs(got, want.exact, [g == e for g, e in zip(got, want.exact, strict=True)]):
            return Verdict("exact domain", why)
        typed = execute(subject.inputs, "typed")
        if isinstance(typed, Verdict):
            return typed
        if verdict := _compare_floats(typed, want.typed, want.real, want.length, "floats"):
            return verdict
        if level == "tensor" and (verdict := _compare_eager(subject, module, typed, want)):
            return verdict
        hard = execute(subject.hard_inputs, "typed")
        if isinstance(hard, Verdict):
            return hard
        if verdict := _compare_floats(hard, want.hard_typed, want.hard_real, want.length, "floats, hard inputs"):
            return verdict
    return None


def _compare_eager(subject: Subject, module: ModuleOp, typed: list[Array], want: Expected) -> Verdict | None:
    differences = compare([to_torch(t) for t in typed], want.eager, tolerances(module))
    wrong = [d for d in differences if not d.ok]
    return Verdict("PyTorch", f"error {wrong[0].error:.1e}") if wrong else None


def _compare_floats(
    got: Sequence[Array], first: Sequence[Array], real: Sequence[Array], length: int, by: str
) -> Verdict | None:
    same: list[Array] = []
    for g, f, r in zip(got, first, real, strict=True):
        same.append(within(g, f, r, length) if r.dtype == np.float64 else g == f)
        if g.dtype.itemsize == 2 and r.dtype == np.float64 and same[-1].all():
            # Rounded results usually agree bit for bit. Systematic differences mean another rounding.
            other = (g != f) & ~(np.isnan(g.astype(np.float32)) & np.isnan(f.astype(np.float32)))
            if other.mean() > 0.05:
                return Verdict(by, f"{other.mean():.0%} of the results are rounded differently")
    why = _differs(got, first, same)
    return Verdict(by, why) if why else None


def _differs(got: Sequence[Array], want: Sequence[Array], same: Sequence[Any]) -> str | None:
    for i, (g, w, s) in enumerate(zip(got, want, same, strict=True)):
        if g.shape != w.shape:
            return f"result {i} has shape {g.shape}, not {w.shape}"
        wrong = np.argwhere(~np.asarray(s))
        if len(wrong):
            at = tuple(int(n) for n in wrong[0])
            return f"result {i} at {list(at)} is {g[at]} instead of {w[at]} ({len(wrong)} of {w.size} differ)"
    return None


def judge_texts(texts: Sequence[tuple[Subject, str]]) -> list[Verdict | None]:
    """Runs printed texts, mutants of their subjects, in the emulator. Returns a verdict or None for each."""
    modules = _compile([text for _, text in texts])
    return [m if isinstance(m, Verdict) else _emulate(s, text, m) for (s, text), m in zip(texts, modules, strict=True)]


def _compile(texts: Sequence[str]) -> list[EmulatedModule | Verdict]:
    """Compiles texts together. Returns each module, or the verdict of the C++ compiler, found by bisection."""
    if not texts:
        return []
    try:
        return list(compile_many(texts))
    except ExecutionError as error:
        if len(texts) == 1:
            return [Verdict("host compiler", str(error))]
        half = len(texts) // 2
        return _compile(texts[:half]) + _compile(texts[half:])


def _emulate(subject: Subject, text: str, module: EmulatedModule) -> Verdict | None:
    want = expected(subject)
    try:
        program = EmulatedProgram(text, subject.plan, module)
        with np.errstate(all="ignore"):
            for inputs, typed, real, by in (
                (subject.inputs, want.typed, want.real, "emulator: result"),
                (subject.hard_inputs, want.hard_typed, want.hard_real, "emulator: result for hard inputs"),
            ):
                outputs, reports = program.run(inputs)
                if reports:
                    return Verdict(f"emulator: {reports[0].kind}", str(reports[0]))
                if verdict := _compare_floats(outputs, typed, real, want.length, by):
                    return verdict
    except ExecutionError as error:
        return Verdict("emulator", str(error))
    return None
