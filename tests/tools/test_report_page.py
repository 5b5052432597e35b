"""The report page: its texts, prices and verdicts, and its behaviour in headless Chromium."""

from __future__ import annotations

import html
import json
import re
import zlib
from base64 import b64decode
from html.parser import HTMLParser
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import torch
from support.browser import BROWSER, WIDTHS, checked_pages
from support.layers import make_layer

import deplodock
from deplodock.tools import cli, dl_opt, terminal
from deplodock.tools.tables import seconds

RMSNORM = """\
import torch
from torch import nn


class RMSNorm(nn.Module):
    def __init__(self, size: int):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))

    def forward(self, x):
        mean = x.pow(2).mean(-1, keepdim=True)
        scale = torch.rsqrt(mean + 1e-6)
        return x * scale * self.weight


RMSNorm(64)(torch.randn(8, 64))
"""

PROGRAMS = {
    "gelu": "F.gelu(nn.Linear(64, 64, dtype=torch.bfloat16)(torch.ones(64, 64).bfloat16()))",
    "attention": "F.scaled_dot_product_attention(*torch.randn(3, 1, 2, 64, 32).half(), is_causal=True)",
}
"""Name of a page -> expression."""

MAX_PAGE = 2_000_000
"""Largest page of a decoder layer, in characters."""

LEVELS = ("torch", "tensor", "loop", "tile", "kernel", "cuda")


class Panes(HTMLParser):
    """Texts of the panes of a page, by name, and all addresses in its attributes."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.texts: dict[str, str] = {}
        self.addresses: list[str] = []
        self.ids: list[str] = []
        self._pane, self._spans = "", 0
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        attributes = dict(attrs)
        self.addresses += [str(attributes[a]) for a in ("src", "href", "action", "data") if a in attributes]
        self.ids += [str(attributes["id"])] if "id" in attributes else []
        self._pane = str(attributes.get("data-pane", self._pane))
        if tag == "span" and (self._spans or str(attributes.get("class", "")).split(" ")[0] == "l"):
            self._spans += 1

    def handle_endtag(self, tag: str) -> None:
        self._spans -= tag == "span" and self._spans > 0

    def handle_data(self, data: str) -> None:
        if self._spans:
            self.texts[self._pane] = self.texts.get(self._pane, "") + data


def written(folder: Path, command: str, arguments: list[str], *options: str) -> str:
    """Returns the page that a command writes.

    Args:
        folder: folder for the file.
        command: name of the command.
        arguments: the program.
        options: further options.
    """
    path = folder / "page.html"
    assert cli.main([command, *arguments, "--record", "none", "--report", str(path), *options]) == 0
    return path.read_text(encoding="utf-8")


def passes_of(page: str) -> Any:
    """Returns the data of the section about passes."""
    return json.loads(page[page.index('id="data">') + 10 :].partition("</script>")[0])["sections"]["passes"]


def page_of_function(
    function: Any, *shapes: tuple[int, ...], dtype: torch.dtype = torch.float32, target: str = "sm_90a"
) -> str:
    """Returns the page that `report` of a compiled function writes.

    Args:
        function: function or module.
        shapes: shapes of its arguments.
        dtype: their type.
        target: name of the target.
    """
    arguments = tuple(torch.ones(shape, dtype=dtype) for shape in shapes)
    compiled = deplodock.compile(function, arguments, target=target, record="none")
    with TemporaryDirectory() as folder:
        compiled.report(Path(folder, "page.html"))
        return Path(folder, "page.html").read_text(encoding="utf-8")


def _relu(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    return torch.relu(x @ weight + bias)


@pytest.fixture(scope="module")
def rmsnorm(tmp_path_factory: pytest.TempPathFactory) -> Path:
    file = tmp_path_factory.mktemp("rmsnorm") / "rmsnorm.py"
    file.write_text(RMSNORM, encoding="utf-8")
    return file


@pytest.fixture(scope="module")
def page(rmsnorm: Path) -> str:
    """The page about RMSNorm for `sm_90a`."""
    return written(rmsnorm.parent, "compile", [str(rmsnorm)], "--check-each")


def test_texts_equal_those_of_ir(
    page: str, rmsnorm: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The panes have the texts that `--ir` prints on a terminal."""
    monkeypatch.setattr(terminal, "is_kept", lambda output: False)
    panes = Panes(page)
    check_self_contained(page, panes)
    for level in LEVELS:
        assert cli.main(["compile", str(rmsnorm), "--record", "none", "--ir", level, "--helpers"]) == 0
        assert _without_facts(capsys.readouterr().out) == _without_facts(panes.texts[level])
    assert panes.texts["source0"] == RMSNORM


def check_self_contained(page: str, panes: Panes) -> None:
    """Checks that a page refers to nothing outside of itself, and that no two elements have the same name."""
    assert all(address.startswith("#") for address in panes.addresses)
    code = re.findall(r"<style>.*?</style>|<script>.*?</script>|<[^>]*>", page, re.S)  # no texts, which may name a site
    assert sum(part.startswith(("<style>", "<script>")) for part in code) >= 2
    text = "".join(code).replace("http://www.w3.org/2000/svg", "")
    assert not re.search(r"url\((?!#)|@import|\bfetch\(|XMLHttp|//[a-z]+\.[a-z]+/", text)
    assert len(panes.ids) == len({*panes.ids})


def _without_facts(text: str) -> str:
    """Returns a text without the options of the command line, which the module records."""
    return re.sub(r"\s*deplodock\.options = \"[^\"]*\",|^// options: .*\n", "", text, flags=re.M)


def test_prices_equal_those_of_json(page: str, rmsnorm: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["compile", str(rmsnorm), "--record", "none", "--json"]) == 0
    kernels = json.loads(capsys.readouterr().out)["kernels"]
    overview = page[page.index('<section id="overview"') : page.index('<section id="levels"')]
    assert len(kernels) == overview.count('<code class="name">') == 1
    for kernel in kernels:
        cells = f'<td class="num">{seconds(kernel["predicted_seconds"])}</td>'
        assert cells in overview
        assert f'<td class="num">{kernel["blocks"]}</td><td class="num">{kernel["threads"]}</td>' in overview
    assert "predicted for sm_90a" in overview


def test_verdicts_equal_those_of_check_each(
    page: str, rmsnorm: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The page has the sentence of `dl-opt --check-each`, and a verdict for each executed pass."""
    program = rmsnorm.with_suffix(".mlir")
    assert cli.main(["compile", str(rmsnorm), "--record", "none", "--ir", "torch", "-o", str(program)]) == 0
    assert dl_opt.main([str(program), "-p", "default", "--check-each", "-o", str(program)]) == 0
    sentence = re.search(r"passes, (\d+) of them (.*)\n", capsys.readouterr().err)
    assert sentence
    assert f"{sentence[1]} of them {html.escape(sentence[2])}" in page
    data = passes_of(page)
    runs, diffs = data["runs"], json.loads(zlib.decompress(b64decode(data["details"])))["diffs"]
    assert sum("same results" in run.get("verdict", "") for run in runs) == int(sentence[1])
    assert [*diffs] == [str(number) for number, run in enumerate(runs) if run["state"] == "changed"]
    assert all(re.search(r"^[+-]", diff, re.M) for diff in diffs.values())


def test_a_wrong_pass_is_named(rmsnorm: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pass that changes the results has the mark ✕ and the message of `--check-each`."""
    from xdsl.dialects.arith import AddfOp, SubfOp

    from deplodock.passes.loop.use_fast_math import UseFastMathPass

    def apply(self: Any, ctx: Any, module: Any) -> None:
        for op in [o for o in module.walk() if isinstance(o, AddfOp)]:
            wrong = SubfOp(op.lhs, op.rhs)
            assert op.parent is not None
            op.parent.insert_op_before(wrong, op)
            op.results[0].replace_all_uses_with(wrong.results[0])
            op.detach()

    monkeypatch.setattr(UseFastMathPass, "apply", apply)
    text = written(rmsnorm.parent, "compile", [str(rmsnorm)], "--check-each")
    runs = passes_of(text)["runs"]
    refused = [run for run in runs if run["state"] == "refused"]
    assert [run["name"] for run in refused] == ["loop-use-fast-math"]
    assert "changed the answer in the exact domain" in refused[0]["verdict"]


def test_a_refused_program_has_a_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The page of a refused schedule ends at the last level, and names the reason and the pass."""
    path = tmp_path / "page.html"
    code = ["-c", "torch.relu(torch.randn(8, 8))", "--pipeline"]
    passes = "torch-to-tensor,tensor-to-loop,convert-loop-to-tile,verify-level{level=tile}"
    assert cli.main(["compile", *code, passes, "--ir", "tile", "--report", str(path)]) == 1
    message = capsys.readouterr().err
    text = path.read_text(encoding="utf-8")
    assert "✕ refused" in text
    reason = message.partition("error: ")[2].splitlines()[0].partition(": ")[2]
    assert html.escape(reason) in text
    assert [*Panes(text).texts] == ["source0", "torch", "tensor", "loop"]


def test_options_are_refused_before_the_program_is_loaded(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["compile", "-c", "no_name", "--check-each"]) == 2
    assert "give both" in capsys.readouterr().err
    page, missing = str(tmp_path / "page.html"), str(tmp_path / "missing.html")
    assert cli.main(["compile", "-c", "no_name", "--report", page, "--report-against", missing]) == 1
    assert "cannot read" in capsys.readouterr().err


@pytest.mark.skipif(BROWSER is None, reason="needs Chromium")
def test_pages_in_a_browser(page: str, tmp_path: Path, request: pytest.FixtureRequest) -> None:
    """No error, nothing outside of its pane, equal lights at all levels, and the keys, at three widths."""
    pages = {"rmsnorm": page, "relu": page_of_function(_relu, (16, 32), (32, 16), (16,), target="cpu")}
    pages |= {name: written(tmp_path, "compile", ["-c", code]) for name, code in PROGRAMS.items()}
    if request.config.getoption("--pages") == "all":
        layer = make_layer("tinyllama", torch.bfloat16, small=False)
        size = 1, 64, layer.config.hidden_size
        for target in ("sm_90a", "cpu"):
            pages[f"tinyllama-{target}"] = page_of_function(layer, size, dtype=torch.bfloat16, target=target)
    print({name: f"{len(text) / 1000:.0f} kB" for name, text in pages.items()})
    for text in pages.values():
        assert len(text) < MAX_PAGE
        check_self_contained(text, Panes(text))
    findings = checked_pages(pages, tmp_path)
    assert len(findings) == len(pages) * len(WIDTHS)
    for name, result in findings.items():
        assert result["sections"][:3] == ["overview", "levels", "passes"]
        assert not result["outside"], name
        assert result["shown"] == "levels"
        assert result["pinned"].endswith("(pinned)")
        assert result["released"].startswith("Point at a line")
        first, second, third, last = map(int, result["selected"])
        assert (second, third, last) == (first + 1, first + 2, first + 1)
        assert "documentation" in result["detail"], result["detail"]
        assert result["lit"]
        for origin, lit in result["lit"].items():
            levels = [lines for pane, lines in lit.items() if not pane.startswith("source")]
            assert all(levels), (name, origin)
            operator = origin.partition("#")[0]
            assert any(operator in line for line in lit["torch"]), (name, origin)
    lit = {origin.partition("#")[0]: lines for origin, lines in findings[f"rmsnorm {WIDTHS[-1]}"]["lit"].items()}
    mean = lit["torch.mean.dim"]
    assert mean["source0"] == ["mean = x.pow(2).mean(-1, keepdim=True)"]
    for level, word in {"tensor": "tensor.reduce add", "loop": "loop.reduce add", "tile": "tile.reduce add"}.items():
        assert sum(word in line for line in mean[level]) == 1
    assert any("__shfl_xor_sync" in line for line in mean["cuda"])
    assert not any("rsqrt" in line for lines in (mean["loop"], mean["tile"], mean["kernel"]) for line in lines)
