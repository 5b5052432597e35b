"""Section "Levels": the Python source, the program at each level, and its C++ or CUDA, side by side.

A line carries the numbers of its origins, the ATen operators or Python lines that it computes. The script lights the
lines of an origin in all panes.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from xdsl.dialects.builtin import ModuleOp
from xdsl.ir import Attribute, Operation

from ...backend.cpp.writer import HELPERS_MARK, HOST_MARK, KERNELS_MARK
from ...dialects.support.printing import quantity
from .html import Html, colored, element, joined, tokens_of
from .origins import leaves_of, name_of, positions_of
from .program import ReportedProgram
from .sections import Section

ABOUT = {
    "torch": "ATen operators",
    "tensor": "whole tensors",
    "loop": "a nest for each kernel",
    "tile": "the program of a block",
    "kernel": "the program of a thread",
    "cuda": "CUDA C++",
    "cpp": "C++",
}
"""Level -> its contents, for the head of its pane."""

WHOLE_FILE = 120
"""Longest Python file, in lines, that the page shows as a whole."""

CONTEXT = 6
"""Number of lines of a longer file that the page shows before and after each operator."""

LIST = "a list"
"""Label of folded continuation lines."""

LONG_LIST, LONGEST_LIST = 8, 40
"""Number of lines of an operation above which its list is folded, and above which the list is left out of the page."""

CHIPS = re.compile(
    r"(?P<attributes>(?<=attributes )\{(?:[^{}]|\{[^{}]*\})*\})"
    r"|(?P<loc> loc\((?:#loc\d*|unknown)\))"
    r"|(?P<list>\[\[[^\[\]]*\](?:, \[[^\[\]]*\]){2,}\])"
    r"|(?P<long>#tile\.\w+<[^<>]{40,}>)"
)
"""Parts of a line of IR that are folded into a chip."""

LABELS = {"attributes": "{…}", "loc": "loc", "list": "[…]", "long": "<…>"}
"""Kind of a chip -> its text while it is closed."""


@dataclass
class Origins:
    """Numbers of the origins of a program.

    numbers: location -> its number.
    """

    numbers: dict[Attribute, int] = field(default_factory=dict[Attribute, int])

    def of(self, ops: Iterable[Operation]) -> list[int]:
        """Returns the numbers of the origins of operations, without repetitions."""
        leaves = dict.fromkeys(leaf for op in ops for leaf in leaves_of(op.location))
        return [self.numbers.setdefault(leaf, len(self.numbers)) for leaf in leaves]


@dataclass(frozen=True)
class Line:
    """A line of a pane.

    Attributes:
        text: its HTML, without a newline.
        origins: numbers of its origins.
        number: its number in the file, if it does not follow the line before.
    """

    text: Html
    origins: Sequence[int] = ()
    number: int | None = None

    @property
    def html(self) -> Html:
        numbers = " ".join(map(str, self.origins)) or None
        jump = None if self.number is None else f"counter-set:n {self.number}"
        return element("span", self.text, "\n", class_="l", data_o=numbers, style=jump)


def section(program: ReportedProgram) -> Section:
    """Returns the section."""
    origins = Origins()
    levels = {level: _lines(program, level, origins) for level in program.levels}
    files = _source_lines(program, origins)
    operators = {name: sum("data-o=" in line for line in lines) for name, lines in files.items()}
    shown = [level for level in ("loop", "cuda", "cpp") if level in levels] or [*levels][-2:]
    best = max(operators, key=lambda name: operators[name], default="")
    if operators.get(best, 0) < 2 and "torch" in levels:
        # In an expression of one line, the torch level separates the operators.
        best, shown = "", ["torch", *shown]
    panes = [
        pane(f"source{i}", Path(name).name, "Python", lines, name == best)
        for i, (name, lines) in enumerate(files.items())
    ]
    panes += [pane(level, level, ABOUT[level], lines, level in shown) for level, lines in levels.items()]
    note = "Point at a line, or move through a pane with the arrow keys: everything of the same operators lights up. "
    note += "A click or Enter pins it, Esc releases it. Grey chips and names such as #layout open."
    toggles = element("div", class_="toggles", role="group", aria_label="panes")
    status = element("p", note, class_="note status", aria_live="polite")
    body = [toggles, status, element("div", *panes, class_="panes")]
    return Section("levels", "Levels", joined(body), {"origins": [_described(o) for o in origins.numbers]})


def _described(origin: Attribute) -> str:
    """Returns the name and the lines of an origin: `torch.mul.Tensor#4 (rms.py:15)`."""
    name, lines = name_of(origin), [f"{Path(p.file).name}:{p.line}" for p in positions_of(origin)]
    return name if not lines or name in lines else f"{name} ({', '.join(lines)})"


def pane(name: str, title: str, about: str, lines: Sequence[Html], is_shown: bool) -> Html:
    """Returns a pane of lines.

    Args:
        name: identifier.
        title: name in its head and on its button.
        about: its contents, for its head.
        lines: its lines.
        is_shown: whether it is shown at first.
    """
    count = element("button", type="button", class_="lit-count", title="next lit line", hidden=True)
    head = element("h3", element("span", title), element("span", about, class_="muted"), count)
    body = element("div", *lines, class_="code", tabindex=0, role="region", aria_label=title)
    return element("div", head, body, class_="pane", data_pane=name, data_title=title, hidden=not is_shown)


def _lines(program: ReportedProgram, level: str, origins: Origins) -> list[Html]:
    """Returns the lines of a level. Runs of lines without an operation, such as helpers, are folded."""
    printed = program.compilation.text_with_owners(level)
    is_text = level in ("cuda", "cpp")
    tokens = tokens_of(printed.text, "cpp" if is_text else "mlir")
    owners = [*printed.owners, *[()] * (len(tokens) - len(printed.owners))]
    lines = [Line(_chipped(line, not is_text), origins.of(ops)) for line, ops in zip(tokens, owners, strict=True)]
    folds = _text_folds(printed.text) if is_text else [*_ir_folds(owners), *_long_lists(owners)]
    htmls, at = list[Html](), 0
    for start, end, label in sorted(folds):
        htmls += [line.html for line in lines[at:start]]
        count = quantity(end - start, "line")
        if label == LIST and end - start > LONGEST_LIST:
            htmls.append(
                element("span", f"⋯ {count} of {label} left out, `--ir {level}` prints them\n", class_="l gap")
            )
        else:
            htmls.append(_fold(lines[start:end], f"{count} of {label}"))
        at = end
        if at < len(lines):
            # A browser does not count the lines of a closed fold.
            htmls.append(replace(lines[at], number=at + 1).html)
            at += 1
    return htmls + [line.html for line in lines[at:]]


def _fold(lines: Sequence[Line], label: str) -> Html:
    return element("details", element("summary", data_label=label), *(line.html for line in lines), class_="fold")


def _ir_folds(owners: Sequence[Sequence[Operation]]) -> Iterator[tuple[int, int, str]]:
    """Yields start, end and label of the definitions before and after the module."""
    first = next((i for i, ops in enumerate(owners) if ops), 0)
    last = next((i for i in reversed(range(len(owners))) if owners[i]), len(owners) - 1) + 1
    if first:
        yield 0, first, "layouts, types and schedules"
    more = sum(1 for ops in owners if ops and isinstance(ops[0], ModuleOp)) - 2
    if more > 0:
        yield first + 1, first + 1 + more, "attributes of the module"
    if last < len(owners):
        yield last, len(owners), "locations"


def _long_lists(owners: Sequence[Sequence[Operation]]) -> Iterator[tuple[int, int, str]]:
    """Yields start, end and label of the continuation lines of operations with long attributes."""
    start = 0
    for end in range(1, len(owners) + 1):
        if end < len(owners) and owners[end] and owners[end] == owners[start]:
            continue
        if end - start > LONG_LIST and owners[start] and not isinstance(owners[start][0], ModuleOp):
            yield start + 2, end - 1, LIST
        start = end


def _text_folds(text: str) -> Iterator[tuple[int, int, str]]:
    """Yields start, end and label of the helpers and the host program of a text."""
    lines = text.splitlines()
    marks = {mark: lines.index(mark.rstrip()) for mark in (HELPERS_MARK, KERNELS_MARK, HOST_MARK) if mark in text}
    if HELPERS_MARK in marks and marks[KERNELS_MARK] - marks[HELPERS_MARK] > 2:
        yield marks[HELPERS_MARK] + 1, marks[KERNELS_MARK], "helpers"
    if HOST_MARK in marks:
        yield marks[HOST_MARK] + 1, len(lines), "the host program"


def _chipped(tokens: Sequence[tuple[str, str]], is_ir: bool) -> Html:
    """Returns the HTML of a line of tokens, with chips for long attributes of IR."""
    text = "".join(part for _, part in tokens)
    spans = [(m.start(), m.end(), str(m.lastgroup)) for m in CHIPS.finditer(text)] if is_ir else []
    spans = [s for s in spans if s[2] == "loc" or s[1] - s[0] > 12]
    htmls, at = list[Html](), 0
    for start, end, kind in spans:
        htmls.append(_colored(tokens, at, start))
        inner = element("span", _colored(tokens, start, end), hidden=True)
        label = "" if text[start:end] == " loc(unknown)" else LABELS[kind]
        chip = element("button", inner, type="button", class_="chip", data_label=label, tabindex=-1)
        htmls.append(chip)
        at = end
    return joined([*htmls, _colored(tokens, at, len(text))])


def _colored(tokens: Sequence[tuple[str, str]], start: int, end: int) -> Html:
    """Returns the characters from `start` to `end` of a line of tokens as HTML."""
    htmls, at = list[Html](), 0
    for name, part in tokens:
        text = part[max(start - at, 0) : max(end - at, 0)]
        at += len(part)
        if text:
            htmls.append(colored(name, text))
    return joined(htmls)


def _source_lines(program: ReportedProgram, origins: Origins) -> dict[str, list[Html]]:
    """Returns the lines of each Python file, by its path. Long files are shown around operators."""
    files: dict[str, list[Html]] = {}
    for name, texts in program.sources.items():
        numbers: dict[int, list[int]] = {}
        for origin, number in origins.numbers.items():
            for place in positions_of(origin):
                if place.file == name:
                    numbers.setdefault(place.line, []).append(number)
        tokens = tokens_of("\n".join(texts) + "\n", "python")
        lines, last = list[Html](), 0
        for n in _shown_lines(len(texts), numbers):
            jump = n if n != last + 1 else None
            if jump is not None:
                lines.append(element("span", "⋯\n", class_="l gap"))
            lines.append(Line(_colored(tokens[n - 1], 0, 1 << 20), numbers.get(n, ()), jump).html)
            last = n
        files[name] = lines
    return files


def _shown_lines(count: int, numbers: Iterable[int]) -> Sequence[int]:
    """Returns all lines of a short file, and those near operators of a long one.

    `count`: number of lines of the file. `numbers`: lines of operators.
    """
    if count <= WHOLE_FILE:
        return range(1, count + 1)
    near = {n + d for n in numbers for d in range(-CONTEXT, CONTEXT + 1)}
    return sorted(n for n in near if 1 <= n <= count)
