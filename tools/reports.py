"""Loads the programs of the `deplodock` command, and summarises and compares them."""

from __future__ import annotations

import json
import math
import sys
import warnings
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Any

import click
import torch
from xdsl.dialects.func import FuncOp as BuiltinFuncOp

from ..backend.check_each import operand_roundoff
from ..backend.cpp.writer import fold_sections
from ..backend.host.launch_plan import make_plan
from ..dialects import MACHINE_CODE
from ..dialects.kernel import FuncOp
from ..dialects.shapes.binding import bind_sizes, symbols_of
from ..dialects.shapes.extents import typical
from ..dialects.support.calls import main_function
from ..dialects.support.locations import location_text
from ..dialects.support.printing import quantity
from ..errors import CompileError
from ..frontend.api import CompiledFunction
from ..frontend.bench import Subject
from ..frontend.capture.arrays import describe_tensor
from ..frontend.capture.captured_program import CapturedProgram
from ..frontend.capture.eager_fallback import Fallback, FallbackWarning
from ..frontend.capture.export import capture
from ..frontend.comparison import compare, tolerances
from ..frontend.compilation import Compilation, compile_captured, fullest_step
from ..frontend.executors import Executor, lower_for, make_executor
from ..frontend.kernels import Kernel, kernels_of
from ..frontend.machine_code import MachineCode, longest_kernels
from ..passes.analysis.host_memory import MEMORY_LIMIT, limit_of
from ..passes.pass_manager import Observer, PrintChanges
from ..passes.planning.choose import Candidate, rank
from ..passes.planning.nest_info import NestInfo
from ..progress import steps
from ..target.attribute import on_cores
from . import terminal
from .evaluate import Program, evaluate, load_file, read_dynamic
from .modes import program_of
from .tables import fusion_tables, si


@dataclass
class Loaded:
    """A captured and compiled program of the user, with its Python function and inputs."""

    program: Program
    captured: CapturedProgram
    compilation: Compilation
    options: dict[str, Any]

    def to(self, target: str) -> Loaded:
        """Returns the same program for another target, with the same options."""
        return self.of(compile_captured(self.captured, target, **{**self.options, "machine": None}))

    def of(self, compilation: Compilation) -> Loaded:
        """Returns the same program with another compilation."""
        return replace(self, compilation=compilation)

    def with_options(self, **options: Any) -> Loaded:
        """Returns the same program with some options of `compile_captured` replaced."""
        changed = {**self.options, **options}
        compilation = compile_captured(self.captured, self.compilation.target, **changed)
        return Loaded(self.program, self.captured, compilation, changed)

    @cached_property
    def kernels(self) -> list[Kernel]:
        """Kernels with their work and predicted times."""
        return kernels_of(self.compilation)

    @cached_property
    def machine_code(self) -> MachineCode:
        """Machine code of the longest kernels."""
        return longest_kernels(self.compilation, self.kernels)

    @property
    def compiled(self) -> CompiledFunction:
        return CompiledFunction(self.captured, self.compilation)

    @property
    def subject(self) -> Subject:
        return Subject(self.program.function, self.program.args, self.program.kwargs)


def load(
    file: str | None,
    code: str | None,
    target: str,
    seed: int = 0,
    *,
    fallback: Fallback = None,
    dynamic: Sequence[str] = (),
    diffs_to: Callable[[str], object] | None = None,
    observers: Sequence[Observer] = (),
    **options: Any,
) -> Loaded:
    """Returns the program of a file or of `-c`, evaluated with a seed and captured.

    Args:
        file: a Python file, or None.
        code: the argument of `-c`, or None.
        target: name of the target.
        seed: seed of random inputs and parameters.
        fallback: as for `compile`, without a warning.
        dynamic: sizes that vary (`read_dynamic`).
        diffs_to: stream for a diff of every pass that changes the IR.
        observers: observers of all passes.
        options: options of `compile_captured`.
    """
    if (file is None) == (code is None):
        raise CompileError("give either -c EXPRESSION or a FILE.py")
    torch.manual_seed(seed)
    program = evaluate(code) if code is not None else program_of(str(file)) or load_file(str(file))
    with warnings.catch_warnings(), steps("capturing"):
        warnings.simplefilter("ignore", FallbackWarning)
        captured = capture(
            program.function,
            program.args,
            program.kwargs,
            names=program.names,
            place=program.place,
            fallback=fallback,
            dynamic_shapes=read_dynamic(dynamic, program) or program.dynamic_shapes,
        )
    if not captured.updates and all(o.kind == "constant" for o in captured.outputs):
        where = None if program.place is None else f"{program.place[0]}:{program.place[1]}"
        raise CompileError("nothing is computed: the program gives no tensor", location=where)
    looking = [*observers] if diffs_to is None else [*observers, _Diffs(diffs_to)]
    return Loaded(program, captured, compile_captured(captured, target, observers=looking, **options), options)


class _Diffs(PrintChanges):
    """Prints a diff for each pass that changes the IR, without the final count of `PrintChanges`."""

    def finish(self, module: Any) -> None:
        self._text = None


def fusion_explained(loaded: Loaded) -> dict[str, Any]:
    """Returns the fusion plan of a program with the price of each cut as JSON (`FusionPrices`)."""
    from ..frontend.tuning.fusion_space import fusion_prices

    prices, target = fusion_prices(loaded.compilation), loaded.compilation.resolved
    return {"target": target.arch, "card": target.card, "fusion": None if prices is None else asdict(prices)}


def fusion_text(loaded: Loaded, width: int | None) -> str:
    """Returns the fusion plan of a program with the price of each cut as text for terminals with `width` columns."""
    from ..frontend.tuning.fusion_space import fusion_head, fusion_prices

    functions = [f for f in loaded.compilation.at("tensor").body.block.ops if isinstance(f, BuiltinFuncOp)]
    names = [f"@{f.sym_name.data}" for f in functions if f.sym_name.data != "main" and not f.is_declaration]
    note = (
        f"{', '.join(names)}: the planner fuses repeated layers; --schedule sets the roots of @main\n" if names else ""
    )
    if (prices := fusion_prices(loaded.compilation)) is None:
        return f"fusion: no value of @main may be materialised or computed again\n{note}"
    target = loaded.compilation.resolved
    head = f"{fusion_head(prices)} for {target.arch} ({target.card}); names as in --ir tensor"
    return terminal.fitted(f"{head}\n  --schedule '{prices.schedule}'\n", width) + fusion_tables(prices, width) + note


def explained(loaded: Loaded) -> dict[str, Any]:
    """Returns the schedules that the planner considered as JSON."""
    from ..frontend.explanation import planned_nests, precision_of

    target, precision = loaded.compilation.resolved, precision_of(loaded.compilation)

    def candidate(c: Candidate) -> dict[str, Any]:
        if (p := c.prediction) is None:
            return {"schedule": str(c.schedule), "refused": c.refused}
        facts = {"seconds": p.seconds, "limit": p.limit, "blocks": p.blocks, "registers": p.registers}
        return {"schedule": str(c.schedule), "cost": c.cost, **facts}

    kernels = [
        {
            "name": name,
            "location": location_text(nest),
            "sizes": [str(n) for n in nest.sizes],
            "candidates": [candidate(c) for c in rank(NestInfo(nest), target, precision)],
        }
        for name, nest in planned_nests(loaded.compilation)
    ]
    return {"target": target.arch, "card": target.card, "kernels": kernels}


def summary(loaded: Loaded, whole: bool = True) -> str:
    """Returns the kernels with bytes, FLOPs and machine code, and the remarks and times of passes.

    Args:
        loaded: the program.
        whole: whether to name the passes and to list the hot loops.
    """
    compilation = loaded.compilation
    lines = [f"pipeline: {compilation.pipeline()}"] if whole else []
    code = loaded.machine_code
    for k in loaded.kernels:
        grid = f"{quantity(k.blocks, 'block')} of {quantity(k.threads, 'thread')}, {k.shared_bytes} B shared"
        grid = quantity(k.blocks, "task") if on_cores(compilation.target) else grid
        times = f", launched {k.launches} times" if k.launches > 1 else ""
        work = f"{si(k.work.bytes)}B, {si(k.work.flops)}FLOP, predicted {k.predicted * 1e6:.1f} us{times}"
        lines.append(f"kernel {k.name}: {grid}, {work}")
        if (compiled := code.kernels.get(k.name)) is not None:
            lines += [f"  {line}" for line in [*compiled.described(), *(compiled.hot_lines() if whole else [])]]
    lines += code.described()
    lines += [str(call) for call in compilation.eager.values()]
    if (memory := memory_of(loaded)) is not None:
        arguments, results, arena = (f"{si(memory[part])}B" for part in ("arguments", "results", "arena"))
        lines.append(f"memory: {arguments} of arguments, {results} of results, {arena} in between{_eager(memory)}")
    functions = [op for op in compilation.at("kernel").walk() if isinstance(op, FuncOp)]
    symbols = symbols_of([a.type for f in functions for a in f.body.block.args])
    if assumed := ", ".join(f"{s} = {typical(s)}" for s in symbols):
        lines.append(f"bytes, FLOPs and times are those at {assumed}")
    lines += [str(r) for r in compilation.remarks]
    lines += [f"skipped: {name}: {why}" for name, why in compilation.skipped if whole]
    lines.append(f"passes: {len(compilation.seconds)}, {sum(s for _, s in compilation.seconds):.3f} s")
    return "".join(f"{line}\n" for line in lines)


def memory_of(loaded: Loaded) -> dict[str, Any] | None:
    """Returns the memory of a call in bytes, or None if it depends on dynamic sizes.

    Returns:
        `arguments`; `results` that are not arguments; `arena`: intermediate buffers; `largest`: the largest buffer
        of the launch with most memory; `eager`: bytes that eager PyTorch needs in addition to the arguments, if known;
        `limit`: largest allowed memory.
    """
    plan = make_plan(loaded.compilation.at("kernel"))
    if plan.program is not None:
        return None
    arguments = sum(b.bytes for b in plan.input_buffers)
    bytes_by_part = {"arguments": arguments, "results": plan.peak_bytes - plan.call_bytes, "arena": plan.call_bytes}
    _, largest = fullest_step(plan)
    shown = largest and {"type": f"{largest.dtype}{list(largest.shape)}", "step": largest.first}
    eager = limit_of(main_function(loaded.captured.module), MEMORY_LIMIT)
    return {**bytes_by_part, "largest": shown, "eager": eager, "limit": loaded.compilation.most_bytes}


def _eager(memory: dict[str, Any]) -> str:
    """Returns a comparison with the memory of eager PyTorch, and the launch with most memory if we need more."""
    eager, ours, largest = memory["eager"], memory["results"] + memory["arena"], memory["largest"]
    if eager is None:
        return ""
    text = f"; eager PyTorch takes {si(eager)}B of results and intermediates"
    if memory["limit"] > eager:
        text += f", and up to {si(memory['limit'] - eager)}B besides for sums"
    if ours > eager:
        step = f": step {largest['step']} writes {largest['type']}" if largest else ""
        text += f", {si(ours - eager)}B less{step}"
    return text


def level_text(compilation: Compilation, level: str, output: str | None, helpers: bool | None) -> tuple[str, str]:
    """Returns the text of a level and its kind for `terminal.write`.

    Args:
        compilation: program whose level is printed.
        level: name of the level.
        output: file that the text is for, or None.
        helpers: whether a text of C++ keeps the helper functions; None keeps them in files and pipes.
    """
    places = terminal.is_kept(output)
    text = compilation.text(level, places)
    if level in MACHINE_CODE:
        return text, level
    if level not in ("cuda", "cpp"):
        return text if places else terminal.fitted(text, terminal.width_of(sys.stdout), signs="+-"), "mlir"
    return text if (places if helpers is None else helpers) else fold_sections(text), "cuda"


def as_json(loaded: Loaded, level: str, places: bool = False, machine: bool = False) -> dict[str, Any]:
    """Returns a level of the program with a summary, as data for JSON.

    Args:
        loaded: the program.
        level: name of the level.
        places: whether the text has locations.
        machine: whether the facts include the machine code.
    """
    compilation = loaded.compilation
    return {
        "target": compilation.target,
        "pipeline": compilation.pipeline(),
        "level": level,
        "text": compilation.text(level, places),
        "kernels": [
            {
                **{name: getattr(k, name) for name in ("name", "launches", "blocks", "threads", "shared_bytes")},
                "bytes": k.work.bytes,
                "flops": k.work.flops,
                "predicted_seconds": k.predicted,
            }
            for k in loaded.kernels
        ],
        "memory": memory_of(loaded),
        "remarks": [str(r) for r in compilation.remarks],
        "left_to_pytorch": [str(call) for call in compilation.eager.values()],
        **({"machine_code": loaded.machine_code.facts()} if machine else {}),
    }


def run(loaded: Loaded, executor: str) -> dict[str, Any]:
    """Runs the program and PyTorch on the same inputs. Returns the data of `outcome_of`."""
    program, captured, compilation = loaded.program, loaded.captured, loaded.compilation
    lower_for(executor, compilation)  # Refuses the program before PyTorch runs it.

    def expected() -> list[torch.Tensor]:
        with torch.no_grad():
            return captured.flatten(program.call_peer())

    arguments = captured.bind(program.args, program.kwargs)
    shown = sorted({o.index for o in captured.outputs if o.kind == "result"})
    judge = "PyTorch draws other numbers" if captured.draws else expected
    return outcome_of(CompiledFunction(captured, compilation, executor), arguments, judge, shown, program.peer)


def outcome_of(
    program: CompiledFunction,
    arguments: Sequence[torch.Tensor],
    expected: Callable[[], Sequence[torch.Tensor]] | str,
    shown: Sequence[int] | None = None,
    peer: str = "PyTorch",
) -> dict[str, Any]:
    """Runs a program and compares its results with the expected ones. Returns data for `outcome_text`.

    Args:
        program: the program.
        arguments: the arguments of `@main`.
        expected: function that returns the results of PyTorch. It is called after the program, because it may change
            the arguments. A text is the reason why PyTorch cannot be compared; the reference is used then.
        shown: indices of the compared results; default: all.
        peer: name of the system whose results `expected` returns.
    """
    captured, compilation, executor = program.captured, program.compilation, program.executor
    changed = {argument for _, argument in captured.updates}
    actual = executor.run([a.clone() if i in changed else a for i, a in enumerate(arguments)])
    shown = range(len(actual)) if shown is None else shown
    results = [actual[i] for i in shown]
    facts = execution_facts(compilation, executor)
    if isinstance(expected, str) and executor.name == "reference":
        note = f"nothing was compared: {expected}, and this is the reference;"
        note += " --executor emulator or simulator compares with it"
        unknown = {"error": None, "tolerance": None, "ok": None, "reason": ""}
        rows = [{"type": describe_tensor(t), **unknown} for t in results]
        return {**facts, "compared_with": None, "results": rows, "ok": None, "note": note}
    if isinstance(expected, str):
        against = f"the reference, because {expected}"
        reference = make_executor("reference", compilation).run(arguments)
        right = [reference[i] for i in shown]
    else:
        against, right = peer, expected()
    return {**facts, "compared_with": against, **compared(compilation, executor, arguments, results, right, shown)}


def execution_facts(compilation: Compilation, executor: Executor) -> dict[str, Any]:
    """Returns the executor of a program, the level that it reads and the number of kernels, as data for `outcome_text`.

    The number is None if the executor reads a level above kernels.
    """
    kernels = len(make_plan(compilation.at("kernel")).launches) if executor.level == "kernel" else None
    return {"executor": executor.name, "why": executor.why, "level": executor.level, "kernels": kernels}


def compared(
    compilation: Compilation,
    executor: Executor,
    arguments: Sequence[torch.Tensor],
    results: Sequence[torch.Tensor],
    right: Sequence[torch.Tensor],
    shown: Sequence[int],
) -> dict[str, Any]:
    """Returns the differences of results to the expected ones, as parts of the data for `outcome_text`.

    Args:
        compilation: the program.
        executor: its executor.
        arguments: the arguments of `@main`.
        results: its results.
        right: the expected results.
        shown: numbers of the results of `@main` that they are.
    """
    tensors = compilation.at("tensor")
    sizes = bind_sizes(main_function(tensors), [t.shape for t in arguments])
    allowed = tolerances(tensors, sizes, operand_roundoff(compilation.at(executor.level)))
    differences = compare(results, right, [allowed[i] for i in shown])
    # JSON cannot represent infinity.
    rows = [{**asdict(d), "error": d.error if math.isfinite(d.error) else None, "ok": d.ok} for d in differences]
    return {"results": rows, "ok": all(d.ok for d in differences)}


def print_outcomes(outcomes: dict[str, dict[str, Any]], as_json: bool) -> None:
    """Prints comparisons of results with the expected ones (`outcome_of`) as text or JSON.

    Args:
        outcomes: comparison by program name; the name of a single one may be empty.
        as_json: whether to print JSON.

    Raises:
        SystemExit: with the code 1 if a result is wrong.
    """
    if as_json:
        click.echo(json.dumps(outcomes.get("", outcomes), indent=1, allow_nan=False))
    else:
        for name, outcome in outcomes.items():
            text = f"{name}: {outcome_text(outcome)}\n" if name else f"{outcome_text(outcome)}\n"
            terminal.write(terminal.fitted(text, terminal.width_of(sys.stdout)), "outcome", sys.stdout)
    if any(o["ok"] is False for o in outcomes.values()):
        raise SystemExit(1)


def outcome_text(outcome: dict[str, Any]) -> str:
    """Returns an outcome of `outcome_of` as text."""
    kernels = outcome["kernels"]
    executed = f"the {outcome['level']} level" if kernels is None else quantity(kernels, "kernel")
    lines = [f"executor: {outcome['executor']} ({outcome['why']}), {executed}"]
    if outcome["compared_with"] is None:
        lines += [f"result {i}: {r['type']}  not compared" for i, r in enumerate(outcome["results"])]
        return "\n".join([*lines, outcome["note"]])
    if edited := outcome.get("edited"):
        kernels = ", ".join(edited["kernels"])
        changes = f"{kernels} in place of the printed text" if kernels else "equal to the printed text"
        lines.append(f"{edited['file']}: {changes}")
    lines.append(f"compared with {outcome['compared_with']}")
    for i, r in enumerate(outcome["results"]):
        wrong = ": ".join(filter(None, ["WRONG", r["reason"], r.get("where")]))
        verdict = "ok" if r["ok"] else wrong
        error = "infinite" if r["error"] is None else f"{r['error']:.2e}"
        lines.append(f"result {i}: {r['type']}  error {error}  tolerance {r['tolerance']:.2e}  {verdict}")
    if edited and outcome["ok"] is False:
        if not edited["printed_ok"]:
            lines.append("the printed text gives a wrong result, too")
        lines += [
            f"{place}: {name} gives a wrong result, the printed text a right one"
            for name, place in edited["wrong"].items()
        ]
    return "\n".join(lines)
