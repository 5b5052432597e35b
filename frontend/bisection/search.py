"""Search for the first part of the compiler whose results differ from PyTorch's."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from xdsl.dialects.builtin import ModuleOp
from xdsl.passes import ModulePass

from ...backend.check_each import MAX_FLOPS, is_executable, is_kernel_level, operand_roundoff
from ...dialects.loop.work import count_flops
from ...dialects.shapes.binding import bind_sizes
from ...dialects.support.calls import main_function, without_calls
from ...dialects.support.printing import Names, print_module
from ...errors import CompileError, ExecutionError
from ...passes.pass_manager import Observer, diff_lines
from ...progress import steps
from ..api import CompiledFunction
from ..comparison import tolerances
from ..executors import make_executor
from . import eager_values
from .mismatch import Mismatch, first_mismatch
from .operators import OperatorResult, TorchLevel

Part = Literal["capture", "operator", "pass", "executor"]

CONTEXT = 2
"""Number of unchanged lines around a change in the diff of a pass."""


@dataclass(frozen=True)
class Culprit:
    """First part of the compiler whose results differ from PyTorch's.

    Attributes:
        part: kind of the part.
        name: name of the operator, pass or executor.
        location: the user's line, or None.
        mismatch: a wrong value, with PyTorch's; None if the program could not be executed.
        error: why the program could not be executed, or empty.
        diff: changes of the IR by a pass, as lines.
    """

    part: Part
    name: str
    location: str | None = None
    mismatch: Mismatch | None = None
    error: str = ""
    diff: tuple[str, ...] = ()

    def as_dict(self) -> dict[str, Any]:
        """Returns the fields for JSON."""
        mismatch = None if self.mismatch is None else self.mismatch.as_dict()
        facts = {"part": self.part, "name": self.name, "location": self.location, "error": self.error}
        return {**facts, "mismatch": mismatch, "diff": [*self.diff]}


@dataclass(frozen=True)
class Bisection:
    """Outcome of a search.

    Attributes:
        culprit: the part to blame, or None if all results are right.
        executor: name of the executor of the program.
        versions: number of versions of the program, one for each pass that changed it.
        executed: number of versions that were executed.
    """

    culprit: Culprit | None
    executor: str
    versions: int = 0
    executed: int = 0


@dataclass(frozen=True)
class _Version:
    """The program after a pass that changed it."""

    name: str
    module: ModuleOp


class _Versions(Observer):
    """Observer that copies the program after each pass that changed it, from the first executable version on."""

    def __init__(self) -> None:
        self.versions: list[_Version] = []
        self._text = ""

    def after(self, module_pass: ModulePass, module: ModuleOp) -> None:
        text = str(module)
        if text != self._text and is_executable(module):
            self._text = text
            self.versions.append(_Version(module_pass.name, module.clone()))


def bisect(program: CompiledFunction, arguments: Sequence[torch.Tensor], call: Callable[[], Any]) -> Bisection:
    """Finds the first part of the compiler whose results differ from PyTorch's by more than the tolerance.

    The compiled program runs first. If its results are wrong, the search executes the program as it is after the pass
    in the middle of the pipeline. It goes on in the half of the passes where right results become wrong. The results
    may be wrong after the first pass already, which lowers the operators to the tensor level. Then each operator is
    executed alone, and compared with PyTorch's operator on the same operands.

    Args:
        program: the compiled program of a PyTorch function.
        arguments: the arguments of `@main`.
        call: function that returns the Python result of PyTorch for these arguments.

    Returns:
        the part and a wrong value, or no part if all results are right.

    Raises:
        ExecutionError: the program has more than `MAX_FLOPS` float operations, or draws random numbers.
    """
    captured = program.captured
    if captured.draws:
        raise ExecutionError("the program draws other random numbers than PyTorch, so no values can be compared")
    before = [a.clone() for a in arguments]

    def called() -> Any:
        """Calls PyTorch, and undoes its changes of the arguments."""
        with torch.no_grad():
            result = call()
            for _, argument in captured.updates:
                arguments[argument].copy_(before[argument])
        return result

    return _Search(program, before, captured.flatten(called())).run(called)


class _Search:
    """State of a search: the program, its arguments, and the expected results."""

    def __init__(
        self, program: CompiledFunction, arguments: Sequence[torch.Tensor], expected: Sequence[torch.Tensor]
    ) -> None:
        self.program, self.compilation = program, program.compilation
        self.arguments, self.expected = arguments, expected
        outputs = program.captured.outputs
        self.compared = sorted({o.index for o in outputs if o.kind == "result"})
        self.executed = 0
        observer = _Versions()
        observed = self.compilation.of(self.compilation.module, [observer])
        kernels = observed.at("kernel")
        self.versions = observer.versions
        tensors = observed.at("tensor")
        sizes = bind_sizes(main_function(tensors), [a.shape for a in arguments])
        flops = count_flops(main_function(without_calls(tensors)), sizes)
        if flops > MAX_FLOPS:
            raise ExecutionError(f"too large to execute after its passes: {flops:.1e} float operations; shrink it")
        allowed = tolerances(tensors, sizes, operand_roundoff(kernels))
        self.allowed = [allowed[i] for i in self.compared]

    def run(self, call: Callable[[], Any]) -> Bisection:
        executor = self.program.executor
        mismatch, error = self._outcome(lambda: executor.run(self._copied()))
        if mismatch is None and not error:
            return Bisection(None, executor.name, len(self.versions))
        first, last = 0, len(self.versions) - 1
        if (symptom := self._of_version(first)) is not None:
            return self._ended(self._operator(symptom, call))
        if (symptom := self._of_version(last)) is None:
            return self._ended(Culprit("executor", executor.name, None, mismatch, error))
        with steps("bisecting", len(self.versions), "versions"):
            while last - first > 1:
                middle = (first + last) // 2
                if (outcome := self._of_version(middle)) is None:
                    first = middle
                else:
                    last, symptom = middle, outcome
        return self._ended(self._pass(last, symptom))

    def _ended(self, culprit: Culprit) -> Bisection:
        return Bisection(culprit, self.program.executor.name, len(self.versions), self.executed)

    def _copied(self) -> list[torch.Tensor]:
        changed = {argument for _, argument in self.program.captured.updates}
        return [a.clone() if i in changed else a for i, a in enumerate(self.arguments)]

    def _outcome(self, run: Callable[[], Sequence[torch.Tensor]]) -> tuple[Mismatch | None, str]:
        """Returns the first wrong result of an execution, or the error that ended it."""
        try:
            results = run()
        except CompileError as error:
            return None, str(error)
        return first_mismatch([results[i] for i in self.compared], self.expected, self.allowed), ""

    def _of_version(self, number: int) -> tuple[Mismatch | None, str] | None:
        """Returns the wrong result or the error of a version, or None if its results are right."""
        module = self.versions[number].module
        level = "kernel" if is_kernel_level(module) else "tensor"
        version = replace(self.compilation.of(module), level=level)
        self.executed += 1
        outcome = self._outcome(
            lambda: make_executor("simulator" if level == "kernel" else "reference", version).run(self._copied())
        )
        return None if outcome == (None, "") else outcome

    def _pass(self, number: int, symptom: tuple[Mismatch | None, str]) -> Culprit:
        names = Names()
        before, after = (print_module(self.versions[n].module, names=names).splitlines() for n in (number - 1, number))
        return Culprit("pass", self.versions[number].name, None, *symptom, tuple(diff_lines(before, after, CONTEXT)))

    def _operator(self, symptom: tuple[Mismatch | None, str], call: Callable[[], Any]) -> Culprit:
        """Returns the part to blame above the first version: an operator, the capture, or else the first pass."""
        level = TorchLevel(self.compilation, self._copied())
        executed = list[OperatorResult]()
        for result in level.execute():
            if result.mismatch is not None or result.error:
                return Culprit("operator", result.name, result.location, result.mismatch, result.error)
            executed.append(result)
        captured = first_mismatch([level.results[i] for i in self.compared], self.expected, self.allowed)
        if captured is None:
            return Culprit("pass", self.versions[0].name, None, *symptom)
        values = [*self.arguments, *(v for result in executed for v in result.values)]
        missing = eager_values.first_missing(eager_values.record(call), values)
        name, place = ("@main", None) if missing is None else (missing.operator, missing.location)
        return Culprit("capture", name, place, captured)
