"""HTML that notebooks show for a program, a text and kernels. Every output has its style, and no script.

Lines are in `pre` elements, because nbconvert removes white space from others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from ....backend.cpp.writer import HELPERS_MARK, HOST_MARK
from ....dialects.support.printing import quantity
from ....errors import DeplodockError
from ....frontend.inspection import Inspected, Kernels
from ....frontend.texts import Text
from ....tools.tables import seconds, si
from ..html import Html, element, highlighted, joined, table

SHORT = 60
"""Lines of a text whose blocks are all open at first. Set by hand."""

_LIGHT = "--c:#7a818c;--s:#2f7d4f;--n:#9a4f0f;--t:#8a5a00;--k:#2b4c8c;--v:#0b7285;--f:#7b3fa0;--a:#a3336b;--p:#7b3fa0"
_DARK = "--c:#8b929d;--s:#8fcfa4;--n:#e5a873;--t:#e0bd6b;--k:#9bb8f2;--v:#74cbd9;--f:#c9a2e8;--a:#eb9ac0;--p:#c9a2e8"

STYLE = f"""
.deplodock {{ {_LIGHT}; --line:#8884; font-size:.9rem; line-height:1.45 }}
@media (prefers-color-scheme:dark) {{ .deplodock {{ {_DARK} }} }}
[data-jp-theme-light=true] .deplodock, .vscode-light .deplodock {{ {_LIGHT} }}
[data-jp-theme-light=false] .deplodock, .vscode-dark .deplodock {{ {_DARK} }}
.deplodock .text {{ font-family:ui-monospace,Menlo,Consolas,"DejaVu Sans Mono",monospace; font-size:12.5px;
  white-space:pre; overflow:auto; max-height:40rem; padding:.3rem 0 .3rem 1.1em }}
.deplodock .text * {{ margin:0; padding:0 }}
.deplodock .text pre {{ font:inherit; white-space:pre; overflow:visible; background:none; border:0; color:inherit }}
.deplodock i {{ font-style:normal }}
.deplodock summary {{ cursor:pointer }}
.deplodock .text summary {{ display:block; position:relative }}
.deplodock .text summary::before {{ content:"▾"; position:absolute; left:-1.1em; opacity:.5 }}
.deplodock .text details:not([open]) > summary::before {{ content:"▸" }}
.deplodock details[open] > summary > pre > .more {{ display:none }}
.deplodock .more, .deplodock .note {{ opacity:.65 }}
.deplodock .scroll {{ overflow-x:auto }}
.deplodock table {{ border-collapse:collapse; margin:.4rem 0 }}
.deplodock th, .deplodock td {{ padding:.15rem 1.2rem .15rem 0; border-bottom:1px solid var(--line); text-align:left }}
.deplodock td.num, .deplodock th.num {{ text-align:right; white-space:nowrap }}
{" ".join(f".deplodock i.{name} {{ color:var(--{name}) }}" for name in "csntkvfap")}
"""


def _output(*parts: object) -> str:
    return str(element("div", element("style", Html(STYLE)), *parts, class_="deplodock"))


def program_html(program: Inspected) -> str:
    """Returns the signature, the target and the kernels of a program."""
    signature = element("code", repr(program))
    try:
        kernels = program.kernels
        total = sum(k.launches * k.predicted for k in kernels)
        remarks = len(program.remarks)
    except DeplodockError as error:
        return _output(signature, element("p", f"✕ refused: {error}", class_="note"))
    target = program.compilation.resolved
    facts = f"{quantity(len(kernels), 'kernel')}, {seconds(total)} predicted for {target.arch} ({target.card})"
    facts += f", {quantity(remarks, 'remark')} of passes" if remarks else ""
    more = 'ir("tile"), kernels[0].text, remarks, explain(), report("page.html")'
    return _output(signature, element("p", facts), _table(kernels), element("p", "More: ", more, class_="note"))


def kernels_html(kernels: Kernels) -> str:
    """Returns a table of kernels."""
    return _output(_table(kernels))


def _table(kernels: Kernels) -> Html:
    has_lines = any(k.lines for k in kernels)
    heads = ["kernel", *(["of lines"] if has_lines else []), "limit", "predicted", "bytes", "FLOP"]
    heads += ["tasks"] if kernels.on_cpu else ["blocks", "threads", "shared"]
    rows: list[list[object]] = []
    for k in kernels:
        row: list[object] = [element("code", k.name + (f" × {k.launches}" if k.launches > 1 else ""))]
        row += [", ".join(k.lines)] if has_lines else []
        row += [k.limit, seconds(k.predicted), f"{si(k.work.bytes)}B", si(k.work.flops).strip(), k.blocks]
        rows.append([*row, *([] if kernels.on_cpu else [k.threads, f"{k.shared_bytes} B"])])
    return table(heads, rows, 2 + has_lines)


@dataclass
class _Block:
    """Lines of a text, and the blocks in braces between them. `head`: number of the line that opens the block."""

    head: int
    parts: list[int | _Block] = field(default_factory=list)

    def __len__(self) -> int:
        return sum(1 if isinstance(part, int) else 1 + len(part) for part in self.parts)


def text_html(text: Text) -> str:
    """Returns a text with colours, in which each block in braces can be folded. In long texts blocks are folded."""
    lines = text.splitlines()
    shown = highlighted(text, text.language)
    title = f"{text.title}: {quantity(len(lines), 'line')}" if text.title else quantity(len(lines), "line")
    body = _parts(_blocks(lines).parts, lines, shown, len(lines) <= SHORT, 0)
    # An open block shows the text at once; a click on the title hides it.
    return _output(element("details", element("summary", title), element("div", body, class_="text"), open=True))


def _blocks(lines: Sequence[str]) -> _Block:
    """Returns the blocks of a text: those in braces, and the sections of helpers and of the host program in C++."""
    stack = [_Block(-1)]
    for number, line in enumerate(lines):
        is_section = f"{line}\n" in (HELPERS_MARK, HOST_MARK)
        if line.startswith("// --- ") and len(stack) > 1:
            del stack[1:]
        elif line.lstrip().startswith("}") and len(stack) > 1:
            stack.pop()
        if is_section or line.rstrip().endswith("{"):
            block = _Block(number)
            stack[-1].parts.append(block)
            stack.append(block)
        else:
            stack[-1].parts.append(number)
    return stack[0]


def _parts(
    parts: Sequence[int | _Block], lines: Sequence[str], shown: Sequence[Html], is_open: bool, depth: int
) -> Html:
    out, run = list[Html](), list[Html]()
    for part in [*parts, None]:
        if isinstance(part, int):
            run.append(shown[part])
            continue
        if run:
            out.append(element("pre", joined(run, "\n")))
            run = []
        if part is not None:
            is_section = str(lines[part.head]).startswith("// --- ")
            opened = not is_section and (is_open or depth == 0 or len(part) <= SHORT // 4)
            more = element("span", f" … {quantity(len(part), 'line')}", class_="more")
            inner = _parts(part.parts, lines, shown, is_open, depth + 1)
            out.append(
                element("details", element("summary", element("pre", shown[part.head], more)), inner, open=opened)
            )
    return joined(out)
