"""Application of `dl-gui`: xDSL's terminal interface with passes by level, diffs, verdicts and the printed text."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

from rich.text import Text
from textual import on, work  # pyright: ignore[reportMissingImports]
from textual.app import ComposeResult  # pyright: ignore[reportMissingImports]
from textual.containers import VerticalScroll  # pyright: ignore[reportMissingImports]
from textual.widgets import (  # pyright: ignore[reportMissingImports]
    DataTable,
    Static,
    Tab,
    Tabs,
    TextArea,
    Tree,
)
from xdsl.dialects.builtin import ModuleOp
from xdsl.interactive import app
from xdsl.interactive.app import InputApp
from xdsl.interactive.passes import AvailablePass

from ..backend.check_each import is_kernel_level
from ..dialects import get_all_dialects, make_context
from ..dialects.support.parsing import parse_module
from ..dialects.support.printing import WIDTH, print_module
from ..errors import CompileError, DeplodockError, one_line
from ..passes import GROUPS, group_of
from ..passes.pass_manager import collect_remarks, diff_lines, run_passes
from ..passes.pipelines import get_all_passes, get_all_pipelines, parse_passes, pipeline_text
from ..target.attribute import target_of
from .pass_help import description, reflowed
from .recording import CHANGED, REFUSED, UNCHANGED, PassRun, Recording

MARKS = {CHANGED: "●", UNCHANGED: "○", REFUSED: "✕"}
"""State of a pass -> its mark."""

VIEWS = {"output": "IR", "passes": "Passes", "diff": "Diff", "printed": "CUDA / C++"}
"""Identifier of a view of the result -> title of its tab."""

DIFF_CONTEXT = 3
"""Unchanged lines before and after each change of a diff."""

EXAMPLE = """func.func public @main(%x: tensor<64x32xf32>) -> tensor<64xf32> {
  %zero = payload.constant 0.000000e+00 : tensor<64x32xf32>
  %positive = arith.maximumf %x, %zero : tensor<64x32xf32>
  %sum = tensor.reduce add %positive over [1] : tensor<64x32xf32> -> tensor<64xf32>
  func.return %sum : tensor<64xf32>
}
"""
"""Program that is shown without a file: `relu(x).sum(-1)`."""


class PassExplorer(InputApp):
    """xDSL's application for pipelines, with our parser, pass manager and printers.

    The tree has the named pipelines and the passes by level. The result has four views: the IR, the passes with their
    verdicts, the diff of the chosen pass, and the printed CUDA or C++.
    """

    BINDINGS: ClassVar[list[Any]] = [
        ("c", "check_each", "Execute after each pass"),
        ("backspace", "remove_pass", "Remove the last pass"),
        *(
            (str(number), f"view('{name}')", title.replace(" / ", "/"))
            for number, (name, title) in enumerate(VIEWS.items(), 1)
        ),
    ]

    CSS_PATH = Path(app.__file__).with_name("app.tcss")
    CSS = """
    #passes_view, #diff_view, #printed_view { height: 1fr; display: none }
    #output { height: 1fr }
    #views { height: 3 }
    #veritcal_tree_selected_passes_list_view { height: 1fr }
    #selected_passes_list_view { max-height: 40% }
    #passes_tree { height: 1fr }
    """

    def __init__(self, file: str | None = None, text: str | None = None, pipeline: str = "") -> None:
        """Starts with the IR `text` of a file, or an example, and the passes of a pipeline text."""
        passes = tuple((name, load()) for name, load in get_all_passes().items())
        dialects = tuple(get_all_dialects().items())
        self.recording = Recording()
        self.passes_view = DataTable(id="passes_view", cursor_type="row", zebra_stripes=True)
        self.diff_view = Static(id="diff")
        self.printed_view = TextArea(id="printed_view", read_only=True)
        super().__init__(dialects, passes, file, EXAMPLE if text is None else text, parse_passes(pipeline))

    def compose(self) -> ComposeResult:
        """Composes the widgets of xDSL's application."""
        self.passes_view.add_columns("", "pass", "operations", "ms", "verdict")
        yield from super().compose()

    async def on_mount(self) -> None:
        """Adds the views to the pane of the result."""
        tabs = Tabs(*(Tab(title, id=name) for name, title in VIEWS.items()), id="views")
        diff = VerticalScroll(self.diff_view, id="diff_view")
        pane = self.query_one("#output_container")
        await pane.mount(tabs, before=0)
        await pane.mount(self.passes_view, diff, self.printed_view, after=self.output_text_area)

    # The tree of passes

    def compute_available_pass_list(self) -> tuple[AvailablePass, ...]:
        """Returns all passes, or in the condensed mode of xDSL the passes that change the program."""
        if self.condense_mode:
            return super().compute_available_pass_list()
        return tuple(AvailablePass(cls) for _, cls in self.all_passes)

    def expand_node(self, expanded_pass: Any, child_pass_list: Sequence[AvailablePass]) -> None:
        """Fills a node with the named pipelines, and the passes in one node for each level."""
        expanded_pass.remove_children()
        pipelines = expanded_pass.add("pipelines")
        for name in get_all_pipelines():
            pipelines.add_leaf(name, data=name)
        groups: dict[str, list[AvailablePass]] = {group: [] for group in GROUPS}
        for value in child_pass_list:
            groups[group_of(value.module_pass.name)].append(value)
        for group, values in groups.items():
            if values:
                node = expanded_pass.add(group)
                for value in values:
                    node.add_leaf(str(value), data=value.module_pass)

    @on(Tree.NodeExpanded, "#passes_tree")
    def keep_group(self, event: Any) -> None:
        """Keeps the contents of a node, which xDSL's application would replace by all passes."""
        event.prevent_default()

    @on(Tree.NodeSelected, "#passes_tree")
    def add_pipeline(self, event: Any) -> None:
        """Adds the passes of a named pipeline. xDSL's application adds single passes."""
        if isinstance(event.node.data, str):
            event.prevent_default()
            self.pass_pipeline = (*self.pass_pipeline, *parse_passes(event.node.data))

    @on(Tree.NodeHighlighted, "#passes_tree")
    def describe(self, event: Any) -> None:
        """Shows the documentation of a pass as a tooltip of the tree."""
        data = event.node.data
        if isinstance(data, str):
            self.passes_tree.tooltip = get_all_pipelines()[data].replace(",", ", ")
        else:
            cls = data if isinstance(data, type) or data is None else type(data)
            self.passes_tree.tooltip = None if cls is None else reflowed(description(cls)).partition("\n\n")[0]

    def get_query_string(self) -> str:
        """Returns the command that runs the same passes."""
        passes = f" -p '{pipeline_text(self.pass_pipeline)}'" if self.pass_pipeline else ""
        return f"dl-opt {self.current_file_path or '-'}{passes}"

    def action_remove_pass(self) -> None:
        """Removes the last pass."""
        self.pass_pipeline = tuple(self.pass_pipeline)[:-1]

    # The result

    @on(TextArea.Changed, "#input")
    def run_on_changed_input(self, event: Any) -> None:
        """Runs the passes again after a change of the input."""
        event.prevent_default()
        self.update_current_module()

    def update_current_module(self) -> None:
        """Runs the passes on the input and shows the result."""
        self._set_verdict("")
        recording = Recording()
        self._show(recording, self._computed(recording))

    @work(thread=True, exclusive=True)
    def action_check_each(self) -> None:
        """Runs the passes again, and executes the program after each of them."""
        self.call_from_thread(self._set_verdict, "executing the program after each pass ...")
        recording = Recording(check_each=True)
        module = self._computed(recording)
        self.call_from_thread(self._set_verdict, f"{len(recording.passes)} passes, {recording.summary}")
        self.call_from_thread(self._show, recording, module)

    def _set_verdict(self, text: str) -> None:
        """Shows a text below the result: the summary of the executed versions."""
        self.query_one("#output_container").border_subtitle = text

    def _computed(self, recording: Recording) -> ModuleOp | Exception | None:
        """Runs the passes. Returns the module, the error that a pass raised, or None without input."""
        text = self.input_text_area.text
        if not text.strip():
            return None
        try:
            context = make_context()
            module = parse_module(context, text, self.current_file_path or "<input>")
            with collect_remarks():
                run_passes(context, module, self.pass_pipeline, [recording])
            return module
        except CompileError as error:
            recording.fail(error)
            return error
        except Exception as error:  # A fault of a pass: the interface shows it.
            failure = CompileError(one_line(error))
            recording.fail(failure)
            return failure

    def _show(self, recording: Recording, module: ModuleOp | Exception | None) -> None:
        """Shows the result of passes in all views."""
        self.recording = recording
        with_input = isinstance(module, ModuleOp)
        self.update_input_operation_count_tuple(module if with_input else ModuleOp([]))
        self.current_module = module
        self.passes_view.clear()
        for run in recording.passes:
            self.passes_view.add_row(*_row(run))
        changed = [n for n, run in enumerate(recording.passes) if run.state == CHANGED or run.error]
        chosen = changed[-1] if changed else len(recording.passes) - 1
        self.passes_view.move_cursor(row=chosen)
        self._show_diff(chosen)
        self.printed_view.load_text(_printed(module))
        self.query_one("#output_container").border_title = f"Result of {len(recording.passes)} passes"

    def watch_current_module(self) -> None:
        """Shows the IR of the result, or the error of a pass."""
        module = self.current_module
        if isinstance(module, ModuleOp):
            text = print_module(module, width=WIDTH)
        else:
            text = "no input" if module is None else str(module)
        self.output_text_area.load_text(text)
        self.update_operation_count_diff_tuple()

    @on(DataTable.RowHighlighted, "#passes_view")
    def show_diff_of_row(self, event: Any) -> None:
        """Shows the diff of the pass at the cursor."""
        self._show_diff(event.cursor_row)

    def _show_diff(self, number: int) -> None:
        """Shows the diff of a pass by its number in the pipeline."""
        if 0 <= number < len(self.recording.passes):
            self.diff_view.update(_diff(self.recording.passes[number]))
        else:
            self.diff_view.update("no pass")

    @on(Tabs.TabActivated, "#views")
    def show_view(self, event: Any) -> None:
        """Shows the view of a tab, and hides the others."""
        widgets = {"output": "#output", "passes": "#passes_view", "diff": "#diff_view", "printed": "#printed_view"}
        for name, selector in widgets.items():
            self.query_one(selector).display = name == event.tab.id

    def action_view(self, name: str) -> None:
        """Shows a view of the result by its identifier."""
        self.query_one("#views", Tabs).active = name


def _row(run: PassRun) -> tuple[str, ...]:
    """Returns mark, name, operations, time and verdict of a run."""
    if run.skipped:
        return "-", run.text, "", "", run.skipped
    remarks = "; ".join(r.why for r in run.remarks)
    verdict = run.error or run.verdict or remarks
    return MARKS[run.state], run.text, f"{run.ops_before} -> {run.ops_after}", f"{run.seconds * 1e3:.1f}", verdict


def _diff(run: PassRun) -> Text:
    """Returns the diff of a pass in colours, after its error, verdict and remarks."""
    text = Text(f"{MARKS[run.state]} {run.text}\n", style="bold")
    for line in (run.error, run.verdict, run.skipped, *map(str, run.remarks)):
        if line:
            text.append(f"{line}\n", "not bold italic")
    styles = {"+": "not bold green", "-": "not bold red", "@": "not bold cyan"}
    for line in diff_lines(run.before.splitlines(), run.after.splitlines(), DIFF_CONTEXT):
        text.append(f"{line}\n", styles.get(line[:1], "not bold"))
    return text


def _printed(module: ModuleOp | Exception | None) -> str:
    """Returns the CUDA or C++ of a module, or the reason why it has none."""
    if not isinstance(module, ModuleOp):
        return "" if module is None else str(module)
    if not is_kernel_level(module):
        return "The program is not at the kernel level: add the pipelines down to tile-to-kernel."
    from ..backend.cpu.printer import print_cpp
    from ..backend.cuda.printer import print_cuda

    try:
        return print_cuda(module) if target_of(module).core is None else print_cpp(module)
    except DeplodockError as error:
        return str(error)
