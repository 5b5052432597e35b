"""Links from names in code spans, such as `tile.dot` or `docs/results.md`, to their pages."""

from __future__ import annotations

import re
from functools import cache
from typing import Any

import click
from docutils import nodes
from sphinx.transforms.post_transforms import SphinxPostTransform
from xdsl.ir import Operation

from deplodock.dialects import OWN_DIALECTS
from deplodock.passes.pipelines import get_all_passes
from deplodock.tools.cli import cli
from deplodock.tools.reference.definitions import describe, parts_of


@cache
def targets() -> dict[str, tuple[str, str]]:
    """Returns code span -> (document, anchor with `#` or empty), for passes, commands, operations and attributes."""
    result = {name: (f"generated/passes/{name}", "") for name in get_all_passes()}
    result |= {
        f"deplodock {name}": (f"generated/commands/deplodock-{name}", "")
        for name in cli.list_commands(click.Context(cli))
    }
    result["dl-opt"] = "generated/commands/dl-opt", ""
    for dialect in OWN_DIALECTS:
        for part in parts_of(dialect):
            for cls in part.members:
                if dialect != "torch" or not issubclass(cls, Operation):
                    name = describe(cls).name
                    result[name] = f"reference/{dialect}", "#" + re.sub(r"[^\w-]", "", name.lower())
    return result


class LinkedLiterals(SphinxPostTransform):
    """Makes a code span a link if its text is the name of a pass, a command, an operation, an attribute or a page."""

    default_priority = 700

    def run(self, **kwargs: Any) -> None:
        """Replaces the code spans of a page. Headings, links and the page of the name itself keep theirs."""
        builder = self.app.builder
        for literal in list(self.document.findall(nodes.literal)):
            ancestors = iter_parents(literal)
            if any(isinstance(node, nodes.reference | nodes.title) for node in ancestors):
                continue
            place = self._place(literal.astext())
            if place is None or place[0] == self.env.docname:
                continue
            uri = builder.get_relative_uri(self.env.docname, place[0]) + place[1]
            literal.replace_self(nodes.reference("", "", literal.deepcopy(), internal=True, refuri=uri))

    def _place(self, text: str) -> tuple[str, str] | None:
        if match := re.fullmatch(r"docs/([\w/-]+)\.md(#[\w-]+)?", text):
            return (match[1], match[2] or "") if match[1] in self.env.found_docs else None
        if text == "docs/reference/":
            return "reference/README", ""
        return targets().get(text)


def iter_parents(node: nodes.Node) -> list[nodes.Node]:
    """Returns the ancestors of a node, from its parent on."""
    result: list[nodes.Node] = []
    while (parent := node.parent) is not None:
        result.append(parent)
        node = parent
    return result
