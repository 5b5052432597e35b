"""Plants bugs in the source of the compiler, in the operations of a module, or in printed text."""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from types import FunctionType
from typing import Any, TypeVar

from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Operation

from deplodock.dialects import make_context
from deplodock.dialects.support.parsing import parse_module
from deplodock.errors import DeplodockError
from deplodock.passes.verify_level import Level

from .ast_edits import replaced
from .checking import Verdict, judge_module
from .subjects import Subject

OpT = TypeVar("OpT", bound=Operation)

LOWERED: tuple[Level, ...] = ("tensor", "loop", "tile", "kernel")


class StaleMutantError(Exception):
    """A mutant that changes nothing, because the code or text that it should change was edited."""


@dataclass(frozen=True)
class Planted:
    """Result of a mutant before the emulator: a verdict, or the CUDA text to execute."""

    verdict: Verdict | None = None
    text: str | None = None


@dataclass(frozen=True)
class Mutant:
    """A planted bug.

    `area` is the part of the compiler, `name` describes the bug, and `change` plants it while a subject is compiled.
    """

    area: str
    name: str
    subject: str
    plant: Callable[[Subject], Planted]
    change: Callable[[], AbstractContextManager[None]] = nullcontext


@dataclass(frozen=True)
class Code:
    """A function or table of the compiler by its path in a module.

    It is looked up late, so that a renamed function makes only its mutants stale.
    """

    module: str
    path: tuple[str, ...] = ()

    def __getattr__(self, name: str) -> Code:
        if name.startswith("__"):
            raise AttributeError(name)
        return Code(self.module, (*self.path, name))

    def find(self) -> Any:
        """Returns the function or table. Raises StaleMutantError if it does not exist."""
        try:
            found: Any = import_module(f"deplodock.{self.module}")
            for name in self.path:
                found = getattr(found, name)
        except (ImportError, AttributeError) as error:
            raise StaleMutantError(str(error)) from None
        return found

    def __str__(self) -> str:
        return ".".join(self.path)


@contextmanager
def edited(function: Any, pattern: str, replacement: str, number: int = 0) -> Generator[None]:
    """In the `with` block, `function` runs with a replaced match of `pattern` in its syntax tree (`ast_edits.py`)."""
    while getattr(function, "__closure__", None):  # Unwrap a decorated function.
        (function,) = (c.cell_contents for c in function.__closure__ if isinstance(c.cell_contents, FunctionType))
    assert isinstance(function, FunctionType), function
    tree = replaced(ast.parse(textwrap.dedent(inspect.getsource(function))), pattern, replacement, number)
    if tree is None:
        raise StaleMutantError(f"{function.__qualname__} has no `{pattern}` number {number}")
    (definition,) = tree.body
    assert isinstance(definition, ast.FunctionDef)
    definition.decorator_list = []
    names: dict[str, Any] = {}
    exec(compile(tree, "<mutant>", "exec"), function.__globals__, names)
    before, after = function.__code__, names[function.__name__].__code__
    if before.co_freevars != after.co_freevars:
        raise StaleMutantError(f"{function.__qualname__} is a closure")
    function.__code__ = after
    try:
        yield
    finally:
        function.__code__ = before


def _edited_code(function: Code, old: str, new: str, number: int) -> AbstractContextManager[None]:
    return edited(function.find(), old, new, number)


def in_pass(
    name: str, subject: str, function: Code, old: str, new: str, start: Level = "tensor", number: int = 0
) -> Mutant:
    """Returns a bug in a lowering: the subject is compiled from the level `start` with an edited function."""
    change = partial(_edited_code, function, old, new, number)

    def plant(s: Subject) -> Planted:
        fresh, changed = s.compile_from(start), False
        for level in LOWERED[LOWERED.index(start) + 1 :] if start in LOWERED else LOWERED:
            with change():
                try:
                    module = fresh.at(level)
                except DeplodockError as error:
                    return Planted(Verdict("pass refuses", str(error)))
            if str(module) == s.text(level):
                continue
            changed = True
            if verdict := judge_module(s, module, level):
                return Planted(Verdict(f"{verdict.by} ({level})", verdict.why))
        if not changed:
            raise StaleMutantError("the program compiles to the same kernels")
        return Planted(text=fresh.cuda)

    return Mutant("lowering", f"{function}: {name}", subject, plant, change)


def in_printer(name: str, subject: str, function: Code, old: str, new: str, number: int = 0) -> Mutant:
    """Returns a bug in the printer: an edited function prints the correct kernels."""
    change = partial(_edited_code, function, old, new, number)

    def plant(s: Subject) -> Planted:
        fresh = s.compile_from("kernel")
        with change():
            try:
                text = fresh.cuda
            except DeplodockError as error:
                return Planted(Verdict("printer refuses", str(error)))
        return _changed(s, text)

    return Mutant("printer", f"{function}: {name}", subject, plant, change)


def in_table(name: str, subject: str, table: Code, key: Any, of: Any) -> Mutant:
    """Returns a bug in a table of the printer: a key has the entry of another key."""

    def plant(s: Subject) -> Planted:
        entries = table.find()
        right = entries[key]
        entries[key] = entries.get(of, of)
        try:
            return _changed(s, s.compile_from("kernel").cuda)
        finally:
            entries[key] = right

    return Mutant("printer", name, subject, plant)


def in_text(name: str, subject: str, pattern: str, new: str, number: int = 0) -> Mutant:
    """Returns a bug in printed text: match `number` of a regular expression is replaced."""

    def plant(s: Subject) -> Planted:
        return _changed(s, _substituted(s.cuda, pattern, new, number))

    return Mutant("printed text", name, subject, plant)


def _substituted(text: str, pattern: str, new: str, number: int) -> str:
    found = list(re.finditer(pattern, text))
    if len(found) <= number:
        raise StaleMutantError(f"the text has {len(found)} matches of {pattern!r}")
    match = found[number]
    return text[: match.start()] + match.expand(new) + text[match.end() :]


def in_module(name: str, subject: str, level: Level, change: Callable[[ModuleOp], None]) -> Mutant:
    """Returns a bug in the IR of a level, from which the lower levels are compiled."""

    def plant(s: Subject) -> Planted:
        module = s.at(level)
        try:
            change(module)
        except (AssertionError, IndexError) as error:
            raise StaleMutantError(f"the module has no such place: {error}") from error
        return _judge_ir(s, module, level)

    return Mutant(f"{level} IR", name, subject, plant)


def in_ir_text(name: str, subject: str, level: Level, pattern: str, new: str, number: int | None = 0) -> Mutant:
    """Returns a bug in the IR text of a level: match `number` of a regular expression (None: all) is replaced."""

    def plant(s: Subject) -> Planted:
        text = (
            re.sub(pattern, new, s.text(level)) if number is None else _substituted(s.text(level), pattern, new, number)
        )
        try:
            module = parse_module(make_context(), text, f"{s.name}.mlir")
        except DeplodockError as error:
            return Planted(Verdict("parser", str(error)))
        return _judge_ir(s, module, level)

    return Mutant(f"{level} IR", name, subject, plant)


def _judge_ir(s: Subject, module: ModuleOp, level: Level) -> Planted:
    if str(module) == s.text(level):
        raise StaleMutantError("nothing has changed")
    if verdict := judge_module(s, module, level):
        return Planted(verdict)
    fresh = s.compile_from(level, module)
    try:
        if level != "kernel" and (verdict := judge_module(s, fresh.at("kernel"), "kernel")):
            return Planted(Verdict(f"{verdict.by} (kernel)", verdict.why))
        return Planted(text=fresh.cuda)
    except DeplodockError as error:
        return Planted(Verdict("printer refuses" if level == "kernel" else "pass refuses", str(error)))


def _changed(s: Subject, text: str) -> Planted:
    if text == s.cuda:
        raise StaleMutantError("the printed text is the same")
    return Planted(text=text)


def nth(module: ModuleOp, kind: type[OpT], number: int) -> OpT:
    """Returns operation `number` of a class. Raises StaleMutantError if there are fewer."""
    found = [op for op in module.walk() if isinstance(op, kind)]
    try:
        return found[number]
    except IndexError:
        raise StaleMutantError(f"there are only {len(found)} of {kind.__name__}") from None
