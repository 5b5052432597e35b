"""Versions of a program that `run` compares: the printed text, an edited kernel text, and other schedules."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..backend.cpp.edited_text import EditedText, KernelTextError, merged_text
from ..errors import CompileError
from ..target.attribute import on_cores

if TYPE_CHECKING:
    from ..frontend.compilation import Compilation
    from .modes import Params
    from .reports import Loaded

_TARGET = re.compile(r"^// deplodock target: ([\w:{}= ]+)", re.MULTILINE)


@dataclass(frozen=True)
class Versions:
    """Versions of a program.

    Attributes:
        printed: the program as it is compiled.
        edited: the program with the kernels of a file, or None.
        text: merged text of `edited`.
        others: name -> each version except `printed`. Names are a file or the text of a schedule.
        notes: remarks for the user.
    """

    printed: Loaded
    edited: Loaded | None = None
    text: EditedText | None = None
    others: dict[str, Loaded] = field(default_factory=dict[str, "Loaded"])
    notes: tuple[str, ...] = ()

    @property
    def main(self) -> Loaded:
        """The version whose results are compared with PyTorch."""
        return self.edited or self.printed


def versions_of(program: Loaded, params: Params) -> Versions:
    """Returns the versions of a program for the options `--kernel-text` and `--against`.

    Raises:
        KernelTextError: the edited text does not fit the program.
        CompileError: a schedule is refused.
    """
    if params.kernel_text is None and not params.against:
        return Versions(program)
    others, notes, edited, text = dict[str, "Loaded"](), list[str](), None, None
    if params.kernel_text is not None:
        text = read_kernel_text(program.compilation, params.kernel_text)
        edited = others[text.file] = program.of(program.compilation.with_text(text.text))
    for schedule in params.against:
        if schedule in others:
            raise CompileError(f'expected different schedules, but got "{schedule}" twice', argument="--against")
        others[schedule] = program.with_options(schedule=schedule)
        if kernel_text(others[schedule].compilation) == kernel_text(program.compilation):
            notes.append(f'--against "{schedule}": its kernels equal those of the program')
    return Versions(program, edited, text, others, tuple(notes))


def judge_edited(
    text: EditedText, printed: Compilation, outcome: dict[str, Any], is_right: Callable[[Compilation], bool]
) -> None:
    """Adds the kernels of an edited text to the outcome of its program, and which of them give a wrong result.

    A kernel is wrong if it alone, among printed kernels, gives a wrong result. If none is, the kernels of the text are
    wrong together.

    Args:
        text: the edited text.
        printed: the program with its printed text.
        outcome: outcome of the program with the edited text (`reports.outcome_of`).
        is_right: runs a program and compares its results.
    """
    outcome["why"] = f"it runs {text.file}"
    outcome["edited"] = edited = {"file": text.file, "kernels": [*text.changed]}
    if outcome["ok"] is False:
        edited["printed_ok"] = right = is_right(printed)
        wrong = text.changed if right else ()
        if len(wrong) > 1:
            alone = {name: printed.with_text(read_kernel_text(printed, text.file, name).text) for name in wrong}
            wrong = [name for name in wrong if not is_right(alone[name])] or wrong
        edited["wrong"] = {name: text.location(name) for name in wrong}


def kernel_text(compilation: Compilation) -> str:
    """Returns the printed text of the kernels of a program without its first comments."""
    return compilation.cpp if on_cores(compilation.target) else compilation.cuda


def read_kernel_text(compilation: Compilation, file: str, only: str | None = None) -> EditedText:
    """Returns the text of a program with the kernels of a file, or with one of them.

    Args:
        compilation: the program.
        file: the file.
        only: name of the kernel, or None for all kernels of the file.

    Raises:
        KernelTextError: the text does not fit the program, or the file cannot be read.
    """
    return merged_text(kernel_text(compilation), _read(file), file, only)


def _read(file: str) -> str:
    try:
        return Path(file).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "is no text in UTF-8"
        raise KernelTextError(f"cannot read {file}: {reason}", argument="--kernel-text") from None


def executor_of_text(target: str, executor: str) -> str:
    """Returns the executor of an edited text (`executor_of_kernels`).

    Raises:
        KernelTextError: the executor does not run a text.
    """
    if executor in ("simulator", "reference"):
        reason = f"expected an executor that runs the text (cpu, cuda or emulator), but got {executor}"
        raise KernelTextError(reason, argument="--kernel-text")
    return executor_of_kernels(target, executor)


def executor_of_kernels(target: str, executor: str) -> str:
    """Returns the executor that runs kernels: `auto` is the emulator, and not the reference, for a GPU that is not
    here."""
    from ..frontend.executors import cuda_missing

    return "emulator" if executor == "auto" and not on_cores(target) and cuda_missing() else executor


def target_of_text(file: str) -> str | None:
    """Returns the name of the target that a printed text states in its first comments, or None."""
    match = _TARGET.search(_read(file))
    return match[1].strip() if match else None
