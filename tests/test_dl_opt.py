"""dl-opt as a command: exit codes, one-line errors, files it writes, and how fast it starts."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from dl_lit import call
from xdsl.context import Context
from xdsl.dialects.builtin import ModuleOp
from xdsl.passes import ModulePass

from deplodock import passes
from deplodock.errors import CompileError
from deplodock.passes.pipelines import parse_passes, pipeline_text
from deplodock.passes.remarks import collect_remarks, emit_remark
from deplodock.tools import dl_opt

DL_OPT = str(Path(sys.executable).with_name("dl-opt"))
PROGRAM = """func.func @f(%x: f32) -> f32 {
  %y = arith.mulf %x, %x : f32
  func.return %y : f32
}
"""


def run(*args: str, stdin: str = PROGRAM) -> tuple[int, str, str]:
    code, out, err = call(dl_opt.main, list(args), stdin.encode())
    return code, out.decode(), err.decode()


@dataclass(frozen=True)
class CrashPass(ModulePass):
    """A pass with a bug."""

    name = "crash"
    depth: int = 0
    ratio: float = 0.5
    mode: str = "plain"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        raise KeyError("no such thing")


@dataclass(frozen=True)
class BreakPass(ModulePass):
    """A pass that leaves a use in front of its definition."""

    name = "break"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for inner in list(op.walk()):
            if inner.name == "arith.mulf":
                block = inner.parent_block()
                assert block is not None
                inner.detach()
                block.add_op(inner)


@dataclass(frozen=True)
class DeclinePass(ModulePass):
    """A pass that declines."""

    name = "decline"

    def apply(self, ctx: Context, op: ModuleOp) -> None:
        for inner in op.walk():
            if inner.name == "arith.mulf":
                emit_remark(inner, self.name, "not today")


@pytest.fixture(autouse=True)
def _test_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(passes.OWN_PASSES, "crash", f"{__name__}:CrashPass")
    monkeypatch.setitem(passes.OWN_PASSES, "break", f"{__name__}:BreakPass")
    monkeypatch.setitem(passes.OWN_PASSES, "decline", f"{__name__}:DeclinePass")


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["-p", "canonicalise"], "unknown pass 'canonicalise', did you mean 'canonicalize'?"),
        (["-p", "cse{x=1}"], "cse: unknown option 'x' (options: none)"),
        (["-p", "cse{"], "cannot read the pipeline 'cse{'"),
        (["-p", "cleanup{x=1}"], "cleanup: no pass of this pipeline has the option 'x'"),
        (["-p", "check-border{level=sky}"], "check-border: "),
        (["-t", "sky"], "invalid choice: 'sky'"),
        (["--sky"], "unrecognized arguments: --sky"),
        (["no-such-file.mlir"], "no-such-file.mlir: No such file or directory"),
        (["-o", "no/such/folder/x.mlir"], "no/such/folder/x.mlir: No such file or directory"),
    ],
)
def test_bad_arguments_are_one_line(args: list[str], message: str) -> None:
    code, out, err = run(*args)
    assert code != 0
    assert out == ""
    assert err.count("\n") == 1
    assert err.startswith("dl-opt: error: ")
    assert message in err


@pytest.mark.parametrize("text", ["", "}", "func.func @f(", '"unterminated', "^0:", "%0 = arith.constant\n", "\0"])
def test_malformed_text_is_one_error(text: str) -> None:
    code, _, err = run(stdin=text)
    assert code == 1
    assert "error: " in err.splitlines()[0]
    assert "Traceback" not in err
    assert len(err.splitlines()) <= 3


def test_not_text(tmp_path: Path) -> None:
    path = tmp_path / "x.mlir"
    path.write_bytes(b"\xff\xfe")
    code, _, err = run(str(path))
    assert (code, err) == (1, f"dl-opt: error: {path}: not UTF-8 text\n")


def test_internal_error_writes_a_reproducer(tmp_path: Path) -> None:
    path = tmp_path / "r.mlir"
    code, _, err = run("-p", "cse,crash{depth=3},dce", "--reproducer", str(path))
    assert code == 1
    assert err == f"<stdin>: error: internal error in pass 'crash': KeyError: 'no such thing' (reproducer: {path})\n"
    text = path.read_text(encoding="utf-8")
    assert text.splitlines()[0] == "// RUN: dl-opt %s -p 'crash{depth=3},dce'"
    code, _, again = run(str(path), "-p", "crash{depth=3},dce", "--reproducer", str(tmp_path / "r2.mlir"))
    assert code == 1
    assert "internal error in pass 'crash'" in again


def test_a_pass_that_breaks_the_ir_is_named(tmp_path: Path) -> None:
    path = tmp_path / "r.mlir"
    code, _, err = run("-p", "cse,break,dce", "--reproducer", str(path))
    assert code == 1
    assert err.startswith(
        "<stdin>:3:3: error: pass 'break' left invalid IR: func.return: operand #0 (%y) is used before"
    )
    assert path.read_text(encoding="utf-8").startswith("// RUN: dl-opt %s -p 'break,dce'\n")


def test_debug_shows_the_traceback(tmp_path: Path) -> None:
    _, _, err = run("-p", "crash", "--debug", "--reproducer", str(tmp_path / "r.mlir"))
    assert "Traceback" in err


def test_pipeline_text_reads_back() -> None:
    text = 'crash{depth=-2 ratio=1.0e-05 mode="a b"},cse,crash{mode="true"},crash'
    assert pipeline_text(parse_passes(text)) == text
    code, out, _ = run("-p", text, "--print-pipeline", stdin="")
    assert (code, out) == (0, text + "\n")


def test_diffs_show_only_what_changed() -> None:
    """What stays keeps its number, names of attributes too, and moving to the right is no change."""
    from deplodock.passes.running import diff_lines

    sums = "  %0 = arith.addf %x, %x : f32\n  %1 = math.exp %0 : f32\n  %2 = arith.addf %x, %x : f32\n"
    rest = "  %3 = arith.mulf %2, %1 : f32\n  %4 = arith.mulf %3, %1 : f32\n  func.return %4 : f32\n"
    program = f"func.func @f(%x: f32) -> f32 {{\n{sums}{rest}}}\n"
    code, out, _ = run("-p", "cse,dce", "--print-only-changed", stdin=program)
    assert code == 0
    assert re.findall(r"^[+-].*", out, re.M) == [
        "-    %2 = arith.addf %x, %x : f32",
        "-    %3 = arith.mulf %2, %1 : f32",
        "+    %3 = arith.mulf %0, %1 : f32",
    ]
    assert list(diff_lines(["a", "b", "c"], ["{", "  a", "  b", "  d", "}"], 1)) == [
        "@@ -1,3 +1,5 @@",
        "+{",
        "   a",
        "   b",
        "-c",
        "+  d",
        "+}",
    ]


def test_options_of_a_named_pipeline_reach_its_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    from deplodock.passes import pipelines

    monkeypatch.setitem(pipelines.PIPELINES, "outer", "cse,inner")
    monkeypatch.setitem(pipelines.PIPELINES, "inner", "crash{depth=1},dce")
    assert pipeline_text(parse_passes("outer{mode=fast}")) == "cse,crash{depth=1 mode=fast},dce"
    monkeypatch.setitem(pipelines.PIPELINES, "inner", "outer")
    with pytest.raises(CompileError, match="contains itself"):
        parse_passes("outer")


def test_remarks() -> None:
    code, out, _ = run("-p", "decline", "--remarks")
    assert code == 0
    assert out.startswith("// <stdin>:2:3: remark: [decline] arith.mulf: not today\n")
    assert run(stdin=out)[0] == 0
    with collect_remarks() as remarks:
        assert remarks == []


def test_locations_are_those_of_the_file() -> None:
    text = PROGRAM.replace("mulf %x, %x : f32", 'mulf %x, %x : f32 loc("model.py":7:2)')
    _, out, _ = run("--print-debuginfo", stdin=text)
    assert 'arith.mulf %x, %x : f32 loc("model.py":7:2)' in out
    assert 'func.return %y : f32 loc("<stdin>":3:3)' in out
    assert run("--print-debuginfo", stdin=out)[1] == out


def test_verify_diagnostics_exit_with_zero() -> None:
    code, out, err = run("--verify-diagnostics", stdin="sky.op")
    assert (code, err) == (0, "")
    assert out == "<stdin>:1:1: error: unknown operation 'sky.op'\nsky.op\n^\n"


def test_broken_pipe_is_quiet(tmp_path: Path) -> None:
    path = tmp_path / "long.mlir"
    path.write_text("func.func private @f(i32)\n" + "".join(f"func.func private @g{i}()\n" for i in range(5000)))
    command = f"{DL_OPT} {path} | head -1; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=True)
    assert done.stdout == "builtin.module {\n0\n"
    assert done.stderr == ""


def test_start_is_fast(tmp_path: Path) -> None:
    """0.4 s of processor time is the promise; the check leaves room for a busy machine."""
    path = tmp_path / "x.mlir"
    path.write_text(PROGRAM)
    before = os.times()
    subprocess.run([DL_OPT, str(path), "-p", "cleanup"], capture_output=True, check=True)
    after = os.times()
    assert after.children_user + after.children_system - before.children_user - before.children_system < 0.8


def test_the_version_is_told_even_where_the_package_is_not_installed():
    code = (
        "import importlib.metadata as m\n"
        "def no(name): raise m.PackageNotFoundError(name)\n"
        "m.version = no\n"
        "import deplodock; print(deplodock.__version__)"
    )
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert told.stdout == "unknown\n"
