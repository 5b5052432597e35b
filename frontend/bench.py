"""A program beside PyTorch's: first whether each is right, then how long each takes, on the cores or on a GPU.

Every arm's result is compared with the same program in float64, and ours may err at most 1.5 times as much as that of
PyTorch's which errs most. Then the arms take turns: on a GPU as CUDA graphs with a cold and with a hot level-2 cache,
and as calls by the clock of the host; on the cores as calls.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from importlib.metadata import version
from typing import Any

import torch
from torch.utils import _pytree as pytree

from ..backend.cuda.runtime.timing import on_device, whole_calls
from ..backend.host.timing import Timing, by_clock
from ..errors import ExecutionError
from ..progress import steps
from ..target.host import cores, processor, read_measured
from .api import CompiledFunction

OURS = "deplodock"

MODES = {"torch.compile": None, "max-autotune": "max-autotune-no-cudagraphs", "reduce-overhead": "reduce-overhead"}
"""What torch.compile's modes are called here. CUDA graphs are made of every arm alike, but for calls of the last one,
which makes its own."""

WORSE = 1.5
"""So many times the error of PyTorch's against float64 ours may be."""

REGIMES = {"cold": "device, cold L2", "hot": "device, hot L2", "call": "call"}
"""What is timed: on the device by events, with a cold or a hot level-2 cache, and calls by the clock of the host."""


@dataclass(frozen=True)
class Subject:
    """A function, or a module, with the arguments that it is called with in every arm."""

    function: Callable[..., Any]
    args: Sequence[Any]
    kwargs: Mapping[str, Any] = field(default_factory=dict[str, Any])

    def __call__(self) -> Any:
        """Call it."""
        return self.function(*self.args, **self.kwargs)

    def copied(self, device: str | None = None, dtype: torch.dtype | None = None) -> Subject:
        """The same with tensors of its own, on `device` and, if they are floats, of `dtype`."""

        def moved(t: torch.Tensor) -> torch.Tensor:
            return t.to(device=device, dtype=dtype if t.is_floating_point() else None, copy=True)

        module = isinstance(self.function, torch.nn.Module)
        function = copy.deepcopy(self.function).to(device=device, dtype=dtype) if module else self.function
        args, kwargs = pytree.tree_map_only(torch.Tensor, moved, (tuple(self.args), dict(self.kwargs)))
        return Subject(function, args, kwargs)


@dataclass(frozen=True)
class Measurement:
    """What was found: the error of each arm against float64, whether ours is right (None where nothing could be said,
    and `note` says why), and by regime the times of each arm."""

    errors: dict[str, float]
    right: bool | None
    note: str
    times: dict[str, dict[str, Timing]]

    def as_dict(self) -> dict[str, Any]:
        """For JSON; an infinite error is None."""
        errors = {arm: float(f"{e:.4g}") if math.isfinite(e) else None for arm, e in self.errors.items()}
        found: dict[str, Any] = {"right": self.right, "errors": errors} | ({"note": self.note} if self.note else {})
        times = {regime: {arm: t.as_dict() for arm, t in arms.items()} for regime, arms in self.times.items()}
        return found | {"times": times}


def measure(
    subject: Subject,
    ours: CompiledFunction,
    modes: Sequence[str],
    *,
    repetitions: int | None = None,
    check_only: bool = False,
    others: Mapping[str, CompiledFunction] = {},
) -> Measurement:
    """Compare `ours` with eager PyTorch, with torch.compile in the `modes` and with `others` that we have compiled,
    where our executor runs it: on the cores or on the GPU. Raises ExecutionError where PyTorch fails."""
    device = device_of(ours)
    subject = subject.copied(device) if device == "cuda" else subject
    arms = {**_arms(subject, ours, modes), **{name: alone(subject, other) for name, other in others.items()}}
    try:
        with torch.no_grad():
            errors, note = _errors(subject, arms, ours.captured.draws)
            right = None if not errors else _is_right({arm: e for arm, e in errors.items() if arm not in others})
            times = {} if check_only else _times(arms, device, repetitions)
    except RuntimeError as error:
        raise ExecutionError(" ".join(str(error).split())[:300]) from error
    return Measurement(errors, right, note, times)


def quick_look(subject: Subject, ours: CompiledFunction) -> dict[str, Timing]:
    """Calls of eager PyTorch and ours on the cores, a few of each: what every `run` shows."""
    with torch.no_grad():
        return by_clock(_arms(subject, ours, ()), seconds=0.25, least=1)


def alone(subject: Subject, ours: CompiledFunction) -> Subject:
    """Our program with the arguments of the subject, where it runs, and apart from all others if it changes some."""
    device = device_of(ours)
    if device == "cpu" and not ours.captured.updates:
        return replace(subject, function=ours)
    program, own = copy.deepcopy(ours), replace(subject, function=ours).copied(device)
    program.captured = program.captured.on(device, {})
    return replace(own, function=program)


def device_of(ours: CompiledFunction) -> str:
    """Where a program runs, as PyTorch calls it."""
    return "cuda" if ours.executor.name == "cuda" else "cpu"


def _arms(subject: Subject, ours: CompiledFunction, modes: Sequence[str]) -> dict[str, Subject]:
    """What takes turns. Each arm of a program that changes its arguments has arguments of its own."""

    def own() -> Subject:
        return subject.copied() if ours.captured.updates else subject

    torch._dynamo.reset()
    arms = {"eager": own(), OURS: alone(subject, ours)}
    for mode in modes:
        arm = own()
        arms[mode] = replace(arm, function=torch.compile(arm.function, dynamic=False, mode=MODES[mode]))
    return arms


def _errors(subject: Subject, arms: Mapping[str, Subject], draws: bool) -> tuple[dict[str, float], str]:
    """The error of each arm against the subject in float64; or none, and why."""
    if draws:
        return {}, "no errors: PyTorch draws other random numbers"
    wide = subject.copied(dtype=torch.float64)
    try:
        wanted = _tensors(wide())
    except Exception as error:  # whatever the user's program does not do with float64
        return {}, f"no errors: it does not run in float64 ({' '.join(str(error).split())[:120]})"
    found: dict[str, float] = {}
    with steps("checking", len(arms), "arms") as step:
        for name, arm in arms.items():
            step(0, name)
            found[name] = max((_error(a, b) for a, b in zip(_tensors(arm()), wanted, strict=True)), default=0.0)
            step()
    return found, ""


def _tensors(result: Any) -> list[torch.Tensor]:
    return [leaf for leaf in pytree.tree_leaves(result) if isinstance(leaf, torch.Tensor)]


def _error(result: torch.Tensor, wanted: torch.Tensor) -> float:
    """The norm of the difference by the norm of what is wanted, of finite elements; of integers the share that differs.
    Infinite where shapes differ, or where one is not finite that the other is not."""
    if result.shape != wanted.shape:
        return math.inf
    if not result.is_floating_point():
        return float((result != wanted).double().mean()) if result.numel() else 0.0
    result, finite = result.double(), wanted.isfinite()
    if not torch.equal(result[~finite].nan_to_num(7.0), wanted[~finite].nan_to_num(7.0)):
        return math.inf
    difference = float((result - wanted)[finite].norm())
    return 0.0 if difference == 0 else difference / max(float(wanted[finite].norm()), 1e-300)


def _is_right(errors: Mapping[str, float]) -> bool:
    most = max(e for arm, e in errors.items() if arm != OURS)
    return errors[OURS] <= WORSE * most + torch.finfo(torch.float32).eps


def _times(arms: Mapping[str, Subject], device: str, repetitions: int | None) -> dict[str, dict[str, Timing]]:
    with steps("timing", len(arms), "arms"):
        if device == "cpu":
            return {"call": by_clock(arms)}
        return {
            "cold": on_device(arms, repetitions),
            "hot": on_device(arms, repetitions, cold=False),
            "call": whole_calls(arms, repetitions or 200),
        }


def environment() -> dict[str, Any]:
    """What numbers depend on: the GPU if there is one, the processor, what `deplodock doctor --measure` found of its
    cores, how many threads, versions."""
    measured = read_measured()
    return {
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "processor": processor(),
        "cores": cores(),
        "measured": None if measured is None else asdict(measured),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "deplodock": version("deplodock"),
        "xdsl": version("xdsl"),
    }
