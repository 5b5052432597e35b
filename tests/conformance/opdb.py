"""Runs PyTorch's operator test database (op_db): each sample must be right, or refused with a named reason.

A sample is one call of an operator. It goes through capture, decomposition and the reference interpreter, and is
compared with eager PyTorch. A sample that is neither right nor refused is `wrong`, `slow` or a `crash`.
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
"""Function that runs a torch-level module."""


class Level(Protocol):
    """Interface of a level: lowers programs, and builds several of them together."""

    def lower(self, module: ModuleOp) -> None: ...

    def build(self, modules: Sequence[ModuleOp]) -> Sequence[Callable[[Sequence[np.ndarray]], list[np.ndarray]]]: ...


Kind = Literal["right", "refused", "wrong", "crash", "slow", "skipped"]

FAILED = ("wrong", "crash", "slow")
"""Verdicts that are failures."""

Mode = Literal["arguments", "constants", "keywords"]
"""Arguments of the program of a sample: all tensors; the first tensor, with the others as constants; or all tensors, in
one program for each keyword argument that is left out."""

LIMIT = 60.0
"""Largest processor time of a sample in seconds."""

UNDEFINED = {"empty", "empty_like", "empty_permuted", "empty_strided", "new_empty", "new_empty_strided"}
"""Operators whose contents PyTorch does not define: only shape and type are compared."""

OPEN_INDICES = {"topk": 1, "kthvalue": 1, "mode": 0, "sort": 0, "argsort": 0}
"""Operator -> position of its argument `dim`, for operators whose last result has indices of equal elements.

Any of these indices is right, unless the call has `stable=True`.
"""

LARGEST = 1 << 25
"""Largest number of elements of a value. The reference materialises all values, so larger programs are skipped."""


@dataclass(frozen=True)
class Verdict:
    """Result of one sample.

    `reason` is the error of a refusal, or the difference or exception of a failure. `seconds` is processor time.
    """

    operator: str
    sample: int
    kind: Kind
    reason: str = ""
    seconds: float = 0.0


def operators(names: Sequence[str] = ()) -> list[OpInfo]:
    """Returns the entries of the database in order, or the entries with these names."""
    return [op for op in op_db if not names or op.name in names or op.formatted_name in names]


def samples(
    op: OpInfo,
    dtype: torch.dtype,
    limit: int | None = None,
    seed: int = 0,
    mode: Mode = "arguments",
    requires_grad: bool = False,
) -> Iterator[tuple[int, SampleInput]]:
    """Yields samples of an operator with their numbers: all, or `limit` evenly spaced ones. Values depend on `seed`.
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
    """Yields the sample without each of its keyword arguments in turn, except `sorter`.

    Without `sorter` the result of a search in unsorted numbers is undefined.
    """
    for name in [name for name in sample.kwargs if name != "sorter"]:
        others = {k: v for k, v in sample.kwargs.items() if k != name}
        yield SampleInput(sample.input, args=sample.args, kwargs=others)


def judge(
    tracer: Capture,
    op: OpInfo,
    number: int,
    sample: SampleInput,
    execute: Executor | None = None,
    mode: Mode = "arguments",
) -> Verdict:
    """Returns the verdict on one sample. `execute` is that of `judge_call`."""
    trial = trial_of(op, sample, mode)
    trial.trace(tracer)
    trial.run(lambda args: (execute or at_tensor_level)(trial.module, args))
    return Verdict(op.formatted_name, number, *trial.verdict)


def judge_errors(tracer: Capture, op: OpInfo) -> Iterator[Verdict]:
    """Yields verdicts on calls that PyTorch refuses: `refused`, `crash`, or `right` if capture accepts the call.

    Capture accepts calls that fail only for certain values of tensors.
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
"""One data type of each kind."""


def judge_types(tracer: Capture, op: OpInfo) -> Iterator[Verdict]:
    """Yields verdicts on calls with data types that the operator does not list.

    They are `refused` or `crash`, or `wrong` if a call compiles that eager PyTorch refuses.
    """
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
    """Returns the verdict on a call that returns a flat list, and its reason.

    `execute` runs the torch-level module; by default the reference interpreter runs it at the tensor level.
    """
    trial = Trial(call, tensors, undefined, same_elements)
    trial.trace(tracer)
    trial.run(lambda args: (execute or at_tensor_level)(trial.module, args))
    return trial.verdict


def judge_all(
    tracer: Capture, op: OpInfo, given: Sequence[tuple[int, SampleInput]], level: Level, mode: Mode = "arguments"
) -> list[Verdict]:
    """Returns the verdicts on samples of one operator, whose programs are built together."""
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
    """Returns the trial of a sample, before its first step."""
    tensors, call = closed(op, sample, only_first=mode == "constants")
    any_of = op.name in OPEN_INDICES and not sample.kwargs.get("stable")
    same = (lambda f, e: _same_elements(sample, OPEN_INDICES[op.name], f, e)) if any_of else None
    return Trial(call, tensors, op.name in UNDEFINED, same)


@dataclass
class Trial:
    """The steps from a call to its verdict: trace, execute, compare."""

    call: Callable[..., list[Any]]
    tensors: Sequence[torch.Tensor]
    undefined: bool = False
    same_elements: Callable[[list[Any], list[Any]], bool] | None = None
    outcome: tuple[Kind, str] | None = None
    seconds: float = 0.0

    @property
    def open(self) -> bool:
        """True until there is a verdict."""
        return self.outcome is None

    @property
    def verdict(self) -> tuple[Kind, str]:
        """The verdict and its reason."""
        assert self.outcome is not None, "not compared yet"
        return self.outcome

    def trace(self, tracer: Capture) -> None:
        """Calls PyTorch for the expected results, and captures the call."""
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
        """Runs a step; its error becomes the verdict. All steps of a trial together have `LIMIT` seconds."""
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
        """Executes the program and compares the results."""
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
        """Returns the results as a caller of the program gets them."""
        arguments = self.traced.bind(given)
        results = [to_torch(r) for r in execute([to_numpy(a) for a in arguments])]
        return list(self.traced.restore(results, arguments))


class TooSlow(BaseException):
    """A step that exceeded its time. Not an `Exception`, so that no handler of the compiler catches it."""


@contextmanager
def limited(seconds: float) -> Iterator[None]:
    """Raises TooSlow in the `with` block after some seconds of processor time. Works in the main thread only."""
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
    """Returns true if the resulting indices are distinct and select elements equal to the expected ones."""
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
    """Lowers a module to the tensor level and interprets it."""
    lower(module)
    module.verify()
    if largest(module) > LARGEST:
        raise TooLarge
    return run(module, args)


def lower(module: ModuleOp) -> None:
    """Lowers a torch-level module to the tensor level."""
    ConvertTorchToTensorPass().apply(Context(), module)


def largest(module: ModuleOp) -> int:
    """Returns the number of elements of the largest value in a module."""
    return max((math.prod(shape_of(r.type)) for op in module.walk() for r in op.results), default=0)


def closed(
    op: OpInfo, sample: SampleInput, *, only_first: bool = False
) -> tuple[list[torch.Tensor], Callable[..., list[Any]]]:
    """Returns the tensors of a sample, and the call as a function of them that returns a flat list.

    With `only_first` the function has one argument. The other tensors are constants, of which it has copies, because a
    call may change them. Its attribute `again` is the function with new copies, `wide` the function in float64.
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
    """Returns the results in float64, or None if the operator does not support it."""
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
"""Named reason of a refusal -> texts that its messages contain."""


def named_reason(message: str) -> str:
    """Returns the named reason of a refusal; `argument` for an unsupported argument of a supported operator."""
    for name, parts in REASONS.items():
        if any(part in message for part in parts):
            return name
    return "argument"
