"""The playground: its Python part without the packages that a browser lacks, and the page in headless Chromium."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Generator
from contextlib import contextmanager
from functools import cache
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from support import ROOT
from support.browser import BROWSER, WIDTHS
from support.webdriver import DRIVER, Page, opened

from deplodock.backend.dtypes import DTYPES
from deplodock.passes.tensor.emulate_float8 import FORMATS, encoded
from deplodock.tools import cli, dl_opt

PLAYGROUND = ROOT / "docs" / "playground"
EXAMPLES = {path.stem: path.read_text(encoding="utf-8") for path in sorted((PLAYGROUND / "examples").glob("*.mlir"))}

ABSENT = ("torch", "ml_dtypes", "safetensors", "click", "rich", "sqlite3", "multiprocessing")
"""Packages that the playground does not ship."""

SESSION = """
import json, sys, threading

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {absent}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

def refuse(*args):
    raise RuntimeError("can't start new thread")

sys.meta_path.insert(0, Absent())
sys.path.insert(0, {folder!r})
threading.Thread.start = refuse
import session

progress = []
print(session.facts())
for request in json.load(sys.stdin):
    print(session.respond(json.dumps(request), lambda *step: progress.append(step)))
print(json.dumps(progress))
"""
"""Program that answers requests as Python in a browser does: without some packages, and without threads."""


def request(text: str, **fields: Any) -> dict[str, Any]:
    return {"text": text, **fields}


REQUESTS = {
    "cuda": request(EXAMPLES["rms_norm"], check=True),
    "cpp": request(EXAMPLES["softmax"], target="cpu"),
    "tile": request(EXAMPLES["relu_matmul"], level="tile", target="sm_80"),
    "schedule": request(EXAMPLES["transpose"], schedule="block=32,32 warps=2"),
    "bf16": request(EXAMPLES["bf16_matmul"], check=True),
    "syntax": request(EXAMPLES["transpose"].replace("[d1, d0]", "[d1, d9]")),
    "undefined": request(EXAMPLES["transpose"].replace("index_map %x", "index_map %z")),
    "level": request(EXAMPLES["transpose"].replace("  func.return", "  kernel.barrier\n  func.return")),
    "torch": request("""
func.func @main(%x: tensor<4xf32>) -> tensor<4xf32> {
  %y = torch.relu(self = %x) : (tensor<4xf32>) -> tensor<4xf32>
  func.return %y : tensor<4xf32>
}"""),
    "bad schedule": request(EXAMPLES["transpose"], schedule="blocks=4"),
    "empty": request("// nothing\n"),
}
"""Name of a case -> the request."""


@cache
def responses() -> dict[str, Any]:
    """Returns the response to each of `REQUESTS`, the `facts`, and the reported `progress`."""
    program = SESSION.format(absent=set(ABSENT), folder=str(PLAYGROUND))
    requests = json.dumps([*REQUESTS.values()])
    done = subprocess.run([sys.executable, "-c", program], input=requests, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return dict(zip(["facts", *REQUESTS, "progress"], map(json.loads, done.stdout.splitlines()), strict=True))


def test_the_text_is_that_of_the_commands(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "program.mlir"
    file.write_text(EXAMPLES["rms_norm"])
    assert cli.main(["compile", str(file), "--target", "sm_90a"]) == 0
    assert responses()["cuda"]["result"]["text"] == capsys.readouterr().out
    file.write_text(f"module attributes {{deplodock.target = #deplodock.target<cpu>}} {{{EXAMPLES['softmax']}}}")
    assert dl_opt.main([str(file), "-p", "tensor-to-loop,loop-to-tile,tile-to-kernel", "-t", "cpp"]) == 0
    assert responses()["cpp"]["result"]["text"] == capsys.readouterr().out


def test_sections_contain_the_whole_text() -> None:
    sections = responses()["cpp"]["result"]["sections"]
    assert [s["title"] for s in sections] == ["", "helper functions", "", "host program"]
    assert sum(s["lines"] for s in sections) > 500
    _, kernels = (s["html"] for s in sections if not s["folded"])
    assert "<i class=k>static </i>" in kernels
    (tile,) = responses()["tile"]["result"]["sections"]
    assert "<i class=k>tile.dot </i>" in tile["html"]


def test_passes_have_diffs_and_verdicts() -> None:
    passes = responses()["cuda"]["passes"]
    changed = [p for p in passes if p["state"] == "changed"]
    assert len(changed) == sum(bool(p["diff"]) for p in passes) > 5
    assert all(p["verdict"] == "same results" for p in changed)
    assert responses()["cuda"]["summary"].startswith(f"{len(changed)} of them changed the program and not its answer")
    assert responses()["progress"][0][:2] == ["tensor-plan-fusion", 0]
    assert not any(p["verdict"] for p in responses()["cpp"]["passes"])


def test_a_schedule_replaces_the_choice() -> None:
    assert "// k0: 6 blocks of 64 threads" in responses()["schedule"]["result"]["text"]


def test_bf16_is_compiled_and_not_executed() -> None:
    bf16 = responses()["bf16"]
    assert "wgmma" in bf16["result"]["text"]
    assert bf16["summary"] == "not executed: arrays of bf16 need the package ml_dtypes, which is not installed"


@pytest.mark.parametrize(
    ("case", "place", "message"),
    [
        ("syntax", (3, 32), "program.mlir:3:32: error: expected a dimension of tensor<96x64xf32>, but got d9"),
        ("undefined", (3, 25), "program.mlir:3:25: error: the value %z is used, but not defined"),
        ("level", (4, 3), "program.mlir:4:3: error: kernel.barrier: not legal at the tensor level"),
        ("torch", (1, None), "program.mlir:1: error: the torch level needs PyTorch"),
        ("bad schedule", (None, None), "error: plan-schedules: unknown option 'blocks'"),
        ("empty", (1, None), "program.mlir:1: error: the text is empty"),
    ],
)
def test_errors_are_one_line_with_a_place(case: str, place: tuple[int | None, ...], message: str) -> None:
    (error, *_), result = responses()[case]["errors"], responses()[case]["result"]
    assert (result, "\n" in error["message"]) == (None, False)
    assert error["message"].startswith(message), error
    assert (error["line"], error["column"]) == place


def test_sizes_and_precision_of_element_types() -> None:
    for row in DTYPES.values():
        assert row.bytes == row.numpy.itemsize
        if row.mantissa is not None:
            assert row.roundoff == float(ml_dtypes.finfo(row.numpy).eps) / 2


@pytest.mark.parametrize(("name", "dtype"), [("f8E4M3FN", ml_dtypes.float8_e4m3fn), ("f8E5M2", ml_dtypes.float8_e5m2)])
def test_eight_bit_floats_are_rounded_as_by_ml_dtypes(name: str, dtype: Any) -> None:
    form = FORMATS[name]
    exact: Any = np.arange(256, dtype=np.uint8).view(dtype).astype(np.float32)
    exact = np.sort(exact[np.isfinite(exact)])
    ties = (exact[1:] + exact[:-1]) / 2
    around = [np.nextafter(x, np.float32(to)) for x in (exact, ties) for to in (-np.inf, np.inf)]
    special = np.array([-0.0, 1e-30, 464.0, 65536.0, 1e30, -np.inf, np.inf], np.float32)
    numbers = np.concatenate([exact, ties, *around, special])
    clipped = numbers if form.infinite else np.clip(numbers, -form.largest, form.largest)
    assert [encoded(float(x), form) for x in numbers] == clipped.astype(dtype).view(np.uint8).tolist()
    assert encoded(float("nan"), form) == 0x7F


@contextmanager
def served(folder: Path) -> Generator[tuple[str, Counter[str]]]:
    """Serves a folder on this machine. Yields its address, and the transferred bytes by path."""
    transferred = Counter[str]()

    class Handler(SimpleHTTPRequestHandler):
        def __init__(self, *args: Any) -> None:
            super().__init__(*args, directory=str(folder))

        def log_message(self, format: str, *args: Any) -> None:
            """Writes nothing."""

        def copyfile(self, source: Any, outputfile: Any) -> None:
            data = source.read()
            transferred[self.path.partition("?")[0]] += len(data)
            outputfile.write(data)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", transferred
    finally:
        server.shutdown()
        server.server_close()


IDLE = "isReady && !isRunning"
STATUS = "return document.getElementById('message').textContent"


def compiled(page: Page, text: str, **fields: str | bool) -> tuple[str, float]:
    """Compiles a program in the page.

    Args:
        page: the page.
        text: the program.
        fields: values of the controls `target`, `level`, `schedule` and `check`.

    Returns:
        the text of the result, and the seconds from the click to the result.
    """
    page.run(f"{SET_FIELDS}; result = ''; compile()", {"source": text, "schedule": "", "check": False, **fields})
    seconds = page.wait(IDLE, 120)
    return page.run("return result"), seconds


SET_FIELDS = """
for (const [id, value] of Object.entries(arguments[0])) {
  const field = document.getElementById(id);
  if (typeof value === "boolean") field.checked = value; else field.value = value;
}
"""

COUNT_ENDED_WORKERS = """
const terminate = Worker.prototype.terminate;
window.ended = 0;
Worker.prototype.terminate = function () { ended += 1; terminate.call(this); };
"""

LARGE = EXAMPLES["relu_matmul"].replace("64x", "256x").replace("128", "256").replace("96", "250")
"""Program whose execution after each pass takes long in a browser."""


def expected_text(request: dict[str, Any]) -> str:
    """Returns the text of the same compilation in this process."""
    from playground import session  # pyright: ignore[reportMissingImports]

    return json.loads(session.respond(json.dumps(request)))["result"]["text"]


@pytest.fixture
def assembled(request: pytest.FixtureRequest) -> Path:
    """Returns the folder of the assembled playground."""
    folder = request.config.getoption("--playground")
    if not folder:
        pytest.skip("needs --playground FOLDER, the folder of docs/playground/build.py")
    if BROWSER is None or DRIVER is None:
        pytest.skip("needs Chromium and chromedriver")
    return Path(folder)


def test_the_page_in_a_browser(assembled: Path, tmp_path: Path) -> None:
    with served(assembled) as (address, transferred), opened(tmp_path) as page:
        page.resize(1440, 900)
        page.go(f"{address}/index.html")
        load = page.wait("isReady", 120)
        first = page.wait(f"{IDLE} && result", 120)
        text, second = compiled(page, EXAMPLES["rms_norm"])
        assert text == page.run("return result") == expected_text(request(EXAMPLES["rms_norm"]))
        shown = page.run("return document.getElementById('text').innerText")
        assert "__global__ void" in shown
        print(f"\nload {load:.2f} s, first compilation {first:.2f} s, second {second:.2f} s")
        print(*(f"{size / 1e6:8.2f} MB  {path}" for path, size in transferred.items()), sep="\n")
        print(f"{transferred.total() / 1e6:8.2f} MB  in all")
        assert transferred.total() < 15e6

        for name, program in EXAMPLES.items():
            for target, level in (("sm_120", "tile"), ("cpu", "text")):
                request_of_page = request(program, target=target, level=level)
                assert compiled(page, **request_of_page)[0] == expected_text(request_of_page), (name, target)
        _, seconds = compiled(page, EXAMPLES["rms_norm"], target="sm_90a", check=True)
        assert page.run(STATUS).endswith("10 of 29 passes changed the program · all 10 checked: same results")
        print(f"compilation with each pass checked {seconds:.2f} s")

        compiled(page, REQUESTS["undefined"]["text"])
        assert page.run(STATUS) == "not compiled: 1 error"
        page.run("document.querySelector('#errors button').click()")
        selected = "source.value.slice(source.selectionStart, source.selectionEnd)"
        assert page.run(f"const source = document.getElementById('source'); return {selected}") == "%z[d1,"

        page.run(f"{SET_FIELDS}; compile()", {"source": LARGE, "check": True})
        page.wait("document.getElementById('message').textContent.startsWith('pass')", 60)
        page.run(COUNT_ENDED_WORKERS + "document.getElementById('stop').click()")
        restart = page.wait("isReady", 60)
        assert (page.run(STATUS), page.run("return ended")) == ("stopped; Python has been started again", 1)
        print(f"started again in {restart:.2f} s")

        assert "// k0: 6 blocks of 64" in compiled(page, EXAMPLES["transpose"], schedule="block=32,32 warps=2")[0]
        page.run("share()")
        page.wait("location.hash", 10)
        page.send("POST", "/refresh")
        page.wait(f"{IDLE} && result", 120)
        assert "// k0: 6 blocks of 64" in page.run("return result")

        for width in WIDTHS:
            page.resize(width, 900)
            assert page.run("return document.documentElement.scrollWidth") <= width
        assert not [entry for entry in page.log("browser") if entry["level"] in ("SEVERE", "WARNING")]
        messages = [json.loads(entry["message"])["message"] for entry in page.log("performance")]
        urls = [m["params"]["request"]["url"] for m in messages if m["method"] == "Network.requestWillBeSent"]
        assert sum(url.startswith(address) for url in urls) > 8
        assert [url for url in urls if url.startswith(("http", "ws")) and not url.startswith(address)] == []


def test_the_page_opened_from_its_folder(assembled: Path, tmp_path: Path) -> None:
    with opened(tmp_path) as page:
        page.go((assembled / "index.html").as_uri())
        page.wait("isReady && !isRunning && result", 120)
        assert page.run("return result") == expected_text(request(EXAMPLES["rms_norm"]))
        assert not page.log("browser")
