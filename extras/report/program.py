"""`ReportedProgram`: the facts about a program that the sections of a page show."""

from __future__ import annotations

import linecache
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from xdsl.ir import Attribute

from ...dialects.kernel import FuncOp, kernel_names
from ...dialects.payload import element_type
from ...dialects.shapes.extents import extents_of
from ...dialects.support.calls import main_function
from ...dialects.support.printing import quantity
from ...errors import CompileError, DeplodockError
from ...frontend.capture.captured_program import Binding
from ...frontend.capture.source_locations import EXPRESSION
from ...frontend.kernels import Kernel, kernels_of
from ...frontend.profile import Profile, measured, predicted
from ...tools.recording import PassRun, Recording
from ...tools.tables import si
from .origins import positions_of
from .recording import record

if TYPE_CHECKING:
    from ...frontend.api import CompiledFunction
    from ...frontend.compilation import Compilation
    from ...frontend.tuning.search import Search
    from ...tools.reports import Loaded


@dataclass
class ReportedProgram:
    """A program, and the results of the command that writes a page about it.

    The program is compiled again to record its passes. Properties are computed at their first use.

    Attributes:
        compiled: the program as the command compiled it.
        command: command line that writes the page again; empty for a page from Python.
        check_each: whether the program is executed after every pass.
        loaded: the Python program of a command, or None.
        function: the compiled function that the page is about, or None for a command.
        outcome: results of `run` (`reports.outcome_of`), or None.
        searches: results of `tune`.
        error: error that ended the command, or None.
        against: file of another run, with which the page compares this one; empty for none.
    """

    compiled: Compilation
    command: str = ""
    check_each: bool = False
    loaded: Loaded | None = None
    function: CompiledFunction | None = None
    outcome: Mapping[str, Any] | None = None
    searches: Sequence[Search] = ()
    error: CompileError | None = None
    against: str = ""

    @cached_property
    def _recorded(self) -> tuple[Compilation, Recording, CompileError | None]:
        return record(self.compiled, self.check_each)

    @property
    def compilation(self) -> Compilation:
        """The program at all levels, compiled with a recording of its passes."""
        return self._recorded[0]

    @property
    def recording(self) -> Recording:
        return self._recorded[1]

    @property
    def passes(self) -> Sequence[PassRun]:
        """The runs of passes, in order."""
        return self.recording.passes

    @property
    def refusal(self) -> CompileError | None:
        """Error of the command or of the compiler, or None."""
        return self.error or self._recorded[2]

    @cached_property
    def levels(self) -> tuple[str, ...]:
        """Levels that the compilation reached, from the top down, the text included."""
        reached = {run.level for run in self.passes} | {self.compilation.level}
        levels = [name for name in self.compilation.levels if name in reached or name in ("cuda", "cpp")]
        if self._recorded[2] is not None:
            levels = [name for name in levels if self._is_complete(name)]
        return tuple(levels)

    def _is_complete(self, level: str) -> bool:
        with suppress(CompileError):
            self.compilation.text(level)
            return True
        return False

    @property
    def is_complete(self) -> bool:
        """True if the program reached the kernel level, so that kernels have costs."""
        return "kernel" in self.levels

    @cached_property
    def texts(self) -> dict[str, str]:
        """Text of each level, as `--ir` prints it to a file."""
        return {level: self.compilation.text(level) for level in self.levels}

    @cached_property
    def kernels(self) -> Sequence[Kernel]:
        """The kernels with their predicted times; empty without costs."""
        return kernels_of(self.compilation) if self.has_costs else ()

    @property
    def has_costs(self) -> bool:
        """True if the program reached the kernel level, and has nests from which costs follow."""
        return self.is_complete and "loop" in self.levels

    @property
    def kernel_functions(self) -> dict[str, FuncOp]:
        """C++ name of each kernel -> its operation."""
        module = self.compilation.at("kernel")
        names = kernel_names(module)
        return {names[f.sym_name.data]: f for f in module.walk() if isinstance(f, FuncOp)}

    @cached_property
    def profile(self) -> Profile | None:
        """Times of the kernels: measured if the command ran the program and its executor measures, else predicted.

        None without costs.
        """
        if not self.has_costs:
            return None
        if self.outcome is not None and self.loaded is not None:
            program = self.loaded.compiled
            with suppress(DeplodockError):
                if program.executor.trace is not None:
                    return measured(program, self.loaded.subject)
        return predicted(self.compilation)

    @property
    def is_measured(self) -> bool:
        """True if the times of `profile` are measured."""
        return self.profile is not None and self.profile.source.startswith("measured")

    @cached_property
    def sources(self) -> dict[str, Sequence[str]]:
        """Lines of each Python file that an operation of the program is from."""
        files: dict[str, Sequence[str]] = {}
        for name in dict.fromkeys(p.file for op in self.compilation.module.walk() for p in positions_of(op.location)):
            lines = linecache.getlines(name)
            if not lines:
                with suppress(OSError, UnicodeDecodeError):
                    lines = Path(name).read_text(encoding="utf-8").splitlines(keepends=True)
            if lines:
                files[name] = [line.rstrip("\n") for line in lines]
        return files

    @property
    def typed(self) -> str:
        """The program as the user typed it: the expression, the file, or the source lines of its operators."""
        if self.loaded is not None and self.loaded.program.place is not None:
            name = self.loaded.program.place[0]
            return "\n".join(line.rstrip("\n") for line in linecache.getlines(name))
        return ""

    @property
    def title(self) -> str:
        """The expression, the name of the file, or the type of the compiled module."""
        if self.loaded is not None and self.loaded.program.place is not None:
            name = self.loaded.program.place[0]
            return " ".join(self.typed.split()) if name == EXPRESSION else Path(name).name
        module = None if self.function is None else self.function._module
        if module is not None:
            return type(module).__name__
        return next((Path(name).name for name in self.sources), "program")

    @property
    def subtitle(self) -> str:
        """The target and the number of kernels."""
        kernels = quantity(len(self.kernel_functions), "kernel") if self.is_complete else "not compiled to kernels"
        return f"{self.hardware} · {kernels}"

    @property
    def signature(self) -> str:
        """Inputs and results of the program: `(x: f32[8, 64]) -> f32[8, 64]`."""
        function = main_function(self.compilation.module)
        kinds = [b.kind for b in self.bindings] or ["input"] * len(function.args)
        arguments = [
            f"{a.name_hint or f'arg{i}'}: {_shown(a.type)}"
            for i, (a, kind) in enumerate(zip(function.args, kinds, strict=True))
            if kind == "input"
        ]
        results = [_shown(t) for t in function.function_type.outputs]
        return f"({', '.join(arguments)}) -> {results[0] if len(results) == 1 else '(' + ', '.join(results) + ')'}"

    @property
    def bindings(self) -> Sequence[Binding]:
        """Sources of the arguments of `@main`; empty for a program from IR."""
        part = self.loaded or self.function
        return () if part is None else part.captured.bindings

    @property
    def parameters(self) -> str:
        """Number and bytes of the parameters and buffers of the module, or an empty text."""
        tensors = [b.tensor for b in self.bindings if b.kind != "input" and b.tensor is not None]
        total = sum(t.numel() * t.element_size() for t in tensors)
        return f"{quantity(len(tensors), 'tensor')}, {si(total)}B" if tensors else ""

    @property
    def hardware(self) -> str:
        """The target with the device whose numbers the model uses."""
        target = self.compilation.resolved
        return f"{target.arch} ({target.card})"


def _shown(t: Attribute) -> str:
    """Returns `f32[8, 64]` for a tensor type, else the text of the type."""
    return f"{element_type(t)}[{', '.join(map(str, extents_of(t)))}]" if hasattr(t, "get_shape") else str(t)
