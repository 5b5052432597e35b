"""Sections of the report page about fusion, schedules, layouts, times, memory and other runs: data, texts, escaping."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from html import escape
from importlib.util import find_spec
from pathlib import Path

import pytest
from xdsl.dialects.func import FuncOp

from deplodock.backend.host.launch_plan import Launch, make_plan
from deplodock.dialects.layouts import attr_of
from deplodock.dialects.layouts.linear import Linear, Shared, ordered, wavefronts
from deplodock.dialects.loop import NestOp
from deplodock.errors import CompileError, ExecutionError
from deplodock.extras.report import against, candidates, fusion, launches, layouts, machine, times
from deplodock.extras.report.graph import arrange
from deplodock.extras.report.program import ReportedProgram
from deplodock.extras.report.sections import sections_of
from deplodock.extras.report.write import assembled
from deplodock.frontend.compilation import Compilation
from deplodock.frontend.machine_code import machine_code
from deplodock.frontend.tuning.fusion_space import FusionCut, explain_fusion, fusion_prices
from deplodock.passes.planning.choose import explain_nest
from deplodock.tools.reports import Loaded, as_json, load, memory_of

CODE = "torch.relu(torch.randn(32, 64) @ torch.randn(64, 48)) @ torch.randn(48, 32)"


@pytest.fixture(scope="module")
def loaded() -> Loaded:
    return load(None, CODE, "sm_90a", record="none")


@pytest.fixture(scope="module")
def program(loaded: Loaded) -> ReportedProgram:
    return ReportedProgram(loaded.compilation, loaded=loaded)


def test_fusion_has_the_prices_of_explain(program: ReportedProgram) -> None:
    section, prices = fusion.section(program), fusion_prices(program.compilation)
    assert section is not None
    assert prices is not None
    text, priced = explain_fusion(program.compilation), [c for c in prices.cuts if c.seconds is not None]
    assert len(priced) >= 2
    for cut in priced:
        assert cut.seconds is not None
        price = f"{(cut.seconds - prices.seconds) * 1e6:+.2f} us"
        assert f"the other way {price}: --schedule '{cut.schedule}'" in text
        assert f"{'cut' if cut.materialized else 'keep'} {price}" in section.html
        assert f"--schedule &#x27;{cut.schedule}&#x27;" in section.html
    assert {c["name"]: c["seconds"] for c in section.data["cuts"]} == {c.name: c.seconds for c in prices.cuts}
    assert "<expression>" not in section.html
    assert "&lt;expression&gt;:1" in section.html


def test_graph_has_all_kernels_and_reads(program: ReportedProgram) -> None:
    prices, tensors = fusion_prices(program.compilation, 0), program.compilation.at("tensor")
    assert prices is not None
    (main,) = (op for op in tensors.ops if isinstance(op, FuncOp))
    graph = fusion.graph_of(main, prices.kernels, fusion.nest_names(program.compilation))
    kernels = [node for node in graph if node.kind == "kernel"]
    assert [node.stored for node in kernels] == [(k.root,) for k in prices.kernels]
    assert [node.reads for node in kernels] == [k.reads for k in prices.kernels]
    assert [node.title.split(" ")[0] for node in kernels] == [f"k{i}" for i in range(len(kernels))]
    assert [node.title for node in graph if node.kind == "argument"] == ["%x", "%x1", "%x2"]


@pytest.mark.skipif(find_spec("cuda") is None, reason="needs NVRTC and nvdisasm")
def test_machine_code_has_its_lines(program: ReportedProgram, monkeypatch: pytest.MonkeyPatch) -> None:
    """Instructions and lines of CUDA have the same numbers. The facts equal `--json`. A missing tool is named."""
    section = machine.section(program)
    assert section is not None
    compiled = machine_code(program.compilation, program.kernels, lines=True)
    facts = {"kernels": compiled.facts()["kernels"], "compiler": compiled.compiler}
    assert {name: section.data[name] for name in facts} == facts
    kernels = section.html.split('<details class="machine"')[1:]
    assert len(kernels) == len(compiled.kernels)
    for html, lines in zip(kernels, section.data["origins"], strict=True):
        cuda, code = re.split(r'<div class="pane" data-pane="k\d+-code"', html)
        numbers = [{int(n) for n in re.findall(r'data-o="(\d+)"', part)} for part in (cuda, code)]
        assert numbers[0] == numbers[1] == set(lines) != set()
        name = re.search(r"<code>(k\d+)</code>", html)
        assert name is not None
        kernel = compiled.kernels[name[1]]
        assert kernel.code is not None
        assert kernel.resources is not None
        assert html.count('<span class="l hot"') == len(kernel.code.hot_loop or ())
        assert f'<td class="num">{kernel.resources.registers}</td>' in html

    def missing(*_: object, **__: object) -> None:
        raise ExecutionError("NVRTC is not available: pip install cuda-bindings")

    monkeypatch.setattr(machine, "machine_code", missing)
    section = machine.section(program)
    assert section is not None
    assert section.html == '<p class="note">NVRTC is not available: pip install cuda-bindings</p>'


def test_arranged_graphs_have_no_overlaps() -> None:
    sizes = {name: (50.0, 20.0) for name in "abcdef"}
    edges = [("a", "c"), ("b", "c"), ("a", "f"), ("c", "d"), ("c", "e"), ("d", "f"), ("e", "f")]
    layout = arrange(sizes, edges)
    boxes = [*layout.corners.values()]
    assert all(x >= 0 and x + 50 <= layout.width + 1e-6 for x, _ in boxes)
    for i, (x, y) in enumerate(boxes):
        assert all(abs(x - other) >= 50 or abs(y - row) >= 20 for other, row in boxes[:i])
    for (source, target), route in zip(edges, layout.routes, strict=True):
        assert route[0][1] == layout.corners[source][1] + 20
        assert route[-1][1] == layout.corners[target][1]
        assert [y for _, y in route] == sorted(y for _, y in route)


def test_candidates_are_those_of_explain(program: ReportedProgram, loaded: Loaded) -> None:
    section = candidates.section(program)
    assert section is not None
    compilation = program.compilation
    nests = [op for op in compilation.at("loop").walk() if isinstance(op, NestOp)]
    decided = [op.attributes["schedule"] for op in compilation.scheduled().walk() if isinstance(op, NestOp)]
    assert len(section.data) == len(nests) > 1
    for nest, data, schedule in zip(nests, section.data, decided, strict=True):
        lines = explain_nest(data["name"], nest, compilation.resolved).splitlines()
        assert f"{data['schedules']} schedules for" in lines[0]
        assert data["chosen"] == str(schedule)
        for number, c in enumerate(data["candidates"], 1):
            assert lines[number].startswith(f"  {number}. {c['cost'] * 1e6:.2f} us")
            assert c["schedule"].removeprefix("#tile.schedule") in lines[number]
            assert all(f"{part} {seconds * 1e6:.2f}" in lines[number] for part, seconds in c["parts"].items())


def test_refused_candidates_are_listed_with_their_reasons() -> None:
    compilation = load(None, "nn.RMSNorm(2048)(torch.randn(1, 32, 2048))", "sm_90a", record="none").compilation
    (nest,), section = candidates.candidates_of(compilation), candidates.section(ReportedProgram(compilation))
    assert section is not None
    assert f"{len(nest.refused)} schedules refused" in section.html
    assert all(c.refused in section.html for c in nest.refused)
    assert f"{len(nest.ranked) - len(nest.refused) - candidates.SHOWN} slower candidates" in section.html


def test_pasted_schedule_replaces_the_choice(program: ReportedProgram, loaded: Loaded) -> None:
    first, *_ = candidates.candidates_of(program.compilation)
    other = first.possible[2].schedule
    argument = candidates.schedule_argument(first, other)
    assert f"--schedule &#x27;{argument}&#x27;" in candidates.section(program).html  # pyright: ignore
    changed = load(None, CODE, "sm_90a", record="none", schedule=argument).compilation
    chosen, *_ = candidates.candidates_of(changed)
    assert chosen.chosen.schedule == other != first.chosen.schedule
    assert candidates.paste_prefix(load(None, CODE, "sm_90a", schedule="roots=%2; warps=2").compilation) == "roots=%2; "


def test_layouts_have_the_elements_and_wavefronts_of_the_layout_functions(program: ReportedProgram) -> None:
    used = layouts.layouts_of(program.compilation.at("tile"))
    text = program.compilation.text("tile")
    assert all(f"{u.name} = {str(attr_of(u.layout))[:40]}"[:30] in text for u in used)
    registers = next(u for u in used if isinstance(u.layout, Linear) and len(u.layout.shape) == 2)
    assert isinstance(registers.layout, Linear)
    lines = re.sub(r"<[^>]*>", "", layouts.grid(registers.layout, 4)).splitlines()
    for row, column in ((0, 0), (3, 5), (7, 2)):
        lane, _, register = lines[1 + row].split()[1 + column].partition(".")
        held = {registers.layout.apply(int(register), int(lane), w) for w in range(registers.layout.warps)}
        assert (row, column) in held
    section = layouts.section(program)
    assert section is not None
    assert all(str(attr_of(u.layout)).partition("<")[2][:-1] in section.html for u in used)
    shared = [u for u in used if isinstance(u.layout, Shared)]
    assert shared
    for u in shared:
        assert isinstance(u.layout, Shared)
        assert {a.operation.split(" ")[0] for a in u.accesses} >= {"tile.dot"}
        for a in u.accesses:
            images = tuple(u.layout.images(a.layout.lane))
            assert a.wavefronts == wavefronts(images, a.elements, a.bytes_each)
        bank = re.sub(r"<[^>]*>", "", layouts.grid(u.layout, u.bytes_each)).splitlines()[2].split()[1]
        assert int(bank) == u.layout.place((1, 0)) * u.bytes_each // 4 % 32


def test_sentence_gives_the_element_of_its_example() -> None:
    layout = Linear((8, 8), ((0, 1),), ((0, 2), (0, 4), (1, 0), (2, 0), (4, 0)), ())
    assert "holds [0, 1] ^ [0, 2] ^ [1, 0] = element [1, 3]" in layouts.sentence(layout)
    assert [*layout.apply(1, 5, 0)] == [1, 3]
    swizzled = ordered((8, 8), (1, 0), [(8, 1)])
    assert "Offset 37 = binary 100101 holds" in layouts.sentence(swizzled)
    assert "bases with two coordinates (1) swizzle it" in layouts.sentence(swizzled)


def test_launches_are_those_of_the_plan(program: ReportedProgram, loaded: Loaded) -> None:
    section, plan = launches.section(program), make_plan(program.compilation.at("kernel"))
    memory = memory_of(loaded)
    assert section is not None
    assert memory is not None
    assert section.data["memory"] == {k: memory[k] for k in ("arguments", "results", "arena")} | {"constants": 0}
    assert [row["name"] for row in section.data["rows"]] == [x.kernel for x in plan.launches]
    rows = launches.folded([x.kernel for x in plan.launches], plan.steps)
    ((edge, buffers),) = launches.edges_of(plan, rows, launches.written_by(program.compilation.at("kernel"))).items()
    assert edge == (0, 1)
    assert plan.buffers[buffers[0]].bytes == plan.call_bytes


@pytest.mark.parametrize(
    ("names", "rows"),
    [
        ("abcabcabcd", ["a0,3,6", "b1,4,7", "c2,5,8", "d9"]),
        ("xabab", ["x0", "a1,3", "b2,4"]),
        ("aab", ["a0,1", "b2"]),
    ],
)
def test_repeated_launches_are_folded(names: str, rows: list[str]) -> None:
    steps = [Launch(name, (), (), 0, ()) for name in names]
    assert [f"{r.name}{','.join(map(str, r.numbers))}" for r in launches.folded([*names], steps)] == rows


def test_times_are_those_of_the_profile(program: ReportedProgram) -> None:
    section = times.section(program)
    assert section is not None
    assert program.profile is not None
    assert [k["seconds"] for k in section.data["kernels"]] == [c.seconds for c in program.profile.costs]
    for cost in program.profile.costs:
        assert f"{cost.roofline:.0%}" in section.html
        assert f"<code>{cost.name}</code>" in section.html


def test_two_runs_are_compared(loaded: Loaded, tmp_path: Path) -> None:
    first, second = tmp_path / "a.html", tmp_path / "b.json"
    page = assembled("<b>", "", [], against.recorded(ReportedProgram(loaded.compilation, loaded=loaded, command="<i>")))
    first.write_text(page, encoding="utf-8")
    second.write_text(json.dumps(as_json(loaded, "cuda")), encoding="utf-8")
    changed = load(None, CODE, "sm_90a", record="none", schedule="warps=2").compilation
    program = ReportedProgram(changed, against=str(first))
    run, other, bare = against.run_of(program), against.read_run(str(first)), against.read_run(str(second))
    assert run is not None
    assert other == against.run_of(ReportedProgram(loaded.compilation, loaded=loaded, command="<i>"))
    assert [(k.name, k.seconds) for k in bare.kernels] == [(k.name, k.seconds) for k in other.kernels]
    assert bare.text == other.text
    section = against.section(program)
    assert section is not None
    assert against.ratio_text(run.seconds, other.seconds) in section.html
    assert "+  // schedule" not in section.html
    assert all(escape(s, quote=True) in section.html for k in (*run.kernels, *other.kernels) for s in k.schedules)
    assert "<i>" not in section.html
    same = against.section(ReportedProgram(loaded.compilation, loaded=loaded, command="<i>", against=str(second)))
    assert same is not None
    assert "The texts are equal." in same.html


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (None, "cannot read"),
        ("<html></html>", "expected a page of --report or the output of `compile --json`, but got"),
        ('{"kernels": [{"name": 1}]}', "expected a page of --report"),
        ('<script type="application/json" id="data">{"run": null}</script>', "without a run; write it again with"),
    ],
)
def test_other_files_are_refused(text: str | None, reason: str, tmp_path: Path) -> None:
    path = tmp_path / "other"
    if text is not None:
        path.write_text(text, encoding="utf-8")
    with pytest.raises(CompileError, match=re.escape(reason)) as error:
        against.read_run(str(path))
    assert error.value.argument == "--report-against"


@pytest.mark.parametrize(("level", "names"), [("tile", {"layouts", "launches"}), ("kernel", {"launches"})])
def test_programs_of_lower_levels_have_the_sections_that_apply(loaded: Loaded, level: str, names: set[str]) -> None:
    module = loaded.compilation.at(level).clone()
    program = ReportedProgram(Compilation(module, "sm_90a", level=level, record="none"))
    assert {s.name for s in sections_of(program)} - {"passes"} == {"overview", "levels"} | names
    assert program.subtitle.endswith("2 kernels")
    assert against.run_of(program) is None


def test_faster_plans_are_marked() -> None:
    cut = FusionCut("%1", 1, "arith.mulf", None, None, True, False, 64, seconds=2e-6)
    assert fusion.price_text(cut, 3e-6) == "cut -1.00 us ▼"
    assert fusion.price_text(cut, 2e-6) == "cut +0.00 us"
    assert fusion.price_text(replace(cut, required=True), 3e-6) == "always stored"
    assert fusion.price_text(replace(cut, seconds=None, materialized=False), 3e-6) == ""
