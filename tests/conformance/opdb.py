"""PyTorch's own operator database as the judge: every sample is right, or refused with a named reason.

A sample goes through capture, decomposition and the reference interpreter, and is compared with eager PyTorch. What is
neither right nor refused is `wrong` or a `crash`, and there must be none.
"""

from __future__ import annotations

import math
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy as np
import torch
from torch.testing._internal.common_methods_invocations import op_db
from torch.testing._internal.opinfo.core import OpInfo, SampleInput
from torch.utils import _pytree as pytree
from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp

from deplodock.backend.reference import run
from deplodock.dialects.payload import shape_of
from deplodock.errors import CompileError, ExecutionError
from deplodock.frontend.capture.arrays import to_numpy, to_torch
from deplodock.frontend.capture.captured_program import CapturedProgram
from deplodock.frontend.compilation import InternalError
from deplodock.passes.convert.torch_to_tensor import registry
from deplodock.passes.convert.torch_to_tensor.conversion import ConvertTorchToTensorPass

from .comparing import TOLERANCE, compare
from .tracing import Capture

Executor = Callable[[ModuleOp, Sequence[np.ndarray]], list[np.ndarray]]
"""Runs a module of the torch level."""


class Level(Protocol):
    """Lowers programs, and builds them for execution, several at a time."""

    def lower(self, module: ModuleOp) -> None: ...

    def build(self, modules: Sequence[ModuleOp]) -> Sequence[Callable[[Sequence[np.ndarray]], list[np.ndarray]]]: ...


Kind = Literal["right", "refused", "wrong", "crash", "slow", "skipped"]

FAILED = ("wrong", "crash", "slow")
"""The verdicts that must not be."""

Mode = Literal["arguments", "constants", "keywords"]
"""How a sample becomes a program: its tensors as arguments; the first one as argument and the others as constants; or
as arguments with one of the sample's keyword arguments left away."""

LIMIT = 60.0
"""Seconds that a sample may take, of the processor's time."""

UNDEFINED = {"empty", "empty_like", "empty_permuted", "empty_strided", "new_empty", "new_empty_strided"}
"""Operators whose contents PyTorch does not define: only shape and type are compared."""

OPEN_INDICES = {"topk": 1, "kthvalue": 1, "mode": 0, "sort": 0, "argsort": 0}
"""Operators that may return, as their last result, the place of any of several equal elements, unless they are asked to
be stable; and which argument is their dimension."""

LARGEST = 1 << 25
"""The reference interpreter holds every value: programs with a larger one are skipped, and said to be."""


@dataclass(frozen=True)
class Verdict:
    """What became of one sample, and the processor's time that it took. `reason` is the error for a refusal, the
    difference or the exception otherwise."""

    operator: str
    sample: int
    kind: Kind
    reason: str = ""
    seconds: float = 0.0


def operators(names: Sequence[str] = ()) -> list[OpInfo]:
    """The entries of the database, in order; only those called `names` if there are any."""
    return [op for op in op_db if not names or op.name in names or op.formatted_name in names]


def samples(
    op: OpInfo,
    dtype: torch.dtype,
    limit: int | None = None,
    seed: int = 0,
    mode: Mode = "arguments",
    requires_grad: bool = False,
) -> Iterator[tuple[int, SampleInput]]:
    """(number, sample) of `op`, `limit` of them taken evenly; with values that depend on `seed` alone.
    With `requires_grad` tensors require gradients where the operator has some."""
    torch.manual_seed(seed)
    np.random.seed(seed)
    found = list(op.sample_inputs("cpu", dtype, requires_grad=requires_grad))
    if mode == "constants":
        found = [s for s in found if sum(isinstance(v, torch.Tensor) for v in _leaves(s)) > 1]
    if mode == "keywords":
        found = [shorter for s in found for shorter in _with_fewer_keywords(s)]
    step = 1.0 if limit is None else max(1.0, len(found) / limit)
    wanted = sorted({int(i * step) for i in range(math.ceil(len(found) / step))})
    for i in wanted:
        if i < len(found):
            yield i, found[i]


def _leaves(sample: SampleInput) -> list[Any]:
    return pytree.tree_flatten((sample.input, sample.args, sample.kwargs))[0]


def _with_fewer_keywords(sample: SampleInput) -> Iterator[SampleInput]:
    """`sample` without each of its keyword arguments in turn, but for the order of what is searched: results of a
    search in numbers without order are not defined."""
    for name in [name for name in sample.kwargs if name != "sorter"]:
        rest = {k: v for k, v in sample.kwargs.items() if k != name}
        yield SampleInput(sample.input, args=sample.args, kwargs=rest)


def judge(
    tracer: Capture,
    op: OpInfo,
    number: int,
    sample: SampleInput,
    execute: Executor | None = None,
    mode: Mode = "arguments",
) -> Verdict:
    """The verdict on one sample; `execute` as for `judge_call`."""
    trial = trial_of(op, sample, mode)
    trial.trace(tracer)
    trial.run(lambda args: (execute or at_tensor_level)(trial.module, args))
    return Verdict(op.formatted_name, number, *trial.verdict)


def judge_errors(tracer: Capture, op: OpInfo) -> Iterator[Verdict]:
    """Verdicts on the calls that PyTorch itself refuses: `refused`, `crash`, or `right` where capture accepts one.

    What only fails on the values of the tensors is not found by capture.
    """
    torch.manual_seed(0)
    for number, case in enumerate(op.error_inputs("cpu")):
        tensors, call = closed(op, case.sample_input)
        kind, reason = "right", ""
        try:
            module = tracer.trace(call, tensors).module
            lower(module)
            module.verify()
        except CompileError as error:
            kind, reason = "refused", str(error)
        except Exception as error:  # anything of ours that is not a diagnostic
            kind, reason = "crash", f"{type(error).__name__}: {error}"
        yield Verdict(op.formatted_name, number, kind, reason)


TYPES = (torch.float32, torch.int64, torch.uint8, torch.bool)
"""Of each kind one."""


def judge_types(tracer: Capture, op: OpInfo) -> Iterator[Verdict]:
    """Verdicts on a call with types that the operator does not list as its own: `refused` or `crash`, or `wrong` where
    a program comes out of what eager PyTorch refuses."""
    source = next((t for t in TYPES if op.supports_dtype(t, "cpu")), None)
    found = next(samples(op, source, 1), None) if source else None
    if found is None:
        return
    for number, wanted in enumerate(TYPES):
        if op.supports_dtype(wanted, "cpu") or op.supports_dtype(wanted, "cuda"):
            continue

        def other(leaf: Any, wanted: torch.dtype = wanted) -> Any:
            if isinstance(leaf, torch.Tensor) and leaf.dtype == source:
                return leaf.to(wanted)
            return wanted if leaf is source else leaf

        value, args, kwargs = pytree.tree_map(other, (found[1].input, found[1].args, found[1].kwargs))
        tensors, call = closed(op, SampleInput(value, args=args, kwargs=kwargs))
        try:
            call(*(t.clone() for t in tensors))
            continue
        except Exception as error:  # as it should
            wrong = f"{wanted}: eager PyTorch: {error}"
        trial = Trial(call, tensors)
        trial.attempt(lambda call=call, tensors=tensors: lower(tracer.trace(call, tensors).module))
        yield Verdict(op.formatted_name, number, *(("wrong", wrong) if trial.open else trial.verdict))


def judge_call(
    tracer: Capture,
    call: Callable[..., list[Any]],
    tensors: Sequence[torch.Tensor],
    *,
    undefined: bool = False,
    same_elements: Callable[[list[Any], list[Any]], bool] | None = None,
    execute: Executor | None = None,
) -> tuple[Kind, str]:
    """What becomes of a call that returns a flat list, and why.

    `execute` runs a torch-level module otherwise than at the tensor level.
    """
    trial = Trial(call, tensors, undefined, same_elements)
    trial.trace(tracer)
    trial.run(lambda args: (execute or at_tensor_level)(trial.module, args))
    return trial.verdict


def judge_all(
    tracer: Capture, op: OpInfo, given: Sequence[tuple[int, SampleInput]], level: Level, mode: Mode = "arguments"
) -> list[Verdict]:
    """The verdicts on samples of one operator, whose programs are built together."""
    trials = [trial_of(op, sample, mode) for _, sample in given]
    for trial in trials:
        trial.trace(tracer)
        trial.attempt(lambda trial=trial: level.lower(trial.module))
    left = [trial for trial in trials if trial.open]
    try:
        runs = level.build([trial.module for trial in left])
    except Exception:  # one at a time says which
        runs = [lambda args, trial=trial: level.build([trial.module])[0](args) for trial in left]
    for trial, run_one in zip(left, runs, strict=True):
        trial.run(run_one)
    return [
        Verdict(op.formatted_name, n, *t.verdict, round(t.seconds, 2)) for (n, _), t in zip(given, trials, strict=True)
    ]


def trial_of(op: OpInfo, sample: SampleInput, mode: Mode = "arguments") -> Trial:
    """The trial of one sample."""
    tensors, call = closed(op, sample, only_first=mode == "constants")
    any_of = op.name in OPEN_INDICES and not sample.kwargs.get("stable")
    same = (lambda f, e: _same_elements(sample, OPEN_INDICES[op.name], f, e)) if any_of else None
    return Trial(call, tensors, op.name in UNDEFINED, same)


@dataclass
class Trial:
    """A call on its way to the verdict: traced, executed, compared."""

    call: Callable[..., list[Any]]
    tensors: Sequence[torch.Tensor]
    undefined: bool = False
    same_elements: Callable[[list[Any], list[Any]], bool] | None = None
    outcome: tuple[Kind, str] | None = None
    seconds: float = 0.0

    @property
    def open(self) -> bool:
        """Whether there is no verdict yet."""
        return self.outcome is None

    @property
    def verdict(self) -> tuple[Kind, str]:
        """What became of it, and why."""
        assert self.outcome is not None, "not compared yet"
        return self.outcome

    def trace(self, tracer: Capture) -> None:
        """Call PyTorch for the expected results, and capture the call."""
        torch.manual_seed(0)
        self.own = [t.clone() for t in self.tensors]
        try:
            self.expected = self.call(*self.own)
        except Exception as error:  # not a program, as PyTorch sees it
            self.outcome = "skipped", f"eager: {type(error).__name__}"
            return
        again = vars(self.call).get("again", self.call)
        self.attempt(lambda: self._captured(tracer.trace(again, [t.clone() for t in self.tensors])))

    def _captured(self, program: CapturedProgram) -> None:
        """Keep the program, and of its module another copy, which is to be lowered: the program asks its own."""
        self.traced, self.module = program, program.module.clone()

    def attempt(self, step: Callable[[], Any]) -> Any:
        """Take a step, whose errors decide. All of a trial's steps together have `LIMIT` seconds."""
        if not self.open:
            return None
        started = time.process_time()
        try:
            with limited(LIMIT - self.seconds):
                return step()
        except TooSlow:
            self.outcome = "slow", f"over {LIMIT} s"
        except TooLarge:
            self.outcome = "skipped", "too large for the reference interpreter"
        except (ExecutionError, InternalError) as error:
            kept = isinstance(error, ExecutionError) and error.operator == "assertion"  # by the program, of its values
            self.outcome = "refused" if kept else "crash", str(error)
        except CompileError as error:
            self.outcome = "refused", str(error)
        except Exception as error:  # anything of ours that is not a diagnostic
            self.outcome = "crash", f"{type(error).__name__}: {error}"
        finally:
            self.seconds += time.process_time() - started
        return None

    def run(self, execute: Callable[[Sequence[np.ndarray]], list[np.ndarray]]) -> None:
        """Execute the program and compare."""
        if not self.open:
            return
        program = self.traced
        given = [t.clone() for t in self.tensors]
        found = self.attempt(lambda: self._results(execute, given))
        if not self.open:
            return
        changed = [program.bindings[a].leaf for _, a in program.updates if program.bindings[a].kind == "input"]
        found += [given[i] for i in changed]
        expected = [*self.expected, *(self.own[i] for i in changed)]
        if self.same_elements is not None and self.same_elements(found, expected):
            found, expected = found[:-1], expected[:-1]
        undefined = self.undefined or self.traced.draws
        problem = compare(found, expected, lambda: _truth(self.call, self.tensors), undefined=undefined)
        self.outcome = ("wrong", problem) if problem else ("right", "")

    def _results(
        self, execute: Callable[[Sequence[np.ndarray]], list[np.ndarray]], given: Sequence[torch.Tensor]
    ) -> list[Any]:
        """What a caller of the program gets."""
        arguments = self.traced.bind(given)
        results = [to_torch(r) for r in execute([to_numpy(a) for a in arguments])]
        return list(self.traced.restore(results, arguments))


class TooSlow(BaseException):
    """A step that took longer than it may. No Exception: nothing on the way may take it for one of its own."""


@contextmanager
def limited(seconds: float) -> Iterator[None]:
    """Raise TooSlow in here after so many seconds of this process's own time. In another thread than the main one there
    is no limit."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(number: int, frame: object) -> None:
        raise TooSlow

    before = signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, max(seconds, 0.01))
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


def _same_elements(sample: SampleInput, position: int, found: Sequence[Any], expected: Sequence[Any]) -> bool:
    """Whether the places found are distinct ones of elements equal to those at the places expected."""
    wanted, places = (v[-1].unsqueeze(-1) if not v[-1].ndim else v[-1] for v in (expected, found))
    source = sample.input if sample.input.ndim else sample.input.unsqueeze(0)
    dim = sample.kwargs.get("dim", sample.args[position] if len(sample.args) > position else -1)
    if wanted.ndim < source.ndim:
        wanted, places = wanted.unsqueeze(dim), places.unsqueeze(dim)
    values, again = source.gather(dim, wanted), source.gather(dim, places)
    ordered = places.sort(dim).values
    repeated = (ordered.diff(dim=dim) == 0).any() if ordered.shape[dim] > 1 else torch.tensor(False)
    return bool(torch.equal(again.nan_to_num(), values.nan_to_num())) and not bool(repeated)


class TooLarge(Exception):
    """A program with a value of more than `LARGEST` elements."""


def at_tensor_level(module: ModuleOp, args: Sequence[np.ndarray]) -> list[np.ndarray]:
    """Lower `module` to the tensor level and interpret it."""
    lower(module)
    module.verify()
    if largest(module) > LARGEST:
        raise TooLarge
    return run(module, args)


def lower(module: ModuleOp) -> None:
    """Decompose `module` to the tensor level."""
    ConvertTorchToTensorPass().apply(Context(), module)


def largest(module: ModuleOp) -> int:
    """The number of elements of the largest value in `module`."""
    return max((math.prod(shape_of(r.type)) for op in module.walk() for r in op.results), default=0)


def closed(
    op: OpInfo, sample: SampleInput, *, only_first: bool = False
) -> tuple[list[torch.Tensor], Callable[..., list[Any]]]:
    """The tensors of a sample (or `only_first` of them), and the call as a function of them that returns a flat list.
    The other tensors are constants of that function, which has copies of them: calling it may change them. `again` of
    the call is the same on other copies, `wide` in float64.
    """
    leaves, spec = pytree.tree_flatten((sample.input, sample.args, sample.kwargs))
    leaves = [leaf.detach() if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]
    at = [i for i, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)][: 1 if only_first else None]

    def bound(leaves: Sequence[Any]) -> Callable[..., list[Any]]:
        def call(*tensors: torch.Tensor) -> list[Any]:
            given = list(leaves)
            for i, tensor in zip(at, tensors, strict=True):
                given[i] = tensor
            value, args, kwargs = pytree.tree_unflatten(given, spec)
            return pytree.tree_flatten(op.op(value, *args, **kwargs))[0]

        return call

    call = bound(_copies(leaves))
    vars(call)["again"] = bound(_copies(leaves))
    vars(call)["wide"] = bound([_in_float64(leaf) for leaf in _copies(leaves)])
    return [leaves[i] for i in at], call


def _copies(leaves: Sequence[Any]) -> list[Any]:
    return [leaf.clone() if isinstance(leaf, torch.Tensor) else leaf for leaf in leaves]


def _in_float64(leaf: Any) -> Any:
    if isinstance(leaf, torch.Tensor) and leaf.is_complex():
        return leaf.to(torch.complex128)
    if isinstance(leaf, torch.Tensor):
        return leaf.double() if leaf.is_floating_point() else leaf
    return torch.float64 if isinstance(leaf, torch.dtype) and leaf in TOLERANCE else leaf


def _truth(call: Callable[..., list[Any]], tensors: Sequence[torch.Tensor]) -> list[Any] | None:
    """The results in float64, if the call takes that."""
    torch.manual_seed(0)
    try:
        return vars(call).get("wide", call)(*(_in_float64(t).clone() for t in tensors))
    except Exception:  # an operator need not support float64
        return None


REASONS = {
    "complex numbers": ("data type complex", registry.COMPLEX),
    "data type": ("the data type", "no such operation on", "of f64 is not supported"),
    "random numbers": ("random numbers",),
    "depends on data": (
        registry.DATA_DEPENDENT,
        "depends on data",
        "DataDependent",
        "dynamic shapes",
        "DynamicOutputShape",
        "#data-dependent",
    ),
    "factorization": (registry.FACTORIZATION,),
    "Fourier transform": (registry.FOURIER, "a Fourier transform of"),
    "special function": (registry.SPECIAL,),
    "strides": (registry.STRIDES,),
    "sparse": (registry.SPARSE, "layout"),
    "backward": (registry.BACKWARD,),
    "in place": ("in place",),
    "too large": ("too large",),
    "not captured": ("#wrong-program", "#python-code", "The tensor has a non-zero number of elements"),
    "result is no tensor": ("the result is not a tensor",),
    "not ATen": ("not an ATen",),
    "operator": (registry.UNKNOWN, "no decomposition"),
}
"""The named reasons of refusals, and what their messages contain."""


def named_reason(message: str) -> str:
    """The named reason of a refusal; "argument" for an argument of an operator that is otherwise supported."""
    for name, parts in REASONS.items():
        if any(part in message for part in parts):
            return name
    return "argument"
