"""Section "Machine code": the instructions of each kernel, next to its lines of CUDA or C++.

The script lights the instructions of a line, and the line of an instruction.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ...backend.cuda.resources import Resources
from ...backend.disassembly import Code
from ...errors import DeplodockError
from ...frontend.machine_code import MOST_KERNELS, KernelMachineCode, machine_code
from ...target.attribute import on_cores, stamp_comment
from .html import Html, element, escape, highlighted, joined, table
from .levels import Line, pane
from .program import ReportedProgram
from .sections import Section

MOST_INSTRUCTIONS = 1_000
"""Number of instructions on the page outside of hot loops. When they are used up, only the hot loop of a kernel is
shown."""


@dataclass(frozen=True)
class Text:
    """Printed text of the program. `first`: number that is added to the lines of machine code."""

    level: str
    lines: Sequence[Html]
    first: int


def section(program: ReportedProgram) -> Section | None:
    """Returns the section, or None for a program without kernels."""
    if not program.kernels:
        return None
    compilation = program.compilation
    try:
        compiled = machine_code(compilation, program.kernels, lines=True, most=MOST_KERNELS)
    except DeplodockError as error:  # A tool is missing: the message names it.
        return Section("machine", "Machine code", element("p", str(error), class_="note"))
    level = "cpp" if on_cores(compilation.target) else "cuda"
    stamp = stamp_comment(compilation.at("kernel")).count("\n")
    text = Text(level, highlighted(program.texts[level], "cpp"), stamp)
    longest = sorted(program.kernels, key=lambda k: -k.predicted * k.launches)
    parts, origins, budget = list[Html](), list[dict[int, str]](), MOST_INSTRUCTIONS
    for kernel in (compiled.kernels[k.name] for k in longest if k.name in compiled.kernels):
        others = 0 if kernel.code is None else len(kernel.code) - len(kernel.code.hot_loop or ())
        html, lines = _kernel(kernel, text, whole=others <= budget, is_open=not parts)
        budget -= others if others <= budget else 0
        parts.append(html)
        origins.append(lines)
    note = [f"Compiled by {compiled.compiler}." if compiled.kernels else "", *(f"{note}." for note in compiled.notes)]
    head = element("p", " ".join(filter(None, note)), class_="note")
    data: Any = {"origins": origins, **compiled.facts()}
    return Section("machine", "Machine code", joined([head, *parts]), data)


def _kernel(kernel: KernelMachineCode, text: Text, whole: bool, is_open: bool) -> tuple[Html, dict[int, str]]:
    """Returns a kernel, and the names of its lines by number.

    Args:
        kernel: The kernel.
        text: The printed text.
        whole: Whether instructions outside of the hot loop are shown.
        is_open: Whether the kernel is unfolded.
    """
    code = kernel.code
    parts: list[object] = [element("summary", element("code", kernel.name), f": {kernel.described()[-1]}")]
    if kernel.resources is not None:
        parts.append(_resources(kernel.resources, kernel.expected))
    if code is None:
        return element("details", *parts, class_="machine", open=is_open), {}
    hot = {i.address for i in code.hot_loop.instructions} if code.hot_loop is not None else set[int]()
    shown = len(code) if whole else len(hot)
    numbers = sorted({i.line for i in code.instructions if i.line is not None and (whole or i.address in hot)})
    if shown < len(code):
        level = "asm" if kernel.resources is None else "sass"
        note = f"The hot loop of {len(code)} instructions is shown" if shown else f"{len(code)} instructions"
        parts.append(element("p", f"{note}; --ir {level} prints all.", class_="note"))
    if shown:
        source = [_source_line(text, n, n in numbers, n == numbers[0]) for n in _whole_range(numbers)]
        panes = [
            pane(f"{kernel.name}-{text.level}", text.level, "printed text", source, True),
            pane(f"{kernel.name}-code", "machine code", "> marks the hot loop", _code_lines(code, hot, whole), True),
        ]
        parts += [
            element("div", class_="toggles", role="group", aria_label="panes"),
            element("p", "Point at a line: its instructions light up.", class_="note status", aria_live="polite"),
            element("div", *panes, class_="panes"),
        ]
    lines = {n: f"line {n + text.first}" for n in numbers} if shown else {}
    return element("details", *parts, class_="machine", open=is_open), lines


def _whole_range(numbers: Sequence[int]) -> range:
    return range(numbers[0], numbers[-1] + 1) if numbers else range(0)


def _source_line(text: Text, number: int, is_origin: bool, is_first: bool) -> Html:
    shown = number + text.first
    return Line(text.lines[shown - 1], [number] if is_origin else [], shown if is_first else None).html


def _code_lines(code: Code, hot: set[int], whole: bool) -> list[Html]:
    """Returns the instructions as lines with their addresses. Without `whole`, only the hot loop."""
    lines = list[Html]()
    for function in code.functions:
        instructions = [i for i in function.instructions if whole or i.address in hot]
        lines += [element("span", f"{function.name}:\n", class_="l")] if instructions else []
        for i in instructions:
            is_hot = i.address in hot
            text = f"{'>' if is_hot else ' '} {i.address:5x}  {i.text}\n"
            lines.append(element("span", escape(text), class_="l hot" if is_hot else "l", data_o=i.line))
    return lines


def _resources(r: Resources, e: Resources | None) -> Html:
    """Returns a table of the resources of a kernel, compiled and predicted."""
    rows: list[list[object]] = [
        ["registers of a thread", r.registers, e and e.registers],
        ["bytes of spilled registers", r.spilled, None],
        ["bytes of stack of a thread", r.stack, None],
        ["bytes of shared memory of a block", r.shared, e and e.shared],
        [f"blocks on an SM, limited by {r.limit}", r.blocks_per_sm, e and e.blocks_per_sm],
        ["threads of the largest number on an SM", f"{r.occupancy:.0%}", e and f"{e.occupancy:.0%}"],
    ]
    return table(["", "compiled", "predicted"], [["" if c is None else c for c in row] for row in rows])
