"""Calls as the user wrote them: `torch.linalg.inv(x)` for a node of a graph, a frame of a traceback or an error.

PyTorch notes the line of a node, and the function of torch that the node comes from. The bytecode of the user's frame
has the columns of the expression in addition, so the text of the expression is recorded as the source line of the
frame. This module reads both back.
"""

from __future__ import annotations

import ast
import linecache
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache
from itertools import islice
from types import CodeType, FrameType
from typing import Any

import torch
from torch.fx import Node

LONGEST = 60
"""Characters of a call that are printed whole; the arguments of a longer one are left out."""

MOST_LINES = 12
"""Lines in which an expression is looked for."""

_FRAME = re.compile(r'  File "(?P<file>[^"]+)", line (?P<line>\d+)[^\n]*\n(?P<text>(?:(?!  File ")[^\n]*\n?)*)')
_NAMESPACES: tuple[tuple[str, str, Any], ...] = (
    ("linalg_", "torch.linalg", torch.linalg),
    ("fft_", "torch.fft", torch.fft),
    ("special_", "torch.special", torch.special),
    ("", "torch.nn.functional", torch.nn.functional),
    ("", "torch", torch),
    ("", "Tensor", torch.Tensor),
)
"""(prefix of names in ATen, public name, module) of what the functions of torch are called."""


def expression_of(frame: FrameType) -> str | None:
    """Returns the text of the expression that a frame is evaluating, in one line, or None if it is not known."""
    return _expression(frame.f_code, frame.f_lasti)


@lru_cache(1 << 12)
def _expression(code: CodeType, instruction: int) -> str | None:
    at = next(islice(code.co_positions(), instruction // 2, None), (None,) * 4)
    return source_text(code.co_filename, *at)


def source_text(file: str, line: int | None, end: int | None, column: int | None, last: int | None) -> str | None:
    """Returns the source text between two positions, in one line, or None if the source is not known.

    Args:
        file: the file name, as in a code object.
        line, end: the first and the last line, from 1.
        column, last: the first byte in the first line, and the byte after the last one in the last line.
    """
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
    """PyTorch's notes about a node: the stack trace, the function of torch that was called, and the operator that the
    node became."""

    stack: str | None
    function: str | None
    operator: str | None

    @classmethod
    def of(cls, node: Node) -> Origin:
        """The notes on a node of a graph."""
        schema = getattr(node.target, "_schema", None)
        operator = None if schema is None else str(schema.name).rpartition("::")[2]
        return cls(node.meta.get("stack_trace"), _function_of(node), operator)

    def call(self, users: Callable[[str], bool]) -> str | None:
        """Returns the call as the user wrote it, with the name of torch where the call has another one, or the name of
        torch alone where the source is not known. `users` returns true for a source file of the user's."""
        text, name = written(self.stack, users), public_name(self.function)
        call = None if text is None else call_in(text, self.function)
        if self.operator is not None and "_backward" in self.operator:
            forward = call or public_name(self.operator.partition("_backward")[0])
            return None if forward is None else f"the gradient of {forward}"
        if call is None:
            return name or public_name(self.operator)
        return call if name is None or _mentions(call, name) else f"{call} ({name})"


@dataclass(frozen=True)
class Written:
    """A place in the user's source: the text of an expression, or, where it is `open`, all that follows its beginning,
    or a whole line."""

    file: str
    line: int
    text: str
    open: bool = False


def written(stack: str | None, users: Callable[[str], bool]) -> Written | None:
    """Returns the place and the text of the innermost frame of the user's in a stack trace, or None."""
    text = (stack or "") + "\n"
    frames = [m for m in _FRAME.finditer(text if text.startswith("  ") else f"  {text}") if users(m["file"])]
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
        place: the text, as `written` returns it.
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


def _function_of(node: Node) -> str | None:
    """The function of torch that the user's program called, as Dynamo or the exporter noted it."""
    stack = node.meta.get("source_fn_stack")
    if stack:
        function = stack[-1][1]
        return function if isinstance(function, str) else getattr(function, "__name__", None)
    noted = node.meta.get("torch_fn")
    return None if noted is None else str(noted[1]).rpartition(".")[2]


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
