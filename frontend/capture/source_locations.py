"""Locations and calls in the user's Python source, for error messages: `model.py:12: torch.linalg.inv(x)`.

They are found for a node of a graph, for a frame of a traceback, and for an exception. PyTorch records the line of each
node, and the function of torch that created the node. The bytecode of the user's frame also has the columns of the
expression. So while a program is traced, the text of the expression replaces the source line of the recorded frame
(`users_frames_in_stack_traces`), and is read back later (`Origin.call`).
"""

from __future__ import annotations

import ast
import functools
import inspect
import linecache
import os
import re
import sys
import sysconfig
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, lru_cache
from itertools import islice
from traceback import FrameSummary, StackSummary, extract_tb
from types import CodeType, FrameType
from typing import Any
from unittest.mock import patch

import torch
from torch.fx import Node
from torch.fx.proxy import TracerBase

from ...errors import CompileError, cell_name

EXPRESSION = "<expression>"
"""File name of code that was typed on the command line."""

_FRAME = re.compile(r'File "([^"]+)", line (\d+)')
_SITE = f"{os.sep}site-packages{os.sep}"
_TORCH = os.path.dirname(os.path.abspath(torch.__file__)) + os.sep
_FRONTEND = os.path.dirname(os.path.abspath(__file__)) + os.sep
_PACKAGE = os.path.dirname(os.path.dirname(_FRONTEND[:-1]))
_DRIVERS = tuple(
    os.path.join(_PACKAGE, *path)
    for path in (
        ("frontend", "api.py"),
        ("frontend", "dynamo.py"),
        ("frontend", "bisection", ""),
        ("extras", ""),
        ("tools", ""),
    )
)
_TYPED = (EXPRESSION, "<stdin>", "<ipython-input-", "<python-input-")
"""Prefixes of the file names of code that was typed."""
_STANDARD = os.path.abspath(sysconfig.get_paths()["stdlib"]) + os.sep

LONGEST = 60
"""Longest call that is printed whole, in characters. The arguments of a longer call are left out."""

MOST_LINES = 12
"""Number of source lines that are read to find the end of an expression."""

_FRAME_TEXT = re.compile(r'  File "(?P<file>[^"]+)", line (?P<line>\d+)[^\n]*\n(?P<text>(?:(?!  File ")[^\n]*\n?)*)')
_NAMESPACES: tuple[tuple[str, str, Any], ...] = (
    ("linalg_", "torch.linalg", torch.linalg),
    ("fft_", "torch.fft", torch.fft),
    ("special_", "torch.special", torch.special),
    ("", "torch.nn.functional", torch.nn.functional),
    ("", "torch", torch),
    ("", "Tensor", torch.Tensor),
)
"""Public namespaces of torch: prefix of the ATen names, public name, module."""


@cache
def is_users(file: str) -> bool:
    """Returns true if a source file belongs to the user: not to PyTorch, to this frontend, or to Python's standard
    library."""
    if file.startswith("<"):
        return file.startswith(_TYPED)
    path = os.path.abspath(file)
    return not path.startswith((_TORCH, _FRONTEND, *_DRIVERS)) and not (
        path.startswith(_STANDARD) and _SITE not in path
    )


def shown(file: str) -> str:
    """Returns the form of a file name for messages: relative if inside the current directory, the number of a notebook
    cell."""
    if "ipykernel_" in file or file.startswith("<ipython-input-"):
        return cell_name(file)
    if file.startswith("<"):
        return file
    relative = os.path.relpath(file)
    return file if relative.startswith("..") else relative


def innermost(stack: str | None) -> tuple[str, int] | None:
    """Returns (file, line) of the innermost frame of the user's code in the text of a stack trace, or None."""
    users = [(m.group(1), int(m.group(2))) for m in _FRAME.finditer(stack or "") if is_users(m.group(1))]
    return (shown(users[-1][0]), users[-1][1]) if users else None


def place_text(place: tuple[str, int] | None) -> str | None:
    """Returns the text of (file, line): `file:line`, or None."""
    return f"{place[0]}:{place[1]}" if place else None


def innermost_of_error(error: BaseException) -> str | None:
    """Returns `file:line:column` of the user's code in which an error, or one of its causes, was raised, or None.

    Only frames that this frontend calls count, not the callers of the frontend.
    """
    frame = _frame_of_error(error)
    if frame is None:
        return None
    place = f"{shown(frame.filename)}:{frame.lineno}"
    return place if frame.colno is None else f"{place}:{frame.colno + 1}"


def _frame_of_error(error: BaseException) -> FrameSummary | None:
    users = (frames for e in chain(error) if (frames := _inside(extract_tb(e.__traceback__))))
    return next((frames[-1] for frames in users), None)


def expression_of_error(error: BaseException) -> Written | None:
    """Returns the expression in the user's code in which an error was raised, or None."""
    frame = _frame_of_error(error)
    if frame is None or frame.lineno is None:
        return None
    text = _source_text(frame.filename, frame.lineno, frame.end_lineno, frame.colno, frame.end_colno)
    return Written(frame.filename, frame.lineno, text or frame.line or "")


def users_call(node: Node) -> str | None:
    """Returns the text of the user's call that created a node of a graph, or None."""
    return Origin.of(node).call()


def blame(error: CompileError, node: Node, place: tuple[str, int] | None = None) -> CompileError:
    """Adds the location and the user's call of a node to an error that has none, and returns the error.

    Args:
        error: the error.
        node: the node.
        place: (file, line) for a node without a stack trace, or None.
    """
    location = innermost(node.meta.get("stack_trace")) or place
    if error.location is None and location is not None:
        error.location = f"{location[0]}:{location[1]}"
    error.call = error.call or users_call(node)
    return error


@contextmanager
def at_node(node: Node) -> Iterator[None]:
    """While active, errors get the location and the user's call of `node`."""
    try:
        yield
    except CompileError as error:
        raise blame(error, node) from error.__cause__


def defined_at(function: Any) -> str | None:
    """Returns `file:line` of a function, or of a module's `forward`, if the user has defined it.

    For other functions it returns the line from which the user's code calls this library, or None.
    """
    while isinstance(function, functools.partial):
        function = function.func
    method = type(function).forward if isinstance(function, torch.nn.Module) else function
    code = getattr(inspect.unwrap(method), "__code__", None) if callable(method) else None
    if code is not None and is_users(code.co_filename):
        return f"{shown(code.co_filename)}:{code.co_firstlineno}"
    return users_place()


def users_place() -> str | None:
    """Returns `file:line` of the innermost running frame of the user's code, or None."""
    frame = _users_frame()
    return None if frame is None else f"{shown(frame.f_code.co_filename)}:{frame.f_lineno}"


def _users_frame() -> FrameType | None:
    frame = sys._getframe(1)
    while frame is not None and not is_users(frame.f_code.co_filename):
        frame = frame.f_back
    return frame


def chain(error: BaseException | None) -> Iterator[BaseException]:
    """Yields an error and its causes, one after the other."""
    seen: list[BaseException] = []
    while error is not None and error not in seen:
        yield error
        seen.append(error)
        error = error.__cause__ or error.__context__


def _inside(frames: StackSummary) -> list[FrameSummary]:
    """Returns the frames of the user's code that this frontend has called, without the callers of the frontend."""
    ours = [i for i, f in enumerate(frames) if f.filename.startswith(_FRONTEND)]
    return [f for f in frames[ours[0] if ours else 0 :] if is_users(f.filename)]


@contextmanager
def users_frames_in_stack_traces() -> Iterator[None]:
    """While active, PyTorch's tracers record all frames of the user's code.

    Without it, they record only frames of functions named `forward`. The innermost frame gets the text of the
    expression that it evaluates as its source line.
    """
    unfiltered = patch.object(TracerBase, "_filter_traceback_frames", lambda tracer, frames: frames, create=True)
    with unfiltered, patch("torch.fx.proxy.CapturedTraceback", _UsersTraceback):
        yield


class _UsersTraceback:
    """Stack of the user's frames at a node.

    Replaces a class of PyTorch, which reads the source lines of all frames: a fifth of the time of a trace.
    """

    extract = classmethod(lambda cls: cls())

    def summary(self) -> StackSummary:
        """Returns the frames of the user's code, the innermost last."""
        frames = _users_frames()
        recorded = [FrameSummary(f.f_code.co_filename, f.f_lineno, f.f_code.co_name) for f in frames]
        if frames and (line := _expression(frames[-1].f_code, frames[-1].f_lasti)):
            last = recorded[-1]
            recorded[-1] = FrameSummary(last.filename, last.lineno, last.name, lookup_line=False, line=line)
        return StackSummary.from_list(recorded)


def _users_frames() -> list[FrameType]:
    """Returns the current frames of the user's code that this frontend has called, the innermost last."""
    users, inside, frame = list[FrameType](), None, sys._getframe(1)
    while frame is not None:
        file = frame.f_code.co_filename
        if is_users(file):
            users.append(frame)
        elif file.startswith(_FRONTEND):
            inside = len(users)
        frame = frame.f_back
    return users[:inside][::-1]


@lru_cache(1 << 12)
def _expression(code: CodeType, instruction: int) -> str | None:
    at = next(islice(code.co_positions(), instruction // 2, None), (None,) * 4)
    return _source_text(code.co_filename, *at)


def _source_text(file: str, line: int | None, end: int | None, column: int | None, last: int | None) -> str | None:
    """Returns the source between two positions, joined to one line, or None if unknown. Columns are in bytes."""
    if line is None or end is None or column is None or last is None:
        return None
    lines = [linecache.getline(file, n).encode() for n in range(line, end + 1)]
    if not all(lines):
        return None
    lines[-1] = lines[-1][:last]
    lines[0] = lines[0][column:]
    return " ".join(b" ".join(lines).decode(errors="replace").split()) or None


@dataclass(frozen=True)
class Origin:
    """Origin of a node.

    Attributes:
        notes: entries of the node's `meta` about its source, with the keys `_NOTES`.
        target: function or operator that the node calls.
    """

    notes: Mapping[str, Any]
    target: Any

    @classmethod
    def of(cls, node: Node) -> Origin:
        """Returns the origin of a node."""
        return cls({name: node.meta[name] for name in _NOTES if name in node.meta}, node.target)

    @property
    def operator(self) -> str | None:
        """Name of the ATen operator without its overload, or None."""
        schema = getattr(self.target, "_schema", None)
        return None if schema is None else str(schema.name).rpartition("::")[2]

    @property
    def function(self) -> str | None:
        """Name of the function of torch that the user's program called, as Dynamo or the exporter recorded it, or
        None."""
        if stack := self.notes.get("source_fn_stack"):
            function = stack[-1][1]
            return function if isinstance(function, str) else getattr(function, "__name__", None)
        noted = self.notes.get("torch_fn")
        return None if noted is None else str(noted[1]).rpartition(".")[2]

    def call(self) -> str | None:
        """Returns the text of the user's call, or None if nothing is known about it.

        If the text does not contain the name of the called function of torch, the public name follows: `f(x)
        (torch.sigmoid)`. Without the source, the result is the public name alone. A node of a backward operator gives
        `the gradient of` the forward call.
        """
        text, name = _written(self.notes.get("stack_trace")), public_name(self.function)
        call = None if text is None else call_in(text, self.function)
        if self.operator is not None and "_backward" in self.operator:
            forward = call or public_name(self.operator.partition("_backward")[0])
            return None if forward is None else f"the gradient of {forward}"
        if call is None:
            return name or public_name(self.operator)
        return call if name is None or _mentions(call, name) else f"{call} ({name})"


_NOTES = ("stack_trace", "source_fn_stack", "torch_fn")


@dataclass(frozen=True)
class Written:
    """Text in the user's source.

    Attributes:
        file: source file.
        line: line of the beginning.
        text: an expression or a whole line; if `open`, the beginning of an expression with all that follows it.
        open: whether the end of the expression is unknown.
    """

    file: str
    line: int
    text: str
    open: bool = False


def _written(stack: str | None) -> Written | None:
    """Returns the source text of the innermost frame of the user's code in a stack trace, or None."""
    text = (stack or "") + "\n"
    frames = [m for m in _FRAME_TEXT.finditer(text if text.startswith("  ") else f"  {text}") if is_users(m["file"])]
    if not frames:
        return None
    file, line, lines = frames[-1]["file"], int(frames[-1]["line"]), frames[-1]["text"].rstrip("\n").split("\n")
    source = lines[0].strip()
    # Dynamo marks the beginning of the expression, but not the end.
    if len(lines) > 1 and re.fullmatch(r"\s*[~^]+\s*", lines[1]):
        start = source[lines[1].index(lines[1].strip()) - 4 :]
        more = "".join(linecache.getline(file, line + n) for n in range(1, MOST_LINES))
        return Written(file, line, f"{start}\n{more}", open=True)
    return Written(file, line, source)


def call_in(place: Written, function: str | None) -> str | None:
    """Returns the text of the call in an expression or in a line of source, or None if there is none.

    Args:
        place: the source text.
        function: name of the called function of torch, which selects among several calls; or None.
    """
    if place.open:
        candidates = list(_beginnings(place.text))
    else:
        tree = _parsed(place.text)
        if isinstance(tree, ast.Expr):
            return shortened(tree.value)
        candidates = [] if tree is None else [n for n in ast.walk(tree) if isinstance(n, ast.expr)]
        candidates.sort(key=lambda n: not isinstance(n, ast.Call))
    named = (n for n in candidates if function is not None and _is_call_of(n, function))
    chosen = next(named, candidates[-1] if place.open and candidates else next(iter(candidates), None))
    if chosen is not None:
        return shortened(chosen)
    callee = re.search(r"[A-Za-z_][\w.]*(?=\()", place.text.partition("\n")[0])
    return f"{callee[0]}(...)" if callee else None


def _beginnings(text: str) -> Iterator[ast.expr]:
    """Yields the expressions that a text begins with, the shortest first: `x`, `x[0]`, `x[0].item`, `x[0].item()`."""
    seen: set[str] = set()
    for end in (m.end() for m in re.finditer(r"\w+|[\])}]|\"", text[:2000])):
        try:
            value = ast.parse(f"({text[:end]}\n)", mode="eval").body
        except (SyntaxError, ValueError):
            continue
        if not isinstance(value, ast.Tuple | ast.GeneratorExp) and (key := ast.dump(value)) not in seen:
            seen.add(key)
            yield value


def _is_call_of(expression: ast.expr, function: str) -> bool:
    """Returns true if an expression calls a function of torch, directly or by an operator such as `+`."""
    function = function.strip("_")
    if function == "getitem":
        return isinstance(expression, ast.Subscript)
    if isinstance(expression, ast.Call):
        callee = ast.unparse(expression.func).rpartition(".")[2].strip("_")
        return bool(callee) and f"_{function}".endswith(f"_{callee}")
    kind = _OPERATORS.get(function)
    return kind is not None and isinstance(getattr(expression, "op", None), kind)


_OPERATORS: dict[str, type[ast.AST]] = {
    "add": ast.Add,
    "sub": ast.Sub,
    "mul": ast.Mult,
    "truediv": ast.Div,
    "div": ast.Div,
    "floordiv": ast.FloorDiv,
    "mod": ast.Mod,
    "pow": ast.Pow,
    "matmul": ast.MatMult,
    "lshift": ast.LShift,
    "rshift": ast.RShift,
}
"""Syntax of the Python operator, by the name of the function."""


def shortened(expression: ast.expr) -> str:
    """Returns the text of an expression. If it is too long for a message, arguments and long operands are left out."""
    text = ast.unparse(expression)
    if len(text) <= LONGEST:
        return text
    if isinstance(expression, ast.Call):
        callee = ast.unparse(expression.func)
        if len(callee) > LONGEST and isinstance(expression.func, ast.Attribute):
            callee = f"(...).{expression.func.attr}"
        return f"{callee}(...)"
    if isinstance(expression, ast.BinOp | ast.Compare | ast.Subscript | ast.Attribute):
        parts = [c for c in ast.iter_child_nodes(expression) if isinstance(c, ast.expr)]
        for part in parts:
            if len(ast.unparse(part)) > LONGEST // 3:
                text = text.replace(ast.unparse(part), "(...)" if not isinstance(part, ast.Name) else part.id, 1)
    return text if len(text) <= 2 * LONGEST else text[: 2 * LONGEST] + "..."


def public_name(function: str | None) -> str | None:
    """Returns the public name of a function of torch (`linalg_inv` -> `torch.linalg.inv`), or None."""
    name = (function or "").partition(".")[0].lstrip("_")
    for prefix, namespace, module in _NAMESPACES:
        short = name.removeprefix(prefix)
        if short and name.startswith(prefix) and callable(getattr(module, short, None)):
            return f"{namespace}.{short}"
    return None


def function_name(function: Any) -> str:
    """Returns the name of the compiled function for messages: `torch.linalg.inv`, `Model`, `<lambda>`."""
    if isinstance(function, torch.fx.GraphModule) or type(function).__module__.startswith("deplodock."):
        return "the compiled function"
    if isinstance(function, torch.nn.Module):
        return type(function).__name__
    name = getattr(function, "__name__", None)
    if name is None:
        return type(function).__name__
    of_torch = str(getattr(function, "__module__", None) or "torch").startswith("torch")
    return (of_torch and public_name(name)) or name


def _mentions(call: str, name: str) -> bool:
    """Returns true if a call contains the last part of a public name, or is no call but an operator or a subscript."""
    tree = _parsed(call)
    if isinstance(tree, ast.Expr) and not isinstance(tree.value, ast.Call):
        return True
    return re.search(rf"\b{re.escape(name.rpartition('.')[2])}\b", call) is not None


def _parsed(text: str) -> ast.stmt | None:
    """Returns the statement in a line of source, which may be the head of a block (`if x:`), or None."""
    text = text.strip()
    for whole in (text, f"{text} pass", f"{text}\n pass", f"if 1: pass\n{text} pass"):
        try:
            body = ast.parse(whole).body
        except (SyntaxError, ValueError):
            continue
        return body[-1] if body else None
    return None
