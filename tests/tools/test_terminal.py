"""Output in a terminal of 80 columns has fitting lines, colours and progress; output in a pipe has none of these."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import struct
import sys
import termios
import threading
import time
import tty
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from xdsl.parser import Parser

import deplodock
from deplodock.dialects import make_context
from deplodock.dialects.support.printing import print_module
from deplodock.progress import steps
from deplodock.tools import cli, dl_gui, dl_opt, terminal
from deplodock.tools.calls import call
from deplodock.tools.reports import load

COLUMNS = 80
RMSNORM = "nn.RMSNorm(64)(torch.randn(1, 5, 64))"
PROGRAM = """func.func @main(%x: tensor<8xf32>, %y: tensor<8xf32>) -> tensor<8xf32> {
  %z = arith.addf %x, %y : tensor<8xf32>
  func.return %z : tensor<8xf32>
}
"""
_ESCAPE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
Command = Callable[[list[str]], int]


@contextmanager
def screen() -> Iterator[list[str]]:
    """Makes stdout and stderr a terminal of 80 columns and 24 rows. The returned list has the output at the end."""
    ours, theirs = pty.openpty()
    tty.setraw(theirs)
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 24, COLUMNS, 0, 0))
    data, seen = bytearray(), list[str]()

    def read() -> None:
        while True:
            try:
                piece = os.read(ours, 1 << 16)
            except OSError:
                return
            if not piece:
                return
            data.extend(piece)

    reader = threading.Thread(target=read)
    reader.start()
    saved = sys.stdout, sys.stderr
    stream = open(theirs, "w", encoding="utf-8", closefd=True)
    sys.stdout = sys.stderr = stream
    try:
        yield seen
    finally:
        sys.stdout, sys.stderr = saved
        stream.close()
        reader.join()
        os.close(ours)
        seen.append(data.decode())


@pytest.fixture(autouse=True)
def _plain(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NO_COLOR", "FORCE_COLOR", "COLUMNS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm")


def shown(command: Command, *args: str) -> tuple[int, str]:
    """Returns the exit code of a command and its output in the terminal."""
    with screen() as seen:
        code = command(list(args))
    return code, seen[0]


def visible(text: str) -> list[str]:
    """Returns the lines that remain visible, without removed progress bars."""
    return [line.rpartition("\r")[2] for line in _ESCAPE.sub("", text).split("\n")]


FITTING: dict[str, tuple[Command, list[str], int, str]] = {
    "the passes": (dl_opt.main, ["--list-passes"], 0, "Replaces operations by earlier equal ones"),
    "help of a pass": (dl_opt.main, ["--help-pass", "tensor-plan-fusion"], 0, "one of model, simple, none, all, keep"),
    "help of dl-opt": (dl_opt.main, ["--help"], 0, "--run-reproducer"),
    "help of dl-gui": (dl_gui.main, ["--help"], 0, "It is xDSL's own"),
    "help of compile": (cli.main, ["compile", "--help"], 0, "--schedule"),
    "help of run": (cli.main, ["run", "--help"], 0, "--weights"),
    "doctor": (cli.main, ["doctor"], 0, "kernel cache"),
    "schedules": (cli.main, ["compile", "--explain", "-c", RMSNORM], 0, "limited by"),
    "kernels": (cli.main, ["run", "-v", "-c", RMSNORM, "--executor", "reference"], 0, "kernel k0: "),
    "uncompared": (cli.main, ["run", "-c", "torch.randn(4).bernoulli()", "--executor", "reference"], 0, "not compared"),
    "an option of a schedule": (cli.main, ["compile", "-c", RMSNORM, "--schedule", "blok=1"], 1, "option 'blok'"),
    "options that exclude each other": (cli.main, ["compile", "-c", "", "--explain", "--ir", "loop"], 2, "--ir"),
    "a model to run": (cli.main, ["run", "owner/name"], 2, "deplodock generate owner/name"),
    "an option of a pass": (dl_opt.main, ["-p", "tensor-plan-fusion{strategy=abc}"], 1, "abc is none of model"),
}  # fmt: skip


@pytest.mark.parametrize("case", FITTING)
def test_it_fits_the_terminal(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """No line exceeds the width of the terminal, and no word is broken."""
    command, args, expected, part = FITTING[case]
    code = expected
    try:
        with screen() as seen:
            code = command(args)
    except SystemExit as stop:
        code = int(stop.code or 0)
    lines = visible(seen[0])
    assert code == expected
    assert " ".join(part.split()) in " ".join(" ".join(lines).split())
    assert [line for line in lines if len(line) > COLUMNS and " " in line.strip()] == []
    words = set(re.findall(r"\S+", call(command, args, b"")[1].decode() + call(command, args, b"")[2].decode()))
    if case in ("schedules", "an option of a pass", "a model to run"):
        assert set(re.findall(r"\S+", " ".join(lines))) == words


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "program.mlir"
    path.write_text(PROGRAM)
    return str(path)


COLORED: dict[str, tuple[Command, list[str], str]] = {
    "IR": (dl_opt.main, ["FILE"], "\x1b[36m%z\x1b[0m"),
    "diff": (dl_opt.main, ["FILE", "-p", "tensor-plan-fusion", "--print-only-changed"], "\x1b[32m+    %z = arith.addf"),
    "error": (dl_opt.main, ["FILE", "-p", "no-such-pass"], "\x1b[1;31merror:\x1b[0m"),
    "caret": (dl_opt.main, ["FILE", "-p", "tensor-to-loop,plan-schedules{block=3}"], "\n\x1b[1;32m  ^\x1b[0m"),
    "CUDA": (cli.main, ["compile", "-c", RMSNORM], "\x1b[1;35m__global__\x1b[0m"),
    "verdict": (cli.main, ["run", "-c", RMSNORM, "--executor", "reference"], "\x1b[32mok\x1b[0m"),
}


@pytest.mark.parametrize("case", COLORED)
def test_colors(case: str, file: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Colours appear on a terminal or with FORCE_COLOR, never with NO_COLOR, and do not change the text."""
    command, args, part = COLORED[case]
    args = [file if a == "FILE" else a for a in args]
    seen = shown(command, *args)[1]
    assert part in seen
    _, out, err = call(command, args, b"")
    assert "\x1b" not in (plain := (out + err).decode())
    monkeypatch.setenv("FORCE_COLOR", "1")
    _, out, err = call(command, args, b"")
    assert part in (out + err).decode()
    assert _ESCAPE.sub("", (out + err).decode()) == plain
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b[3" not in shown(command, *args)[1]


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes progress visible immediately."""
    from rich.progress import Progress

    monkeypatch.setattr(terminal, "PATIENCE", 0.0)
    update = Progress.update
    monkeypatch.setattr(Progress, "update", lambda self, *a, **k: (update(self, *a, **k), self.refresh())[0])


@pytest.mark.parametrize(
    ("args", "units"),
    [
        (["compile", "-c", RMSNORM, "--ir", "tile"], ["passes", "kernels"]),
        (["run", "-c", RMSNORM, "--executor", "simulator"], ["launches", "blocks"]),
        (["run", "-c", RMSNORM, "--executor", "emulator"], ["launches", "programs"]),
        (["run", "-c", RMSNORM, "--executor", "reference"], ["operations"]),
    ],
)
def test_progress_in_true_units(args: list[str], units: list[str], impatient: None) -> None:
    code, seen = shown(cli.main, *args)
    assert code == 0
    for unit in units:
        assert re.search(rf"\d+/\d+ {unit}", seen), unit
    assert not re.search(rf"/\d+ {units[0]}", seen.rpartition("\x1b[2K")[2])  # the last bar was removed
    assert call(cli.main, args, b"")[2] == b""


def test_progress_of_an_artifact(impatient: None, tmp_path: Path) -> None:
    saved = str(tmp_path / "saved")
    deplodock.compile(torch.nn.Linear(4, 3), (torch.randn(2, 4),)).save(saved)
    code, seen = shown(cli.main, "run", saved, "--executor", "reference")
    assert code == 0
    assert re.search(r"\d/3 weights", seen)
    assert "not compared" in seen


def test_a_pipe_gets_a_line_for_each_long_task(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(terminal, "SILENCE", 0.2)
    with terminal.progress(), steps("long work", 3, "pieces") as step:
        step(detail="second piece")
        with steps("short work"):
            pass
        time.sleep(0.5)
    assert capsys.readouterr().err == "deplodock: long work second piece: 0.2 s so far\n"


def test_short_work_shows_no_progress() -> None:
    with screen() as seen, terminal.progress(), steps("work", 3, "pieces") as step:
        step()
    assert "pieces" not in seen[0]


def test_json_is_json_in_a_terminal(impatient: None) -> None:
    code, seen = shown(cli.main, "compile", "--json", "-c", "torch.linalg.svd(torch.randn(3, 3))")
    text = _ESCAPE.sub("", seen)
    assert code == 1
    assert "svd" in json.loads(text[text.index("{") :])["error"]["operator"]


def test_folded_diffs_and_ir() -> None:
    """A wrapped line of a diff repeats its sign, and wrapped IR can be parsed."""
    diff = "@@ -1 +1 @@\n-  %0 = arith.addf %x, %y : tensor<4xf32>\n+  %0 = arith.addf %y, %x : tensor<4xf32>\n"
    assert terminal.fitted(diff, 30, signs="+-").splitlines() == [
        "@@ -1 +1 @@",
        "-  %0 = arith.addf %x, %y :",
        "-      tensor<4xf32>",
        "+  %0 = arith.addf %y, %x :",
        "+      tensor<4xf32>",
    ]
    module = load(None, "nn.RMSNorm(64)(torch.randn(3, 64))", "sm_90a").compilation.at("tile")
    text = print_module(module)
    folded = terminal.fitted(text, 80, signs="+-")
    assert folded.count("\n") > text.count("\n")
    assert print_module(Parser(make_context(), folded).parse_module()) == text
