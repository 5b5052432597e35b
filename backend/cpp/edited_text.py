"""Kernels that a person has edited, in place of kernels of a printed text of CUDA or C++.

The file has the form of a printed text, or of a part of it: all sections or the kernels alone, all kernels or some. The
host program passes arguments by position and launches a fixed grid, so the heads of kernels are compared with the
printed heads. The merged text has `#line` directives, so that messages of compilers and of the emulator refer to the
file.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from ...errors import CompileError
from .writer import HELPERS_MARK, HOST_MARK, KERNELS_MARK

PRINTED = "printed text"
"""Name of the printed text in messages of compilers, for kernels that the file does not have."""

_COMMENT = re.compile(r'("(?:[^"\\\n]|\\.)*")|//[^\n]*|/\*.*?\*/', re.DOTALL)
_STRING = re.compile(r'"(?:[^"\\\n]|\\.)*"|\'(?:[^\'\\\n]|\\.)*\'')
_DIRECTIVE = re.compile(r"^[ \t]*#(?:[^\n]*\\\n)*[^\n]*", re.MULTILINE)
_WORD = re.compile(r'"(?:[^"\\\n]|\\.)*"|\w+|\S')
_FOLDED = r"(: \d+ lines, shown by --helpers)?\n"


class KernelTextError(CompileError):
    """An edited kernel text that does not fit the program, or that the compiler refuses."""


@dataclass(frozen=True)
class EditedText:
    """Printed text with kernels of a file.

    Attributes:
        file: name of the file.
        text: the merged text.
        lines: name of each kernel of the file -> line of its head, in the order of the program.
        changed: names of the kernels of the file whose text differs from the printed text. With other helpers these are
            all kernels of the file.
    """

    file: str
    text: str
    lines: dict[str, int]
    changed: tuple[str, ...]

    def location(self, kernel: str) -> str:
        """Returns `file:line` of a kernel."""
        return f"{self.file}:{self.lines[kernel]}"


@dataclass(frozen=True)
class _Part:
    """Definition at the top level of a text, with the comments and directives before it.

    Attributes:
        source: the whole text.
        begin: start of the definition in the text.
        end: end of the definition.
        code: definition with spaces in place of comments, strings and directives; other characters have their offsets.
    """

    source: str
    begin: int
    end: int
    code: str

    @property
    def text(self) -> str:
        return self.source[self.begin : self.end]

    @property
    def start(self) -> int:
        """Offset of the first character of code."""
        return len(self.code) - len(self.code.lstrip())

    def place(self, offset: int) -> tuple[int, int]:
        """Returns the line and column in the whole text of the character at `offset` in this definition."""
        at = self.begin + offset
        return self.source.count("\n", 0, at) + 1, at - self.source.rfind("\n", 0, at)

    def with_line(self, file: str) -> str:
        """Returns the definition after a directive with its line in `file`."""
        return f"{_directive(self.place(0)[0], file)}{self.text}"


@dataclass(frozen=True)
class _Function:
    """Function of a text.

    Attributes:
        part: its definition.
        name: its name.
        at: offset of the name in the definition.
        arguments: offset in the definition and text of each argument.
        body: offset of the opening brace.
    """

    part: _Part
    name: str
    at: int
    arguments: tuple[tuple[int, str], ...]
    body: int

    @property
    def qualifiers(self) -> str:
        """Text before the name, without comments."""
        text = _COMMENT.sub(lambda m: m[1] or " ", self.part.text[self.part.start : self.at])
        return " ".join(text.split())

    @property
    def is_cuda(self) -> bool:
        return "__global__" in self.qualifiers

    def refuse(self, file: str, reason: str, offset: int | None = None) -> KernelTextError:
        """Returns the error for a fault.

        Args:
            file: name of the file.
            reason: the fault.
            offset: place of the fault in the definition; by default the name of the function.
        """
        line, column = self.part.place(self.at if offset is None else offset)
        return KernelTextError(reason, operator=self.name, location=f"{file}:{line}:{column}")


@dataclass(frozen=True)
class _Sections:
    """Ranges of the sections of a text, without their first lines. None for a section that is missing or folded."""

    helpers: tuple[int, int] | None
    kernels: tuple[int, int]
    host: tuple[int, int] | None

    @staticmethod
    def of(text: str, file: str) -> _Sections:
        marks = list[tuple[int, int, str]]()
        for mark in (HELPERS_MARK, KERNELS_MARK, HOST_MARK):
            for match in re.finditer(f"^{re.escape(mark.rstrip())}{_FOLDED}", text, re.MULTILINE):
                if mark in {m for _, _, m in marks}:
                    location = f"{file}:{_line(text, match.start())}"
                    raise KernelTextError(f"expected one section `{mark.rstrip()}`, but got two", location=location)
                marks.append((match.start(), match.end(), mark + (match[1] or "")))
        ends = pairwise([*sorted(marks), (len(text), 0, "")])
        ranges = {mark: (start, end) for (_, start, mark), (end, _, _) in ends}
        # Without its first line the section of the kernels is the text between the other sections.
        after = max((start for _, start, mark in marks if mark.startswith(HELPERS_MARK)), default=0)
        before = min((begin for begin, _, mark in marks if mark.startswith(HOST_MARK)), default=len(text))
        return _Sections(
            ranges.get(HELPERS_MARK) if KERNELS_MARK in ranges else None,
            ranges.get(KERNELS_MARK, (after, before)),
            ranges.get(HOST_MARK),
        )


def merged_text(printed: str, edited: str, file: str, only: str | None = None) -> EditedText:
    """Returns a printed text in which kernels of an edited text replace the printed kernels.

    Args:
        printed: text of the printer of CUDA or C++.
        edited: text of the file. Its section of helpers replaces the printed section. Other definitions between the
            kernels become helpers.
        file: name of the file, for messages.
        only: name of the one kernel that is replaced, or None for all kernels of the file.

    Raises:
        KernelTextError: the file has no kernel of the program, or the head of a kernel does not fit the host program.
    """
    ours, theirs = _Sections.of(printed, PRINTED), _Sections.of(edited, file)
    expected = _printed_kernels(_parts(printed, ours.kernels))
    kernels, grids, others = _divided(_parts(edited, theirs.kernels), expected, file)
    for name, function in kernels.items():
        _check(function, expected[name][0], file)
    kernels = {name: function for name, function in kernels.items() if only in (None, name)}
    host = "" if ours.host is None else HOST_MARK + printed[slice(*ours.host)]
    if theirs.host is not None and _words(edited[slice(*theirs.host)]) != _words(host.removeprefix(HOST_MARK)):
        reason = "expected the printed host program, but got another one; edit kernels and helpers only"
        raise KernelTextError(reason, location=f"{file}:{_line(edited, theirs.host[0]) - 1}")
    helpers = "" if ours.helpers is None else printed[slice(*ours.helpers)]
    same_helpers = theirs.helpers is None or _words(edited[slice(*theirs.helpers)]) == _words(helpers)
    if theirs.helpers is not None and not same_helpers:
        helpers = "".join(part.with_line(file) for part in _parts(edited, theirs.helpers))
    helpers += "".join(part.with_line(file) for part in others)
    texts, changed = list[str](), list[str]()
    for name, definitions in expected.items():
        texts.append("".join(f"{part.with_line(PRINTED).rstrip()}\n" for part in (f.part for f in definitions)))
        if name in kernels:
            grid = "".join(
                grids[name].with_line(file) if name in grids else f.part.with_line(PRINTED) for f in definitions[1:]
            )
            both = kernels[name].part.text + (grids[name].text if name in grids else "")
            ours_too = "".join(f.part.text for f in definitions[: 2 if name in grids else 1])
            if not same_helpers or _words(both) != _words(ours_too):
                changed.append(name)
            texts[-1] = _with_head(kernels[name], file) + (f"{grid.rstrip()}\n" if grid else "")
    text = (
        HELPERS_MARK + helpers.rstrip("\n") + "\n\n" + KERNELS_MARK + "\n".join(texts) + ("\n" + host if host else "")
    )
    lines = {name: kernels[name].part.place(kernels[name].at)[0] for name in expected if name in kernels}
    return EditedText(file, text, lines, tuple(changed))


def _line(text: str, offset: int) -> int:
    return text.count("\n", 0, offset) + 1


def _directive(line: int, file: str) -> str:
    name = file.replace("\\", "\\\\").replace('"', '\\"')
    return f'#line {line} "{name}"\n'


def _words(text: str) -> list[str]:
    """Returns the words of a text without comments, to compare texts that may be formatted differently."""
    return _WORD.findall(_COMMENT.sub(lambda m: m[1] or " ", text))


def _code(text: str) -> str:
    """Returns a text with spaces in place of comments, strings and directives."""

    def blank(match: re.Match[str]) -> str:
        return re.sub(r"[^\n]", " ", match[0])

    text = _COMMENT.sub(lambda m: m[0] if m[1] else blank(m), text)
    return _DIRECTIVE.sub(blank, _STRING.sub(blank, text))


def _parts(text: str, section: tuple[int, int]) -> list[_Part]:
    """Returns the definitions of a section. Each ends at the end of a line."""
    begin, end = section
    code, parts, start, depth = _code(text[begin:end]), list[_Part](), 0, 0
    for match in re.finditer(r"[{}\n]", code):
        depth += {"{": 1, "}": -1}.get(match[0], 0)
        if match[0] == "\n" and depth <= 0 and code[start : match.end()].rstrip().endswith(("}", ";")):
            parts.append(_Part(text, begin + start, begin + match.end(), code[start : match.end()]))
            start, depth = match.end(), 0
    last = _Part(text, begin + start, end, code[start:])
    return [*parts, last] if last.text.strip() else parts


def _function(part: _Part) -> _Function | None:
    """Returns the function that a part defines, or None for another definition."""
    code = part.code
    body = code.find("{")
    close = code.rfind(")", 0, max(body, 0))
    if close < 0 or code[close + 1 : body].strip():
        return None
    opened, depth = close, 1
    while depth and opened > 0:
        opened -= 1
        depth += {")": 1, "(": -1}.get(code[opened], 0)
    name = re.search(r"(\w+)\s*$", code[:opened])
    if depth or name is None:
        return None
    arguments, begin, depth = list[tuple[int, str]](), opened + 1, 0
    for i in range(opened + 1, close + 1):
        if i == close or code[i] == "," and not depth:
            if word := code[begin:i].strip():
                arguments.append((begin + code[begin:i].index(word), " ".join(word.split())))
            begin = i + 1
        depth += {"(": 1, "<": 1, "[": 1, ")": -1, ">": -1, "]": -1}.get(code[i], 0)
    return _Function(part, name[1], name.start(), tuple(arguments), body)


def _printed_kernels(parts: Sequence[_Part]) -> dict[str, list[_Function]]:
    """Returns the definitions of each kernel of a printed text: the kernel, and in C++ the function `k0_grid` that runs
    its blocks."""
    functions = {f.name: f for f in map(_function, parts) if f is not None}
    grids = {name: functions[f"{name}_grid"] for name in functions if f"{name}_grid" in functions}
    kernels = {n: [f, *([grids[n]] if n in grids else [])] for n, f in functions.items() if f.is_cuda or n in grids}
    return kernels


def _divided(
    parts: Sequence[_Part], expected: Mapping[str, Sequence[_Function]], file: str
) -> tuple[dict[str, _Function], dict[str, _Part], list[_Part]]:
    """Divides the definitions of a file into kernels, functions that run the blocks of kernels, and others."""
    kernels, grids, others = dict[str, _Function](), dict[str, _Part](), list[_Part]()
    of_grid = {functions[1].name: name for name, functions in expected.items() if len(functions) > 1}
    names, expects_cuda = ", ".join(expected), any(functions[0].is_cuda for functions in expected.values())
    for part in parts:
        function = _function(part)
        if function is not None and function.is_cuda and not expects_cuda:
            raise _other_language(function, file)
        if function is None or function.name not in {*expected, *of_grid} and not function.is_cuda:
            others.append(part)
        elif (kernel := of_grid.get(function.name)) is not None:
            head, printed = (_words(f.part.code[f.part.start : f.body]) for f in (function, expected[kernel][1]))
            if head != printed:
                raise function.refuse(file, f"expected `{' '.join(printed)}`, which the host program calls")
            grids[kernel] = part
        elif function.name not in expected:
            raise function.refuse(file, f"expected a kernel of the program ({names}), but got {function.name}")
        elif function.name in kernels:
            raise function.refuse(file, "expected one definition of the kernel, but got two")
        else:
            kernels[function.name] = function
            if _DIRECTIVE.search(part.text[: part.start]):
                others.append(_Part(part.source, part.begin, part.begin + part.start, part.code[: part.start]))
    for kernel in grids:
        if kernel not in kernels:
            reason = f"expected the kernel {kernel} before the function that runs its blocks"
            raise KernelTextError(reason, location=f"{file}:{grids[kernel].place(grids[kernel].start)[0]}")
    if not kernels:
        raise KernelTextError(f"expected a kernel of the program ({names}), but the text has none", location=file)
    return kernels, grids, others


def _other_language(function: _Function, file: str) -> KernelTextError:
    if function.is_cuda:
        return function.refuse(file, "expected C++ for the target cpu, but got CUDA; choose the --target of the text")
    return function.refuse(file, "expected CUDA (__global__), but got C++; choose the --target of the text")


def _check(function: _Function, printed: _Function, file: str) -> None:
    """Raises KernelTextError if a kernel of a file cannot be launched like the printed kernel."""
    if function.is_cuda != printed.is_cuda:
        raise _other_language(function, file)
    _check_facts(function, printed, file)
    if printed.is_cuda and 'extern "C"' not in function.qualifiers:
        raise function.refuse(file, 'expected extern "C" before __global__; the host program finds the kernel by name')
    if "void" not in function.qualifiers.split():
        raise function.refuse(file, "expected a function without a result (void)")
    _check_arguments(function, printed, file)
    for word, noun in (("__launch_bounds__", "threads of a block"), ("__cluster_dims__", "blocks of a cluster")):
        ours, theirs = (re.search(rf"{word}\s*\(\s*(\d+)", f.qualifiers) for f in (printed, function))
        shown = [f"{word}({m[1]})" if m else f"no {word}" for m in (ours, theirs)]
        if shown[0] != shown[1]:
            advice = f"the host program sets the {noun}; another number needs another --schedule"
            raise function.refuse(file, f"expected {shown[0]}, but got {shown[1]}; {advice}")


def _check_facts(function: _Function, printed: _Function, file: str) -> None:
    """Raises KernelTextError if the comments before a kernel state another grid or another schedule.

    The text is then of a program with another schedule, or a person expects that the comment changes the launch.
    """
    for pattern in (rf"^// {re.escape(printed.name)}: .*$", r"^// schedule = .*$"):
        ours = re.search(pattern, printed.part.text[: printed.part.start], re.MULTILINE)
        theirs = re.search(pattern, function.part.text[: function.part.start], re.MULTILINE)
        if ours and theirs and ours[0].split() != theirs[0].split():
            advice = "the host program launches the former; take the --schedule and --target of the text"
            reason = f"expected `{ours[0][3:]}`, but got `{theirs[0][3:]}`; {advice}"
            raise function.refuse(file, reason, theirs.start())


def _check_arguments(function: _Function, printed: _Function, file: str) -> None:
    ours, theirs = ([_argument(text) for _, text in f.arguments] for f in (printed, function))
    if len(ours) != len(theirs):
        count, expected = len(theirs), ", ".join(text for _, text in printed.arguments)
        reason = f"expected {len(ours)} arguments, but got {count}; the host program passes ({expected})"
        raise function.refuse(file, reason)
    names = [[name for _, name in arguments] for arguments in (ours, theirs)]
    for (offset, text), (_, expected), a, b in zip(function.arguments, printed.arguments, theirs, ours, strict=True):
        if a[1] != b[1] and sorted(names[0]) == sorted(names[1]):
            reason = f"expected the arguments in the order {', '.join(names[0])}, but got {', '.join(names[1])}"
            raise function.refuse(file, f"{reason}; the host program passes them by position", offset)
        if a[0] != b[0]:
            raise function.refuse(file, f"expected the argument `{expected}`, but got `{text}`", offset)


def _argument(text: str) -> tuple[tuple[str, ...], str]:
    """Returns the words of the type of an argument, without qualifiers that callers do not see, and its name."""
    words = [w for w in _WORD.findall(text) if w not in ("__restrict__", "__restrict")]
    *kind, name = words if len(words) > 1 else [*words, ""]
    while "*" in kind and kind[-1] == "const":
        kind.pop()
    if "*" not in kind and "__grid_constant__" not in kind:
        kind = [w for w in kind if w != "const"]
    return tuple(kind), name


def _with_head(function: _Function, file: str) -> str:
    """Returns a kernel whose head is one line, as the text is searched for it, and whose body has its lines."""
    arguments = ", ".join(text for _, text in function.arguments)
    words = function.qualifiers
    if function.is_cuda:
        matches = (re.search(rf"{word}\s*\(([^()]*)\)", words) for word in ("__cluster_dims__", "__launch_bounds__"))
        bounds = "".join(f"{m[0].partition('(')[0].rstrip()}({m[1].strip()}) " for m in matches if m)
        words = f'extern "C" __global__ void {bounds}'.rstrip()
    line, column = function.part.place(function.body + 1)
    body = function.part.text[function.body + 1 :]
    head = f"{_directive(function.part.place(function.at)[0], file)}{words} {function.name}({arguments}) {{\n"
    return f"{head}{_directive(line, file)}{' ' * (column - 1)}{body.rstrip()}\n"
