"""Where in the user's Python something was written, and the calls as they were written: `torch.linalg.inv(x)` for a
node of a graph, a frame of a traceback or an error.

PyTorch notes the line of a node, and the function of torch that the node comes from. The bytecode of the user's frame
has the columns of the expression in addition, so the text of the expression is recorded as the source line of the
frame. This module reads both back.
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
from contextlib import AbstractContextManager, contextmanager
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
"""The file name of code that was typed on the command line."""

_FRAME = re.compile(r'File "([^"]+)", line (\d+)')
_SITE = f"{os.sep}site-packages{os.sep}"
_TORCH = os.path.dirname(os.path.abspath(torch.__file__)) + os.sep
_FRONTEND = os.path.dirname(os.path.abspath(__file__)) + os.sep
_DRIVERS = tuple(os.path.join(os.path.dirname(_FRONTEND[:-1]), name) for name in ("api.py", "dynamo.py"))
_TYPED = (EXPRESSION, "<stdin>", "<ipython-input-", "<python-input-")
"""Beginnings of the file names of code that was typed."""
_STANDARD = os.path.abspath(sysconfig.get_paths()["stdlib"]) + os.sep

LONGEST = 60
"""Characters of a call that are printed whole; the arguments of a longer one are left out."""

MOST_LINES = 12
"""Lines in which an expression is looked for."""

_FRAME_TEXT = re.compile(r'  File "(?P<file>[^"]+)", line (?P<line>\d+)[^\n]*\n(?P<text>(?:(?!  File ")[^\n]*\n?)*)')
_NAMESPACES: tuple[tuple[str, str, Any], ...] = (
    ("linalg_", "torch.linalg", torch.linalg),
    ("fft_", "torch.fft", torch.fft),
    ("special_", "torch.special", torch.special),
    ("", "torch.nn.functional", torch.nn.functional),
    ("", "torch", torch),
    ("", "Tensor", torch.Tensor),
)
"""(prefix of names in ATen, public name, module) of what the functions of torch are called."""


@cache
def is_users(file: str) -> bool:
    """Whether a source file is the user's: not PyTorch's, not of this frontend, not Python's own library."""
    if file.startswith("<"):
        return file.startswith(_TYPED)
    path = os.path.abspath(file)
    return not path.startswith((_TORCH, _FRONTEND, *_DRIVERS)) and not (
        path.startswith(_STANDARD) and _SITE not in path
    )


def shown(file: str) -> str:
    """`file` as it is best shown: relative to the current directory if it lies inside, a cell by its number."""
    if "ipykernel_" in file or file.startswith("<ipython-input-"):
        return cell_name(file)
    if file.startswith("<"):
        return file
    relative = os.path.relpath(file)
    return file if relative.startswith("..") else relative


def innermost(stack: str | None) -> tuple[str, int] | None:
    """The innermost frame of the user's own in the text of a stack trace, as (file, line)."""
    users = [(m.group(1), int(m.group(2))) for m in _FRAME.finditer(stack or "") if is_users(m.group(1))]
    return (shown(users[-1][0]), users[-1][1]) if users else None


def innermost_of_error(error: BaseException) -> str | None:
    """The innermost frame of the user's own below ours in which `error` or a cause of it was raised, as
    `file:line:col`."""
    frame = _frame_of_error(error)
    if frame is None:
        return None
    place = f"{shown(frame.filename)}:{frame.lineno}"
    return place if frame.colno is None else f"{place}:{frame.colno + 1}"


def _frame_of_error(error: BaseException) -> FrameSummary | None:
    users = (frames for e in chain(error) if (frames := _inside(extract_tb(e.__traceback__))))
    return next((frames[-1] for frames in users), None)


def expression_of_error(error: BaseException) -> Written | None:
    """The expression of the user's in which `error` was raised."""
    frame = _frame_of_error(error)
    if frame is None or frame.lineno is None:
        return None
    text = _source_text(frame.filename, frame.lineno, frame.end_lineno, frame.colno, frame.end_colno)
    return Written(frame.filename, frame.lineno, text or frame.line or "")


def users_call(node: Node) -> str | None:
    """The call of the user's that a node of a graph comes from."""
    return Origin.of(node).call()


def blame(error: CompileError, node: Node, place: tuple[str, int] | None = None) -> CompileError:
    """`error` with the place and the call of `node`, unless it has its own; `place` is that of a node without one."""
    found = innermost(node.meta.get("stack_trace")) or place
    if error.location is None and found is not None:
        error.location = f"{found[0]}:{found[1]}"
    error.call = error.call or users_call(node)
    return error


@contextmanager
def at_node(node: Node) -> Iterator[None]:
    """Errors inside of the `with` block get the place and the call of `node`."""
    try:
        yield
    except CompileError as error:
        raise blame(error, node) from error.__cause__


def defined_at(function: Any) -> str | None:
    """Returns `file:line` of a function of the user's, or of the forward method of a module; else of the call from
    outside, or None."""
    while isinstance(function, functools.partial):
        function = function.func
    method = type(function).forward if isinstance(function, torch.nn.Module) else function
    code = getattr(inspect.unwrap(method), "__code__", None) if callable(method) else None
    if code is not None and is_users(code.co_filename):
        return f"{shown(code.co_filename)}:{code.co_firstlineno}"
    frame = _users_frame()
    return None if frame is None else f"{shown(frame.f_code.co_filename)}:{frame.f_lineno}"


def _users_frame() -> FrameType | None:
    frame = sys._getframe(1)
    while frame is not None and not is_users(frame.f_code.co_filename):
        frame = frame.f_back
    return frame


def chain(error: BaseException | None) -> Iterator[BaseException]:
    """Yields an error and its causes."""
    seen: list[BaseException] = []
    while error is not None and error not in seen:
        yield error
        seen.append(error)
        error = error.__cause__ or error.__context__


def _inside(frames: StackSummary) -> list[FrameSummary]:
    """The user's frames that are called from this frontend, not those that call it."""
    ours = [i for i, f in enumerate(frames) if f.filename.startswith(_FRONTEND)]
    return [f for f in frames[ours[0] if ours else 0 :] if is_users(f.filename)]


def users_frames_in_stack_traces() -> AbstractContextManager[Any]:
    """While it is open, PyTorch's tracers record the user's frames; by themselves only those called `forward`. The
    source line of the innermost one is the expression that it evaluates."""
    return patch.object(TracerBase, "_filter_traceback_frames", _recorded_frames, create=True)


def _recorded_frames(tracer: TracerBase, frames: StackSummary) -> StackSummary:
    recorded, frame = _inside(frames), _users_frame()
    last = recorded[-1] if recorded else None
    if last and frame and (frame.f_code.co_filename, frame.f_lineno) == (last.filename, last.lineno):
        line = _expression(frame.f_code, frame.f_lasti) or last.line
        recorded[-1] = FrameSummary(last.filename, last.lineno, last.name, lookup_line=False, line=line)
    return StackSummary.from_list(recorded)


@lru_cache(1 << 12)
def _expression(code: CodeType, instruction: int) -> str | None:
    at = next(islice(code.co_positions(), instruction // 2, None), (None,) * 4)
    return _source_text(code.co_filename, *at)


def _source_text(file: str, line: int | None, end: int | None, column: int | None, last: int | None) -> str | None:
    """Returns the source text from a line and column (in bytes) to others, in one line, or None if it is not known."""
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
    """PyTorch's notes about a node, and what the node calls."""

    notes: Mapping[str, Any]
    target: Any

    @classmethod
    def of(cls, node: Node) -> Origin:
        """Returns the origin of a node of a graph."""
        return cls({name: node.meta[name] for name in _NOTES if name in node.meta}, node.target)

    @property
    def operator(self) -> str | None:
        """Name of the operator of ATen, or None."""
        schema = getattr(self.target, "_schema", None)
        return None if schema is None else str(schema.name).rpartition("::")[2]

    @property
    def function(self) -> str | None:
        """Name of the function of torch that the user's program called, as Dynamo or the exporter noted it, or None."""
        if stack := self.notes.get("source_fn_stack"):
            function = stack[-1][1]
            return function if isinstance(function, str) else getattr(function, "__name__", None)
        noted = self.notes.get("torch_fn")
        return None if noted is None else str(noted[1]).rpartition(".")[2]

    def call(self) -> str | None:
        """Returns the call as the user wrote it, with the name of torch where the call has another one, or the name of
        torch alone where the source is not known."""
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
    """A place in the user's source: the text of an expression, or, where it is `open`, all that follows its beginning,
    or a whole line."""

    file: str
    line: int
    text: str
    open: bool = False


def _written(stack: str | None) -> Written | None:
    """Returns the place and the text of the innermost frame of the user's in a stack trace, or None."""
    text = (stack or "") + "\n"
    frames = [m for m in _FRAME_TEXT.finditer(text if text.startswith("  ") else f"  {text}") if is_users(m["file"])]
    if not frames:
        return None
    file, line, lines = frames[-1]["file"], int(frames[-1]["line"]), frames[-1]["text"].rstrip("\n").split("\n")
    source = lines[0].strip()
    if len(lines) > 1 and re.fullmatch(r"\s*[~^]+\s*", lines[1]):  # Dynamo tells the beginning, but not the end
        start = source[lines[1].index(lines[1].strip()) - 4 :]
        more = "".join(linecache.getline(file, line + n) for n in range(1, MOST_LINES))
        return Written(file, line, f"{start}\n{more}", open=True)
    return Written(file, line, source)


def call_in(place: Written, function: str | None) -> str | None:
    """Returns the call in the text of an expression or of a line of source, or None if there is none.

    Args:
        place: the text, with its place.
        function: the name of the function of torch that was called, which chooses among several calls.
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
    """The expressions that a text begins with, the shortest first: `x`, `x[0]`, `x[0].item`, `x[0].item()`."""
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
    """Whether an expression is what Python calls a function of torch for."""
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
"""Functions that have an operator of Python."""


def shortened(expression: ast.expr) -> str:
    """Returns the text of an expression, without the arguments of a call that is too long for a message."""
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
        rest = name.removeprefix(prefix)
        if rest and name.startswith(prefix) and callable(getattr(module, rest, None)):
            return f"{namespace}.{rest}"
    return None


def function_name(function: Any) -> str:
    """Returns the name of what is compiled: `torch.linalg.inv`, `Model`, `lambda x: ...` as `<lambda>`."""
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
    """Whether a call has the last part of a public name in it, or is an operator or a subscript."""
    tree = _parsed(call)
    if isinstance(tree, ast.Expr) and not isinstance(tree.value, ast.Call):
        return True
    return re.search(rf"\b{re.escape(name.rpartition('.')[2])}\b", call) is not None


def _parsed(text: str) -> ast.stmt | None:
    """The statement in a line of source, which may be the head of a block."""
    text = text.strip()
    for whole in (text, f"{text} pass", f"{text}\n pass", f"if 1: pass\n{text} pass"):
        try:
            body = ast.parse(whole).body
        except (SyntaxError, ValueError):
            continue
        return body[-1] if body else None
    return None
