"""`dl-gui`, driven by textual's pilot: the tree of passes, the views of the result, and verdicts."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from deplodock.passes.pipelines import parse_passes, pipeline_text

pytest.importorskip("textual")
pytest.importorskip("pyclip")

from deplodock.tools import dl_gui, gui  # noqa: E402

LOWERING = "tensor-to-loop,loop-to-tile,tile-to-kernel"


def drive(app: gui.PassExplorer, steps: Callable[[gui.PassExplorer, Any], Awaitable[None]]) -> None:
    """Runs steps with an application and a pilot."""

    async def run() -> None:
        async with app.run_test(size=(160, 50)) as pilot:
            await pilot.pause()
            await steps(app, pilot)

    asyncio.run(run())


def column(app: gui.PassExplorer, number: int) -> list[str]:
    return [str(app.passes_view.get_row_at(row)[number]) for row in range(app.passes_view.row_count)]


def test_a_pipeline_of_the_tree() -> None:
    """The passes are sorted by level. A chosen pipeline runs, and every view shows its result."""

    async def steps(app: gui.PassExplorer, pilot: Any) -> None:
        groups = {str(node.label): node for node in app.passes_tree.root.children}
        assert [*groups][:4] == ["pipelines", "general", "torch", "tensor"]
        assert "loop-fuse-reductions" in [str(node.label) for node in groups["loop"].children]
        assert "add the pipelines" in app.printed_view.text
        for name in LOWERING.split(","):
            pipelines = app.passes_tree.root.children[0].expand()
            app.passes_tree.focus()
            await pilot.pause()
            app.passes_tree.move_cursor(next(n for n in pipelines.children if n.data == name))
            await pilot.press("enter")
            await pilot.pause()
        assert pipeline_text(app.pass_pipeline) == pipeline_text(parse_passes(LOWERING))
        assert app.get_query_string() == f"dl-opt - -p '{pipeline_text(app.pass_pipeline)}'"
        assert "kernel.func @k0" in app.output_text_area.text
        assert 'extern "C" __global__' in app.printed_view.text
        assert [run.name for run in app.recording.passes] == [p.name for p in app.pass_pipeline]
        assert {*column(app, 0)} == {"●", "○", "-"}
        assert column(app, 1)[0] == "tensor-plan-fusion"
        app.passes_view.move_cursor(row=0)
        await pilot.pause()
        assert "+    %sum = tensor.reduce add %positive over [1] {fuse.root}" in str(app.diff_view.content)
        for key, name in zip("1234", ("#output", "#passes_view", "#diff_view", "#printed_view"), strict=True):
            app.passes_tree.focus()
            await pilot.press(key)
            await pilot.pause()
            shown = [n for n in ("#output", "#passes_view", "#diff_view", "#printed_view") if app.query_one(n).display]
            assert shown == [name]
        await pilot.press("backspace")
        await pilot.pause()
        assert len(app.pass_pipeline) == len(parse_passes(LOWERING)) - 1

    drive(gui.PassExplorer(), steps)


def test_verdicts_of_each_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    """The key `c` executes the program after each pass. A pass that changes the results is marked."""
    from xdsl.context import Context
    from xdsl.dialects.builtin import ModuleOp

    from deplodock.dialects.tensor import ReduceOp
    from deplodock.passes.tensor.plan_fusion import PlanFusionPass

    real = PlanFusionPass.apply

    def wrong(self: PlanFusionPass, ctx: Context, op: ModuleOp) -> None:
        real(self, ctx, op)
        for reduce in (o for o in op.walk() if isinstance(o, ReduceOp)):
            reduce.operands[0] = reduce.operands[0].owner.operands[0]  # pyright: ignore

    async def checked(app: gui.PassExplorer, pilot: Any) -> None:
        app.passes_tree.focus()
        await pilot.press("c")
        await app.workers.wait_for_complete()
        await pilot.pause()

    async def right(app: gui.PassExplorer, pilot: Any) -> None:
        await checked(app, pilot)
        assert column(app, 4)[:2] == ["same results", "same results"]
        assert str(app.query_one("#output_container").border_subtitle).startswith("16 passes, ")

    async def faulty(app: gui.PassExplorer, pilot: Any) -> None:
        assert column(app, 0)[0] == "●"
        await checked(app, pilot)
        assert column(app, 0)[0] == "✕"
        assert column(app, 4)[0].startswith("pass tensor-plan-fusion changed the answer")

    drive(gui.PassExplorer(pipeline="tensor-to-loop"), right)
    monkeypatch.setattr(PlanFusionPass, "apply", wrong)
    drive(gui.PassExplorer(pipeline="tensor-plan-fusion"), faulty)


def test_errors_are_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    async def steps(app: gui.PassExplorer, pilot: Any) -> None:
        assert app.output_text_area.text == "<input>:1:1: unknown operation 'builtin.nothing'"
        assert app.printed_view.text == app.output_text_area.text
        app.input_text_area.load_text("")
        await pilot.pause()
        assert app.output_text_area.text == "no input"

    drive(gui.PassExplorer(text="builtin.nothing"), steps)
    file = tmp_path / "program.mlir"
    file.write_text(gui.EXAMPLE)
    assert dl_gui.main([str(file), "-p", "loop-fuse"]) == 1
    assert "dl-gui: error: " in capsys.readouterr().err
