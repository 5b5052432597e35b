"""A kernel engineer's session: print a kernel, edit it, run both texts, and compare schedules."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from deplodock.backend.cpp.edited_text import KernelTextError, merged_text
from deplodock.backend.cpp.writer import fold_sections
from deplodock.backend.cuda.kernel_texts import kernel_texts
from deplodock.backend.cuda.runtime import nvrtc
from deplodock.backend.host.timing import by_clock
from deplodock.errors import CompileError
from deplodock.frontend import bench, profile
from deplodock.frontend.bench import OURS
from deplodock.tools.cli import main
from deplodock.tools.reports import load
from deplodock.tools.versions import judge_edited, kernel_text, read_kernel_text

CODE = "torch.randn(64, 48).sum(0).cumsum(0)"
"""Program of two kernels."""


@pytest.fixture(scope="module")
def printed() -> dict[str, str]:
    """The text of the program for the CPU and for a GPU."""
    return {target: kernel_text(load(None, CODE, target, record="none").compilation) for target in ("cpu", "sm_90a")}


def line_of(text: str, part: str) -> int:
    return text[: text.index(part)].count("\n") + 1


def test_session(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Print, edit, run, compare, time, and paste a schedule back. Inductor compiles slowly and is excluded."""
    monkeypatch.setattr(torch, "compile", lambda function, **_: function)
    monkeypatch.setattr(profile, "TRACE_SECONDS", 0.02)
    monkeypatch.setattr(bench, "by_clock", lambda arms, **_: by_clock(arms, 0.1, 1))
    monkeypatch.chdir(tmp_path)
    program = ["-c", "torch.relu(torch.randn(64, 48) + torch.randn(48))", "--target", "cpu", "--record", "none"]

    def call(*arguments: str, code: int = 0) -> str:
        assert main([*arguments]) == code, capsys.readouterr()
        return "".join(capsys.readouterr())

    call("compile", *program, "-o", "k.cpp")
    text = Path("k.cpp").read_text()
    (sum_line,) = (line for line in text.splitlines() if re.search(r"const auto sum = ", line))
    place = f"k.cpp:{line_of(text, 'static void k0(')}"

    def run(edited: str, *options: str, code: int = 0) -> str:
        Path("k.cpp").write_text(edited)
        return call("run", *program, "--kernel-text", "k.cpp", *options, code=code)

    faster = text.replace(sum_line, "// by hand\n" + sum_line.replace("sum = ", "sum = 1.0f * (").replace(";", ");"))
    outcome = json.loads(run(faster, "--profile", "--bench", "--against", "block=8,16", "--json"))
    assert (outcome["executor"], outcome["edited"]) == ("cpu", {"file": "k.cpp", "kernels": ["k0"]})
    assert outcome["ok"]
    assert outcome["bench"]["right"]
    assert set(outcome["bench"]["times"]["call"]) == {"eager", "torch.compile", OURS, "k.cpp", "block=8,16"}
    other = outcome["profile"]["others"]["block=8,16"]
    assert other["kernels"][0]["schedules"][0].startswith("<block = [8, 16]")
    assert other["kernels"][0]["schedules"] != outcome["profile"]["kernels"][0]["schedules"]
    assert outcome["profile"]["others"]["k.cpp"]["seconds"] > 0
    assert "block = [8, 16]" in call("compile", *program, "--schedule", other["kernels"][0]["schedules"][0])

    wrong = run(text.replace(sum_line, sum_line.replace(";", " * 1.25f;")), code=1)
    assert re.search(r"^result 0: .* WRONG: \S+ instead of \S+ at \[\d+, \d+\]$", wrong, re.M)
    assert f"{place}: k0 gives a wrong result, the printed text a right one\n" in wrong
    assert re.search(r"^deplodock: [\d.]+ .*\nk.cpp: [\d.]+ ", wrong, re.M)

    head = re.search(r"^static void k0\(.*$", text, re.M)
    assert head is not None
    swapped = run(
        text.replace(head[0], re.sub(r"(, const float\*.*)(, const float\*.*)(, float\*)", r"\2\1\3", head[0])), code=1
    )
    assert re.match(rf"{place}:\d+: error: k0: expected the arguments in the order begin, end, ", swapped)
    broken = run(text.replace(sum_line, sum_line.replace(";", " + bias;")), code=1)
    assert re.match(
        rf"k.cpp:{line_of(text, sum_line)}:\d+: error: g\+\+: does not compile.*'?bias'?.*\n.*\n +\^", broken
    )


FAULTS: dict[str, tuple[str, Callable[[str], str], str]] = {
    "another type": (
        "cpu",
        lambda t: t.replace("const float* __restrict__ x", "const double* x", 1),
        "const float* __",
    ),
    "another number": (
        "sm_90a",
        lambda t: re.sub(r", float\* __restrict__ \w+\)", ")", t, count=1),
        "arguments, but got",
    ),
    "another name": ("sm_90a", lambda t: t.replace(" k0(", " k9("), "expected a kernel of the program (k0, k1)"),
    "other threads": ("sm_90a", lambda t: re.sub(r"bounds__\(\d+", "bounds__(96", t), "sets the threads of a block"),
    "no linkage": ("sm_90a", lambda t: t.replace('extern "C" ', "", 1), 'expected extern "C"'),
    "another grid": (
        "cpu",
        lambda t: re.sub(r"// k0: \d+ task", "// k0: 77 task", t),
        "--schedule and --target of the text",
    ),
    "another schedule": ("sm_90a", lambda t: re.sub(r"(= #tile.schedule<block = \[)", r"\g<1>2, ", t), "the former"),
    "twice": (
        "cpu",
        lambda t: t.replace("// --- host", t[t.index("// k0") : t.index("// k1")] + "\n// --- host"),
        "two",
    ),
    "nothing": ("cpu", lambda _: "int f() { return 1; }\n", "the text has none"),
    "another host": ("cpu", lambda t: t.replace("++i, p += 2", "++i, p += 3"), "the printed host program"),
    "another grid function": ("cpu", lambda t: t.replace("void k0_grid(char*", "void k0_grid(int n, char*"), "k0_grid"),
}


@pytest.mark.parametrize("case", FAULTS)
def test_a_text_that_does_not_fit_is_refused_with_its_place(case: str, printed: dict[str, str]) -> None:
    target, edit, message = FAULTS[case]
    edited = edit(printed[target])
    assert edited != printed[target]
    with pytest.raises(KernelTextError, match=re.escape(message)) as refusal:
        merged_text(printed[target], edited, "k.txt")
    assert re.match(r"k\.txt(:[1-9]\d*(:[1-9]\d*)?)?: .*expected ", str(refusal.value))
    assert "\n" not in str(refusal.value)


def test_a_text_for_another_target_is_refused(printed: dict[str, str]) -> None:
    for ours, theirs in (("cpu", "sm_90a"), ("sm_90a", "cpu")):
        with pytest.raises(KernelTextError, match="choose the --target of the text"):
            merged_text(printed[ours], printed[theirs], "k.txt")


@pytest.mark.parametrize("target", ["cpu", "sm_90a"])
def test_the_printed_text_changes_nothing(target: str, printed: dict[str, str]) -> None:
    """The whole text, a folded one, and a reformatted one fit, and are equal to the printed text."""
    text = printed[target]
    spread = re.sub(r"(\bk[01])\(", r"\n\1\n(", fold_sections(text).replace(" {\n", "\n{\n"))
    for edited in (text, fold_sections(text), spread if target == "sm_90a" else text):
        merged = merged_text(text, edited, "k.txt")
        assert merged.changed == ()
        assert [*merged.lines] == ["k0", "k1"]
        assert merged.location("k1") == f"k.txt:{line_of(edited, 'k1(' if edited is not spread else 'k1' + chr(10))}"


HAND = """#define SCALE 2.0f
static __device__ float
scaled(float x) { return SCALE * x; }

extern "C" __global__
__launch_bounds__(THREADS, 2)
void k1(ARGUMENTS)
{
  out[threadIdx.x] = scaled(bias);
}
"""


def test_one_kernel_with_functions_of_its_own(printed: dict[str, str]) -> None:
    """Other kernels are as printed, and so compiled once. Messages of the compiler have lines of the file."""
    text = printed["sm_90a"]
    head = re.search(r"__launch_bounds__\((\d+)\) k1\((.*)\) \{", text)
    assert head is not None
    hand = HAND.replace("THREADS", head[1]).replace("ARGUMENTS", head[2].replace("__restrict__ ", ""))
    out = head[2].rpartition(" ")[2]
    merged = merged_text(text, hand.replace("out[", f"{out}["), "hand.cu")
    assert (merged.changed, merged.lines) == (("k1",), {"k1": 7})
    before, after = kernel_texts(text), kernel_texts(merged.text)
    assert before[0].text == after[0].text
    assert before[1].text != after[1].text
    with pytest.raises(CompileError, match='refuses the text: identifier "bias"') as refusal:
        nvrtc.compile_cubin(merged.text, "sm_90a")
    assert refusal.value.location == "hand.cu:9"


def test_the_emulator_names_the_line(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """The text states its target. A fault in it is reported by the emulator with the line of the file."""
    program = ["-c", "torch.randn(4, 64).softmax(-1)"]
    assert main(["compile", *program, "--target", "sm_80", "-o", str(file := tmp_path / "k.cu")]) == 0
    text = file.read_text()
    store = next(line for line in text.splitlines() if "&out[" in line)
    file.write_text(text.replace(store, store.replace("&out[", "&out[4096 + ")))
    assert main(["run", *program, "--kernel-text", str(file)]) == 1
    error = capsys.readouterr().err
    assert error.startswith(f"{file}:{line_of(text, store)}: error: out-of-bounds in k0, ")


def test_the_wrong_one_of_several_kernels_is_named(tmp_path: Path) -> None:
    """Each kernel of the file runs alone among printed kernels. If each alone is right, all of them are named."""
    printed = load(None, CODE, "cpu", record="none").compilation
    edited = printed.cpp.replace("load(&total[i])", "load(&total[i]) + 1.0f").replace("[i], v1)", "[i], v1 + 2.0f)")
    (file := tmp_path / "k.cpp").write_text(edited)
    text = read_kernel_text(printed, str(file))
    assert text.changed == ("k0", "k1")
    for is_right, names in (
        (lambda p: "+ 2.0f" not in p.cpp, ("k1",)),
        (lambda p: not ("+ 1.0f" in p.cpp and "+ 2.0f" in p.cpp), ("k0", "k1")),
        (lambda _: False, ()),
    ):
        outcome: dict[str, Any] = {"ok": False}
        judge_edited(text, printed, outcome, is_right)
        assert outcome["edited"]["wrong"] == {name: text.location(name) for name in names}
        assert outcome["edited"]["printed_ok"] == bool(names)


def test_two_schedules_have_to_differ(capsys: pytest.CaptureFixture[str]) -> None:
    program = ["run", "-c", "torch.relu(torch.randn(64, 48))", "--target", "cpu", "--bench"]
    for options, message in (
        (["--against", "block=3,5"], "expected powers of two in block, but got 3"),
        (["--against", "colour=3"], "unknown option 'colour'"),
        (["--against", "warps=1", "--against", "warps=1"], "expected different schedules"),
        (["--against", "warps=1", "-p", "cse"], "--against and --pipeline exclude each other"),
    ):
        assert main([*program, *options]) in (1, 2)
        assert message in capsys.readouterr().err
    assert main([*program[:-1], "--against", "warps=1"]) == 2
    assert "give one of them" in capsys.readouterr().err
