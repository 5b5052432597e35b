"""Random changes of IR text: likely mistakes of an author, and unlikely ones."""

from __future__ import annotations

import random
import re
import signal
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from io import StringIO
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
import torch.nn.functional as F

from deplodock.frontend.capture.export import capture
from deplodock.frontend.compilation import LEVELS, Compilation
from deplodock.tools.dl_opt import main

_TOKEN = re.compile(r'"[^"\n]*"|[%@#!^]?[A-Za-z_][\w.$]*|-?\d+(?:\.\d+(?:e[+-]?\d+)?)?|->|\s+|.', re.S)
_NUMBERS = ("0", "1", "-1", "2", "3", "7", "31", "32", "33", "1024", "4294967296", "99999999999999999999", "0.5")
_TYPES = ("f32", "bf16", "f16", "f64", "i1", "i32", "i64", "index", "ui8", "none", "tensor<f32>", "tensor<3x?xf32>")
_WORDS = (
    '"*/ #include <x>"',
    "%",
    "@main",
    '"\\00"',
    "dense<1>",
    "true",
    "unit",
    "[",
    "}",
    "(",
    ">",
    "-",
    "\x00",
    "\N{SNOWMAN}",
)

PASSES = {
    "torch": "torch-to-tensor,tensor-to-loop,loop-to-tile,tile-to-kernel",
    "tensor": "tensor-to-loop,loop-to-tile,tile-to-kernel",
    "loop": "loop-to-tile,tile-to-kernel",
    "tile": "tile-to-kernel",
    "kernel": "canonicalize,cse",
}
"""Level -> passes that run on its texts before they are printed as CUDA."""


def texts() -> list[tuple[str, str]]:
    """Returns programs at all levels except the last one, as (level, text)."""
    torch.manual_seed(0)
    programs = [
        (lambda x, w: F.rms_norm(x, (40,), w), (torch.randn(3, 40), torch.randn(40))),
        (lambda x, y: torch.relu(x @ y), (torch.randn(5, 6), torch.randn(6, 7))),
        (lambda x, i: torch.softmax(x.flip(0)[i].bfloat16(), -1), (torch.randn(4, 9), torch.tensor([1, 3]))),
        (lambda x: (F.pad(x.t(), (1, 2)).roll(1, 0) > 0).sum(1), (torch.randn(3, 4),)),
    ]
    found: list[tuple[str, str]] = []
    for function, args in programs:
        compilation = Compilation(capture(function, args).module)
        found += [(level, compilation.text(level)) for level in LEVELS[:-1]]
    return found


def damage(text: str, source: random.Random) -> str:
    """Returns `text` with one to three changes. Most results can still be parsed."""
    if source.random() < 0.8:
        for _ in range(source.choice((1, 1, 2))):
            text = source.choice(_EDITS)(text, source)
        return text
    tokens = _TOKEN.findall(text)
    for _ in range(source.choice((1, 1, 1, 2, 3))):
        i = source.randrange(len(tokens))
        while tokens[i].isspace():
            i = source.randrange(len(tokens))
        tokens[i : i + 1] = _changed(tokens, i, source)
    return "".join(tokens)


def _changed(tokens: list[str], i: int, source: random.Random) -> list[str]:
    token = tokens[i]
    kind = source.choice(("delete", "repeat", "other", "like", "like", "word", "line", "cut"))
    if kind == "delete":
        return []
    if kind == "repeat":
        return [token, " ", token]
    if kind == "other":
        return [source.choice(tokens)]
    if kind == "word":
        return [source.choice(_WORDS)]
    if kind == "line":  # the line ends here, or the token begins one
        return ["\n", token] if source.random() < 0.5 else []
    if kind == "cut" and len(token) > 1:
        return [token[: source.randrange(1, len(token))]]
    return [_like(token, tokens, source)]


def _like(token: str, tokens: list[str], source: random.Random) -> str:
    """Returns a random token of the same kind."""
    if re.fullmatch(r"-?[\d.]+", token):
        return source.choice(_NUMBERS)
    if token in _TYPES:
        return source.choice(_TYPES)
    return source.choice([t for t in tokens if t[0] == token[0] and not t.isspace()])


def _number_everywhere(text: str, source: random.Random) -> str:
    """Replaces one number, everywhere or once."""
    found = re.findall(r"(?<![\w.%-])-?\d+(?![\d.])|(?<=x)\d+(?=[x>])", text)
    old, new = source.choice(found), source.choice((*_NUMBERS[:-2], *found))
    pattern = rf"(?<![\d.%\w-]){old}(?![\d.])|(?<=\dx){old}(?=x)"
    places = [m.start() for m in re.finditer(pattern, text)]
    only = source.choice(places) if places and source.random() < 0.5 else None
    return re.sub(pattern, lambda m: new if only in (None, m.start()) else m[0], text)


def _type_everywhere(text: str, source: random.Random) -> str:
    """Replaces one element type everywhere."""
    found = re.findall(r"(?<=[x<: ])(?:f32|bf16|i1|i64|index)\b", text)
    if not found:
        return text
    old, new = source.choice(found), source.choice(_TYPES[:9])
    return re.sub(rf"(?<=[x<: ]){old}\b", new, text)


def _operand(text: str, source: random.Random) -> str:
    """Replaces one use of a value by another value."""
    uses = [m for m in re.finditer(r"%\w+(?! *=)(?! *:)", text)]
    use = source.choice(uses)
    return text[: use.start()] + source.choice(uses)[0] + text[use.end() :]


def _word(text: str, source: random.Random) -> str:
    """Replaces an operation, keyword or attribute name by another one of the text."""
    words = [m for m in re.finditer(r"\b[a-z_]+(?:\.[a-z_]+)*\b", text)]
    old, new = source.choice(words), source.choice(words)[0]
    return text[: old.start()] + new + text[old.end() :]


def _line(text: str, source: random.Random) -> str:
    """Deletes, moves or duplicates a line."""
    lines = text.split("\n")
    i = source.randrange(len(lines))
    line = lines.pop(i) if source.random() < 0.7 else re.sub(r"%(\w+)(?=.*=)", r"%\1_b", lines[i], count=1)
    if source.random() < 0.6:
        lines.insert(source.randrange(len(lines) + 1), line)
    return "\n".join(lines)


def _list(text: str, source: random.Random) -> str:
    """Reorders the entries of a list, or deletes or duplicates one."""
    lists = [m for m in re.finditer(r"[\[(]([^\[\](){}]+, [^\[\](){}]+)[\])]", text)]
    if not lists:
        return text
    chosen = source.choice(lists)
    entries = chosen[1].split(", ")
    i = source.randrange(len(entries))
    source.choice((lambda: source.shuffle(entries), lambda: entries.pop(i), lambda: entries.insert(i, entries[i])))()
    return text[: chosen.start(1)] + ", ".join(entries) + text[chosen.end(1) :]


_EDITS = (
    _number_everywhere,
    _number_everywhere,
    _type_everywhere,
    _operand,
    _operand,
    _word,
    _line,
    _line,
    _list,
    _list,
)


class TooSlow(Exception):
    """Raised if `dl-opt` takes longer than its limit."""


@contextmanager
def _limit(seconds: float) -> Iterator[None]:
    def stop(signum: int, frame: object) -> None:
        raise TooSlow

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def complaint(
    level: str, text: str, *, seconds: float = 20, needs_success: bool = False, says: str | None = None
) -> str | None:
    """Runs `dl-opt` on a text. Returns a complaint unless it succeeds, or fails with diagnostics only.

    With `needs_success` it must succeed. With `says` it must fail with this text in its message.
    """
    with TemporaryDirectory() as folder:
        path = Path(folder) / "in.mlir"
        path.write_text(text, encoding="utf-8")
        out, err = StringIO(), StringIO()
        arguments = [str(path), "-p", PASSES[level], "-t", "cuda", "--reproducer", str(Path(folder) / "r.mlir")]
        try:
            with _limit(seconds), redirect_stdout(out), redirect_stderr(err):
                code = main(arguments)
        except TooSlow:
            return f"takes longer than {seconds} s"
        except BaseException as error:  # Only diagnostics may be raised.
            return f"raises {type(error).__name__}: {error}"
        message = err.getvalue().replace(str(path), "in.mlir")
    if code == 0:
        expected = says is None and not message and bool(out.getvalue())
        return None if expected else f"succeeds, printing {out.getvalue()!r} and {message!r}"
    internal = "internal error" in message or "left invalid IR" in message or "Traceback" in message
    if code != 1 or internal or "error: " not in message or needs_success or (says or "") not in message:
        return f"exit code {code}: {message}"
    return None
