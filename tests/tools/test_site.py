"""The site builds without a warning, has a page or anchor for every part of the compiler, and makes no request."""

from __future__ import annotations

import functools
import html
import json
import re
import subprocess
import sys
import threading
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import urlsplit

import click
import pytest
from site_builder import flowchart
from support import ROOT
from support.browser import BROWSER, findings_of
from support.pages import pages
from xdsl.ir import Operation

from deplodock.dialects import OWN_DIALECTS
from deplodock.passes import OWN_PASSES
from deplodock.passes.pipelines import get_all_passes
from deplodock.tools.cli import cli
from deplodock.tools.reference.definitions import describe, parts_of

HOSTS = {"docs.pytorch.org", "github.com", "mlir.llvm.org", "pyodide.org", "pytorch.org", "triton-lang.org", "xdsl.dev"}
"""Hosts that pages link to. `make linkcheck` follows the links, which needs a network."""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns the folder of the built site. Every internal link and anchor is checked by Sphinx."""
    folder = tmp_path_factory.mktemp("site")
    options = ["-n", "-W", "--keep-going", "-q", "-d", str(folder / "doctrees")]
    command = [sys.executable, "-m", "sphinx", *options, "-b", "html", str(ROOT / "docs"), str(folder / "html")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert not done.stderr
    return folder / "html"


def text_of(site: Path, page: str) -> str:
    return (site / page).read_text(encoding="utf-8")


def test_each_pass_has_a_page_with_the_ir_before_and_after(site: Path) -> None:
    for name in get_all_passes():
        text = text_of(site, f"generated/passes/{name}.html")
        assert f'<span class="pre">{name}</span></code><a class="headerlink"' in text
        if name in OWN_PASSES and name != "verify-level":
            assert "<h2>Before and after" in text, name
            assert text.count('<div class="highlight-mlir') >= 2, name
    assert 'href="tile-swizzle-grid.html"' in text_of(site, "generated/passes/index.html")


def test_each_operation_attribute_and_type_has_an_anchor_and_an_example(site: Path) -> None:
    for dialect in OWN_DIALECTS:
        text = text_of(site, f"reference/{dialect}.html")
        for cls in (cls for part in parts_of(dialect) for cls in part.members):
            description = describe(cls)
            if dialect == "torch" and issubclass(cls, Operation):
                assert f'<span class="pre">{description.name}</span>' in text
                continue
            anchor = re.sub(r"[^\w-]", "", description.name.lower())
            _, heading, section = text.partition(f'<span id="{anchor}"></span><h3>')
            assert heading, description.name
            example = '<div class="highlight-mlir' in section.partition("</section>")[0]
            assert example or not description.example, description.name


def options_of(command: click.Command) -> list[str]:
    children = command.commands.values() if isinstance(command, click.Group) else ()
    names = [p.opts[-1] for p in command.params if isinstance(p, click.Option) and not p.hidden]
    return [*names, *(name for child in children for name in options_of(child))]


@pytest.mark.parametrize("name", cli.list_commands(click.Context(cli)))
def test_each_command_has_a_page_with_its_options(name: str, site: Path) -> None:
    command = cli.get_command(click.Context(cli), name)
    assert command is not None
    text = html.unescape(re.sub("<[^>]*>", "", text_of(site, f"generated/commands/deplodock-{name}.html")))
    assert [option for option in options_of(command) if option not in text] == []


def test_the_page_of_python_has_the_public_names(site: Path) -> None:
    import deplodock

    text = text_of(site, "generated/python.html")
    for name in dir(deplodock):
        if not name.startswith("__"):
            assert f'id="deplodock.{name}"' in text, name
    assert text.count("Parameters<") > 5
    assert "Raises<" in text


def test_names_of_passes_and_operations_are_links(site: Path) -> None:
    text = text_of(site, "architecture.html")
    assert 'href="generated/passes/tile-select-mma.html"><code' in text
    assert 'href="reference/tile.html#tiledot"><code' in text


def test_files_that_a_page_loads_are_of_the_site(site: Path) -> None:
    """No page and no style loads a script, a style, a font or a picture from another host."""
    for path in site.rglob("*.html"):
        tags = re.findall(r"<(?:script|img|iframe|link|source)\b[^>]*>", path.read_text(encoding="utf-8"))
        assert [tag for tag in tags if re.search(r'(?:src|href)="(?:https?:)?//', tag)] == [], path.name
    for path in site.rglob("*.css"):
        assert not re.search(r"(?:@import|url\()\s*[\"']?(?:https?:)?//", path.read_text(encoding="utf-8")), path.name


def test_links_to_other_sites() -> None:
    for page in pages():
        text = (ROOT / page).read_text(encoding="utf-8")
        for link in re.findall(r"\]\((\w+://[^)\s]*)\)|^\[[^]]+\]: (\S+)$|<(https?://[^>\s]*)>", text, re.M):
            parts = urlsplit("".join(link))
            assert parts.scheme == "https", (page, link)
            assert parts.hostname in HOSTS, f"{page}: {parts.hostname} is a new source; add it to HOSTS"


CHECK = """
addEventListener("load", async () => {
  const findings = {};
  for (const page of %s) for (const width of [390, 1280]) {
    const frame = document.createElement("iframe");
    frame.style = "height: 900px; width: " + width + "px";
    frame.src = page;
    document.body.append(frame);
    await new Promise(done => frame.onload = done);
    const root = frame.contentDocument.documentElement;
    const hosts = frame.contentWindow.performance.getEntriesByType("resource").map(e => new URL(e.name).host);
    findings[page + " " + width] = [
      root.scrollWidth - root.clientWidth, hosts.filter(h => h !== location.host), frame.contentDocument.title];
    frame.remove();
  }
  const pre = Object.assign(document.createElement("pre"), { id: "findings", textContent: JSON.stringify(findings) });
  document.body.replaceChildren(pre);
});
"""


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        """Writes nothing."""


@pytest.mark.skipif(BROWSER is None, reason="needs Chromium")
def test_pages_in_a_browser(site: Path, tmp_path: Path) -> None:
    """No errors on the console, no request to another host, and no page is wider than a phone or a window."""
    names = ["index.html", "generated/passes/tile-swizzle-grid.html", "reference/tile.html", "coverage.html"]
    names += ["architecture.html", "results.html", "comparison.html", "generated/python.html", "levels.html"]
    names += [p.relative_to(site).as_posix() for p in sorted(site.glob("learn/*.html"))[:1]]
    (site / "frames.html").write_text(f"<!doctype html><body><script>{CHECK % json.dumps(names)}</script></body>")
    server = ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(_Quiet, directory=str(site)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        findings = findings_of(f"http://127.0.0.1:{server.server_port}/frames.html", tmp_path)
    finally:
        server.shutdown()
        server.server_close()
    assert len(findings) == 2 * len(names)
    assert {k: v for k, v in findings.items() if v[0] > 0 or v[1] or not v[2]} == {}


CHART = """flowchart TB
  a(["the <b>start</b>"])
  a --> b["two<br/>lines"]
  b <--> c
"""


def test_a_flowchart_is_drawn() -> None:
    chart = flowchart.parsed(CHART)
    assert chart.edges == [("a", "b", False), ("b", "c", True)]
    drawn = flowchart.drawn(CHART)
    assert (drawn.count("<rect"), drawn.count("<line"), drawn.count("marker-start")) == (3, 2, 1)
    assert [box.level for box in chart.boxes.values()] == [0, 0, 0]
    assert re.findall(r">([^<>]+)</text>", drawn) == ["the start", "two", "lines", "c"]


@pytest.mark.parametrize("text", ["sequenceDiagram\n  a->>b: x", "flowchart TB\n  a -.-> b", "flowchart TB\n  a{x}"])
def test_other_diagrams_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="expected flowchart|cannot draw"):
        flowchart.drawn(text)
