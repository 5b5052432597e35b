"""Section "Overview": the program as it was typed, its signature and target, and its kernels with their costs."""

from __future__ import annotations

from collections.abc import Sequence

from ...backend.cpp.writer import sanitise
from ...dialects.support.printing import quantity
from ...frontend.kernels import Kernel
from ...frontend.profile import Cost
from ...target.attribute import on_cores
from ...tools.reports import outcome_text
from ...tools.tables import by_file, seconds, si
from .html import Html, code_block, element, joined, table, to_paste
from .program import ReportedProgram
from .sections import Section


def section(program: ReportedProgram) -> Section:
    """Returns the section."""
    parts = [
        _refusal(program),
        _typed(program),
        _facts(program),
        _kernels(program),
        _outcome(program),
        _remarks(program),
    ]
    return Section("overview", "Overview", joined(filter(None, parts)))


def _refusal(program: ReportedProgram) -> Html | None:
    error = program.refusal
    if error is None:
        return None
    place = f"{error.location}: " if error.location else ""
    return element(
        "div", element("strong", "✕ refused"), " ", f"{place}{error.message}", class_="refused", role="alert"
    )


def _typed(program: ReportedProgram) -> Html | None:
    text = program.typed.strip("\n")
    return code_block(text, "python", class_="typed") if text else None


def _facts(program: ReportedProgram) -> Html:
    passes = program.passes
    changed = sum(run.state == "changed" for run in passes)
    total = sum(run.seconds for run in passes)
    rows: list[tuple[str, object]] = [
        ("signature", element("code", program.signature)),
        *([("parameters", program.parameters)] if program.parameters else []),
        ("target", program.hardware),
        ("passes", f"{len(passes)}, {changed} changed the program, {seconds(total)} measured"),
    ]
    if program.command:
        rows.append(("this page again", to_paste(program.command)))
    return element("dl", *(joined([element("dt", name), element("dd", value)]) for name, value in rows), class_="facts")


def _kernels(program: ReportedProgram) -> Html | None:
    profile = program.profile
    if profile is None:
        return None
    costs = {cost.name: cost for cost in profile.costs}
    cores = on_cores(program.compilation.target)
    heads = ["kernel", "limit", "predicted", *(["measured", "share"] if program.is_measured else ["share"])]
    heads += ["bytes", "FLOP", "tasks" if cores else "blocks"]
    heads += ["lines"] if cores else ["threads", "registers", "shared", "lines"]
    rows = [_row(k, costs.get(k.name), program, cores) for k in program.kernels]
    note = f"Times and limits are {profile.source}."
    if program.is_measured:
        note = f"Predicted times are those of the planning model for {program.hardware}. Others are {profile.source}."
    note += " Bytes and FLOP are the least that one launch moves and computes."
    note += "" if cores else " Registers of a thread are predicted. Shared bytes are those of a block."
    if profile.call is not None:
        note += f" A call takes {seconds(profile.call)}, measured."
    return joined(
        [element("h3", "Kernels"), table(heads, rows, 2, is_last_text=True), element("p", note, class_="note")]
    )


def _row(kernel: Kernel, cost: Cost | None, program: ReportedProgram, cores: bool) -> Sequence[object]:
    """Returns the cells of a kernel."""
    name = kernel.name + (f" × {kernel.launches}" if kernel.launches > 1 else "")
    launches = max(kernel.launches, 1)
    limit = kernel.limit if cost is None or not program.is_measured else f"{cost.limit} ({kernel.limit} predicted)"
    code = element("code", name, class_="name")
    row: list[object] = [code, limit, seconds(launches * kernel.predicted)]
    if program.is_measured:
        row.append(seconds(cost.seconds) if cost is not None else "")
    row += [f"{cost.share:.0%}" if cost is not None else "", f"{si(kernel.work.bytes)}B", si(kernel.work.flops).strip()]
    row.append(kernel.blocks)
    if not cores:
        row += [kernel.threads, kernel.expected.registers if kernel.expected else "", f"{kernel.shared_bytes:,} B"]
    return [*row, ", ".join(by_file(kernel.lines))]


def _outcome(program: ReportedProgram) -> Html | None:
    if program.outcome is None:
        return None
    return joined([element("h3", "Results"), element("pre", outcome_text(dict(program.outcome)), class_="plain")])


def _remarks(program: ReportedProgram) -> Html | None:
    remarks = [str(r) for r in program.compilation.remarks] if program.is_complete else []
    eager = [str(call) for call in program.compilation.eager.values()]
    if not remarks and not eager:
        return None
    lines = [element("li", sanitise(line)) for line in (*eager, *remarks)]
    head = element("summary", quantity(len(lines), "remark"), " of passes, and calls that PyTorch executes")
    return element("details", head, element("ul", *lines))
