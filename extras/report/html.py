"""HTML of the page: elements, tables, and highlighted text. `element` escapes every text that is not `Html` yet."""

from __future__ import annotations

import html
import json
import re
import zlib
from base64 import b64encode
from collections.abc import Iterable, Sequence
from functools import cache
from typing import Any

from pygments.lexer import Lexer, RegexLexer
from pygments.lexers.c_cpp import CppLexer
from pygments.lexers.python import PythonLexer
from pygments.token import Comment, Keyword, Name, Number, Operator, String, Text, Token, _TokenType

VOID = ("br", "hr", "input", "meta", "wbr")


class Html(str):
    """Text of HTML, which is not escaped again."""


def escape(text: object) -> Html:
    """Returns a text as HTML."""
    return text if isinstance(text, Html) else Html(html.escape(str(text), quote=True))


def element(name: str, *parts: object, **attributes: object) -> Html:
    """Returns an element of HTML.

    Args:
        name: name of the element.
        parts: its contents; texts are escaped.
        attributes: its attributes. `_` becomes `-`, except at the end (`class_`). An attribute with the value None or
            False is omitted, one with True has no value.
    """
    written = ""
    for key, value in attributes.items():
        if value is None or value is False:
            continue
        key = key.removesuffix("_").replace("_", "-")
        written += f" {key}" if value is True else f' {key}="{escape(value)}"'
    inner = "" if name in VOID else f"{joined(parts)}</{name}>"
    return Html(f"<{name}{written}>{inner}")


def joined(parts: Iterable[object], separator: str = "") -> Html:
    """Returns parts of HTML as one; texts are escaped."""
    return Html(separator.join(map(escape, parts)))


def table(
    heads: Sequence[object],
    rows: Iterable[Sequence[object]],
    text_columns: int = 1,
    *,
    is_last_text: bool = False,
    **attributes: object,
) -> Html:
    """Returns a table that scrolls sideways where it is too wide.

    Args:
        heads: heads of the columns.
        rows: cells; texts are escaped.
        text_columns: number of columns at the left whose cells are texts. Cells of the others are numbers.
        is_last_text: whether the cells of the last column are texts, too.
        attributes: attributes of the table.
    """
    numbers = range(text_columns, len(heads) - is_last_text)

    def cells(kind: str, row: Sequence[object]) -> Html:
        return joined(element(kind, c, class_="num" if i in numbers else None) for i, c in enumerate(row))

    head = element("thead", element("tr", cells("th", heads)))
    body = element("tbody", *(element("tr", cells("td", row)) for row in rows))
    return element("div", element("table", head, body, **attributes), class_="scroll")


def to_paste(text: str, label: str = "copy") -> Html:
    """Returns a text with a button that copies it."""
    button = element("button", label, type="button", class_="copy", title="copy to the clipboard")
    return element("span", element("code", text), button, class_="paste")


def as_json(data: Any) -> Html:
    """Returns data as JSON that is safe inside of a script element."""
    text = json.dumps(data, separators=(",", ":"), allow_nan=False, ensure_ascii=False)
    # These are all beginnings of tags and comments that a browser looks for in a script.
    return Html(re.sub("<(?=[/!sS])", r"\\u003c", text))


LONGEST_LINE = 1000
"""Number of characters of a line in a diff. Longer lines, such as lists of registers, are shortened."""


def shortened(line: str) -> str:
    """Returns a line, or its start with the number of characters that are left out."""
    left_out = len(line) - LONGEST_LINE
    return line if left_out <= 0 else f"{line[:LONGEST_LINE]} … {left_out} characters left out"


def packed(data: Any) -> str:
    """Returns data as compressed JSON in base64, which `unpacked` of the page's script reads."""
    return b64encode(zlib.compress(json.dumps(data).encode(), 9)).decode()


class MlirLexer(RegexLexer):
    """Lexer of MLIR text."""

    name = "MLIR"
    tokens = {  # noqa: RUF012
        "root": [
            (r"//[^\n]*", Comment),
            (r'"(?:[^"\\\n]|\\.)*"', String),
            # Lists of numbers are long, and read better without colours.
            (r"[\[\],]*-?\d+(?:[\[\], ]+-?\d+)+(?![\d.])|^ *-?\d+[\],]+|\[-?\d+\]", Text),
            (r"%[\w$.-]+(?:#\d+)?", Name.Variable),
            (r"@[\w$.-]+", Name.Function),
            (r"[#!][A-Za-z_][\w$.]*", Name.Decorator),
            (r"\b(?:tensor|memref|vector)(?=<)|\b(?:b?f|u?i)\d+\b|\bindex\b", Keyword.Type),
            (r"\b[a-z_][a-z_0-9]*\.[\w.]*\w", Keyword),
            (r"-?\b\d[\d.]*(?:e[+-]?\d+)?\b", Number),
            (r"\s+", Text),
            (r"\w+", Text),
            (r".", Text),
        ]
    }


@cache
def _lexer(kind: str) -> Lexer:
    kinds: dict[str, Any] = {"mlir": MlirLexer, "python": PythonLexer, "cpp": CppLexer}
    return kinds[kind](stripnl=False, stripall=False, ensurenl=False)


_CLASSES: tuple[tuple[_TokenType, str], ...] = (
    (Comment.Preproc, "p"),
    (Comment.PreprocFile, "p"),
    (Comment, "c"),
    (String, "s"),
    (Number, "n"),
    (Keyword.Type, "t"),
    (Keyword, "k"),
    (Operator.Word, "k"),
    (Name.Variable, "v"),
    (Name.Function, "f"),
    (Name.Class, "f"),
    (Name.Decorator, "a"),
)
"""Kind of token -> class of CSS. The first that contains a token decides."""


@cache
def _class_of(token: _TokenType) -> str:
    return next((name for kind, name in _CLASSES if token in kind), "")


def tokens_of(text: str, kind: str) -> list[list[tuple[str, str]]]:
    """Returns the tokens of each line of a text, as pairs of a class and a text.

    Args:
        text: the text.
        kind: `mlir`, `python`, `cpp`, or empty for a text without colours.
    """
    lines: list[list[tuple[str, str]]] = [[]]
    pairs = _lexer(kind).get_tokens(text) if kind else [(Token, text)]
    for token, value in pairs:
        name = _class_of(token)
        for number, part in enumerate(value.split("\n")):
            if number:
                lines.append([])
            if not part:
                continue
            line = lines[-1]
            if line and (line[-1][0] == name or part.isspace()):
                line[-1] = line[-1][0], line[-1][1] + part
            else:
                line.append((name, part))
    return lines[:-1] if len(lines) > 1 and not lines[-1] else lines


def highlighted(text: str, kind: str) -> list[Html]:
    """Returns the lines of a text as HTML with colours. Arguments as for `tokens_of`."""
    return [joined(colored(name, part) for name, part in line) for line in tokens_of(text, kind)]


def colored(name: str, text: str) -> Html:
    """Returns a token as HTML. `name`: its class of CSS, or empty."""
    return Html(f"<i class={name}>{html.escape(text)}</i>") if name else escape(text)


def code_block(text: str, kind: str = "", **attributes: object) -> Html:
    """Returns a text as a block of code. `kind`: as for `tokens_of`; `attributes`: of the block."""
    return element("pre", element("code", joined(highlighted(text, kind), "\n")), **attributes)
