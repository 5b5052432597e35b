"""What the `deplodock` command does and prints, apart from its options: programs, summaries, comparisons, timings."""

from __future__ import annotations

import math
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ..backend.check_each import factor_roundoff
from ..backend.cpp.program import folded
from ..backend.host.launch_plan import make_plan
from ..backend.interpreter.running import main_function
from ..dialects.loop import NestOp
from ..dialects.shapes.binding import bind_sizes
from ..dialects.support.locations import location_text
from ..dialects.support.printing import quantity
from ..errors import CompileError
from ..frontend.api import CompiledFunction
from ..frontend.bench import Subject
from ..frontend.capture.captured_program import CapturedProgram
from ..frontend.capture.eager_fallback import Fallback, FallbackWarning
from ..frontend.capture.export import capture
from ..frontend.comparison import compare, describe_tensor, tolerances
from ..frontend.compilation import Compilation, compile_captured
from ..frontend.executors import make_executor
from ..frontend.memory import fullest_step
from ..frontend.profile import kernels_of
from ..passes.analysis.host_memory import MEMORY_LIMIT, limit_of
from ..passes.pass_manager import Observer, PrintChanges
from ..passes.planning.choose import Candidate, explain_nest, rank
from ..passes.planning.nest_info import NestInfo
from ..progress import counted, steps
from ..target.architectures import on_cores
from ..target.model import Target
from . import terminal
from .evaluate import Program, evaluate, load_file, read_dynamic
from .tables import si


@dataclass
class Loaded:
    """A program that the user named: the Python callable with its inputs, captured, on its way down."""

    program: Program
    captured: CapturedProgram
    compilation: Compilation
    options: dict[str, Any]

    def to(self, target: str) -> Loaded:
        """The same program on its way to another target, with the same options."""
        compilation = compile_captured(self.captured, target, **{**self.options, "machine": None})
        return Loaded(self.program, self.captured, compilation, self.options)

    @property
    def compiled(self) -> CompiledFunction:
        """What runs it here."""
        return CompiledFunction(self.captured, self.compilation)

    @property
    def subject(self) -> Subject:
        """What PyTorch runs."""
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
    """Evaluate, seeded, what `-c` or the file says and capture it; `fallback` as for `compile`, without a warning.

    `dynamic` says which sizes vary (`read_dynamic`); `diffs_to` gets every pass that changes the IR,
    `observers` look on at all; `options` are those of `compile_captured`.
    """
    if (file is None) == (code is None):
        raise CompileError("give either -c EXPRESSION or a FILE.py")
    torch.manual_seed(seed)
    program = evaluate(code) if code is not None else load_file(str(file))
    with warnings.catch_warnings(), steps("capturing"):
        warnings.simplefilter("ignore", FallbackWarning)
        captured = capture(
            program.function,
            program.args,
            program.kwargs,
            names=program.names,
            place=program.place,
            fallback=fallback,
            dynamic_shapes=read_dynamic(dynamic, program),
        )
    if not captured.updates and all(o.kind == "constant" for o in captured.outputs):
        where = None if program.place is None else f"{program.place[0]}:{program.place[1]}"
        raise CompileError("nothing is computed: the program gives no tensor", location=where)
    looking = [*observers] if diffs_to is None else [*observers, _Diffs(diffs_to)]
    return Loaded(program, captured, compile_captured(captured, target, observers=looking, **options), options)


class _Diffs(PrintChanges):
    """The diffs without a count after every group of passes."""

    def finish(self, module: Any) -> None:
        self._text = None


def kernels(loaded: Loaded) -> list[dict[str, Any]]:
    """Every kernel with its launch, how often it is launched, and its least work, under its name in the CUDA."""
    return [
        {
            "name": k.name,
            "launches": k.launches,
            "blocks": k.blocks,
            "threads": k.threads,
            "shared_bytes": k.shared_bytes,
            "bytes": k.work.bytes,
            "flops": k.work.flops,
            "predicted_seconds": k.predicted,
        }
        for k in kernels_of(loaded.compilation)
    ]


def explain(loaded: Loaded) -> str:
    """Returns the plans of fusion and the schedules that the planner considered, the fastest first, as text."""
    from ..frontend.tuning.fusion_space import explain_fusion

    target, precision = _planned_for(loaded)
    fusion = explain_fusion(loaded.compilation)
    return (
        fusion
        + ("\n" if fusion else "")
        + "\n".join(explain_nest(name, nest, target, precision=precision) for name, nest in _nests(loaded))
    )


def explained(loaded: Loaded) -> dict[str, Any]:
    """The same for programs to read."""
    target, precision = _planned_for(loaded)
    kernels = [
        {
            "name": name,
            "location": location_text(nest),
            "sizes": [str(n) for n in nest.sizes],
            "candidates": [_candidate(c) for c in rank(NestInfo(nest), target, precision)],
        }
        for name, nest in _nests(loaded)
    ]
    return {"target": target.arch, "card": target.card, "kernels": kernels}


def _planned_for(loaded: Loaded) -> tuple[Target, str]:
    return loaded.compilation.resolved, loaded.compilation.f32_matmul_precision or "ieee"


def _nests(loaded: Loaded) -> Iterator[tuple[str, NestOp]]:
    """The nests of a program with the names of their kernels."""
    nests = [op for op in loaded.compilation.at("loop").walk() if isinstance(op, NestOp)]
    return ((f"k{i}", nest) for i, nest in enumerate(counted("scheduling", nests, "kernels")))


def _candidate(c: Candidate) -> dict[str, Any]:
    schedule, p = str(c.schedule), c.prediction
    if p is None:
        return {"schedule": schedule, "refused": c.refused}
    facts = {"schedule": schedule, "cost": c.cost, "seconds": p.seconds, "limit": p.limit}
    return {**facts, "blocks": p.blocks, "registers": p.registers}


def summary(loaded: Loaded, whole: bool = True) -> str:
    """The kernels with bytes and FLOPs, what passes declined, the time the passes took, and if it is to be the `whole`
    also every pass by its name."""
    compilation = loaded.compilation
    lines = [f"pipeline: {compilation.pipeline()}"] if whole else []
    for k in kernels(loaded):
        lines.append(
            f"kernel {k['name']}: {_grid(k, compilation.target)}, {si(k['bytes'])}B, {si(k['flops'])}FLOP"
            f", predicted {k['predicted_seconds'] * 1e6:.1f} us"
            + (f", launched {k['launches']} times" if k["launches"] > 1 else "")
        )
    lines += [str(call) for call in compilation.eager.values()]
    if (memory := memory_of(loaded)) is not None:
        arguments, results, arena = (f"{si(memory[part])}B" for part in ("arguments", "results", "arena"))
        lines.append(f"memory: {arguments} of arguments, {results} of results, {arena} in between{_beside(memory)}")
    if assumed := _assumed(loaded):
        lines.append(f"bytes, FLOPs and times are those at {assumed}")
    lines += [str(r) for r in compilation.remarks]
    lines += [f"skipped: {name}: {why}" for name, why in compilation.skipped if whole]
    lines.append(f"passes: {len(compilation.seconds)}, {sum(s for _, s in compilation.seconds):.3f} s")
    return "".join(f"{line}\n" for line in lines)


def _grid(kernel: dict[str, Any], target: str) -> str:
    """Returns the parallel work of a kernel, in words of the target."""
    if on_cores(target):
        return quantity(kernel["blocks"], "task")
    threads = quantity(kernel["threads"], "thread")
    return f"{quantity(kernel['blocks'], 'block')} of {threads}, {kernel['shared_bytes']} B shared"


def memory_of(loaded: Loaded) -> dict[str, Any] | None:
    """Bytes of the arguments of a call, of its results that are no arguments, and of the arena of all that lies in
    between, with the `largest` of its fullest step; and what eager PyTorch takes at most beside the arguments, if that
    can be told, and how much ours may: its `limit`. None where sizes are known only at a call."""
    plan = make_plan(loaded.compilation.at("kernel"))
    if plan.program is not None:
        return None
    arguments = sum(b.bytes for b in plan.input_buffers)
    found = {"arguments": arguments, "results": plan.peak_bytes - plan.call_bytes, "arena": plan.call_bytes}
    _, largest = fullest_step(plan)
    shown = largest and {"type": f"{largest.dtype}{list(largest.shape)}", "step": largest.first}
    eager = limit_of(main_function(loaded.captured.module), MEMORY_LIMIT)
    return {**found, "largest": shown, "eager": eager, "limit": loaded.compilation.most_bytes}


def _beside(memory: dict[str, Any]) -> str:
    """What eager PyTorch takes, and what ours takes more for."""
    eager, ours = memory["eager"], memory["results"] + memory["arena"]
    if eager is None:
        return ""
    text = f"; eager PyTorch takes {si(eager)}B of results and in between"
    if memory["limit"] > eager:
        text += f", and up to {si(memory['limit'] - eager)}B besides for sums"
    if ours > eager:
        largest = memory["largest"]
        text += f", {si(ours - eager)}B less" + (
            f": step {largest['step']} writes {largest['type']}" if largest else ""
        )
    return text


def _assumed(loaded: Loaded) -> str:
    """The values that estimates take for sizes known only at run time: `batch = 512`."""
    from ..dialects.kernel import FuncOp
    from ..dialects.shapes.binding import symbols_of
    from ..dialects.shapes.extents import typical

    functions = [op for op in loaded.compilation.at("kernel").walk() if isinstance(op, FuncOp)]
    symbols = symbols_of([a.type for f in functions for a in f.body.block.args])
    return ", ".join(f"{s} = {typical(s)}" for s in symbols)


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
    if level not in ("cuda", "cpp"):
        return text if places else terminal.fitted(text, terminal.width_of(sys.stdout), signs="+-"), "mlir"
    return text if (places if helpers is None else helpers) else folded(text), "cuda"


def as_json(loaded: Loaded, level: str, places: bool = False) -> dict[str, Any]:
    """The program at `level` and what `summary` says, for other programs to read."""
    compilation = loaded.compilation
    return {
        "target": compilation.target,
        "pipeline": compilation.pipeline(),
        "level": level,
        "text": compilation.text(level, places),
        "kernels": kernels(loaded),
        "memory": memory_of(loaded),
        "remarks": [str(r) for r in compilation.remarks],
        "left_to_pytorch": [str(call) for call in compilation.eager.values()],
    }


def run(loaded: Loaded, executor: str) -> dict[str, Any]:
    """Runs the program and PyTorch on the same inputs; returns `outcome_of` them."""
    program, captured, compilation = loaded.program, loaded.captured, loaded.compilation
    compilation.at("kernel")

    def expected() -> list[torch.Tensor]:
        with torch.no_grad():
            return captured.flatten(program.function(*program.args, **program.kwargs))

    arguments = captured.bind(program.args, program.kwargs)
    shown = sorted({o.index for o in captured.outputs if o.kind == "result"})
    judge = "PyTorch draws other numbers" if captured.draws else expected
    return outcome_of(CompiledFunction(captured, compilation, executor), arguments, judge, shown)


def outcome_of(
    program: CompiledFunction,
    arguments: Sequence[torch.Tensor],
    expected: Callable[[], Sequence[torch.Tensor]] | str,
    shown: Sequence[int] | None = None,
) -> dict[str, Any]:
    """Runs a program and returns its results beside the expected ones, for `outcome_text`.

    Args:
        program: the program.
        arguments: the arguments of `@main`.
        expected: the results of PyTorch, called after the program ran, because it may change the arguments. A text is
            the reason for which there are none: then the results of the reference are the expected ones.
        shown: the results that are compared; left out, all.
    """
    captured, compilation, executor = program.captured, program.compilation, program.executor
    changed = {argument for _, argument in captured.updates}
    actual = executor.run([a.clone() if i in changed else a for i, a in enumerate(arguments)])
    shown = range(len(actual)) if shown is None else shown
    results = [actual[i] for i in shown]
    module = compilation.at("kernel")
    facts = {"executor": executor.name, "why": executor.why, "kernels": len(make_plan(module).launches)}
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
        against, right = "PyTorch", expected()
    tensors = compilation.at("tensor")
    sizes = bind_sizes(main_function(tensors), [t.shape for t in arguments])
    allowed = tolerances(tensors, sizes, factor_roundoff(module))
    differences = compare(results, right, [allowed[i] for i in shown])
    rows = [
        {
            "type": d.type,
            "error": d.error if math.isfinite(d.error) else None,  # JSON has no infinity
            "tolerance": d.tolerance,
            "ok": d.ok,
            "reason": d.reason,
        }
        for d in differences
    ]
    return {**facts, "compared_with": against, "results": rows, "ok": all(d.ok for d in differences)}


def outcome_text(outcome: dict[str, Any]) -> str:
    """What `run` found, for people."""
    lines = [f"executor: {outcome['executor']} ({outcome['why']}), {quantity(outcome['kernels'], 'kernel')}"]
    if outcome["compared_with"] is None:
        lines += [f"result {i}: {r['type']}  not compared" for i, r in enumerate(outcome["results"])]
        return "\n".join([*lines, outcome["note"]])
    lines.append(f"compared with {outcome['compared_with']}")
    for i, r in enumerate(outcome["results"]):
        verdict = "ok" if r["ok"] else f"WRONG {r['reason']}".rstrip()
        error = "infinite" if r["error"] is None else f"{r['error']:.2e}"
        lines.append(f"result {i}: {r['type']}  error {error}  tolerance {r['tolerance']:.2e}  {verdict}")
    return "\n".join(lines)
