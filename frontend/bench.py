"""Compares a compiled program with PyTorch: first the errors, then the times, on the CPU or a GPU.

The compared versions are called *arms*: eager PyTorch, torch.compile in some modes, and deplodock.

- The error of an arm is its distance to the same program in float64. Our error may be at most `MAX_ERROR_RATIO` times
  the largest error of PyTorch's arms.
- The arms are timed in turns. On a GPU they are timed as CUDA graphs with a cold and a hot L2 cache, and as calls from
  the host. On the CPU they are timed as calls.
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
"""Arm -> mode of torch.compile. The benchmark itself times all arms as CUDA graphs. `reduce-overhead` makes its own
CUDA graphs in addition, which matters for the times of calls."""

MAX_ERROR_RATIO = 1.5
"""Largest allowed ratio of our error to PyTorch's, both against float64."""

REGIMES = {"cold": "device, cold L2", "hot": "device, hot L2", "call": "call"}
"""Regime -> its title. `cold` and `hot` are times on the device by CUDA events, `call` is the wall time of a call."""


@dataclass(frozen=True)
class Subject:
    """A function or module with its arguments."""

    function: Callable[..., Any]
    args: Sequence[Any]
    kwargs: Mapping[str, Any] = field(default_factory=dict[str, Any])

    def __call__(self) -> Any:
        """Calls the function with the arguments."""
        return self.function(*self.args, **self.kwargs)

    def copied(self, device: str | None = None, dtype: torch.dtype | None = None) -> Subject:
        """Returns the subject with copies of all tensors, on `device` and, for floats, of `dtype`."""

        def moved(t: torch.Tensor) -> torch.Tensor:
            return t.to(device=device, dtype=dtype if t.is_floating_point() else None, copy=True)

        module = isinstance(self.function, torch.nn.Module)
        function = copy.deepcopy(self.function).to(device=device, dtype=dtype) if module else self.function
        args, kwargs = pytree.tree_map_only(torch.Tensor, moved, (tuple(self.args), dict(self.kwargs)))
        return Subject(function, args, kwargs)


@dataclass(frozen=True)
class Measurement:
    """Result of a comparison.

    Attributes:
        errors: arm -> its error against float64, relative (`_error`).
        right: whether the errors of all our versions are within the limit; None if there are no errors.
        note: why there are no errors; empty if there are.
        times: regime -> arm -> its times.
        wrong: arms of ours whose error exceeds the limit.
    """

    errors: dict[str, float]
    right: bool | None
    note: str
    times: dict[str, dict[str, Timing]]
    wrong: tuple[str, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """Returns the measurement as JSON data. An infinite error becomes None."""
        errors = {arm: float(f"{e:.4g}") if math.isfinite(e) else None for arm, e in self.errors.items()}
        data: dict[str, Any] = {"right": self.right, "errors": errors} | ({"note": self.note} if self.note else {})
        data |= {"wrong": [*self.wrong]} if self.wrong else {}
        times = {regime: {arm: t.as_dict() for arm, t in arms.items()} for regime, arms in self.times.items()}
        return data | {"times": times}


def measure(
    subject: Subject,
    ours: CompiledFunction,
    modes: Sequence[str],
    *,
    repetitions: int | None = None,
    check_only: bool = False,
    others: Mapping[str, CompiledFunction] = {},
) -> Measurement:
    """Measures the errors and times of a compiled program and of PyTorch, on the device of our executor.

    Args:
        subject: the function with its arguments.
        ours: the compiled function.
        modes: arms of torch.compile, keys of `MODES`.
        repetitions: number of timed repetitions of each arm on a GPU; by default the timing decides.
        check_only: whether to measure no times.
        others: arm -> a further compiled version of the function.

    Raises:
        ExecutionError: PyTorch fails.
    """
    device = device_of(ours)
    subject = subject.copied(device) if device == "cuda" else subject
    arms = _arms(subject, ours, modes, others)
    try:
        with torch.no_grad():
            errors, note = _errors(subject, arms, ours.captured.draws)
            wrong = _wrong(errors, (OURS, *others)) if errors else ()
            times = {} if check_only else _times(arms, device, repetitions)
    except RuntimeError as error:
        raise ExecutionError(" ".join(str(error).split())[:300]) from error
    return Measurement(errors, None if not errors else not wrong, note, times, wrong)


def quick_look(
    subject: Subject, ours: CompiledFunction, others: Mapping[str, CompiledFunction] = {}
) -> dict[str, Timing]:
    """Returns the times of a few calls on the CPU, for `deplodock run`.

    Args:
        subject: the function with its arguments, for eager PyTorch.
        ours: the compiled function.
        others: arm -> a further compiled version of the function.
    """
    with torch.no_grad():
        return by_clock(_arms(subject, ours, (), others), seconds=0.25 * (1 + len(others)), least=1 + 2 * len(others))


def alone(subject: Subject, ours: CompiledFunction) -> Subject:
    """Returns our program as a subject, with the arguments on its device.

    The program and its arguments are copies if it runs on a GPU or changes an argument, so that arms stay independent.
    """
    device = device_of(ours)
    if device == "cpu" and not ours.captured.updates:
        return replace(subject, function=ours)
    program, isolated = copy.deepcopy(ours), replace(subject, function=ours).copied(device)
    program.captured = program.captured.on(device, {})
    return replace(isolated, function=program)


def device_of(ours: CompiledFunction) -> str:
    """Returns the PyTorch device that a program runs on: `cuda` or `cpu`."""
    return "cuda" if ours.executor.name == "cuda" else "cpu"


def _arms(
    subject: Subject, ours: CompiledFunction, modes: Sequence[str], others: Mapping[str, CompiledFunction]
) -> dict[str, Subject]:
    """Returns the arms. If the program changes its arguments, each arm has copies of the arguments."""

    def fresh_subject() -> Subject:
        return subject.copied() if ours.captured.updates else subject

    torch._dynamo.reset()
    arms = {"eager": fresh_subject(), OURS: alone(subject, ours)}
    for mode in modes:
        arm = fresh_subject()
        arms[mode] = replace(arm, function=torch.compile(arm.function, dynamic=False, mode=MODES[mode]))
    return {**arms, **{name: alone(subject, other) for name, other in others.items()}}


def _errors(subject: Subject, arms: Mapping[str, Subject], draws: bool) -> tuple[dict[str, float], str]:
    """Returns the error of each arm against the subject in float64, and why there are no errors (else empty)."""
    if draws:
        return {}, "no errors: PyTorch draws other random numbers"
    wide = subject.copied(dtype=torch.float64)
    try:
        expected = _tensors(wide())
    except Exception as error:  # The user's program may fail in any way with float64.
        return {}, f"no errors: it does not run in float64 ({' '.join(str(error).split())[:120]})"
    errors: dict[str, float] = {}
    with steps("checking", len(arms), "arms") as step:
        for name, arm in arms.items():
            step(0, name)
            errors[name] = max((_error(a, b) for a, b in zip(_tensors(arm()), expected, strict=True)), default=0.0)
            step()
    return errors, ""


def _tensors(result: Any) -> list[torch.Tensor]:
    return [leaf for leaf in pytree.tree_leaves(result) if isinstance(leaf, torch.Tensor)]


def _error(result: torch.Tensor, expected: torch.Tensor) -> float:
    """Returns the relative error of a result.

    Floats: the L2 norm of the difference over that of the expected values, both of the finite elements. Integers: the
    share of different elements. Infinite if the shapes differ or other elements are NaN or infinite.
    """
    if result.shape != expected.shape:
        return math.inf
    if not result.is_floating_point():
        return float((result != expected).double().mean()) if result.numel() else 0.0
    result, finite = result.double(), expected.isfinite()
    if not torch.equal(result[~finite].nan_to_num(7.0), expected[~finite].nan_to_num(7.0)):
        return math.inf
    difference = float((result - expected)[finite].norm())
    return 0.0 if difference == 0 else difference / max(float(expected[finite].norm()), 1e-300)


def _wrong(errors: Mapping[str, float], ours: Sequence[str]) -> tuple[str, ...]:
    """Returns the arms among `ours` whose error exceeds the limit."""
    most = MAX_ERROR_RATIO * max(e for arm, e in errors.items() if arm not in ours) + torch.finfo(torch.float32).eps
    return tuple(arm for arm in ours if not errors[arm] <= most)


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
    """Returns the facts that measured times depend on, as JSON data.

    These are the GPU, the processor, its rates by `deplodock doctor --measure`, the number of threads, and versions.
    """
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
