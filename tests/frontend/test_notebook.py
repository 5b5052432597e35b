"""Programs in notebooks: `examples/notebook.ipynb`, HTML of programs and texts, and `%%deplodock` in IPython."""

from __future__ import annotations

import ast
import pickle
import re
from collections.abc import Iterator
from html import unescape
from typing import Any

import pytest
import torch
from support import ROOT

import deplodock
from deplodock.extras.report.notebook.display import text_html
from deplodock.frontend.texts import Text
from deplodock.tools import cli

NOTEBOOK = ROOT / "examples" / "notebook.ipynb"


@pytest.fixture(scope="module")
def program() -> Any:
    norm, x = torch.nn.RMSNorm(64), torch.randn(4, 64)
    return deplodock.compile(norm, (x,), target="sm_90a", executor="reference")


def plain(html: str) -> str:
    """Returns the text of HTML without its style."""
    return unescape(re.sub(r"<style>.*?</style>|<[^>]*>", "", html, flags=re.S))


def test_a_level_is_a_string_that_notebooks_show(program: Any, capsys: pytest.CaptureFixture[str]) -> None:
    text = program.ir("loop")
    assert isinstance(text, str)
    assert (text.title, text.language) == ("loop", "mlir")
    assert text == program.compilation.text("loop")
    print(text, end="")
    assert capsys.readouterr().out == text
    copy = pickle.loads(pickle.dumps(text))
    assert (copy, copy.title) == (text, "loop")
    shown = plain(text._repr_html_())
    assert [line.strip() for line in text.splitlines() if "loop.load" in line][0] in shown
    assert shown.startswith(f"loop: {len(text.splitlines())} lines")


def test_html_keeps_the_lines_and_escapes_them() -> None:
    lines = ["a {", "  b<c> {", "    1", "  } d {", "    2", "  }", "}", "}"]
    html = text_html(Text("\n".join(lines), "x", "mlir"))
    assert "<c>" not in html
    for line in lines:
        assert line in plain(html)
    assert html.count("<details open") == 4
    assert re.sub(r" … \d+ lines?|\n", "", plain(html)) == f"x: 8 lines{''.join(lines)}"


def test_blocks_of_long_texts_and_helpers_are_folded(program: Any) -> None:
    inner = [f"    %{n} = a.b" for n in range(80)]
    html = text_html(Text("\n".join(["m {", "  f {", *inner, "  }", "}"])))
    assert html.count("<details open") == 2
    assert html.count("<details><summary>") == 1
    assert " … 80 lines" in plain(html)
    cuda = program.ir("cuda")
    helpers = re.search(r"<details><summary><pre>[^\n]*// --- helpers.*? … (\d+) lines", cuda._repr_html_(), re.S)
    assert helpers is not None
    assert int(helpers[1]) == cuda[cuda.index("// --- helpers") : cuda.index("// --- kernels")].count("\n") - 1


def test_kernels_have_their_texts(program: Any) -> None:
    (kernel,) = program.kernels
    assert (kernel.name, kernel.launches, kernel.threads > 1) == ("k0", 1, True)
    assert kernel.work.bytes >= 4 * 64 * 2 * 4
    assert kernel.predicted > 0
    assert kernel.text in program.ir("cuda")
    assert kernel.text.rstrip().endswith("}")
    assert "__global__ void" in kernel.text
    assert "k0" in program.kernels._repr_html_()
    assert "text" not in repr(kernel)
    html = program._repr_html_()
    assert plain(html).count(repr(program)) == 1
    assert "1 kernel, " in html
    cpu = deplodock.compile(torch.exp, (torch.randn(8),), target="cpu{isa=avx2 cores=2}", executor="reference")
    assert cpu.kernels[0].text in cpu.ir("cpp")
    assert "tasks" in cpu.kernels._repr_html_()


def test_remarks_and_plans_are_those_of_the_commands(program: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert list(program.remarks) == program.compilation.remarks
    code = ["-c", "torch.exp(torch.randn(8))", "--target", "sm_90a"]
    assert cli.main(["compile", *code, "--explain"]) == 0
    printed = capsys.readouterr().out
    f = deplodock.compile(torch.exp, (torch.randn(8),), target="sm_90a", executor="reference")
    assert [line.split(",")[-1] for line in f.explain().splitlines()] == [
        line.split(",")[-1] for line in printed.splitlines()
    ]


def test_completion_offers_the_names_of_users(program: Any) -> None:
    assert {"compile", "load", "from_onnx", "__version__"} <= {*dir(deplodock)}
    assert {"ir", "kernels", "remarks", "explain", "state_dict", "weight"} <= {*dir(program)}
    for name in dir(program):
        if not name.startswith("__"):
            getattr(program, name)


def test_only_the_code_of_a_shell_imports_ipython() -> None:
    importing = []
    for path in [
        *ROOT.glob("*.py"),
        *(p for name in ("frontend", "tools", "extras") for p in (ROOT / name).rglob("*.py")),
    ]:
        if "IPython" not in (text := path.read_text(encoding="utf-8")):
            continue
        tree = ast.parse(text)
        names = [a.name for node in ast.walk(tree) if isinstance(node, ast.Import) for a in node.names]
        names += [str(node.module) for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
        importing += [path.name for name in names if name.startswith(("IPython", "ipykernel"))]
    assert importing == ["magic.py"]


@pytest.fixture(scope="module")
def shell() -> Iterator[Any]:
    pytest.importorskip("IPython")
    from IPython.core.interactiveshell import InteractiveShell

    shell = InteractiveShell.instance()
    shell.run_cell("%load_ext deplodock")
    shell.user_ns |= {"x": torch.randn(4, 8), "torch": torch}
    yield shell
    InteractiveShell.clear_instance()


def shown_by(shell: Any, cell: str, capsys: pytest.CaptureFixture[str]) -> tuple[Any, str]:
    """Runs a cell. Returns its value and its printed text."""
    result = shell.run_cell(cell, store_history=True)
    return result.result, capsys.readouterr().out


def test_the_magic_runs_commands_on_a_cell(shell: Any, capsys: pytest.CaptureFixture[str]) -> None:
    text, out = shown_by(shell, "%%deplodock --ir loop --target sm_90a\ny = x + 1\ntorch.relu(y)", capsys)
    assert (text.title, text.language) == ("loop", "mlir")
    assert "arith.maximumf" in text
    assert "ipykernel" not in text
    assert "y" not in shell.user_ns
    ir = "func.func @main(%a: tensor<8xf32>) -> tensor<8xf32> {\n  %b = math.exp %a : tensor<8xf32>\n"
    text, out = shown_by(shell, f"%%deplodock compile --ir=kernel\n{ir}  func.return %b : tensor<8xf32>\n}}", capsys)
    assert "kernel.func @k0" in text
    assert "loc(" not in text
    assert max(map(len, text.splitlines())) <= 120
    text, out = shown_by(shell, "%%deplodock run --executor reference\nx * 2", capsys)
    assert text is None
    assert "compared with PyTorch" in out
    assert "\x1b[" not in out


@pytest.mark.parametrize(
    ("cell", "sentence"),
    [
        (
            "%%deplodock compile --ir loop\n\ntorch.linalg.inv(x @ x.T)",
            r"UnsupportedError: Cell In\[\d+\]:3: torch.linalg",
        ),
        ("%%deplodock\nx + nothing", r"CaptureError: Cell In\[\d+\]:2:5: nothing: NameError: name 'nothing' is"),
        (
            "%%deplodock\nfunc.func @main() {\n  %a = b.c\n}",
            r"MalformedIRError: Cell In\[\d+\]:3:3: unknown operation 'b.c'",
        ),
        ("%%deplodock --sky\nx + 1", "CompileError: No such option '--sky'"),
        ("%%deplodock sky\nx + 1", "CompileError: expected one of compile, run, tune after %%deplodock, but got 'sky'"),
    ],
)
def test_a_refusal_is_one_sentence_with_the_line_of_the_cell(
    cell: str, sentence: str, shell: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    _, out = shown_by(shell, cell, capsys)
    lines = re.sub(r"\x1b\[[\d;]*m", "", out).strip().splitlines()
    assert re.match(sentence, lines[0])
    assert all(re.match(r"  Cell In\[\d+\], line \d: ", line) for line in lines[1:])


def test_verbose_mode_shows_the_whole_traceback(shell: Any, capsys: pytest.CaptureFixture[str]) -> None:
    shell.run_cell("%xmode Verbose")
    try:
        _, out = shown_by(shell, "import deplodock\ndeplodock.compile(torch.linalg.inv, (x,))", capsys)
    finally:
        shell.run_cell("%xmode Context")
    assert "frontend/api.py" in out
    assert "Traceback" in out
    _, out = shown_by(shell, "%%deplodock --debug\ntorch.linalg.inv(x)", capsys)
    assert "capture/export.py" in re.sub(r"\x1b\[[\d;]*m", "", out)


def test_names_of_levels_are_completed(shell: Any) -> None:
    def completions(text: str) -> set[str]:
        return {c.text for c in shell.Completer.completions(text, len(text))}

    assert {"tile", "tensor", "torch"} <= completions('f.ir("t')
    assert "loop" in completions("%%deplodock compile --ir l")
    assert "tile" not in completions("print('t")


def test_the_notebook_runs() -> None:
    """Every cell of the example, in a kernel. Cells with the tag `raises-exception` show a refusal."""
    nbformat = pytest.importorskip("nbformat")
    preprocessors = pytest.importorskip("nbconvert.preprocessors")
    pytest.importorskip("ipykernel")
    notebook = nbformat.read(NOTEBOOK, 4)
    assert not any(cell.get("outputs") for cell in notebook.cells)
    preprocessors.ExecutePreprocessor(timeout=300, kernel_name="python3").preprocess(notebook, {})
    cells = {cell.source: cell.outputs for cell in notebook.cells if cell.cell_type == "code"}

    def shown(start: str) -> Any:
        (outputs,) = [outputs for source, outputs in cells.items() if source.startswith(start)]
        return outputs[-1]

    html = shown("import torch").data["text/html"]
    assert "(x: float32[8, 256]) -&gt; (float32[8, 256])" in html
    assert "predicted for" in html
    loop = shown('f.ir("loop")').data
    assert "%0 = loop.nest (%i, %j) in [8, 256]" in loop["text/plain"]
    assert "loop.nest" in plain(loop["text/html"])
    assert "tile.kernel @k0" in shown("%%deplodock compile --ir tile").data["text/plain"]
    assert "kernel.func @k0" in shown("%%deplodock compile --ir kernel").data["text/plain"]
    assert shown("%%deplodock run").text.rstrip().endswith("ok")
    for start, line in (("def inverse", 3), ("%%deplodock compile --ir loop", 3)):
        sentence, *places = shown(start).traceback
        assert re.match(rf"UnsupportedError: Cell In\[\d+\]:{line}: torch.linalg.inv\(y", sentence)
        assert not any("site-packages" in place or "get_ipython" in place for place in places)
    assert not [o for outputs in cells.values() for o in outputs if o.output_type == "stream" and o.name == "stderr"]
