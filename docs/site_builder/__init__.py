"""Extension of Sphinx that generates the reference of passes, commands and Python, draws flowcharts, and adds links.

The pages are written to `docs/generated`, which git ignores, from the code that `dl-opt --help-pass` and `--help` use.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from docutils import nodes
from pygments.lexer import RegexLexer
from pygments.token import Comment, Generic, String, Text
from sphinx.application import Sphinx
from sphinx.environment import BuildEnvironment
from sphinx.util.nodes import make_refnode

from deplodock.extras.report.html import MlirLexer

from . import commands, flowchart, links, passes, python_api


def generated_pages() -> dict[str, str]:
    """Returns the text of each generated page by its path in `docs/generated`."""
    return {**passes.pages(), **commands.pages(), **python_api.pages()}


def _write(app: Sphinx) -> None:
    """Writes the generated pages. An unchanged file keeps its time, so that Sphinx does not read it again."""
    folder = Path(app.srcdir) / "generated"
    texts = generated_pages()
    for name, text in texts.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            path.write_text(text, encoding="utf-8")
    for path in folder.rglob("*.md"):
        if path.relative_to(folder).as_posix() not in texts:
            path.unlink()


def _as_restructured_text(app: Sphinx, kind: str, name: str, obj: object, options: object, lines: list[str]) -> None:
    """Converts the Markdown of a docstring, before napoleon reads its sections."""
    result: list[str] = []
    inside = False
    for line in lines:
        if match := re.match(r"(\s*)```(\w*)$", line):
            inside = not inside
            result += ["", f"{match[1]}.. code-block:: {match[2] or 'none'}", ""] if inside else [""]
        elif inside:
            result.append(f"   {line}" if line else "")
        else:
            result.append(re.sub(r"(?<![`\\])`([^`]+)`(?!`)", r"``\1``", line))
    # Napoleon would take the text before a colon in the first line of a property for its type.
    lines[:] = ["..", "", *result] if kind in ("property", "attribute") else result


def _resolve_class(app: Sphinx, env: BuildEnvironment, node: nodes.Element, content: nodes.Element) -> Any:
    """Resolves the name of a class with another module, or with none, as sections `Raises` have it."""
    if node.get("reftype") not in ("exc", "class"):
        return None
    suffix = "." + node["reftarget"].rpartition(".")[2]
    objects = env.domains.python_domain.objects
    full = next((name for name in objects if name.endswith(suffix)), None)
    if full is None:
        return None
    entry = objects[full]
    return make_refnode(app.builder, node["refdoc"], entry.docname, entry.node_id, content, full)


_CONTENTS = {
    "learn/index": ("[0-9]*", "small_compiler/00_overview", "*"),
    "learn/small_compiler/00_overview": ("0[1-9]*",),
    "howto/index": tuple("operator pass pattern pdl dialect atom target frontend policy package page".split()),
    "reference/README": ("how_to_read", "*"),
}
"""Page -> the pages below it in the navigation. The Markdown has no block for it, which GitHub would show as text."""


def _add_contents(app: Sphinx, name: str, source: list[str]) -> None:
    if name in _CONTENTS:
        entries = "\n".join(_CONTENTS[name])
        source[0] += f"\n```{{toctree}}\n:hidden:\n:glob:\n\n{entries}\n```\n"


_PAGES_OF_THE_ROOT = {"CONTRIBUTING.md": "contributing.md", "README.md": "start.md"}


def _link_pages_of_the_root(app: Sphinx, name: str, source: list[str]) -> None:
    """Changes links to the Markdown in the root of the repository into links to the pages that include it."""
    for file, page in _PAGES_OF_THE_ROOT.items():
        source[0] = re.sub(rf"\]\(((?:\.\./)*)\.\./{file}\b", rf"](\1{page}", source[0])


class ConsoleLexer(RegexLexer):
    """Lexer of blocks `console`: lines `$ command` with their continuations, and output."""

    tokens = {
        "root": [
            (r"^\$ ", Generic.Prompt, "command"),
            (r".*\n", Text),
        ],
        "command": [
            (r"\\\n", Text),
            (r"\n", Text, "#pop"),
            (r"\s+#.*", Comment),
            (r"'[^']*'|\"[^\"]*\"", String),
            (r"[^\\\n\s'\"]+|\s|.", Generic.Strong),
        ],
    }


def setup(app: Sphinx) -> dict[str, bool]:
    """Registers the extension."""
    app.connect("builder-inited", _write)
    app.connect("source-read", _link_pages_of_the_root)
    app.connect("source-read", _add_contents)
    app.connect("missing-reference", _resolve_class)
    app.connect("autodoc-process-docstring", _as_restructured_text, priority=100)
    app.add_lexer("mlir", MlirLexer)
    app.add_lexer("console", ConsoleLexer)
    app.add_directive("mermaid", flowchart.Flowchart)
    app.add_post_transform(links.LinkedLiterals)
    app.add_node(flowchart.drawing, html=(flowchart.visit_html, flowchart.depart_html), text=(_skip, None))
    return {"parallel_read_safe": True, "parallel_write_safe": True}


def _skip(translator: object, node: nodes.Node) -> None:
    raise nodes.SkipNode
