"""Records of plans: a written record is used again, also after edits, and errors in it are messages of one line."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from support.planned_products import product

import deplodock
from deplodock.dialects import loop, make_context
from deplodock.dialects.support.parsing import parse_module
from deplodock.errors import CompileError, ScheduleError, TargetError
from deplodock.frontend.capture.export import capture
from deplodock.frontend.compilation import Compilation
from deplodock.passes.pass_manager import collect_remarks, run_passes
from deplodock.passes.pipelines import parse_passes
from deplodock.passes.record_file import read_record
from deplodock.passes.records import Record, RecordPlans, plan_key
from deplodock.target.attribute import get_target
from deplodock.tools import cli

CODE = "F.gelu(nn.Linear(64, 128, dtype=torch.bfloat16)(torch.randn(64, 64, dtype=torch.bfloat16)))"

TWO = """
func.func @main(%x: tensor<4096xf32>, %y: tensor<4096xf32>) -> tensor<f32> {
  %s = loop.nest () in [] -> tensor<f32> {
    %0 = loop.reduce add (%k) in [4096] -> f32 {
      %a = loop.load %x[%k] : tensor<4096xf32>
      %b = loop.load %y[%k] : tensor<4096xf32>
      %c = arith.mulf %a, %b : f32
      loop.yield %c : f32
    }
    loop.yield %0 : f32
  }
  func.return %s : tensor<f32>
}"""


def key(text: str) -> str:
    module = parse_module(make_context(), text, "any.mlir")
    return plan_key(next(op for op in module.walk() if isinstance(op, loop.NestOp)))


def planned(text: str, passes: str, record: Record) -> str:
    module = parse_module(make_context(), text, "any.mlir")
    run_passes(make_context(), module, parse_passes(passes), [RecordPlans(record)])
    return str(module)


def written(path: Path, text: str = TWO, passes: str = "plan-schedules") -> Record:
    """Returns a saved record of the planner's decisions about a program."""
    record = Record(str(path))
    planned(text, passes, record)
    record.save()
    return record


def edited(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


def test_an_entry_is_found_whatever_names_places_and_schedules_are() -> None:
    assert key(TWO) == key(TWO.replace("%a", "%left").replace("@main", "@other"))
    assert key(TWO) == key(
        "\n\n"
        + TWO.replace(
            "-> tensor<f32> {\n    %0",
            "-> tensor<f32> attributes {schedule = #tile.schedule<block = [], chunk = [32], warps = 1>} {\n    %0",
        )
    )
    others = [
        TWO.replace("4096", "2048"),
        TWO.replace("f32", "f64"),
        TWO.replace("mulf", "addf"),
        TWO.replace("%a, %b", "%a, %a"),
        TWO.replace("loop.load %y", "loop.load %x"),
        TWO.replace("%y[%k]", "%y[4095 - %k]"),
    ]
    assert len({key(TWO), *map(key, others)}) == 7


def test_a_record_is_used_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A record is written, edited by hand, and used by the command, by `dl-opt` and by the Python API."""
    path = tmp_path / "plans.json"
    assert cli.main(["compile", "-c", CODE, "--write-record", str(path)]) == 0
    first = capsys.readouterr().out
    assert cli.main(["compile", "-c", CODE, "--record", str(path)]) == 0
    again = capsys.readouterr().out
    assert again.replace(f"// deplodock options: --record {path.name}\n", "") == first
    (entry,) = read_record(str(path)).schedules["sm_90a"].values()
    assert "sums over [64]" in entry[1]
    edited(path, entry[0], "#tile.schedule<block = [32, 16], chunk = [32], warps = 2, atom = mma, copy = cp_async>")
    assert cli.main(["compile", "-c", CODE, "--record", str(path), "--ir", "tile"]) == 0
    assert "<block = [32, 16], chunk = [32], warps = 2, atom = mma, copy = cp_async>" in capsys.readouterr().out
    assert cli.main(["run", "-c", CODE, "--record", str(path), "--executor", "simulator"]) == 0
    assert capsys.readouterr().out.count("ok") == 1

    x, layer = torch.randn(64, 64, dtype=torch.bfloat16), torch.nn.Linear(64, 128, dtype=torch.bfloat16)
    f = deplodock.compile(lambda x: torch.nn.functional.gelu(layer(x)), [x], record=path)
    assert "block = [32, 16]" in f.ir("tile")
    assert f'record="{path}"' in f.pipeline
    elsewhere = deplodock.compile(lambda x: torch.nn.functional.gelu(layer(x)), [x], record=path, target="sm_80")
    assert "block = [32, 16]" not in elsewhere.ir("tile")


def test_what_is_fused_is_recorded(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, code = tmp_path / "plans.json", "(torch.randn(8, 8) + 1).relu().sum(0)"
    assert cli.main(["compile", "-c", code, "--write-record", str(path), "--ir", "loop"]) == 0
    assert capsys.readouterr().out.count("loop.nest") == 1
    record = read_record(str(path))
    ((name, kept),) = record.fusions.items()
    record.fusions[name] = [kept[-1] - 1, *kept]
    record.save()
    assert cli.main(["compile", "-c", code, "--record", str(path), "--ir", "loop"]) == 0
    assert capsys.readouterr().out.count("loop.nest") == 2


def test_records_add_up(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "plans.json"
    for n in (8, 16):
        assert cli.main(["compile", "-c", f"torch.randn({n}).exp()", "--write-record", str(path)]) == 0
    assert len(read_record(str(path)).schedules["sm_90a"]) == len(read_record(str(path)).fusions) == 2


def test_divided_sums_are_recorded_too(tmp_path: Path) -> None:
    """For a split reduction the record has the schedules of the parts and of the combining nest."""
    long = TWO.replace("4096", "1000000")
    passes = "plan-schedules,loop-split-k,plan-schedules{again}"
    record = written(tmp_path / "plans.json", long, passes)
    schedules = [s for s, _ in record.schedules["sm_90a"].values()]
    assert len(schedules) == 3
    assert sum("split_k" in s for s in schedules) == 1
    path = f'record="{record.path}"'
    again = f"plan-schedules{{{path}}},loop-split-k,plan-schedules{{again {path}}}"
    assert planned(long, again, Record("")) == planned(long, passes, Record(""))


def test_text_comes_before_options_before_the_record(tmp_path: Path) -> None:
    record = written(tmp_path / "plans.json")
    edited(
        tmp_path / "plans.json",
        record.schedules["sm_90a"][key(TWO)][0],
        "#tile.schedule<block = [], chunk = [256], warps = 2>",
    )
    given = f'plan-schedules{{record="{record.path}"'
    assert "chunk = [256], warps = 2>" in planned(TWO, given + "}", Record(""))
    assert "chunk = [64], warps = 2>" in planned(TWO, given + " chunk=64}", Record(""))
    text = TWO.replace(
        "{\n    %0", "attributes {schedule = #tile.schedule<block = [], chunk = [32], warps = 1>} {\n    %0"
    )
    assert "chunk = [32], warps = 1>" in planned(text, given + " chunk=64}", Record(""))


DAMAGED = {
    "no file": (None, "No such file"),
    "no JSON": ("{", "is damaged"),
    "deep": ("[" * 100_000, "is damaged"),
    "other JSON": ("[1, 2]", "expected a record of plans"),
    "other format": ('{"format": "x", "version": 1}', "expected a record of plans"),
    "newer": ('{"format": "deplodock plans", "version": 2}', "expected version 1, but got 2"),
    "no entries": ('{"format": "deplodock plans", "version": 1}', "is damaged: entries are missing"),
    "a number": (
        '{"format": "deplodock plans", "version": 1, "schedules": {"sm_90a": {"k": 3}}, "fusions": {}}',
        "is damaged",
    ),
    "positions": (
        '{"format": "deplodock plans", "version": 1, "schedules": {}, "fusions": {"k": ["0"]}}',
        "is damaged",
    ),
}


@pytest.mark.parametrize("case", DAMAGED)
def test_damaged_records_are_refused(tmp_path: Path, case: str, capsys: pytest.CaptureFixture[str]) -> None:
    text, why = DAMAGED[case]
    path = tmp_path / "plans.json"
    if text is not None:
        path.write_text(text)
    with pytest.raises(CompileError) as error:
        planned(TWO, f'plan-schedules{{record="{path}"}}', Record(""))
    assert str(error.value).startswith(f"{path}: record: ")
    assert why in str(error.value)
    if case in ("no JSON", "newer"):  # and a writer does not replace what it cannot read
        assert cli.main(["compile", "-c", CODE, "--write-record", str(path)]) == 1
        assert capsys.readouterr().err.count("\n") == 1
        assert path.read_text() == text


MISFITS = {
    "#tile.schedule<block = [4], chunk = [64]>": "block: 1 extents for 0 free indices",
    "#tile.schedule<block = [], chunk = [64], atom = wgmma, copy = tma, stages = 99>": "99 stages; at most 8",
    "#tile.schedule<block = [], chunk = [3]>": "expected powers of two in chunk, but got 3",
    "#tile.schedule<block = [], colour = red>": "unknown or repeated decision 'colour'",
    "#tile.schedule<block = []> and more": "expected the end of the text after",
    "[1, 2]": "expected a schedule, but got",
    "#sky.blue": "sky",
    "": "attribute",
}


@pytest.mark.parametrize("text", MISFITS)
def test_schedules_that_do_not_fit_are_left_to_the_planner(tmp_path: Path, text: str) -> None:
    record = written(tmp_path / "plans.json")
    plain = record.schedules["sm_90a"][key(TWO)][0]
    edited(tmp_path / "plans.json", plain, text)
    with collect_remarks() as remarks:
        assert plain in planned(TWO, f'plan-schedules{{record="{record.path}"}}', Record(""))
    (remark,) = map(str, remarks)
    assert "plans.json is refused, and the planner's is taken: " in remark
    assert re.search(MISFITS[text], remark)
    assert "\n" not in remark


def test_positions_that_a_function_has_not(tmp_path: Path) -> None:
    t = "tensor<4xf32>"
    program = f"func.func @main(%x: {t}) -> {t} {{\n  %y = math.exp %x : {t}\n  func.return %y : {t}\n}}"
    for position in (-1, 1, 7):
        record = written(tmp_path / "plans.json", program, "tensor-plan-fusion")
        ((name, _),) = record.fusions.items()
        record.fusions[name] = [position]
        record.save()
        with collect_remarks() as remarks:
            planned(program, f'tensor-plan-fusion{{record="{record.path}"}}', Record(""))
        (remark,) = map(str, remarks)
        assert f"the fusion {name} of {record.path} is refused: there is no operation {position}" in remark
        assert "the planner's plan is taken" in remark


def test_decisions_as_text_down_to_cuda() -> None:
    """Decisions of a schedule are options of `plan-schedules`, down to a kernel."""
    text = str(product(1024, 2048, 1024, "bf16").get_toplevel_object())
    module = parse_module(make_context(), text, "any.mlir")
    line = "plan-schedules{block=128,256 chunk=64 warps=8 atom=wgmma stages=3},loop-to-tile"
    run_passes(make_context(), module, parse_passes(line))
    assert "#tile.schedule<block = [128, 256], chunk = [64], warps = 8, stages = 3, atom = wgmma, copy = tma>" in str(
        module
    )
    assert "tile.producer_load" in str(module)
    run_passes(make_context(), module, parse_passes("tile-to-kernel"))
    assert "kernel.wgmma" in str(module)


def test_what_is_still_to_be_divided_is_not_lowered() -> None:
    text = TWO.replace(
        "{\n    %0", "attributes {schedule = #tile.schedule<block = [], chunk = [32], split_k = 4>} {\n    %0"
    )
    with pytest.raises(ScheduleError, match="run loop-split-k first"):
        planned(text, "convert-loop-to-tile", Record(""))
    options = "loop-to-tile{nest=k0 split_k=4}"
    assert planned(TWO, options, Record("")).count("tile.launch") == 2


def test_multiprocessors_are_part_of_a_record(tmp_path: Path) -> None:
    """A record has entries per number of multiprocessors. Without such entries those of the architecture are used."""
    path = tmp_path / "plans.json"
    text = "func.func @main(%x: tensor<4096x64xf32>) -> tensor<4096xf32> {\n" + (
        "  %s = tensor.reduce add %x over [1] : tensor<4096x64xf32> -> tensor<4096xf32>\n"
        "  func.return %s : tensor<4096xf32>\n}"
    )
    for few in (None, 20):
        record = Record(str(path))
        name = "sm_90a" if few is None else f"sm_90a:{few}"
        module = parse_module(make_context(), text, "test.mlir")
        passes = parse_passes(f"tensor-to-loop,plan-schedules{{target={name}}}")
        run_passes(make_context(), module, passes, [RecordPlans(record)])
        (nest,) = [op for op in module.walk() if isinstance(op, loop.NestOp)]
        assert list(record.schedules) == [name]
        own, other = get_target(name), get_target("sm_90a:30")
        assert record.schedule_for(make_context(), nest, own) == nest.attributes["schedule"]
        assert (record.schedule_for(make_context(), nest, other) is None) == (few is not None)
    with pytest.raises(TargetError, match="expected 1 to 1024 multiprocessors, but got 0"):
        get_target("sm_90a:0")


def test_multiprocessors_come_from_the_device(stub_cuda: Any) -> None:
    """A program for the local GPU's architecture is planned for its number of multiprocessors, and its IR says so."""
    captured = capture(lambda x: x.softmax(-1), (torch.zeros(114 * 4, 256),))
    plain = Compilation(captured.module)
    assert "deplodock.target = #deplodock.target<sm_90a>" in plain.text("loop")
    stub_cuda.multiprocessors = 114
    there, elsewhere = (Compilation(captured.module, target) for target in ("sm_90a", "sm_80"))
    assert (there.target, elsewhere.target) == ("sm_90a", "sm_80")
    assert 'deplodock.target = #deplodock.target<"sm_90a:114">' in there.text("loop")
    assert "deplodock.target = #deplodock.target<sm_80>" in elsewhere.text("loop")
