"""The options of `deplodock run` that measure or predict times, and a timeline of passes and kernels.

The timeline is a file for Perfetto (https://ui.perfetto.dev) or chrome://tracing.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any

import torch

from ..backend.cuda.kernel_texts import entries
from ..backend.cuda.runtime.timing import count, ncu_missing
from ..errors import ExecutionError
from ..frontend.api import CompiledFunction
from ..frontend.bench import MAX_ERROR_RATIO, OURS, REGIMES, Measurement, environment, measure, quick_look
from ..frontend.executors import DEFAULT_GPU, compiler_missing, cuda_missing
from ..frontend.machine_code import MachineCode
from ..frontend.profile import Profile, measured_in_turns, predicted
from ..target.attribute import on_cores
from .reports import Loaded
from .tables import Bar, bars, bench_table, comparison_table, profile_table, seconds, write_plot
from .terminal import fitted, write_file
from .versions import Versions


def check_timing(target: str, executor: str) -> None:
    """Raises ExecutionError if compiled code for the target cannot run on this machine."""
    if executor not in ("auto", "cuda", "cpu"):
        raise ExecutionError(f"times compiled code, and --executor {executor} is an interpreter", argument="--bench")
    missing = compiler_missing() if on_cores(target) else cuda_missing()
    if missing:
        reason = f"nothing is there to time: {missing}; --predict tells what the model of a GPU expects"
        raise ExecutionError(reason, argument="--bench")


def measure_more(
    versions: Versions, params: Any, arguments: Sequence[str], outcome: dict[str, Any], width: int | None
) -> str:
    """Measures and predicts for the options of `run`. Returns the text, and adds the numbers to `outcome`.

    Args:
        versions: the program and its other versions.
        params: the options.
        arguments: the command-line arguments, with which ncu runs the command again.
        outcome: the outcome of `run`.
        width: columns of the text, or None.

    Raises:
        ExecutionError: if the program cannot be timed.
        CompileError: for a file that cannot be written.
    """
    parts, loaded = list[str](), versions.printed
    others = {name: version.compiled for name, version in versions.others.items()}
    if params.bench:
        measurement = bench(loaded, others)
        outcome["bench"] = {**measurement.as_dict(), "environment": environment()}
        parts += _bench_text(measurement, width)
        if params.plot:
            shown = [
                Bar(f"{arm}, {REGIMES[regime]}", t.median, t.p20, t.p80, seconds(t.median), arm)
                for regime, times in measurement.times.items()
                for arm, t in times.items()
            ]
            write_plot(params.plot, bars(f"Times of {loaded.compilation.target}: {params.code or params.file}", shown))
    elif outcome["executor"] == "cpu" and not (params.profile or params.predict or params.trace or params.print_values):
        times = quick_look(loaded.subject, loaded.compiled, others)
        outcome["bench"] = {"times": {"call": {name: t.as_dict() for name, t in times.items()}}}
        parts += [f"{name}: {seconds(t.median)}" for name, t in times.items()]
        parts.append(f"median time of a call on this machine, {_threads()}, arms interleaved; more by --bench")
    if params.profile or params.trace:
        profiles, uncounted = _profiles(versions, others, arguments)
        profile = profiles.pop(OURS)
        outcome["profile"] = profile.as_dict()
        if profiles:
            outcome["profile"]["others"] = {name: other.as_dict() for name, other in profiles.items()}
        if params.profile:
            code = versions.main.machine_code
            outcome["profile"]["machine_code"] = code.facts()
            parts += [*_profile_text(profile, width), *([uncounted] if uncounted else [])]
            parts += [comparison_table({OURS: profile, **profiles}, width)] if profiles else []
            parts += _machine_text(code)
        if params.trace:
            write_trace(params.trace, loaded.compilation.seconds, profile)
    parts += versions.notes
    if params.predict:
        gpu = loaded.to(DEFAULT_GPU) if on_cores(loaded.compilation.target) else loaded
        expected = predicted(gpu.compilation)
        outcome["prediction"] = expected.as_dict()
        parts += _profile_text(expected, width)
    return "".join(part if part.endswith("\n") else fitted(f"{part}\n", width) for part in parts)


def bench(loaded: Loaded, others: Mapping[str, CompiledFunction] = {}) -> Measurement:
    """Times a program, eager PyTorch, torch.compile and, on a GPU, max-autotune in turns.

    Args:
        loaded: the program.
        others: name -> another version of the program.

    Raises:
        ExecutionError: a version fails.
    """
    program = loaded.compiled
    modes = ["torch.compile", "max-autotune"] if program.executor.name == "cuda" else ["torch.compile"]
    return measure(loaded.subject, program, modes, others=others)


def _bench_text(measurement: Measurement, width: int | None) -> list[str]:
    """Returns the table of a benchmark with notes."""
    cores = [*measurement.times] == ["call"]
    where = f"the cores of this machine, {_threads()}" if cores else torch.cuda.get_device_name()
    note = "Medians, arms interleaved; +- is half the 95 % interval of a median within this run."
    if not cores:
        without = {arm: t.why for times in measurement.times.values() for arm, t in times.items() if t.why}
        note += " Device times are of CUDA graphs, by events."
        note += "".join(f" Without a graph: {arm} ({why})." for arm, why in without.items())
    note += " Errors are against float64." if measurement.errors else f" {measurement.note.capitalize()}."
    wrong = f" WRONG: {', '.join(measurement.wrong)} errs more than {MAX_ERROR_RATIO} times as much as PyTorch."
    return [f"\nmeasured on {where}", bench_table(measurement, width), note + wrong * (measurement.right is False)]


def _profiles(
    versions: Versions, others: Mapping[str, CompiledFunction], arguments: Sequence[str]
) -> tuple[dict[str, Profile], str]:
    """Returns the times of the kernels of each version, and the reason why counters are missing.

    The times are measured if the program runs on this machine, on a GPU with the counters of ncu. Otherwise they are
    predicted.
    """
    loaded = versions.printed
    program = loaded.compiled
    if program.executor.trace is None:
        compilations = {OURS: loaded.compilation, **{name: v.compilation for name, v in versions.others.items()}}
        return {name: predicted(compilation) for name, compilation in compilations.items()}, ""
    profiles = measured_in_turns({OURS: program, **others}, loaded.subject)
    if program.executor.name != "cuda":
        return profiles, ""
    if missing := ncu_missing():
        return profiles, f"Nothing is counted: {missing}."
    command = [sys.executable, "-m", "deplodock.tools.cli", *_only_run(arguments), "--executor", "cuda"]
    try:
        counted, named = count(command), entries(loaded.compilation.cuda)
        counters = {k: counted[entry] for k, entry in named.items() if entry in counted}
        return {**profiles, OURS: profiles[OURS].with_counters(counters)}, ""
    except ExecutionError as error:
        return profiles, f"Nothing is counted: {error}."


def _only_run(arguments: Sequence[str]) -> list[str]:
    """Returns command-line arguments without the options that measure, and without other versions."""
    kept_words, words = list[str](), iter(arguments)
    for word in words:
        if word in _WITH_VALUE:
            next(words, None)
        elif word not in ("--bench", "--profile", "--predict") and word.partition("=")[0] not in _WITH_VALUE:
            kept_words.append(word)
    return kept_words


_WITH_VALUE = ("--plot", "--trace", "--executor", "--against", "--kernel-text")
"""Options of `_only_run` that take a value."""


def _profile_text(profile: Profile, width: int | None) -> list[str]:
    """Returns the table of a profile with notes."""
    note = ""
    if profile.call is not None:
        outside = seconds(max(profile.call - profile.seconds, 0.0))
        note += f"A call takes {seconds(profile.call)}, {outside} of it outside of its kernels. "
    note += "Bytes and operations are the least that a kernel moves and computes; `roof` is the time that these need at"
    note += " the rates of the target, by the kernel's time."
    if any(c.counters for c in profile.costs):
        note += " DRAM and SM are how busy ncu says that these were."
    if any(c.limit == "neither" for c in profile.costs):
        note += " `neither`: less than half of both roofs, so instructions or latencies."
    return [f"\n{profile.source}", profile_table(profile, width), note]


def _machine_text(code: MachineCode) -> list[str]:
    """Returns the resources and the hot loop of each kernel, with the numbers of the planning model."""
    kernels = [f"{name}: {line}" for name, k in code.kernels.items() for line in k.described()]
    return [*([""] if kernels else []), *kernels, *code.described()]


def _threads() -> str:
    count = torch.get_num_threads()
    return f"{count} thread{'s' * (count > 1)}"


_COMPILER, _CALLS = 1, 2


def write_trace(path: str, passes: Sequence[tuple[str, float]], profile: Profile) -> None:
    """Writes a timeline of passes and kernels as JSON.

    Args:
        path: the file.
        passes: names and seconds of the passes.
        profile: calls of the program. A predicted profile is shown as one call.

    Raises:
        CompileError: if the file cannot be written.
    """
    processes = {_COMPILER: "passes", _CALLS: f"kernels, {profile.source}"}
    about = {"name": "process_name", "ph": "M", "tid": 0}
    events: list[dict[str, Any]] = [{**about, "pid": pid, "args": {"name": n}} for pid, n in processes.items()]
    starts = accumulate((s for _, s in passes), initial=0.0)
    events += [_event(name, _COMPILER, start, s, {}) for (name, s), start in zip(passes, starts, strict=False)]
    facts = {
        c.name: {"schedule": ", ".join(c.schedules), "lines": ", ".join(c.lines), "limit": c.limit}
        for c in profile.costs
    }
    begin = profile.traced[0][0].start if profile.traced and profile.traced[0] else 0.0
    for call in profile.traced:
        events += [_event(s.name, _CALLS, s.start - begin, s.seconds, facts.get(s.name, {})) for s in call]
    if not profile.traced:
        starts = accumulate((c.seconds for c in profile.costs), initial=0.0)
        times = zip(profile.costs, starts, strict=False)
        events += [_event(c.name, _CALLS, start, c.seconds, facts[c.name]) for c, start in times]
    timeline = {"traceEvents": events, "displayTimeUnit": "ns", "otherData": {"source": profile.source}}
    write_file(path, json.dumps(timeline) + "\n", "--trace")


def _event(name: str, process: int, start: float, seconds: float, facts: dict[str, str]) -> dict[str, Any]:
    """Returns an event of the trace format. `start` and `seconds` are in seconds, the event in microseconds."""
    times = {"ts": round(start * 1e6, 3), "dur": round(seconds * 1e6, 3)}
    return {"name": name, "ph": "X", "pid": process, "tid": 0, **times, "args": facts}
