"""Observer that records the passes of a compilation, for the report page and `dl-gui`."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from xdsl.dialects.builtin import ModuleOp
from xdsl.passes import ModulePass

from ..backend.check_each import MAX_FLOPS, Checker
from ..dialects.support.printing import Names, print_module
from ..errors import CompileError, DeplodockError
from ..passes.pass_manager import Observer, Remark, contents_of, remarks_so_far
from ..passes.pipelines import pipeline_text

CHANGED, UNCHANGED, REFUSED = "changed", "unchanged", "refused"


@dataclass
class PassRun:
    """A run of a pass, and its effect on the module.

    Attributes:
        name: name of the pass.
        text: the pass with its options, as for `dl-opt -p`.
        level: level that the passes lower to.
        seconds: its time, without the time to record it.
        before, after: text of the module; empty for a pass that was skipped or failed.
        ops_before, ops_after: number of operations.
        remarks: reasons why the pass left operations unchanged.
        skipped: reason why the pass did not run, or empty.
        verdict: result of executing the program after the pass; empty if it was not executed.
        precision: error of the results after the pass; empty if no result is a float.
        wrong: whether the verdict is that the pass changed the results.
        error: message of the error that ended the compilation, or empty.
    """

    name: str
    text: str
    level: str
    seconds: float = 0.0
    before: str = ""
    after: str = ""
    ops_before: int = 0
    ops_after: int = 0
    remarks: Sequence[Remark] = ()
    skipped: str = ""
    verdict: str = ""
    precision: str = ""
    wrong: bool = False
    error: str = ""

    @property
    def state(self) -> str:
        """`refused` after an error, or for remarks alone; `changed` if the text changed; else `unchanged`."""
        if self.error or self.wrong:
            return REFUSED
        if self.before != self.after:
            return CHANGED
        return REFUSED if self.remarks else UNCHANGED


@dataclass
class Recording(Observer):
    """Observer that records every pass.

    Attributes:
        check_each: whether to execute the program after every pass.
        max_flops: limit of float operations of a program that is executed.
        passes: the recorded passes, in order.
        level: level that the running passes lower to.
        summary: a sentence about the executed versions, or the reason why there are none.
    """

    check_each: bool = False
    max_flops: int = MAX_FLOPS
    passes: list[PassRun] = field(default_factory=list[PassRun])
    level: str = ""
    summary: str = ""
    _names: Names = field(default_factory=Names)
    _contents: list[tuple[object, ...]] | None = None
    _text: str = ""
    _ops: int = 0
    _checker: Checker | None = None
    _start: float = 0.0
    _remarks: int = 0
    _is_running: bool = False

    def before(self, module_pass: ModulePass, module: ModuleOp) -> None:
        if self._contents is None:
            self._print(module)
        if self.check_each and self._checker is None:
            self._begin_checks(module)
        run = PassRun(module_pass.name, pipeline_text([module_pass]), self.level, before=self._text, after=self._text)
        run.ops_before = run.ops_after = self._ops
        self.passes.append(run)
        self._remarks, self._is_running = len(remarks_so_far()), True
        self._start = time.perf_counter()

    def after(self, module_pass: ModulePass, module: ModuleOp) -> None:
        run = self.passes[-1]
        run.seconds, self._is_running = time.perf_counter() - self._start, False
        run.remarks = remarks_so_far()[self._remarks :]
        self._print(module)
        run.after, run.ops_after = self._text, self._ops
        if self._checker is not None:
            self._check(run, module)

    def _print(self, module: ModuleOp) -> None:
        """Stores the text of the module, unless nothing has changed since the last text."""
        if (contents := contents_of(module)) != self._contents:
            self._contents, self._ops = contents, len(contents)
            self._text = print_module(module, names=self._names)

    def skipped(self, module_pass: ModulePass, why: str, module: ModuleOp) -> None:
        self.passes.append(PassRun(module_pass.name, pipeline_text([module_pass]), self.level, skipped=why))

    def fail(self, error: CompileError) -> None:
        """Attributes an error to the running pass, if there is one."""
        if self._is_running:
            self.passes[-1].error = str(error)

    def _begin_checks(self, module: ModuleOp) -> None:
        try:
            self._checker = Checker(module, max_flops=self.max_flops)
        except DeplodockError as error:
            self.check_each, self.summary = False, f"not executed: {error}"

    def _check(self, run: PassRun, module: ModuleOp) -> None:
        """Executes the program after a pass. The first failure ends the checks."""
        assert self._checker is not None
        executed = self._checker.checked
        try:
            self._checker.after(run.name, module)
        except DeplodockError as error:
            run.wrong, run.verdict = True, str(error)
            self.check_each, self._checker, self.summary = False, None, f"stopped: {error}"
            return
        if self._checker.checked > executed:
            run.verdict = "same results"
            error, allowed = self._checker.error, self._checker.allowed_error
            run.precision = f"largest difference from float64 {error:.2e}, {allowed:.2e} allowed" if allowed else ""
        self.summary = self._checker.summary()
